"""The drawing of weakest hops: how many jobs of each size had how much bandwidth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from benchmarks.report import plots, wording
from benchmarks.report.colours import STEPS, variables
from benchmarks.report.parts import Figure, Key, Panel
from benchmarks.report.sweep.cases import Case, caption

HOPS = (10.0, 25.0, 50.0, 100.0, 200.0)
"""GB/s that part the steps of hops."""
SIZES = ((2, "2 GPUs"), (4, "3 and 4 GPUs"), (8, "5 to 8 GPUs"), (float("inf"), "more GPUs"))
"""Most GPUs of the jobs that a heading is about."""


def hops(found: Sequence[Case]) -> Figure:
    """Bars for jobs of each size, in each case."""
    panels, used = [], [False] * len(STEPS)
    for case in found:
        bars = list(_bars(case))
        for one in bars:
            for _, shares in one.shares:
                used = [old or share > 0 for old, share in zip(used, shares, strict=True)]
        if bars:
            panels.append(Panel(caption(case, found), plots.stacks(bars), _said_of(bars)))
    edges = [f"{edge:g}" for edge in HOPS]
    names = [
        f"below {edges[0]}",
        *(f"{a} to {b}" for a, b in pairwise(edges)),
        f"{edges[-1]} and more",
    ]
    keys = [
        Key(f"{name} GB/s", variables(colour))
        for name, colour, seen in zip(names, STEPS, used, strict=True)
        if seen
    ]
    text = "Of the best ring through a job’s GPUs, by how many it has. All seeds."
    return Figure("Weakest hop", text, panels, keys)


def _bars(case: Case) -> Iterator[plots.Bars]:
    least = 0.0
    for most, heading in SIZES:
        shares = []
        for policy in (row.policy for row in case.rows):
            steps = [0] * len(STEPS)
            for hop, count in _counts(case, policy, least, most):
                steps[_step(hop)] += count
            if whole := sum(steps):
                shares.append((policy, [n / whole for n in steps]))
        if shares:
            yield plots.Bars(heading, shares)
        least = most


def _counts(case: Case, policy: str, least: float, most: float) -> Iterator[tuple[float, int]]:
    """Hops and how many jobs had them, of jobs with more than ``least`` and at most ``most``."""
    for run in case.runs:
        for size, counts in run.hops.items():
            if run.policy == policy and least < float(size) <= most:
                yield from ((float(hop), count) for hop, count in counts.items())


def _step(hop: float) -> int:
    return sum(hop >= edge for edge in HOPS)


def _said_of(given: Sequence[plots.Bars]) -> str:
    wide = _step(50.0)
    return ". ".join(
        f"{bars.heading}, share with 50 GB/s and more: "
        + "; ".join(f"{name} {wording.percent(sum(s[wide:]))}" for name, s in bars.shares)
        for bars in given
    )
