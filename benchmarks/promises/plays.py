"""Are promises kept, what does keeping them cost, and what does placing well gain?

Two comparisons over the same jobs on the same emulated nodes:

*promises*: the extender, with everything that goes wrong; the rule "a good set is free" in its
place; and an oracle that uses the same outcome rules, knows every node at every moment, and meets
no delay at all. The oracle bounds what a promise-keeping scheduler can place.

*singles*: single-GPU pods among pairs and quads that need their links. The extender filters for
all, and who scores differs: it, or kube-scheduler's LeastAllocated or MostAllocated.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from benchmarks.promises.closed_loop import ClosedLoop
from benchmarks.promises.extender import Extender
from benchmarks.promises.faults import Delays, Faults
from benchmarks.promises.policy import Policy
from benchmarks.promises.rivals import GoodSetFree, Oracle, least_allocated, most_allocated
from benchmarks.promises.tally import Tally
from benchmarks.promises.workloads import (
    CONTAINERS,
    EVERYTHING,
    MIXED,
    SINGLES,
    fleet,
    jobs,
    mixed_allocators,
)
from topology.core.devices import NodeName
from topology.core.graph import AllocatorFacts, NodeTopology

AT_ONCE = Delays(0, 0, 0, 0, 0, 0)

LINKED = ("pair", "quad")

ALIGNED = tuple(
    AllocatorFacts("best-effort", None, policy, scope, *managers)
    for policy, scope, managers in (
        ("best-effort", "container", ("none", "None")),
        ("best-effort", "container", (None, None)),
        ("restricted", "pod", ("none", "None")),
        ("single-numa-node", "container", ("none", "None")),
    )
)
"""Topology Managers of every kind."""


WORKLOADS = {
    "everything": EVERYTHING,
    "containers": CONTAINERS,
    "singles": SINGLES,
}


@dataclass(frozen=True, slots=True)
class Play:
    """One closed loop to play.

    ``nodes`` is ``mixed``, ``aligned`` or ``allocators``, ``workload`` a key of WORKLOADS, and
    ``policy`` one of those that :func:`play` names. ``runs`` is how many seconds a pod runs, on
    average.
    """

    policy: str
    pods: int
    seed: int
    nodes: str = "mixed"
    workload: str = "everything"
    rate: float = 0.8
    foreign: float = 0.02
    restarts: int = 0
    runs: float = 60.0
    faults: Faults = Faults()  # noqa: RUF009 (it is frozen)


def play(what: Play) -> Tally:
    """Play a closed loop to its end."""
    policies: dict[str, Policy] = {
        "extender": Extender(what.seed),
        "good set free": GoodSetFree(what.seed),
        "oracle": Oracle(what.seed),
        "LeastAllocated": Extender(what.seed, score=least_allocated),
        "MostAllocated": Extender(what.seed, score=most_allocated),
    }
    patience = 0.0 if what.workload == "singles" else 60.0
    work = jobs(
        what.pods,
        what.seed,
        rate=what.rate,
        templates=WORKLOADS[what.workload],
        runs=what.runs,
        foreign=what.foreign,
        patience=patience,
    )
    rng = random.Random(what.seed)
    restarts = tuple(sorted(rng.uniform(0, work[-1].arrives) for _ in range(what.restarts)))
    delays = AT_ONCE if what.policy == "oracle" else Delays()
    policy = policies[what.policy]
    loop = ClosedLoop(nodes(what.nodes), work, policy, what.seed, delays, restarts, what.faults)
    tally = loop.run()
    if isinstance(policy, Extender):
        tally.faults = policy.faults
        tally.surprises = Counter(s.kind for s in policy.surprises if not s.strangers)
    return tally


def nodes(name: str) -> list[NodeTopology]:
    """The fleets by name."""
    if name == "mixed":
        return fleet(*MIXED)
    if name == "allocators":
        return mixed_allocators()
    groups = (("dgx1-v100", 2), ("a100-pcie-4-bridged", 1), ("l40s-8", 1))
    found = []
    for i, facts in enumerate(ALIGNED):
        found += [replace(n, name=NodeName(f"{n.name}-{i}")) for n in fleet(*groups, facts=facts)]
    return found


def play_all(plays: Iterable[Play]) -> list[Tally]:
    """Play several closed loops on the cores there are."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(play, plays))


