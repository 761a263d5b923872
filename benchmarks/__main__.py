"""``python -m benchmarks``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import agentcost
from benchmarks import latency as latency_
from benchmarks import profile as profile_
from benchmarks import promises as promises_
from benchmarks.protocol import comparison, openb
from benchmarks.protocol.policies import POLICIES

app = typer.Typer(
    help="Measure the service.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@app.callback()
def _commands() -> None:
    """Measure the service."""


@app.command()
def latency(
    nodes: Annotated[
        list[int] | None, typer.Option(help="Cluster sizes; repeatable.", min=1, max=65_000)
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests per route and size.", min=10)] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the nodes' states.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there, too.")
    ] = None,
) -> None:
    """Filter and prioritize over HTTP, beside a route that decodes and encodes without thinking."""
    parameters = latency_.Parameters(tuple(nodes or (100, 1_000, 5_000)), requests, seed)
    figures = latency_.measure(parameters)
    Console(width=120).print(latency_.table(figures))
    _write(json_file, figures)


@app.command()
def promises(
    pods: Annotated[int, typer.Option(help="Pods to place.", min=10)] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of jobs, delays and ties.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there, too.")
    ] = None,
) -> None:
    """Promises kept and broken: the extender, the rule "a good set is free", and an oracle."""
    found = promises_.promises(pods, seed)
    console = Console(width=140)
    console.print(promises_.promises_table(found))
    console.print()
    console.print(promises_.reasons_table(found))
    _write(json_file, found)


@app.command()
def singles(
    pods: Annotated[int, typer.Option(help="Pods to place, for each seed.", min=10)] = 4_000,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 1.", min=1)] = 5,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there, too.")
    ] = None,
) -> None:
    """Pairs and quads that can be promised, beside LeastAllocated and MostAllocated."""
    found = promises_.singles(pods, range(1, seeds + 1))
    Console(width=140).print(promises_.singles_table(found))
    _write(json_file, found)


@app.command()
def agent(
    seconds: Annotated[float, typer.Option(help="Seconds to watch each agent for.", min=5)] = 60,
    agents: Annotated[int, typer.Option(help="Agents whose writes to count.", min=1)] = 5_000,
    seed: Annotated[int, typer.Option(help="Seed of heartbeats and pods.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there, too.")
    ] = None,
) -> None:
    """What a node agent costs its node, and what all of them cost the API server."""
    found = agentcost.measure(seconds, agents, seed)
    console = Console(width=120)
    console.print(agentcost.cost_table(found))
    console.print()
    console.print(agentcost.writes_table(found))
    _write(json_file, found)


@app.command()
def compare(
    workload: Annotated[
        list[str] | None, typer.Option(help="Workloads of the openb trace; repeatable.")
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Policies; repeatable.")] = None,
    seeds: Annotated[int, typer.Option(help="How many of the shared orders.", min=1, max=5)] = 5,
    bound: Annotated[
        bool,
        typer.Option(help="Also what no policy could exceed: 3 to 35 s of CPU per order."),
    ] = True,
    per_seed: Annotated[
        bool, typer.Option("--per-seed", help="Print a row per order instead of the means.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there, too.")
    ] = None,
    tsv_file: Annotated[
        Path | None, typer.Option("--tsv", help="Write every experiment there, too.")
    ] = None,
) -> None:
    """FGD's paper again: published figures, ours and the difference (node model of the paper)."""
    workloads = _known("--workload", workload or ["default"], openb.WORKLOADS)
    policies = _known("--policy", policy or list(POLICIES), tuple(POLICIES))
    try:
        openb.shared()
    except openb.TraceMissingError as error:
        raise typer.BadParameter(str(error)) from error
    found = comparison.compare(workloads, policies, openb.SEEDS[:seeds], bound)
    Console(width=120).print((comparison.table_by_seed if per_seed else comparison.table)(found))
    _write(json_file, found)
    if tsv_file is not None:
        tsv_file.parent.mkdir(parents=True, exist_ok=True)
        tsv_file.write_text(comparison.tsv(found))


def _known(flag: str, given: list[str], known: tuple[str, ...]) -> list[str]:
    for word in given:
        if word not in known:
            raise typer.BadParameter(f"{flag}: allowed are {', '.join(known)}, not {word!r}")
    return given


@app.command()
def profile(
    nodes: Annotated[int, typer.Option(help="Nodes of the cluster.", min=1)] = 5_000,
    states: Annotated[int, typer.Option(help="Distinct states they are in.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the states.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there, too.")
    ] = None,
) -> None:
    """What outcomes, verdicts and scores cost, cold and warm."""
    found = profile_.measure(nodes, states, seed)
    console = Console(width=120)
    console.print(profile_.parts_table(found))
    console.print()
    console.print(profile_.cluster_table(found))
    _write(json_file, found)


def _write(path: Path | None, figures: object) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    app()
