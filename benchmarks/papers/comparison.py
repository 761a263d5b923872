"""Published, ours, and the difference: FGD's paper, figure by figure."""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from statistics import mean

from rich.progress import Progress
from rich.table import Table

from benchmarks.figures.compared import (
    Compared,
    ComparisonParameters,
    ComparisonRow,
    Experiment,
)
from benchmarks.ownpolicy import find_policy, label
from benchmarks.papers import openb
from benchmarks.papers.bound import upper_bound
from benchmarks.papers.policies import POLICIES
from benchmarks.papers.simulation import simulate

TOLERANCE = 0.3  # points within which a figure counts as reproduced

BOUND = "upper bound"  # stands in place of a policy where no policy can give out more


def experiment(workload: str, policy: str, seed: int) -> Experiment:
    """One arrival sequence under one policy, or what no policy exceeds."""
    nodes, pods, order = openb.nodes(), openb.pods(workload), openb.order(workload, seed)
    published = openb.published_by_seed(130).get((workload, policy, seed))
    started = time.process_time()
    if policy == BOUND:
        bound = upper_bound(nodes, [pods[i] for i in order], 130)
        return Experiment(
            workload=workload,
            policy=label(policy),
            seed=seed,
            published=published,
            allocation_at_130=bound,
            cpu_seconds=time.process_time() - started,
        )
    outcome = simulate(nodes, pods, order, find_policy(policy, POLICIES), seed)
    return Experiment(
        workload=workload,
        policy=label(policy),
        seed=seed,
        published=published,
        pods=len(outcome.curve),
        placed=outcome.placed,
        allocation_at_100=outcome.allocated(100),
        allocation_at_130=outcome.allocated(130),
        fragmented_at_130=outcome.fragmented,
        cpu_seconds=time.process_time() - started,
    )


def compare(
    workloads: Sequence[str], policies: Sequence[str], seeds: Sequence[int], bound: bool = False
) -> Compared:
    """Every experiment of the three, on the cores there are; rows with the published figures."""
    rows = [*policies, *([BOUND] if bound else [])]
    jobs = [(w, p, s) for w in workloads for p in rows for s in seeds]
    found: list[Experiment] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool, Progress(transient=True) as progress:
        task = progress.add_task("experiments", total=len(jobs))
        for future in as_completed([pool.submit(experiment, *job) for job in jobs]):
            found.append(future.result())
            progress.advance(task)
    order = [(w, label(p), s) for w, p, s in jobs]
    found.sort(key=lambda one: order.index((one.workload, one.policy, one.seed)))
    given = ComparisonParameters(
        trace="openb",
        workloads=tuple(workloads),
        policies=tuple(policies),
        seeds=tuple(seeds),
        bound=bound,
    )
    return Compared(parameters=given, experiments=tuple(found), rows=tuple(_rows(found)))


def _rows(experiments: Sequence[Experiment]) -> Iterator[ComparisonRow]:
    published = openb.published(130)
    for workload, policy in dict.fromkeys((e.workload, e.policy) for e in experiments):
        ours = [
            e.allocation_at_130 for e in experiments if (e.workload, e.policy) == (workload, policy)
        ]
        theirs = published.get((workload, policy))
        yield ComparisonRow(
            workload=workload,
            policy=policy,
            seeds=len(ours),
            published=theirs,
            ours=mean(ours),
            difference=None if theirs is None else mean(ours) - theirs,
        )


def table(found: Compared) -> Table:
    """The rows for a terminal: GPU allocation in percent when 130 % has arrived."""
    return _table("seeds", ((row, str(row.seeds)) for row in found.rows))


def table_by_seed(found: Compared) -> Table:
    """Every experiment beside what was published for its very order."""
    return _table("seed", ((one, str(one.seed)) for one in found.experiments))


def _table(third: str, rows: Iterable[tuple[ComparisonRow | Experiment, str]]) -> Table:
    columns = ("workload", "policy", third, "published", "ours", "difference")
    found = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row, cell in rows:
        published, ours = row.published, row.ours
        difference = None if published is None else ours - published
        far = difference is not None and abs(difference) > TOLERANCE
        found.add_row(
            row.workload,
            row.policy,
            cell,
            "–" if published is None else f"{published:.2f}",
            f"{ours:.2f}",
            "–" if difference is None else f"{difference:+.2f}",
            style="yellow" if far else "",
        )
    return found


def tsv(found: Compared) -> str:
    """Every experiment as tab-separated values, with a line of names; empty where there is none."""
    rows = [one.as_json() for one in found.experiments]
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["\t".join(names)]
    for row in rows:
        lines.append("\t".join(_cell(row.get(name)) for name in names))
    return "\n".join(lines) + "\n"


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)
