"""``python -m benchmarks simulate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.commands.options import one_of

if TYPE_CHECKING:
    from benchmarks.figures.simulated import Simulated
    from benchmarks.simulation.plays import Shard, Sweep

TOPOLOGICAL = ("gpu-topology", "LeastAllocated", "MostAllocated", "Preserve", "Buddy")
TRACES = ("philly", "openb", "synthetic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Which simulations are played."""

    cluster: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLUSTER",
            help="A cluster file (/v1/snapshot writes one), machines and how many of each such as "
            "dgx1-v100=16,l40s-8=4, or openb. May be given several times: each is a cluster of its "
            "own.  [default: dgx1-v100=16]",
        ),
    ] = None
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MACHINE=COUNT",
            help="Add these machines to each cluster. May be given several times.",
        ),
    ] = None
    jobs: Annotated[
        str,
        typer.Option(
            metavar="JOBS",
            help="A file of jobs (.csv or .jsonl), the trace philly, openb or openb:WORKLOAD, or "
            "synthetic.",
        ),
    ] = "synthetic"
    count: Annotated[
        int,
        typer.Option(
            metavar="COUNT",
            help="How many jobs to play, one after the other from a place that the seed draws. "
            "0 plays all.",
            min=0,
        ),
    ] = 2000
    load: Annotated[
        list[float] | None,
        typer.Option(
            metavar="SHARE",
            help="The GPU time that jobs ask for until the last one arrives, over the GPU time "
            "that there is; arrivals are stretched to it. 0 leaves them as they are. May be given "
            "several times.  [default: 0.9 for traces, 0 for files]",
            min=0,
            max=100,
        ),
    ] = None
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="gpu-topology, gpu-topology-unblock, LeastAllocated, MostAllocated, Preserve, "
            "Buddy, Random, DotProd, GpuClustering, GpuPacking, BestFit, FGD, all, or "
            "path/to/file.py:NAME for one of your own. May be given several times.  "
            f"[default: {', '.join(TOPOLOGICAL)}]",
        ),
    ] = None
    seeds: Annotated[
        int,
        typer.Option(metavar="COUNT", help="How many seeds; the first is 1.", min=1, max=10_000),
    ] = 3
    queue: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Who is tried next: backfill, fifo, none (docs/simulate.md explains them).",
        ),
    ] = "backfill"
    gang: Annotated[
        bool, typer.Option(help="Place all pods of a job or none, or place them one by one.")
    ] = True
    demand: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What jobs ask for that say nothing of links: none, nvlink, preferred.",
        ),
    ] = "nvlink"
    pod_gpus: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            help="The most GPUs of one pod; larger jobs get several pods.  [default: the largest "
            "node's]",
            min=1,
        ),
    ] = None
    communication: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="The share of its time for which a job communicates. 0 makes all links equal.",
            min=0,
            max=1,
        ),
    ] = 0.05
    full_speed: Annotated[
        float,
        typer.Option(
            metavar="GB/S",
            help="From this bandwidth up links slow no job down.",
            min=0.001,
            max=1e6,
        ),
    ] = 50.0
    network: Annotated[
        float,
        typer.Option(
            metavar="GB/S", help="Bandwidth between nodes, both ways.", min=0.001, max=1e6
        ),
    ] = 25.0
    unblock_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Under gpu-topology-unblock: pods are moved for a job that has waited for so "
            "long.",
            min=0,
            max=1e9,
        ),
    ] = 600.0
    move_cost: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="How much work a moved pod does again.", min=0, max=1e9
        ),
    ] = 600.0
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="PART/PARTS",
            help="Play one part of the simulations: 0/8 plays simulations 0, 8, 16 and so on. "
            "`report` joins the parts.",
            envvar="GPU_TOPOLOGY_SHARD",
        ),
    ] = None

    def sweep(self) -> Sweep:
        """The same as a sweep. Raises :class:`typer.BadParameter` where a word is not allowed."""
        from benchmarks.simulation.plays import Sweep
        from benchmarks.simulation.queues import QUEUES
        from benchmarks.simulation.simulation import Moves, Rules
        from benchmarks.simulation.sources import DEMANDS, Workload
        from benchmarks.simulation.speed import Speed

        return Sweep(
            tuple(dict.fromkeys(self.cluster or ["dgx1-v100=16"])),
            Workload(
                self.jobs,
                self.count or None,
                None,
                one_of("--demand", self.demand, DEMANDS),
                self.pod_gpus,
            ),
            _loads(self.load, self.jobs),
            _policies(self.policy),
            tuple(range(1, self.seeds + 1)),
            Rules(
                one_of("--queue", self.queue, QUEUES),
                self.gang,
                Speed(self.communication, self.full_speed, self.network),
                Moves(self.unblock_after, self.move_cost),
            ),
            tuple(self.add or ()),
            _shard(self.shard),
        )


