"""Published, ours, and the difference: FGD's paper, figure by figure."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from statistics import mean
from typing import Any

from rich.progress import Progress
from rich.table import Table

from benchmarks.protocol import openb
from benchmarks.protocol.policies import POLICIES
from benchmarks.protocol.simulation import simulate

TOLERANCE = 0.3
"""Points within which a figure counts as reproduced."""


def experiment(workload: str, policy: str, seed: int) -> dict[str, Any]:
    """One arrival sequence under one policy."""
    pods = openb.pods(workload)
    started = time.process_time()
    outcome = simulate(openb.nodes(), pods, openb.order(workload, seed), POLICIES[policy], seed)
    return {
        "workload": workload,
        "policy": policy,
        "seed": seed,
        "pods": len(outcome.curve),
        "placed": outcome.placed,
        "allocation_at_100": outcome.allocated(100),
        "allocation_at_130": outcome.allocated(130),
        "fragmented_at_130": outcome.fragmented,
        "cpu_seconds": time.process_time() - started,
    }


def compare(
    workloads: Sequence[str], policies: Sequence[str], seeds: Sequence[int]
) -> dict[str, Any]:
    """Every experiment of the three, on the cores there are; rows with the published figures."""
    jobs = [(w, p, s) for w in workloads for p in policies for s in seeds]
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool, Progress(transient=True) as progress:
        task = progress.add_task("experiments", total=len(jobs))
        for future in as_completed([pool.submit(experiment, *job) for job in jobs]):
            found.append(future.result())
            progress.advance(task)
    found.sort(key=lambda r: jobs.index((r["workload"], r["policy"], r["seed"])))
    return {
        "benchmark": "compare",
        "parameters": {
            "trace": "openb",
            "workloads": list(workloads),
            "policies": list(policies),
            "seeds": list(seeds),
        },
        "experiments": found,
        "rows": list(_rows(found)),
    }


def _rows(experiments: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    published = openb.published(130)
    for workload, policy in dict.fromkeys((e["workload"], e["policy"]) for e in experiments):
        ours = [
            e["allocation_at_130"]
            for e in experiments
            if (e["workload"], e["policy"]) == (workload, policy)
        ]
        theirs = published.get((workload, policy))
        yield {
            "workload": workload,
            "policy": policy,
            "seeds": len(ours),
            "published": theirs,
            "ours": mean(ours),
            "difference": None if theirs is None else mean(ours) - theirs,
        }


def table(figures: dict[str, Any]) -> Table:
    """The rows for a terminal: GPU allocation in percent when 130 % has arrived."""
    columns = ("workload", "policy", "seeds", "published", "ours", "difference")
    found = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in figures["rows"]:
        difference = row["difference"]
        far = difference is not None and abs(difference) > TOLERANCE
        found.add_row(
            row["workload"],
            row["policy"],
            str(row["seeds"]),
            "–" if row["published"] is None else f"{row['published']:.2f}",
            f"{row['ours']:.2f}",
            "–" if difference is None else f"{difference:+.2f}",
            style="yellow" if far else "",
        )
    return found


def tsv(figures: dict[str, Any]) -> str:
    """Every experiment as tab-separated values, with a line of names."""
    names = list(figures["experiments"][0])
    lines = ["\t".join(names)]
    for row in figures["experiments"]:
        cells = (f"{v:.4f}" if isinstance(v, float) else str(v) for v in row.values())
        lines.append("\t".join(cells))
    return "\n".join(lines) + "\n"
