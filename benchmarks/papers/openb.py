"""The openb trace as the FGD paper uses it, with nodes, pods, and the orders of arrival."""

import csv
import gzip
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from benchmarks.papers.model import NodeKind, PodKind
from benchmarks.traces import trace

WORKLOADS = (
    *("default", "multigpu20", "multigpu50", "gpushare40", "gpushare100"),
    *("gpuspec10", "cpu050", "cpu250"),
)
SEEDS = (42, 43, 44, 45, 46)


def nodes() -> list[NodeKind]:
    """Return the 1,213 GPU nodes."""
    return [
        NodeKind(int(r["cpu_milli"]), int(r["memory_mib"]), int(r["gpu"]), r["model"])
        for r in _rows(trace("openb/openb_node_list_gpu_node.csv"))
    ]


def pods(workload: str) -> list[PodKind]:
    """Return the pods of a workload, in the order of its file."""
    return [
        PodKind(
            int(r["cpu_milli"]),
            int(r["memory_mib"]),
            int(r["num_gpu"]),
            int(r["gpu_milli"]),
            frozenset(filter(None, (r.get("gpu_spec") or "").split("|"))),
        )
        for r in _rows(trace(f"openb/openb_pod_list_{workload}.csv"))
    ]


def order(workload: str, seed: int) -> list[int]:
    """Return the order in which pods arrive, as positions in :func:`pods`."""
    return [int(i) for i in _orders()[workload, seed].split(",")]


@cache
def _orders() -> dict[tuple[str, int], str]:
    path = trace("fgd_expected/arrival_sequences.tsv.gz")
    with gzip.open(path, "rt") as file:
        next(file)
        found = {}
        for line in file:
            workload, seed, _, rows = line.rstrip("\n").split("\t")
            found[workload, int(seed)] = rows
        return found


def published(percent: int) -> dict[tuple[str, str], float]:
    """Return the published GPU allocation in percent, by workload and policy.

    It is the allocation when the pods that have arrived request ``percent`` of the capacity.
    """
    path = trace(f"fgd_expected/alloc_pct_at{percent}.tsv")
    rows = list(csv.reader(path.read_text().splitlines(), delimiter="\t"))
    names = [name.partition("-")[2] for name in rows[0][1:]]
    return {
        (row[0], name): float(value)
        for row in rows[1:]
        for name, value in zip(names, row[1:], strict=True)
    }


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)
