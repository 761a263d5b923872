"""Promises over every kind of GPU: shared ones, MIG instances, groups and gangs.

Rounds are played until so many pods are placed. A round has one play of each kind with the faults
of every day, an oracle's play of the same jobs beside it, and one with the rare faults besides.
What is counted is in :class:`~benchmarks.figures.promised.KindRow`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import count

from rich.table import Table

from benchmarks.figures.promised import ByKind, KindRow
from benchmarks.output import table_of
from benchmarks.promises.faults import RARE_FAULTS, Faults
from benchmarks.promises.plays import Play, play
from benchmarks.promises.tally import Tally


def _play(pods: int, nodes: str, workload: str, rate: float, seed: int) -> Play:
    return Play("extender", pods, seed, nodes, workload, rate, foreign=0.0, restarts=1)


KINDS = {
    "groups and gangs": _play(2400, "racks", "groups", 0.5, 1),
    "groups and gangs, crowded": _play(2400, "racks", "groups", 0.9, 2),
    "MIG, one profile": _play(1500, "sliced", "slices", 1.2, 3),
    "MIG, several profiles": _play(400, "profiles", "slices", 0.5, 4),
    "shares of GPUs": _play(250, "shared", "everything", 0.8, 5),
    "memory of shared GPUs": _play(250, "memory", "shares", 1.5, 6),
}
"""Each kind's play in the first round; seeds count on. About 10,000 placements in a round, with the
plays of the rare faults."""
SEEDS = 10  # from a round's seed to the next
PLACED_IN_A_ROUND = 10_000
COLUMNS = (
    *("placed", "guaranteed", "expected", "broken", "memory exceeded", "groups split"),
    *("gang binds refused", "of the oracle's, all", "required", "whole groups"),
)
WITH_FAULTS = ", rare faults"
ORACLE = "oracle"


def parts(number: int, seed: int, scale: float) -> Iterator[tuple[str, Play]]:
    """The plays of a round, each with the row that it counts in; ``scale`` shortens them."""
    for name, kind in KINDS.items():
        pods = max(10, int(kind.pods * scale))
        first = replace(kind, pods=pods, seed=kind.seed + seed + SEEDS * number)
        yield name, first
        yield name, replace(first, policy=ORACLE, restarts=0)
        yield name + WITH_FAULTS, replace(first, faults=RARE_FAULTS)


def by_kind(placements: int, seed: int, workers: int) -> Iterator[ByKind]:
    """The figures after each play, until ``placements`` pods are placed by the extender."""
    ours = {name + more: Counter[str]() for name in KINDS for more in ("", WITH_FAULTS)}
    oracles = {name: Counter[str]() for name in KINDS}
    scale = min(1.0, placements / PLACED_IN_A_ROUND)
    with ProcessPoolExecutor(workers) as pool:
        for number in count():
            names, plays = zip(*parts(number, seed, scale), strict=True)
            for name, what, found in zip(names, plays, pool.map(_counted, plays), strict=True):
                (oracles if what.policy == ORACLE else ours)[name].update(found)
                yield _figures(placements, seed, number + 1, ours, oracles)
            if sum(row["placed"] for row in ours.values()) >= placements:
                return


def _counted(what: Play) -> Counter[str]:
    return counted(play(what))


def counted(tally: Tally) -> Counter[str]:
    """What one play adds to its row."""
    refused, gangs = tally.kubelet_refusals, tally.gang_refusals
    return Counter(
        asked=tally.asked_by_kind.total(),
        placed=tally.placed,
        required=tally.required,
        required_placed=tally.required_placed,
        guaranteed=tally.promised["guaranteed"],
        expected=tally.promised["expected"],
        guaranteed_broken=tally.broken["guaranteed"],
        expected_broken=tally.broken["expected"],
        unreported=tally.unreported.total(),
        memory_exceeded=tally.overcommitted,
        memory_unreported=tally.overcommitted_unseen,
        devices_short=refused["UnexpectedAdmissionError"],
        group_members=tally.group_members,
        whole_groups=tally.whole_groups,
        split_groups=tally.split_groups,
        gang_binds=tally.gang_binds,
        gang_refusals_known=gangs["known"],
        gang_refusals_changed=gangs["changed since"],
        gang_refusals_miscounted=gangs["miscounted"],
        not_foreseen=tally.surprises["outside-outcomes"],
        faults=len(tally.faults),
    )


def _figures(
    placements: int,
    seed: int,
    rounds: int,
    ours: dict[str, Counter[str]],
    oracles: dict[str, Counter[str]],
) -> ByKind:
    return ByKind(
        placements=placements,
        seed=seed,
        rounds=rounds,
        rare_faults=_rates(RARE_FAULTS),
        rows={name: row_of(found) for name, found in ours.items()},
        oracle={name: row_of(found) for name, found in oracles.items()},
    )


def row_of(found: Counter[str]) -> KindRow:
    """The row of a sum of :func:`counted` plays."""
    return KindRow(**{name: found[name] for name in KindRow.model_fields})


def _rates(faults: Faults) -> dict[str, float]:
    """The faults whose rates are not those of a play without any."""
    names = Faults.__dataclass_fields__
    given = {name: float(getattr(faults, name)) for name in names}
    return {name: rate for name, rate in given.items() if rate != getattr(Faults(), name)}


def by_kind_table(found: ByKind) -> Table:
    """The figures for a terminal, and their sum."""
    placed = sum(row.placed for row in found.rows.values())
    title = f"{placed:,} placements, seed {found.seed}, rounds: {found.rounds}"
    table = table_of(("what is placed",), COLUMNS, title)
    for name, row in found.rows.items():
        table.add_row(*_cells(name, row), *_beside(row, found.oracle.get(name)))
    table.add_section()
    everything = row_of(_sum(found.rows.values()))
    beside = row_of(_sum(row for name, row in found.rows.items() if name in found.oracle))
    oracle = row_of(_sum(found.oracle.values()))
    table.add_row(*_cells("everything", everything), *_beside(beside, oracle))
    return table


def _sum(rows: Iterable[KindRow]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found.update(row.model_dump())
    return found


def _cells(name: str, row: KindRow) -> tuple[str, ...]:
    broken = f"{row.guaranteed_broken}"
    if row.expected_broken:
        broken += f" and {row.expected_broken} expected"
    later = row.gang_refusals_changed + row.gang_refusals_miscounted
    refused = f"{row.gang_refusals_known} known, {later} later"
    return (
        name,
        f"{row.placed:,}",
        f"{row.guaranteed:,}",
        f"{row.expected:,}",
        broken,
        f"{row.memory_exceeded}",
        f"{row.split_groups}" if row.group_members else "",
        refused if row.gang_binds else "",
    )


def _beside(row: KindRow, oracle: KindRow | None) -> tuple[str, str, str]:
    """The shares of what an oracle places; nothing where it did not play."""
    if oracle is None:
        return "", "", ""
    return (
        _share(row.placed, oracle.placed),
        _share(row.required_placed, oracle.required_placed),
        _share(row.whole_groups, oracle.whole_groups),
    )


def _share(ours: int, oracle: int) -> str:
    return f"{ours / oracle:.1%}" if oracle else ""
