"""The comparison with the FGD paper: published figures, ours, and the difference."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from statistics import mean
from typing import Any

from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from benchmarks.papers import openb
from benchmarks.papers.policies import POLICIES
from benchmarks.papers.simulation import simulate

TOLERANCE = 0.3  # points within which a figure counts as reproduced


def experiment(workload: str, policy: str, seed: int) -> float:
    """Return the GPU allocation in percent when 130 % has been requested, for one arrival order."""
    nodes, pods, order = openb.nodes(), openb.pods(workload), openb.order(workload, seed)
    return simulate(nodes, pods, order, POLICIES[policy], seed).allocated(130)


def compare(workloads: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Run both policies in every order, on all cores. Return means beside the published ones."""
    published = openb.published(130)
    given: dict[tuple[str, str], dict[int, float]] = {
        (w, p): {} for w in workloads for p in POLICIES
    }
    with ProcessPoolExecutor(os.cpu_count()) as pool, Progress(transient=True) as progress:
        task = progress.add_task("experiments", total=len(given) * len(seeds))
        jobs = {pool.submit(experiment, *key, seed): (key, seed) for key in given for seed in seeds}
        for future in as_completed(jobs):
            key, seed = jobs[future]
            given[key][seed] = future.result()
            progress.advance(task)
    return [
        {
            "workload": key[0],
            "policy": key[1],
            "published": published.get(key),
            "ours": mean(found.values()),
            "by_seed": {str(seed): found[seed] for seed in seeds},
        }
        for key, found in given.items()
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows for a terminal, as GPU allocation in percent when 130 % has arrived."""
    columns = ("workload", "policy", "published", "ours", "difference")
    shown = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        published, ours = row["published"], row["ours"]
        difference = None if published is None else ours - published
        shown.add_row(
            row["workload"],
            row["policy"],
            "–" if published is None else f"{published:.2f}",
            f"{ours:.2f}",
            "–"
            if difference is None
            else Text(f"{difference:+.2f}", "yellow" if abs(difference) > TOLERANCE else ""),
        )
    return shown
