"""The commands that measure time: latency, throughput, following, dra and worst."""

from functools import partial
from typing import Annotated

import typer

from benchmarks.commands.options import JsonFile, measured
from benchmarks.speed import dra as dra_
from benchmarks.speed import following as following_
from benchmarks.speed import latency as latency_
from benchmarks.speed import throughput as throughput_
from benchmarks.speed import worst as worst_


def latency(
    nodes: Annotated[
        list[int] | None,
        typer.Option(
            metavar="COUNT",
            help="Nodes of the cluster. May be given several times.  [default: 100, 1000, 5000]",
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
    sizes = tuple(nodes or (100, 1_000, 5_000))
    measure = partial(latency_.measure, sizes, requests, seed)
    measured(json_file, measure, latency_.table, keys=3)


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
    measure = partial(throughput_.measure, nodes, pods, rounds)
    measured(json_file, measure, throughput_.table)


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
    """Measure what following a large cluster costs the extender.

    It starts over a stand-in for the API server: the time until it is ready, its memory, and how
    filter answers while many nodes publish changed reports.
    """
    measure = partial(following_.measure, nodes, pods, reports, seconds)
    measured(json_file, measure, following_.table)


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
    measure = partial(dra_.measure, nodes, claims, seed)
    measured(json_file, measure, dra_.table, dra_.objects_table)


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
    measured(json_file, partial(worst_.measure, seed), worst_.table)
