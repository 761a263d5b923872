"""``python -m benchmarks simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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

from benchmarks.output import STDOUT, console, show, writable, write_json, write_text
from benchmarks.ownpolicy import UnknownPolicyError
from benchmarks.shipped import sweep as sweeps
from benchmarks.shipped.clusters import ClusterError
from benchmarks.shipped.jobs import JobsError
from benchmarks.shipped.policies import POLICIES
from benchmarks.shipped.simulation import QUEUES, Rules
from benchmarks.shipped.sources import DEMANDS, Workload
from benchmarks.shipped.speed import Speed

TOPOLOGICAL = ("gpu-topology", "LeastAllocated", "MostAllocated", "Preserve", "Buddy")
TRACES = ("philly", "openb", "synthetic")


def simulate(
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            help="A cluster file (as /v1/snapshot writes), groups such as "
            "dgx1-v100=16,l40s-8=4, or openb; repeatable, each is a cluster.  [default: "
            "dgx1-v100=16]"
        ),
    ] = None,
    add: Annotated[
        list[str] | None, typer.Option(help="machine=count beside each cluster; repeatable.")
    ] = None,
    jobs: Annotated[
        str,
        typer.Option(help="A .csv or .jsonl of jobs, philly, openb, openb:WORKLOAD or synthetic."),
    ] = "synthetic",
    count: Annotated[
        int, typer.Option(help="Jobs on end, from a place that the seed draws; 0 is all.", min=0)
    ] = 2000,
    load: Annotated[
        list[float] | None,
        typer.Option(
            help="GPU time asked / there until the last arrival; repeatable. 0 leaves arrivals as "
            "they are.  [default: 0.9 for traces, 0 for files]",
            min=0,
            max=100,
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(POLICIES)}, all, or path/to/file.py:NAME; repeatable.  [default: "
            f"{', '.join(TOPOLOGICAL)}]"
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 1.", min=1, max=10_000)] = 3,
    queue: Annotated[
        str, typer.Option(help=f"{', '.join(QUEUES)}: see docs/simulation.md.")
    ] = "backfill",
    gang: Annotated[bool, typer.Option(help="All pods of a job or none; else one by one.")] = True,
    demand: Annotated[
        str, typer.Option(help=f"What jobs without annotations ask: {', '.join(DEMANDS)}.")
    ] = "nvlink",
    pod_gpus: Annotated[
        int | None,
        typer.Option(help="Most GPUs of a pod.  [default: the largest node's]", min=1),
    ] = None,
    communication: Annotated[
        float, typer.Option(help="Share of its time that a job communicates.", min=0, max=1)
    ] = Speed().communication,
    full_speed: Annotated[
        float,
        typer.Option(help="GB/s that slow nobody down.", min=0.001, max=1e6),
    ] = Speed().full,
    network: Annotated[
        float, typer.Option(help="GB/s between nodes, both ways.", min=0.001, max=1e6)
    ] = Speed().network,
    shard: Annotated[
        str | None,
        typer.Option(
            help="PART/PARTS, such as 0/8: play one shard of so many. `report` joins them.",
            envvar="GPU_TOPOLOGY_SHARD",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes.  [default: one per core]", min=1)
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", help="Write figures, parameters and curves there; - is standard output."
        ),
    ] = None,
    tsv_file: Annotated[
        Path | None, typer.Option("--tsv", help="Write every simulation there.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write a report with plots there.")
    ] = None,
) -> None:
    """Jobs over time under several policies: promises, bandwidth, waiting, fragmentation."""
    _one_of("--queue", queue, QUEUES)
    _one_of("--demand", demand, DEMANDS)
    named: list[str] = []
    for name in policy or TOPOLOGICAL:
        named += POLICIES if name == "all" else [name]
    trace = jobs.partition(":")[0] in TRACES
    for each in load or ():
        if 0 < each < 0.001:
            raise typer.BadParameter(f"--load: allowed are 0 and 0.001 to 100, not {each}")
    loads = load if load is not None else [0.9 if trace else 0.0]
    what = sweeps.Sweep(
        tuple(dict.fromkeys(cluster or ["dgx1-v100=16"])),
        Workload(jobs, count or None, None, demand, pod_gpus),
        tuple(dict.fromkeys(x or None for x in loads)),
        tuple(dict.fromkeys(named)),
        tuple(range(1, seeds + 1)),
        Rules(queue, gang, Speed(communication, full_speed, network)),
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
            found = sweeps.run(
                what, workers=workers, done=lambda n, _: progress.update(task, completed=n)
            )
        except UnknownPolicyError as error:
            raise typer.BadParameter(str(error)) from error
    if not quiet:
        show(sweeps.table(found), keys=3)
    console(quiet=quiet).print(
        f"\n{found['mode']}: {_words(what, found)}; ± is 95 % over seeds. Of those asking: jobs "
        "with annotations; several GPUs: completion of such jobs × ours",
        highlight=False,
        style="dim",
    )
    write_json(json_file, found)
    write_text(tsv_file, sweeps.tsv(found))
    if html_file is not None and found["runs"]:
        from benchmarks.report import page

        write_text(html_file, page([found]))


def _words(what: sweeps.Sweep, found: dict[str, Any]) -> str:
    jobs = (
        f"{max((one['jobs'] for one in found['runs']), default=0):,} jobs of {what.workload.source}"
    )
    return f"{jobs}, {len(what.seeds)} seeds, queue {what.rules.queue}"


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 1
    part, _, parts = text.partition("/")
    if not (part.isascii() and part.isdigit() and parts.isascii() and parts.isdigit()):
        raise typer.BadParameter(f"--shard: allowed is PART/PARTS such as 0/8, not {text!r}")
    if not int(part) < int(parts):
        last = max(0, int(parts) - 1)
        raise typer.BadParameter(f"--shard: PARTS is 1 or more, PART from 0 to {last}, not {text}")
    return int(part), int(parts)


def _one_of(flag: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise typer.BadParameter(f"{flag}: allowed are {', '.join(known)}, not {word!r}")
