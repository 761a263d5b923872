"""The commands that measure time: latency, throughput, following, dra and worst."""

from functools import partial
from typing import Annotated

import typer

from benchmarks.commands.options import JsonFile, measured


def latency(
    nodes: Annotated[
        list[int] | None,
        typer.Option(
            metavar="COUNT",
            help="Nodes of the cluster. Repeatable.  [default: 100, 1000, 5000]",
            min=1,
            max=65_000,
        ),
    ] = None,
    requests: Annotated[
        int,
        typer.Option(
            metavar="COUNT", help="How often each question is asked at each size.", min=10
        ),
    ] = 300,
    seed: Annotated[
        int, typer.Option(metavar="NUMBER", help="Seed that the nodes' states are drawn from.")
    ] = 1,
    json_file: JsonFile = None,
) -> None:
    """Measure how fast filter and prioritize answer over HTTP.

    Beside them stands a route that decodes the same request and encodes an answer of the same size,
    and works nothing out.
    """
    from benchmarks.speed.latency import measure, table

    sizes = tuple(nodes or (100, 1_000, 5_000))
    measured(json_file, partial(measure, sizes, requests, seed), table, keys=3)


def throughput(
    nodes: Annotated[
        int, typer.Option(metavar="COUNT", help="Nodes of the cluster.", min=1, max=20_000)
    ] = 500,
    pods: Annotated[
        int,
        typer.Option(metavar="COUNT", help="Pods that each extender places in a round.", min=10),
    ] = 500,
    rounds: Annotated[int, typer.Option(metavar="COUNT", help="Rounds.", min=1)] = 5,
    json_file: JsonFile = None,
) -> None:
    """Measure how many pods a second kube-scheduler places.

    With an extender that does nothing but bind, and with ours, one after the other in each round.
    It builds kube-scheduler and the API server first (minutes, once) and needs the source tree.
    """
    from benchmarks.speed.throughput import measure, table

    measured(json_file, partial(measure, nodes, pods, rounds), table)


def following(
    nodes: Annotated[
        int, typer.Option(metavar="COUNT", help="Nodes of the cluster.", min=1, max=65_000)
    ] = 5_000,
    pods: Annotated[
        int, typer.Option(metavar="COUNT", help="Pods in the cluster.", min=1)
    ] = 40_000,
    reports: Annotated[
        int, typer.Option(metavar="COUNT", help="Changed reports in the burst.", min=1)
    ] = 5_000,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long the burst is.", min=0.1)
    ] = 10.0,
    json_file: JsonFile = None,
) -> None:
    """Measure what following a large cluster costs.

    It starts over a stand-in for the API server: the time until it is ready, its memory, and how
    filter answers while many nodes publish changed reports.
    """
    from benchmarks.speed.following import measure, table

    measured(json_file, partial(measure, nodes, pods, reports, seconds), table)


def dra(
    nodes: Annotated[
        int, typer.Option(metavar="COUNT", help="Nodes of the cluster.", min=8)
    ] = 5_000,
    claims: Annotated[int, typer.Option(metavar="COUNT", help="ResourceClaims.", min=1)] = 40_000,
    seed: Annotated[
        int, typer.Option(metavar="NUMBER", help="Seed of states, orders and claims.")
    ] = 1,
    json_file: JsonFile = None,
) -> None:
    """Measure what nodes with DRA cost.

    Filter and prioritize over nodes with device plugins, and where half of them have DRA; and what
    it takes to follow ResourceSlices and ResourceClaims.
    """
    from benchmarks.speed.dra import measure, objects_table, table

    measured(json_file, partial(measure, nodes, claims, seed), table, objects_table)


def worst(
    seed: Annotated[
        int, typer.Option(metavar="NUMBER", help="Seed that the nodes' states are drawn from.")
    ] = 1,
    json_file: JsonFile = None,
) -> None:
    """Measure the slowest questions that a pod may ask.

    They are asked of the nodes that take longest to work out. The table shows how long each verb
    takes, and how long others wait meanwhile.
    """
    from benchmarks.speed.worst import measure, table

    measured(json_file, partial(measure, seed), table)
