"""The demo `make run`, which drives the real service over HTTP, on a bundled fleet.

It sends the requests that kube-scheduler would send. :mod:`~scheduler_extender.demo.workload` draws
the pods at random, and :mod:`~scheduler_extender.demo.placing` simulates the cluster, with and
without the extender. :mod:`~scheduler_extender.demo.tables` prints the results, and
:mod:`~scheduler_extender.demo.picture` draws them.
"""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from scheduler_extender.demo import tables, workload
from scheduler_extender.demo.picture import comparison, picture
from scheduler_extender.demo.placing import FirstBest, Outcome, OverHttp, Placing, Stock
from scheduler_extender.demo.tables import Play
from scheduler_extender.explain.gpustates import Use
from scheduler_extender.files.clusterfile import ClusterFile, load
from scheduler_extender.files.snapshot import cluster_file
from scheduler_extender.serving import in_memory, in_thread
from scheduler_extender.terminal import progress, show

FLEET = Path(__file__).with_name("fleet.yaml")
PICTURE = "cluster.svg"
STOCK_PICTURE = "stock.svg"
COMPARISON = "comparison.svg"
CLUSTER_FILE = "cluster.yaml"
FILES = (PICTURE, STOCK_PICTURE, COMPARISON, CLUSTER_FILE)
LEGEND = (
    "The simulated kubelets choose GPUs as NVIDIA's plugin does, with ties broken at random. "
    "Stock is kube-scheduler without the extender: it only counts GPUs, and the pods have node "
    "selectors for model and memory."
)


def run_demo(console: Console, out: Path, count: int, seed: int, cluster: Path | None) -> int:
    """Place ``count`` pods and show the results. Returns 0, or 1 if a promise was broken.

    The stock scheduler then places the same pods on the same nodes, which are empty again.
    """
    source = cluster or FLEET
    play = _played(console, load(source), source.name, workload.pods(count, seed), seed)
    drawings = _drawn(out, play)
    (out / CLUSTER_FILE).write_bytes(b"".join(cluster_file(play.final_cache)))
    show(console, tables.by_request(play))
    console.print()
    waiting = tables.waiting(play.final_cache.snapshot())
    if waiting.row_count:
        show(console, waiting, keys=2)
        console.print()
    console.print(tables.summary(play, drawings))
    console.print(LEGEND, style="dim")
    command, of = ".venv/bin/gpu-topology", f"--cluster {shlex.quote(str(out / CLUSTER_FILE))}"
    for line in (
        "",
        "To explore this cluster on the terminal:",
        f"  {command} map {of}",
        f"  {command} waiting -A {of}",
        "and in the browser at http://localhost:8889/map:",
        f"  {command} extender {of}",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 1 if any(outcome.wrong for outcome in play.outcomes) else 0


def _played(
    console: Console, content: ClusterFile, source: str, pods: list[dict[str, Any]], seed: int
) -> Play:
    nodes = [record.topology for record in content.records]
    extender, outcomes = FirstBest(seed), list[Outcome]()
    ours = Placing(nodes, seed, extender)
    service = in_memory(extender.cluster)
    with in_thread(replace(service, binder=extender.binder)) as serving:
        url = f"http://127.0.0.1:{serving.ports[0]}"
        extender.verbs = asked = OverHttp(url)
        gpus = sum(len(node.gpus) for node in nodes)
        console.print(
            f"[bold]{len(nodes)} nodes, {gpus} GPUs[/] from {source}; "
            f"the extender serves {url}/scheduler"
        )
        with progress("placing pods", lines=True) as tell:
            for number, pod in enumerate(pods, 1):
                outcomes.append(ours.place(pod))
                placed = sum(o.node is not None for o in outcomes)
                tell(number / len(pods), f"{placed} placed, {number - placed} waiting")
    stock = Placing(nodes, seed, Stock(seed))
    stocked, twice = [stock.place(pod) for pod in pods], stock.overcommitted()
    return Play(
        outcomes, stocked, twice, asked.spent, extender.cluster, ours.states(), stock.states()
    )


def _drawn(out: Path, play: Play) -> list[Path]:
    """Draw both simulations, and nodes on which they differ. Returns the paths of the pictures."""
    many = len(play.outcomes)
    placed, there = (
        sum(o.node is not None for o in outcomes) for outcomes in (play.outcomes, play.stock)
    )
    wrong = sum(o.wrong for o in play.stock)
    ours = f"gpu-topology: {placed} of {many} pods placed"
    stock = f"stock kube-scheduler: {there} of {many} pods placed, {wrong} on unsuitable GPUs"
    (out / PICTURE).write_text(picture(play.nodes, ours))
    (out / STOCK_PICTURE).write_text(picture(play.stock_nodes, stock))
    made = [out / PICTURE, out / STOCK_PICTURE]
    (out / COMPARISON).unlink(missing_ok=True)
    if any(node.uses[Use.MISMATCHED] for node in play.stock_nodes):
        drawing = comparison(
            play.nodes, play.stock_nodes, f"Same nodes, same pods: {ours}; {stock}"
        )
        (out / COMPARISON).write_text(drawing)
        made.append(out / COMPARISON)
    return made
