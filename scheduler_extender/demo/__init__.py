"""`make run`: the real service on a bundled fleet, driven over HTTP as kube-scheduler would.

:mod:`~scheduler_extender.demo.workload` draws the pods,
:mod:`~scheduler_extender.demo.scheduler` plays kube-scheduler,
:mod:`~scheduler_extender.demo.kubelet` plays the kubelets, and
:mod:`~scheduler_extender.demo.picture` draws what came of it.
"""

from __future__ import annotations

import threading
from collections import Counter
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from scheduler_extender.demo import workload
from scheduler_extender.demo.kubelet import Kubelets
from scheduler_extender.demo.picture import picture
from scheduler_extender.demo.scheduler import Outcome, Scheduler
from scheduler_extender.files.clusterfile import ClusterFile, load
from scheduler_extender.http.addresses import Addresses
from scheduler_extender.http.servers import Servers
from scheduler_extender.serving import file_service, in_thread
from scheduler_extender.terminal import show
from scheduler_extender.wording import set_text, sets_text, verdict_text
from topology.core.devices import PodUid

FLEET = Path(__file__).with_name("fleet.yaml")
PICTURE = "cluster.svg"
SHOWN_SETS = 3
WEIGHT = 5
"""As in manifests/scheduler/kube-scheduler-config.yaml, which says why; a test compares the two."""


def run_demo(console: Console, out: Path, count: int, seed: int, cluster: Path | None) -> int:
    """Place ``count`` pods and show what happened; 0, or 1 if a promise was broken."""
    source = cluster or FLEET
    content = load(source)
    kubelets = Kubelets([record.topology for record in content.records], seed)
    pods = workload.pods(count, seed)
    outcomes: list[Outcome] = []
    service, binder = file_service(content)
    with in_thread(service) as serving:
        url, admin = _urls(serving)
        console.print(
            f"[bold]{len(content.records)} nodes, {_gpus(content)} GPUs[/] from {source.name}; "
            f"the extender serves {url}/scheduler"
        )
        scheduler = Scheduler(url, admin, kubelets, lambda uid: binder.placement(PodUid(uid)))
        with Progress(
            TextColumn("placing pods"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[placed]} placed, {task.fields[waiting]} waiting"),
            TimeRemainingColumn(),
            console=console,
        ) as progress:
            task = progress.add_task("", total=len(pods), placed=0, waiting=0)
            for pod in pods:
                outcomes.append(scheduler.schedule(pod))
                placed = sum(o.node is not None for o in outcomes)
                progress.update(task, advance=1, placed=placed, waiting=len(outcomes) - placed)
        spent = scheduler.spent
    drawing = out / PICTURE
    placed = sum(o.node is not None for o in outcomes)
    title = f"{len(content.records)} nodes after {len(pods)} pods: {placed} placed"
    drawing.write_text(picture(list(kubelets.nodes.values()), kubelets.holders, title))
    _show(console, outcomes)
    _summarise(console, content, kubelets, outcomes, spent, drawing)
    return 1 if any(o.broken for o in outcomes) else 0


def _urls(serving: Servers) -> tuple[str, str]:
    port, admin_port = serving.ports
    return f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"


def _gpus(content: ClusterFile) -> int:
    return sum(len(record.topology.gpus) for record in content.records)


