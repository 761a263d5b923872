"""``python -m benchmarks simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from benchmarks.commands.options import one_of
from benchmarks.figures.simulated import Simulated
from benchmarks.output import STDOUT, console, show, writable, write_json, write_text
from benchmarks.ownpolicy import UnknownPolicyError
from benchmarks.report import page
from benchmarks.shipped import sweep as sweeps
from benchmarks.shipped.clusters import ClusterError
from benchmarks.shipped.jobs import JobsError
from benchmarks.shipped.plays import Shard, Sweep
from benchmarks.shipped.policies import POLICIES
from benchmarks.shipped.queues import QUEUES
from benchmarks.shipped.simulation import Rules
from benchmarks.shipped.sources import DEMANDS, Workload
from benchmarks.shipped.speed import Speed
from benchmarks.shipped.tables import table, tsv

TOPOLOGICAL = ("gpu-topology", "LeastAllocated", "MostAllocated", "Preserve", "Buddy")
TRACES = ("philly", "openb", "synthetic")

_SPEED = Speed()

_Cluster = Annotated[
    list[str] | None,
    typer.Option(
        help="A cluster file (as /v1/snapshot writes), groups such as "
        "dgx1-v100=16,l40s-8=4, or openb; repeatable, each is a cluster.  [default: "
        "dgx1-v100=16]"
    ),
]
_Add = Annotated[
    list[str] | None, typer.Option(help="machine=count beside each cluster; repeatable.")
]
_Jobs = Annotated[
    str,
    typer.Option(help="A .csv or .jsonl of jobs, philly, openb, openb:WORKLOAD or synthetic."),
]
_Count = Annotated[
    int, typer.Option(help="Jobs on end, from a place that the seed draws; 0 is all.", min=0)
]
_Load = Annotated[
    list[float] | None,
    typer.Option(
        help="GPU time asked / there until the last arrival; repeatable. 0 leaves arrivals as "
        "they are.  [default: 0.9 for traces, 0 for files]",
        min=0,
        max=100,
    ),
]
_Policy = Annotated[
    list[str] | None,
    typer.Option(
        help=f"{', '.join(POLICIES)}, all, or path/to/file.py:NAME; repeatable.  [default: "
        f"{', '.join(TOPOLOGICAL)}]"
    ),
]
_Seeds = Annotated[int, typer.Option(help="How many seeds, from 1.", min=1, max=10_000)]
_QueueName = Annotated[str, typer.Option(help=f"{', '.join(QUEUES)}: see docs/simulation.md.")]
_Gang = Annotated[bool, typer.Option(help="All pods of a job or none; else one by one.")]
_Demand = Annotated[
    str, typer.Option(help=f"What jobs without annotations ask: {', '.join(DEMANDS)}.")
]
_PodGpus = Annotated[
    int | None,
    typer.Option(help="Most GPUs of a pod.  [default: the largest node's]", min=1),
]
_Communication = Annotated[
    float, typer.Option(help="Share of its time that a job communicates.", min=0, max=1)
]
_FullSpeed = Annotated[
    float, typer.Option(help="GB/s at which no job is slowed down.", min=0.001, max=1e6)
]
_Network = Annotated[float, typer.Option(help="GB/s between nodes, both ways.", min=0.001, max=1e6)]
_ShardText = Annotated[
    str | None,
    typer.Option(
        help="PART/PARTS: play one part of the simulations; with 0/8 these are simulations 0, 8, "
        "16 and so on. `report` joins the parts.",
        envvar="GPU_TOPOLOGY_SHARD",
    ),
]
_Workers = Annotated[int | None, typer.Option(help="Processes.  [default: one per core]", min=1)]
_JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", help="Write figures, parameters and curves there; - is standard output."
    ),
]
_TsvFile = Annotated[Path | None, typer.Option("--tsv", help="Write every simulation there.")]
_HtmlFile = Annotated[Path | None, typer.Option("--html", help="Write a report with plots there.")]


def simulate(
    cluster: _Cluster = None,
    add: _Add = None,
    jobs: _Jobs = "synthetic",
    count: _Count = 2000,
    load: _Load = None,
    policy: _Policy = None,
    seeds: _Seeds = 3,
    queue: _QueueName = "backfill",
    gang: _Gang = True,
    demand: _Demand = "nvlink",
    pod_gpus: _PodGpus = None,
    communication: _Communication = _SPEED.communication,
    full_speed: _FullSpeed = _SPEED.full,
    network: _Network = _SPEED.network,
    shard: _ShardText = None,
    workers: _Workers = None,
    json_file: _JsonFile = None,
    tsv_file: _TsvFile = None,
    html_file: _HtmlFile = None,
) -> None:
    """Jobs over time under several policies: promises, bandwidth, waiting, fragmentation."""
    what = Sweep(
        tuple(dict.fromkeys(cluster or ["dgx1-v100=16"])),
        Workload(jobs, count or None, None, one_of("--demand", demand, DEMANDS), pod_gpus),
        _loads(load, jobs),
        _policies(policy),
        tuple(range(1, seeds + 1)),
        Rules(one_of("--queue", queue, QUEUES), gang, Speed(communication, full_speed, network)),
        tuple(add or ()),
        _shard(shard),
    )
    try:
        what.check()
    except (ClusterError, JobsError, UnknownPolicyError) as error:
        raise typer.BadParameter(str(error)) from error
    writable(json=json_file, tsv=tsv_file, html=html_file)
    # Figures on standard output are for a program, and a Pod's log mixes both outputs.
    quiet = STDOUT in (json_file, tsv_file, html_file)
    found = _played(what, workers, quiet=quiet)
    _show(what, found, quiet=quiet)
    write_json(json_file, found)
    write_text(tsv_file, tsv(found))
    if html_file is not None and found.runs:
        write_text(html_file, page([found]))


def _policies(given: list[str] | None) -> tuple[str, ...]:
    named: list[str] = []
    for name in given or TOPOLOGICAL:
        named += POLICIES if name == "all" else [name]
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
    columns = (TextColumn("simulations"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
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
    if not quiet:
        show(table(found), keys=3)
    jobs = max((run.jobs for run in found.runs), default=0)
    words = f"{jobs:,} jobs of {what.workload.source}, {len(what.seeds)} seeds"
    console(quiet=quiet).print(
        f"\n{found.mode}: {words}, queue {what.rules.queue}; ± is 95 % over seeds. Of those "
        "asking: jobs with annotations; several GPUs: completion of such jobs × ours",
        highlight=False,
        style="dim",
    )
