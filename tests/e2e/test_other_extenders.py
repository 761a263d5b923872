"""Other extenders in kube-scheduler's configuration: in our place, and beside us.

In our place stands one that lets everything pass: what kube-scheduler evicts then, by its own
counting, helps no pod. Beside us stands one that keeps some nodes to itself.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.cluster import PODS, RealCluster
from tests.e2e.controlplane import Process
from tests.e2e.occupiednode import OccupiedNode, linked
from tests.fakes.httpserver import answering
from tests.programs import free_port
from topology.core.graph import AllocatorConfig
from topology.machines import machine

pytestmark = pytest.mark.e2e
NVLINK = {"link": "nvlink"}
QUIET = 4.0
# Whose pods kube-scheduler evicts for four GPUs: by priority, and two of them have no link.
LEAST_IMPORTANT = {0, 4, 6, 7}
INELIGIBLE = "example.com/closed"
IN_MAINTENANCE = "node is in maintenance"
Extenders = list[dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def _classes(real: RealCluster) -> None:
    real.add_priority_classes(low=1, middle=500, high=1000)


@contextmanager
def configured(real: RealCluster, change: Callable[[Extenders], Extenders]) -> Iterator[None]:
    """kube-scheduler runs with other extenders than the one that we ship inside the block."""
    config = real.scheduler_config()
    config["extenders"] = change(config["extenders"])
    real.control_plane.stop_scheduler()
    real.control_plane.start_scheduler(str(yaml.safe_dump(config)))
    try:
        yield
    finally:
        real.restart_scheduler()


@pytest.fixture
def full(real: RealCluster) -> Iterator[OccupiedNode]:
    """A DGX-1V whose GPUs are held by a pod each; the least important ones by priority do not hold
    GPUs that are all linked."""
    name = f"dgx-{time.monotonic_ns()}"
    node = OccupiedNode(real, machine("dgx1-v100").topology(name))
    for gpu in range(8):
        important = "low" if gpu in LEAST_IMPORTANT else "middle"
        node.hold(f"{name}-{gpu}", gpu, priorityClassName=important)
    node.publish()
    assert not linked(node.node, sorted(LEAST_IMPORTANT))
    yield node
    for pod in real.api.get(PODS).json()["items"]:
        real.remove_pod(pod["metadata"]["name"])
    real.api.delete(f"/api/v1/nodes/{name}")
    real.api.delete(f"/apis/gpu-topology.io/v1alpha1/gputopologies/{name}")


def asks_for_a_quad(real: RealCluster, node: OccupiedNode) -> str:
    """A pod of high priority that wants four linked GPUs of this node; its name."""
    name = f"{node.node.name}-urgent"
    only = {"nodeSelector": {"kubernetes.io/hostname": node.node.name}}
    real.add_pod(name, 4, NVLINK, priorityClassName="high", **only)
    return name


def victims(real: RealCluster, node: OccupiedNode) -> set[int]:
    """The GPUs whose pods are evicted, once four are; their kubelet lets them end."""
    real.until(lambda: len(node.evicted()) == 4, "four pods are evicted")
    found = node.evicted()
    node.let_go(*found)
    return {int(name.rpartition("-")[2]) for name in found}


def test_one_that_lets_all_pass_has_pods_evicted_for_gpus_without_links(
    real: RealCluster, full: OccupiedNode, tmp_path: Path
) -> None:
    """And the pod is bound there, which asked for links."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.speed.nothing", str(port), "1"]
    nothing = Process("nothing", command, tmp_path / "nothing.log")

    def stands_in(shipped: Extenders) -> Extenders:
        fields = ("filterVerb", "prioritizeVerb", "weight", "managedResources")
        ours = {key: shipped[0][key] for key in fields}
        url = f"http://127.0.0.1:{port}/scheduler"
        return [{**ours, "urlPrefix": url, "nodeCacheCapable": True, "httpTimeout": "10s"}]

    try:
        real.until(lambda: answers(port), "the extender that does nothing serves")
        with configured(real, stands_in):
            pod = asks_for_a_quad(real, full)
            assert victims(real, full) == LEAST_IMPORTANT
            assert real.node_of(pod) == full.node.name
    finally:
        nothing.stop()


