"""``python -m benchmarks simulate``, and the page of what it found."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.commands.options import JsonFile, one_of

if TYPE_CHECKING:
    from benchmarks.simulation.figures import Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The options that say which simulations are played."""

    cluster: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLUSTER",
            help="Machines with a count, cluster files (/v1/snapshot writes one), or both, such as "
            "now.yaml,hgx-h100-8=8. Repeatable: each is a cluster of its own.  [default: "
            "dgx1-v100=16]",
        ),
    ] = None
    jobs: Annotated[
        str,
        typer.Option(
            metavar="JOBS",
            help="A file of jobs (.csv or .jsonl), the trace philly, or synthetic.",
        ),
    ] = "synthetic"
    count: Annotated[
        int,
        typer.Option(
            metavar="COUNT",
            help="Number of consecutive jobs; the seed draws the first. 0: all.",
            min=0,
        ),
    ] = 2000
    load: Annotated[
        list[float] | None,
        typer.Option(
            metavar="SHARE",
            help="Scale arrival times so that jobs request this share of the cluster's GPU time. "
            "0: do not scale. Repeatable.  [default: 0.9 for philly and synthetic, 0 for files]",
            min=0,
            max=100,
        ),
    ] = None
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="gpu-topology, LeastAllocated or MostAllocated. Repeatable.  [default: all]",
        ),
    ] = None
    seeds: Annotated[
        int,
        typer.Option(metavar="COUNT", help="Number of seeds; the first is 1.", min=1, max=10_000),
    ] = 3
    demand: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Links that jobs without annotations request: none, nvlink, preferred.",
        ),
    ] = "nvlink"
    communication: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Share of its time for which a job communicates. 0 makes all links equal.",
            min=0,
            max=1,
        ),
    ] = 0.05
    full_speed: Annotated[
        float,
        typer.Option(
            metavar="GB/S",
            help="Bandwidth at which links no longer slow a job down.",
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

    def sweep(self) -> Sweep:
        """Return the options as a sweep. Raises :class:`typer.BadParameter` if one is invalid."""
        from benchmarks.simulation.figures import Sweep
        from benchmarks.simulation.sources import DEMANDS
        from benchmarks.simulation.sweep import POLICIES

        for each in self.load or ():
            if 0 < each < 0.001:
                raise typer.BadParameter(f"--load: allowed are 0 and 0.001 to 100, not {each}")
        loads = self.load or [0.9 if self.jobs in ("philly", "synthetic") else 0.0]
        policies = [one_of("--policy", name, tuple(POLICIES)) for name in self.policy or ()]
        return Sweep(
            clusters=tuple(dict.fromkeys(self.cluster or ["dgx1-v100=16"])),
            jobs=self.jobs,
            count=self.count,
            demand=one_of("--demand", self.demand, DEMANDS),
            loads=tuple(dict.fromkeys(each or None for each in loads)),
            policies=tuple(dict.fromkeys(policies or POLICIES)),
            seeds=self.seeds,
            communication=self.communication,
            full_speed=self.full_speed,
            network=self.network,
        )


def simulate(
    *,
    played: Played,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT", help="Number of processes.  [default: one for each core]", min=1
        ),
    ] = None,
    json_file: JsonFile = None,
    html_file: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with tables and plots there."),
    ] = None,
) -> None:
    """Simulate weeks of jobs with and without the extender.

    The table compares the policies: the promises that they keep, the bandwidth that jobs get, and
    how long jobs wait. docs/evidence/results.md explains the columns.
    """
    from benchmarks.output import STDOUT, console, show, writable, write_json, write_text
    from benchmarks.report.page import page
    from benchmarks.simulation import sweep as sweeps
    from benchmarks.simulation.figures import table
    from benchmarks.simulation.fleet import ClusterError
    from benchmarks.simulation.jobs import JobsError
    from scheduler_extender.terminal import progress

    what = played.sweep()
    try:
        sweeps.check(what)
    except (ClusterError, JobsError) as error:
        raise typer.BadParameter(str(error)) from error
    writable(json=json_file, html=html_file)
    total, number = len(sweeps.plays(what)), count(1)
    with progress("simulations", lines=True) as tell:
        found = sweeps.run(
            what,
            workers=workers,
            done=lambda: tell((n := next(number)) / total, f"{n} of {total}"),
        )
    if STDOUT not in (json_file, html_file):  # figures on standard output are for a program
        show(table(found), keys=3)
        console().print(
            f"\n{found.runs[0].jobs:,} jobs of {what.jobs}, {what.seeds} seeds. ± is half of the "
            '95 % confidence interval, for at least three seeds. "× gpu-topology" is the '
            'completion time divided by the one under gpu-topology; "several GPUs" is the same for '
            "jobs with several GPUs.",
            highlight=False,
            style="dim",
        )
    write_json(json_file, found.as_json())
    if html_file is not None:
        write_text(html_file, page(found))


def report(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            hidden=True,  # the text below tells of it
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the page there.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one HTML page of what simulate found.

    FILE is what `simulate --json` wrote. The page has figures and drawings and loads nothing from
    elsewhere. If --out ends in .svg, it shows refused pods, jobs that never ran, and waits.
    """
    if out.resolve() == file.resolve():
        raise typer.BadParameter(f"--out: {out} is the input file")
    from rich.console import Console

    from benchmarks.output import writable, write_text
    from benchmarks.report.page import ReportError, page, picture, read

    writable(out=out)
    try:
        found = read(file)
    except ReportError as error:
        raise typer.BadParameter(f"{file}: {error}") from error
    text = picture(found) if out.suffix == ".svg" else page(found)
    try:
        write_text(out, text)
    except OSError as error:
        raise typer.BadParameter(f"--out: {out}: {error.strerror}") from error
    Console().print(f"{out}: {len(text) / 1000:,.0f} kB", highlight=False)
