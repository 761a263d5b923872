"""Promises over every kind of GPU, and the cost of keeping them.

Rounds are played until the extender has placed a given number of pods. In each round every kind is
played twice, with everyday faults only and with rare faults, too. In one more play the rule "a good
set is free" places whole GPUs. :func:`counted` lists the figures.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any

from rich.table import Table

from benchmarks.output import table_of
from benchmarks.promises.plays import Play, play
from scheduler_extender.simulator.faults import RARE_FAULTS
from scheduler_extender.simulator.node import LOST_CLAIM
from scheduler_extender.simulator.scene import Tally


def _play(
    pods: int, nodes: str, workload: str, rate: float, seed: int, *, dra: float = 0.0
) -> Play:
    return Play("extender", pods, seed, nodes, workload, rate, foreign=0.0, restarts=1, dra=dra)


WHOLE = "whole GPUs"
# The play of each kind in the first round. Later rounds have higher seeds. A round places about
# 20,000 pods, including the plays with rare faults.
KINDS = {
    WHOLE: _play(2400, "mixed", "everything", 0.8, 9),
    "groups and gangs": _play(2400, "racks", "groups", 0.5, 1),
    "groups and gangs, crowded": _play(2400, "racks", "groups", 0.9, 2),
    "MIG, one profile": _play(1500, "sliced", "slices", 1.2, 3),
    "MIG, several profiles": _play(400, "profiles", "slices", 0.5, 4),
    "shares of GPUs": _play(250, "shared", "everything", 0.8, 5),
    "memory of shared GPUs": _play(250, "memory", "shares", 1.5, 6),
    "half of the nodes with DRA": _play(1500, "mixed", "everything", 0.8, 7, dra=0.5),
    "groups and gangs, half with DRA": _play(400, "racks", "groups", 0.4, 8, dra=0.5),
}
SEEDS = 10  # from a round's seed to the next
PLACED_IN_A_ROUND = 20_000
WITH_FAULTS = ", rare faults"
RULE = "whole GPUs, by the rule"
COLUMNS = (
    *("placed", "guaranteed", "expected", "broken", "memory exceeded", "groups split"),
    *("gang binds rejected", "claim binds rejected", "required placed", "complete groups"),
)


def parts(
    number: int, seed: int, scale: float, kinds: Mapping[str, Play] = KINDS
) -> Iterator[tuple[str, Play]]:
    """Yield the plays of a round, each with its row of the table. ``scale`` shortens them."""
    for name, kind in kinds.items():
        pods = max(10, int(kind.pods * scale))
        first = replace(kind, pods=pods, seed=kind.seed + seed + SEEDS * number)
        yield name, first
        yield name + WITH_FAULTS, replace(first, faults=RARE_FAULTS)
        if name == WHOLE:
            yield RULE, replace(first, policy="good set free")


def by_kind(
    placements: int, seed: int, workers: int, kinds: Mapping[str, Play] = KINDS
) -> Iterator[dict[str, Any]]:
    """Yield the figures after each play, until the extender has placed ``placements`` pods."""
    scale = min(1.0, placements / PLACED_IN_A_ROUND)
    rows = {name: counted(Tally()) for name, _ in parts(0, seed, scale, kinds)}
    with ProcessPoolExecutor(workers) as pool:
        for number in count():
            names, plays = zip(*parts(number, seed, scale, kinds), strict=True)
            for name, tally in zip(names, pool.map(play, plays), strict=True):
                rows[name].update(counted(tally))
                yield {"placements": placements, "seed": seed, "rounds": number + 1, "rows": rows}
            if everything(rows)["placed"] >= placements:
                return


def counted(tally: Tally) -> Counter[str]:
    """Return the figures that one play adds to its row."""
    return Counter(
        placed=tally.placed,
        required=tally.required,  # pods with constraints
        required_placed=tally.required_placed,
        guaranteed=tally.promised["guaranteed"],  # promises
        expected=tally.promised["expected"],
        guaranteed_broken=tally.broken["guaranteed"],
        expected_broken=tally.broken["expected"],
        # Broken after an event on the node that no report could have shown.
        unacknowledged=tally.unacknowledged.total(),
        # Admissions after which a shared GPU's pods use more than its memory.
        memory_exceeded=tally.overcommitted,
        group_members=tally.group_members,  # bound members
        whole_groups=tally.whole_groups,  # groups whose members all lived at one time
        split_groups=tally.split_groups,  # members outside their group's domain
        gang_binds=tally.gang_binds,
        gang_refusals=tally.gang_refusals,  # because something changed after filter
        claimed=tally.claimed,  # binds of pods with a claim on a node with DRA
        vetoes=tally.vetoes,  # of these, refused because of the claim's devices
        claims_lost=tally.kubelet_refusals[LOST_CLAIM],  # pods bound without one never start
        # Sets of GPUs that verification did not find among the outcomes.
        mispredicted=tally.mispredictions["outside-outcomes"],
        faults=len(tally.faults),  # nodes on which a decision failed
    )


# These figures have to be zero in every play of the extender.
NEVER = ("guaranteed_broken", "memory_exceeded", "split_groups", "mispredicted", "faults")


def everything(rows: Mapping[str, Counter[str]]) -> Counter[str]:
    """Return the sum of the extender's rows."""
    return sum((row for name, row in rows.items() if name != RULE), Counter[str]())


def kept(row: Mapping[str, int]) -> bool:
    """Check whether all figures of :data:`NEVER` are zero."""
    return not any(row[name] for name in NEVER)


def by_kind_table(found: dict[str, Any]) -> Table:
    """Return the figures as a table for a terminal, with the sum of the extender's rows."""
    rows = found["rows"]
    total = everything(rows)
    title = (
        f"{total['placed']:,} placements, seed {found['seed']}, rounds played: {found['rounds']}"
    )
    table = table_of(("workload",), COLUMNS, title)
    for name, row in rows.items():
        table.add_row(name, *_cells(row))
    table.add_section()
    table.add_row("total without the rule" if RULE in rows else "total", *_cells(total))
    return table


def _cells(row: Counter[str]) -> tuple[str, ...]:
    broken = f"{row['guaranteed_broken']}"
    if row["expected_broken"]:
        broken += f" (expected: {row['expected_broken']})"
    return (
        f"{row['placed']:,}",
        f"{row['guaranteed']:,}",
        f"{row['expected']:,}",
        broken,
        f"{row['memory_exceeded']}",
        f"{row['split_groups']}" if row["group_members"] else "",
        f"{row['gang_refusals']} of {row['gang_binds']:,}" if row["gang_binds"] else "",
        f"{row['vetoes']} of {row['claimed']:,}" if row["claimed"] else "",
        f"{row['required_placed']:,} of {row['required']:,}",
        f"{row['whole_groups']:,}" if row["group_members"] else "",
    )
