"""``python -m benchmarks``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.commands.report import report
from benchmarks.commands.simulate import simulate
from benchmarks.output import console, show, writable, write_json, write_text
from benchmarks.ownpolicy import UnknownPolicyError, find_policy
from benchmarks.promises import plays as promises_
from benchmarks.protocol import comparison, openb
from benchmarks.protocol.policies import POLICIES
from benchmarks.speed import agent as agentcost
from benchmarks.speed import latency as latency_
from benchmarks.speed import profile as profile_
from benchmarks.speed import rounds as rounds_
from benchmarks.speed import scale as scale_
from benchmarks.speed import worst as worst_
from scheduler_extender.commandline import run

app = typer.Typer(
    help="Measure the service.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
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
    writable(json=json_file)
    parameters = latency_.Parameters(tuple(nodes or (100, 1_000, 5_000)), requests, seed)
    figures = latency_.measure(parameters)
    show(latency_.table(figures), keys=3)
    write_json(json_file, figures)


@app.command()
def promises(
    pods: Annotated[int, typer.Option(help="Pods to place.", min=10)] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of jobs, delays and ties.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there, too.")
    ] = None,
) -> None:
    """Promises kept and broken: the extender, the rule "a good set is free", and an oracle."""
    writable(json=json_file)
    found = promises_.promises(pods, seed)
    show(promises_.promises_table(found))
    print()
    show(promises_.reasons_table(found))
    write_json(json_file, found)


@app.command()
def singles(
    pods: Annotated[int, typer.Option(help="Pods to place, for each seed.", min=10)] = 4_000,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 1.", min=1)] = 5,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there, too.")
    ] = None,
) -> None:
    """Pairs and quads that can be promised, beside LeastAllocated and MostAllocated."""
    writable(json=json_file)
    found = promises_.singles(pods, range(1, seeds + 1))
    show(promises_.singles_table(found))
    write_json(json_file, found)


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
    writable(json=json_file)
    try:
        found = agentcost.measure(seconds, agents, seed)
    except agentcost.SourceTreeMissingError as error:
        raise typer.BadParameter(str(error)) from error
    show(agentcost.cost_table(found))
    print()
    show(agentcost.writes_table(found))
    write_json(json_file, found)


@app.command()
def compare(
    workload: Annotated[
        list[str] | None, typer.Option(help="Workloads of the openb trace; repeatable.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(POLICIES)}, or path/to/file.py:FUNCTION; repeatable."),
    ] = None,
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
    writable(json=json_file, tsv=tsv_file)
    workloads = _known("--workload", workload or ["default"], openb.WORKLOADS)
    policies = list(dict.fromkeys(policy or POLICIES))
    try:
        for name in policies:
            find_policy(name, POLICIES)
        openb.shared()
    except (UnknownPolicyError, openb.TraceMissingError) as error:
        raise typer.BadParameter(str(error)) from error
    found = comparison.compare(workloads, policies, openb.SEEDS[:seeds], bound)
    show((comparison.table_by_seed if per_seed else comparison.table)(found), keys=3)
    write_json(json_file, found)
    write_text(tsv_file, comparison.tsv(found))


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
    """What outcomes, verdicts, scores and waiting pods cost, cold and warm."""
    writable(json=json_file)
    found = profile_.measure(nodes, states, seed) | rounds_.measure(states, seed)
    show(profile_.parts_table(found))
    print()
    show(profile_.cluster_table(found))
    print()
    show(rounds_.table(found))
    write_json(json_file, found)


@app.command()
def scale(
    nodes: Annotated[
        list[int] | None, typer.Option(help="Cluster sizes; repeatable.", min=1, max=100_000)
    ] = None,
    pods: Annotated[int, typer.Option(help="Pods at each size.", min=10)] = 2_000,
    large: Annotated[
        bool, typer.Option(help="Then 100,000 pods on 5,000 nodes, as shipped.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of states, jobs and ties.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there, too.")
    ] = None,
) -> None:
    """What a pod costs the simulation as the cluster grows from 100 to 65,000 nodes."""
    writable(json=json_file)
    what = scale_.Parameters(pods=pods, seed=seed)
    what = replace(what, nodes=tuple(nodes or what.nodes), large=what.large if large else None)
    with Console(stderr=True).status("") as status:
        found = scale_.measure(what, status.update)
    show(scale_.table(found))
    for line in scale_.growth(found["rows"]):
        console().print(line, highlight=False)
    if found["large"] is not None:
        for line in scale_.large_lines(found["large"]):
            console().print(line, highlight=False)
    write_json(json_file, found)


@app.command()
def worst(
    seed: Annotated[int, typer.Option(help="Seed of the nodes' states.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there, too.")
    ] = None,
) -> None:
    """The worst legal pods on the worst legal nodes: how long verbs take, and whom they hold up."""
    writable(json=json_file)
    with Console(stderr=True).status("") as status:
        found = worst_.measure(seed, status.update)
    show(worst_.table(found))
    write_json(json_file, found)


app.command()(simulate)
app.command()(report)


if __name__ == "__main__":
    run(app, "python -m benchmarks")