def simulate(
    *,
    played: Played,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT", help="How many processes play.  [default: one for each core]", min=1
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write figures, parameters and curves there as JSON. - is standard output.",
        ),
    ] = None,
    tsv_file: Annotated[
        Path | None,
        typer.Option(
            "--tsv", metavar="FILE", help="Write every simulation there, separated by tabs."
        ),
    ] = None,
    html_file: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with tables and plots there."),
    ] = None,
) -> None:
    """Play jobs over weeks under several policies.

    The table compares the policies: the promises that they keep, the bandwidth that jobs get, how
    long jobs wait, and how far GPUs are fragmented. docs/method.md explains every column.
    """
    from benchmarks.output import STDOUT, writable, write_json, write_text
    from benchmarks.ownpolicy import UnknownPolicyError
    from benchmarks.report import page
    from benchmarks.simulation.clusters import ClusterError
    from benchmarks.simulation.jobs import JobsError
    from benchmarks.simulation.rows import tsv

    what = played.sweep()
    try:
        what.check()
    except (ClusterError, JobsError, UnknownPolicyError) as error:
        raise typer.BadParameter(str(error)) from error
    writable(json=json_file, tsv=tsv_file, html=html_file)
    # Figures on standard output are for a program, and a Pod's log mixes both outputs.
    quiet = STDOUT in (json_file, tsv_file, html_file)
    found = _played(what, workers, quiet=quiet)
    _show(what, found, quiet=quiet)
    write_json(json_file, found.as_json())
    write_text(tsv_file, tsv(found))
    if html_file is not None and found.runs:
        write_text(html_file, page([found]))


def _policies(given: list[str] | None) -> tuple[str, ...]:
    from benchmarks.simulation.policies import ALL

    named: list[str] = []
    for name in given or TOPOLOGICAL:
        named += ALL if name == "all" else [name]
    return tuple(dict.fromkeys(named))


def _loads(given: list[float] | None, jobs: str) -> tuple[float | None, ...]:
    """The loads; None leaves arrivals as they are."""
    for each in given or ():
        if 0 < each < 0.001:
            raise typer.BadParameter(f"--load: allowed are 0 and 0.001 to 100, not {each}")
    trace = jobs.partition(":")[0] in TRACES
    loads = given if given is not None else [0.9 if trace else 0.0]
    return tuple(dict.fromkeys(each or None for each in loads))


def _shard(text: str | None) -> Shard:
    from benchmarks.simulation.plays import Shard

    if text is None:
        return Shard()
    part, _, parts = text.partition("/")
    if not (part.isascii() and part.isdigit() and parts.isascii() and parts.isdigit()):
        raise typer.BadParameter(f"--shard: allowed is PART/PARTS such as 0/8, not {text!r}")
    if not int(part) < int(parts):
        last = max(0, int(parts) - 1)
        raise typer.BadParameter(f"--shard: PARTS is 1 or more, PART from 0 to {last}, not {text}")
    return Shard(int(part), int(parts))


def _played(what: Sweep, workers: int | None, *, quiet: bool) -> Simulated:
    """Play the sweep, with a bar on standard error that says how far it is."""
    from rich import progress as bars
    from rich.console import Console

    from benchmarks.ownpolicy import UnknownPolicyError
    from benchmarks.simulation import sweep as sweeps

    with bars.Progress(
        bars.TextColumn("simulations"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        transient=True,
        console=Console(stderr=True),
        disable=quiet,
    ) as progress:
        task = progress.add_task("", total=len(what.plays()))
        try:
            return sweeps.run(
                what, workers=workers, done=lambda n, _: progress.update(task, completed=n)
            )
        except UnknownPolicyError as error:
            raise typer.BadParameter(str(error)) from error


def _show(what: Sweep, found: Simulated, *, quiet: bool) -> None:
    from benchmarks.output import console, show
    from benchmarks.simulation.rows import table

    if not quiet:
        show(table(found), keys=3)
    jobs = max((run.jobs for run in found.runs), default=0)
    words = f"{jobs:,} jobs of {what.workload.source}, {len(what.seeds)} seeds"
    console(quiet=quiet).print(
        f"\n{found.mode}: {words}, queue {what.rules.queue}. After ± stands the half of the 95 % "
        'interval over the seeds. "Of those asking" is the wait of jobs with annotations. '
        '"× ours" is the completion time beside that under gpu-topology, "several GPUs" the '
        "same for jobs with several GPUs.",
        highlight=False,
        style="dim",
    )