def _show(console: Console, outcomes: list[Outcome]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("pod", overflow="fold")
    table.add_column("asked for", overflow="fold")
    table.add_column("node", overflow="fold")
    table.add_column("got", no_wrap=True)
    table.add_column("could have got", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for o in outcomes:
        if o.node is not None:
            possible = sets_text(o.possible, SHOWN_SETS) if o.possible else "any"
            got = set_text(o.got)
            table.add_row(o.pod, o.asks, o.node, got, possible, verdict_text(o.verdict))
    show(console, table)
    console.print()
    waiting = Table(box=None, pad_edge=False, header_style="bold")
    waiting.add_column("waiting pod", overflow="fold")
    waiting.add_column("asked for", overflow="fold")
    waiting.add_column("why, and on how many nodes", overflow="fold")
    for o in outcomes:
        if o.node is None:
            why = "; ".join(f"{n} nodes: {reason}" for reason, n in o.reasons)
            waiting.add_row(o.pod, o.asks, why)
    if waiting.row_count:
        show(console, waiting)
        console.print()


def _summarise(
    console: Console,
    content: ClusterFile,
    kubelets: Kubelets,
    outcomes: list[Outcome],
    spent: dict[str, list[float]],
    drawing: Path,
) -> None:
    placed = [o for o in outcomes if o.node is not None]
    held = sum(len(set(chain(*pods.values()))) for pods in kubelets.holders.values())
    promised = [o for o in placed if o.promised]
    broken = sum(o.broken for o in promised)
    verdicts = Counter(o.verdict for o in promised)
    times = ", ".join(
        f"{verb} {1000 * sorted(seconds)[len(seconds) // 2]:.1f} ms"
        for verb, seconds in spent.items()
        if seconds
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("placed", f"{len(placed)} of {len(outcomes)} pods")
    table.add_row("GPUs in use", f"{held} of {_gpus(content)}")
    kinds = ", ".join(f"{n} {verdict}" for verdict, n in sorted(verdicts.items()))
    kinds = f" ({kinds})" if kinds else ""
    table.add_row("promises", f"{len(promised)}{kinds}; broken: {broken}")
    table.add_row("median answer", times)
    table.add_row("picture", str(drawing))
    console.print(table)
    console.print(
        "The kubelets here choose GPUs as NVIDIA's plugin does, ties at random.",
        style="dim",
    )


def serve_demo(console: Console, cluster: Path | None, port: int, admin_port: int) -> int:
    """Leave the extender running on the fleet and say how to call it; until interrupted."""
    source = cluster or FLEET
    content = load(source)
    service, _ = file_service(content)
    with in_thread(service, Addresses(port=port, admin_port=admin_port)) as serving:
        url, admin = _urls(serving)
        console.print(how_to_call(url, admin, content), markup=False, highlight=False)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            console.print("stopped")
    return 0


def how_to_call(url: str, admin: str, content: ClusterFile) -> str:
    """What `make serve` prints: a request to try, and how to plug it into a kube-scheduler."""
    names = [record.topology.name for record in content.records]
    first, last = names[0], names[-1]
    return f"""\
{len(names)} nodes are served. Two NVLinked GPUs, asked of two of them:

  curl -s {url}/scheduler/filter -d '{{
    "Pod": {{"metadata": {{"name": "train", "namespace": "default", "uid": "1",
                         "annotations": {{"gpu-topology.io/link": "nvlink"}}}},
            "spec": {{"containers": [{{"name": "main",
                     "resources": {{"limits": {{"nvidia.com/gpu": "2"}}}}}}]}}}},
    "NodeNames": ["{first}", "{last}"]}}'

  curl -s {admin}/v1/nodes/{first}        what is known of a node

To plug it into a kube-scheduler, start that with --config and

  apiVersion: kubescheduler.config.k8s.io/v1
  kind: KubeSchedulerConfiguration
  extenders:
  - urlPrefix: {url}/scheduler
    filterVerb: filter
    prioritizeVerb: prioritize
    bindVerb: bind
    preemptVerb: preempt
    weight: {WEIGHT}
    nodeCacheCapable: true
    httpTimeout: 10s
    ignorable: false
    managedResources:
    - {{name: nvidia.com/gpu}}
    - {{name: nvidia.com/gpu.shared}}    # and each nvidia.com/mig-… that nodes serve

(this one serves a file; with `gpu-topology extender --kubeconfig PATH` it serves a cluster).
This is plain HTTP and asks nobody who they are: it listens on 127.0.0.1 only. In a cluster both
ports speak TLS: docs/install.md.
Ctrl-C stops it."""