def answers(port: int) -> bool:
    """Whether an HTTP server answers at a port."""
    try:
        httpx.get(f"http://127.0.0.1:{port}/", timeout=2.0, trust_env=False)
    except httpx.TransportError:
        return False
    return True


def test_without_our_preempt_verb_evictions_help_no_pod(
    real: RealCluster, full: OccupiedNode
) -> None:
    """The verb is left out of the configuration: filter still refuses what the evictions leave."""

    def silent(shipped: Extenders) -> Extenders:
        return [{key: value for key, value in shipped[0].items() if key != "preemptVerb"}]

    with configured(real, silent):
        pod = asks_for_a_quad(real, full)
        assert victims(real, full) == LEAST_IMPORTANT
        real.until(
            lambda: "free GPUs" in real.unschedulable(pod), "the pod waits, by our filter's word"
        )
        until = time.monotonic() + QUIET
        while time.monotonic() < until:
            assert not real.pod(pod)["spec"].get("nodeName")
            time.sleep(0.2)


class Keeper:
    """Another extender, before ours: it refuses full nodes with a label."""

    def __init__(self) -> None:
        self.pods: list[str] = []

    def filter(self, _: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        """The nodes that are open, whole, and why the others are not."""
        args = json.loads(body)
        self.pods.append(args["Pod"]["metadata"]["name"])
        assert args["NodeNames"] is None, "it asked for whole nodes"
        nodes = args["Nodes"]["items"]
        closed = [n for n in nodes if INELIGIBLE in n["metadata"].get("labels", {})]
        failed = {n["metadata"]["name"]: IN_MAINTENANCE for n in closed}
        left = {"items": [n for n in nodes if n not in closed]}
        return 200, json.dumps({"Nodes": left, "FailedNodes": failed}).encode()


@pytest.mark.parametrize("names", [True, False], ids=["we get names", "we get whole nodes"])
@pytest.mark.parametrize("first", [True, False], ids=["it is asked first", "we are asked first"])
def test_one_beside_us_and_we_both_have_our_say(
    real: RealCluster, first: bool, names: bool
) -> None:
    tag = f"{first}-{names}".lower()
    pool = {"nodeSelector": {"pool": tag}}
    kinds = {"pairs": "a100-pcie-4-bridged", "closed": "a100-pcie-4-bridged", "plain": "l40s-4"}
    for kind, model in kinds.items():
        name = f"{kind}-{tag}"
        real.add_machine(machine(model).topology(name, allocator=AllocatorConfig("best-effort")))
        labels = {"pool": tag, **({INELIGIBLE: "true"} if kind == "closed" else {})}
        real.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})
    keeper = Keeper()
    with answering(keeper.filter) as port:
        url = f"http://127.0.0.1:{port}"
        theirs = {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": False}

        def both(shipped: Extenders) -> Extenders:
            ours = {**shipped[0], "nodeCacheCapable": names}
            return [theirs, ours] if first else [ours, theirs]

        with configured(real, both):
            for number in range(2):
                pod = f"pair-{number}-{tag}"
                real.add_pod(pod, 2, NVLINK, priorityClassName="low", **pool)
                assert real.node_of(pod) == f"pairs-{tag}"
                real.until_bound(pod)
                placed = real.pod(pod)["metadata"]["annotations"]["gpu-topology.io/placement"]
                assert json.loads(placed)["verdict"] == "guaranteed"
            real.add_pod(f"third-{tag}", 2, NVLINK, priorityClassName="low", **pool)
            words = real.unschedulable(f"third-{tag}")
            assert f"1 {IN_MAINTENANCE}" in words
            assert "1 the hardware has no set of 2 GPUs with link=nvlink" in words
            assert "1 Insufficient nvidia.com/gpu" in words

            # A pod without GPUs is the other's to judge, and not ours to bind.
            bound = real.calls("bind")
            real.add_pod(f"cpu-{tag}", 0, **pool)
            assert real.node_of(f"cpu-{tag}") in (f"pairs-{tag}", f"plain-{tag}")
            assert real.calls("bind") == bound
            assert {f"cpu-{tag}", f"third-{tag}"} <= set(keeper.pods)
    real.remove_pod(f"third-{tag}")