def promises(pods: int, seed: int) -> dict[str, Any]:
    """The figures of the first comparison, with every parameter."""
    plays = [
        Play("extender", pods, seed, restarts=max(1, pods // 2000)),
        Play("good set free", pods, seed),
        Play("oracle", pods, seed),
    ]
    tallies = play_all(plays)
    rows = {p.policy: figures(t) for p, t in zip(plays, tallies, strict=True)}
    return {"pods": pods, "seed": seed, "fleet": dict(MIXED), "policies": rows}


def singles(pods: int, seeds: Iterable[int]) -> dict[str, Any]:
    """The figures of the second comparison, with every parameter."""
    seeds = list(seeds)
    names = ("extender", "LeastAllocated", "MostAllocated")
    plays = [
        Play(name, pods, seed, workload="singles", foreign=0.0, rate=0.75)
        for name in names
        for seed in seeds
    ]
    rows: dict[str, Any] = {}
    for what, tally in zip(plays, play_all(plays), strict=True):
        row = rows.setdefault(what.policy, {})
        for kind in ("single", "pair", "quad"):
            share = tally.placed_by_kind[kind] / max(1, tally.asked_by_kind[kind])
            row.setdefault(kind, []).append(share)
        linked = [tally.placed_by_kind[k] for k in LINKED], [tally.asked_by_kind[k] for k in LINKED]
        row.setdefault("pair or quad", []).append(sum(linked[0]) / max(1, sum(linked[1])))
    return {"pods": pods, "seeds": seeds, "fleet": dict(MIXED), "shares": rows}


def figures(tally: Tally) -> dict[str, Any]:
    """A tally as JSON-ready figures."""
    return {
        "placed": tally.placed,
        "required": tally.required,
        "required_placed": tally.required_placed,
        "promised": dict(tally.promised),
        "broken": dict(tally.broken),
        "excused": dict(tally.excused),
        "kubelet_refusals": dict(tally.kubelet_refusals),
        "refused_by_bind": tally.refused_by_bind,
        "gave_up": tally.gave_up,
        "unseen": dict(tally.unseen),
        "stale": tally.stale,
        "blind": tally.blind,
        "faults": len(tally.faults),
        "forced": tally.forced,
        "late_commits": tally.late_commits,
        "blindings": tally.blindings,
        "deaths": tally.deaths,
        "recreated": tally.recreated,
        "foreign": tally.foreign,
        "restarts": tally.restarts,
        "reasons": dict(tally.reasons.most_common(12)),
    }


def promises_table(found: dict[str, Any]) -> Table:
    """The first comparison for a terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.title = f"{found['pods']} pods on {sum(found['fleet'].values())} nodes"
    table.add_column("who chooses nodes")
    for column in ("placed", "with links required", "promises", "broken", "excused", "refused"):
        table.add_column(column, justify="right")
    for name, row in found["policies"].items():
        table.add_row(
            name,
            f"{row['placed']}",
            f"{row['required_placed']} of {row['required']}",
            _counts(row["promised"]),
            _counts(row["broken"]),
            _counts(row["excused"]),
            _counts(row["kubelet_refusals"]),
        )
    return table


def reasons_table(found: dict[str, Any]) -> Table:
    """Why the extender let pods wait."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("why the extender let a pod wait")
    table.add_column("tries", justify="right")
    reasons = Counter(found["policies"]["extender"]["reasons"])
    for reason, count in reasons.most_common():
        table.add_row(reason, str(count))
    return table


def singles_table(found: dict[str, Any]) -> Table:
    """The second comparison for a terminal: mean over seeds, and the range."""
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.title = f"{found['pods']} pods, {len(found['seeds'])} seeds: placed at once"
    table.add_column("who scores")
    columns = ("single", "pair", "quad", "pair or quad")
    for kind in columns:
        table.add_column(kind, justify="right")
    for name, row in found["shares"].items():
        table.add_row(name, *(_mean(row[kind]) for kind in columns))
    return table


def _mean(shares: list[float]) -> str:
    mean = sum(shares) / len(shares)
    return f"{mean:.1%} ({min(shares):.1%} … {max(shares):.1%})"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "0"
