"""Are promises kept, what does keeping them cost, and what does placing well gain?

Two comparisons over the same jobs on the same emulated nodes:

*promises*: the extender, with what goes wrong every day; the same with what goes wrong now and then
besides (:data:`~benchmarks.promises.faults.RARE_FAULTS`); the rule "a good set is free" in its
place; and an oracle that uses the same outcome rules, knows every node at every moment, and meets
no delay at all. The oracle bounds what a promise-keeping scheduler can place.

*singles*: single-GPU pods among pairs and quads that need their links. The extender filters for
all, and who scores differs: it, or kube-scheduler's LeastAllocated or MostAllocated.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from benchmarks.output import table_of
from benchmarks.promises.faults import RARE_FAULTS
from benchmarks.promises.fleets import MIXED
from benchmarks.promises.plays import Play, play_all
from benchmarks.promises.tally import Tally

MOST_REASONS = 12
# What stands in files under another name.
NAMES = {"sickened": "gpus_sickened"}


def promises(pods: int, seed: int) -> dict[str, Any]:
    """The figures of the first comparison, with every parameter."""
    restarts = max(1, pods // 2000)
    plays = {
        "extender": Play("extender", pods, seed, restarts=restarts),
        "extender, more faults": Play(
            "extender", pods, seed, restarts=restarts, faults=RARE_FAULTS
        ),
        "good set free": Play("good set free", pods, seed),
        "oracle": Play("oracle", pods, seed),
    }
    rows = dict(zip(plays, map(_row, play_all(plays.values())), strict=True))
    return {"pods": pods, "seed": seed, "fleet": dict(MIXED), "policies": rows}


def singles(pods: int, seeds: Iterable[int]) -> dict[str, Any]:
    """The figures of the second comparison, with every parameter."""
    seeds = tuple(seeds)
    names = ("extender", "LeastAllocated", "MostAllocated")
    plays = [
        Play(name, pods, seed, workload="singles", foreign=0.0, rate=0.75)
        for name in names
        for seed in seeds
    ]
    tallies: dict[str, list[Tally]] = {name: [] for name in names}
    for what, tally in zip(plays, play_all(plays), strict=True):
        tallies[what.policy].append(tally)
    shares = {name: _shares(found) for name, found in tallies.items()}
    return {"pods": pods, "seeds": seeds, "fleet": dict(MIXED), "shares": shares}


# Kinds of pods, of each of which a share is placed at once.
KINDS = {"single": ["single"], "pair": ["pair"], "quad": ["quad"], "pair or quad": ["pair", "quad"]}


def _shares(tallies: Sequence[Tally]) -> dict[str, list[float]]:
    """The share of each kind of pod that was placed at once, 0 to 1, seed by seed."""
    return {
        name: [
            sum(tally.placed_by_kind[kind] for kind in kinds)
            / max(1, sum(tally.asked_by_kind[kind] for kind in kinds))
            for tally in tallies
        ]
        for name, kinds in KINDS.items()
    }


# What a file says of each play.
WRITTEN = (
    *("placed", "required", "required_placed", "promised", "broken", "excused", "unreported"),
    *("kubelet_refusals", "unreported_refusals", "refused_by_bind", "gave_up", "unexcused"),
    *("stale", "blind", "faults", "forced", "late_commits", "blindings", "deaths", "recreated"),
    *("foreign", "restarts", "kubelet_restarts", "sickened", "reasons"),
)


def _row(tally: Tally) -> dict[str, Any]:
    row = {name: getattr(tally, name) for name in WRITTEN}
    row["faults"] = len(tally.faults)
    row["reasons"] = dict(tally.reasons.most_common(MOST_REASONS))
    return {NAMES.get(name, name): value for name, value in row.items()}


def promises_table(found: dict[str, Any]) -> Table:
    """The first comparison for a terminal."""
    title = f"{found['pods']} pods on {sum(found['fleet'].values())} nodes"
    kept = ("placed", "with links required", "promises")
    broken = ("broken", "excused", "unreported", "refused")
    table = table_of(("who chooses nodes",), (*kept, *broken), title)
    for name, row in found["policies"].items():
        table.add_row(
            name,
            f"{row['placed']}",
            f"{row['required_placed']} of {row['required']}",
            *(
                _counts(row[what])
                for what in ("promised", "broken", "excused", "unreported", "kubelet_refusals")
            ),
        )
    return table


def reasons_table(found: dict[str, Any]) -> Table:
    """Why the extender let pods wait."""
    table = table_of(("why the extender let a pod wait",), ("tries",))
    for reason, count in Counter(found["policies"]["extender"]["reasons"]).most_common():
        table.add_row(reason, str(count))
    return table


def singles_table(found: dict[str, Any]) -> Table:
    """The second comparison for a terminal: mean over seeds, and the range."""
    title = f"{found['pods']} pods, {len(found['seeds'])} seeds: placed at once"
    table = table_of(("who scores",), (*KINDS,), title)
    for name, shares in found["shares"].items():
        table.add_row(name, *map(_mean, shares.values()))
    return table


def _mean(shares: Sequence[float]) -> str:
    mean = sum(shares) / len(shares)
    return f"{mean:.1%} ({min(shares):.1%} … {max(shares):.1%})"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "0"
