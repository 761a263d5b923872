"""Through scheduler and extender to real kubelets: each admitted pod has what it requires."""

import json
import time
from collections import Counter
from random import Random
from statistics import median
from typing import Any

import pytest

from tests.e2e.pods import PODS, gpu_pod
from tests.e2e.realnodes import RealNodes
from tests.waiting import FOREVER, eventually

pytestmark = pytest.mark.e2e
MACHINES = {"dgx1": "dgx1-v100", "bridged": "a100-pcie-4-bridged", "pcie": "l40s-4"}
PODS_EACH = 15
PERIOD = 0.4


def test_admitted_pods_have_what_they_require(real_nodes: RealNodes) -> None:
    """Pairs that require NVLink among single GPUs that come and go.

    A single ends by itself, maybe before any record has shown it. A pair is deleted some seconds
    after it came, and not before the record shows it.
    """
    stream = _Stream(real_nodes, Random(11))
    names = [f"{kind}-{i}" for i in range(PODS_EACH) for kind in ("pair", "single")]
    stream.random.shuffle(names)
    for name in names:
        stream.create(name)
        time.sleep(PERIOD)  # a stream, not one burst
        stream.go_on()
    eventually(
        stream.go_on,
        "all pods have run",
        within=FOREVER,
        every=0.5,
        detail=lambda: str(stream.phases),
    )
    answer = Counter(stream.results.values())
    print(dict(answer))
    assert sum(n for what, n in answer.items() if what.startswith("single ran")) == PODS_EACH
    assert answer["pair ran on dgx1, guaranteed"] > 0
    assert sum(n for what, n in answer.items() if what.startswith("pair ran")) == PODS_EACH
    for node in MACHINES:
        real_nodes.cluster.until(
            lambda node=node: real_nodes.follower.followed(node),  # type: ignore[misc]
            f"the record of {node} has what its kubelet shows",
        )
    if lags := real_nodes.follower.lags():
        print(f"{len(lags)} states, lag median {median(lags):.2f} s, most {max(lags):.2f} s")
    metrics = real_nodes.cluster.metrics.get("/metrics").text
    assert 'gpu_topology_mispredictions_total{kind="outside-outcomes"} 0.0' in metrics
    assert 'gpu_topology_mispredictions_total{kind="promise-broken"} 0.0' in metrics


class _Stream:
    """Pods that come and go. ``explain`` says of each that is over what became of it."""

    def __init__(self, real_nodes: RealNodes, random: Random) -> None:
        self._real = real_nodes
        self.random = random
        self._until: dict[str, float] = {}
        self.phases: dict[str, str] = {}
        self.results: dict[str, str] = {}

    def create(self, name: str) -> None:
        """A pod comes, to run for 2 to 5 seconds."""
        seconds = round(self.random.uniform(2, 5), 1)
        if name.startswith("pair"):
            pod = gpu_pod(name, [2], annotations={"link": "nvlink"})
        else:
            pod = gpu_pod(name, [1], finish_after=seconds)
        self._until[name] = time.monotonic() + seconds
        self._real.cluster.create(PODS, pod)

    def go_on(self) -> bool:
        """Judge the pods that are over, and end those that are due; whether all are over."""
        for kubelet in self._real.kubelets.values():
            kubelet.heal_plugin()
        for pod in self._real.cluster.api.get(PODS).json()["items"]:
            name = pod["metadata"]["name"]
            if name in self._until and name not in self.results:
                self.phases[name] = _phase(pod)
                self._judge(name, pod)
        return self.results.keys() == self._until.keys()

    def _judge(self, name: str, pod: dict[str, Any]) -> None:
        if _phase(pod) in ("Succeeded", "Failed"):
            self.results[name] = _check(self._real, name, pod)
            return
        node = pod["spec"].get("nodeName")
        shown = self._real.follower.held(node, name) if node is not None else None
        due = time.monotonic() >= self._until[name]
        if name.startswith("pair") and due and shown is not None and len(shown["c0"]) == 2:
            self.results[name] = _check(self._real, name, pod)
            answer = self._real.cluster.api.delete(f"{PODS}/{name}")
            assert answer.is_success, answer.text


def _phase(pod: dict[str, Any]) -> str:
    return str(pod["status"]["phase"])


def _check(real_nodes: RealNodes, name: str, pod: dict[str, Any]) -> str:
    """What became of a pod, in a word; a broken promise fails the test."""
    kind = name.split("-")[0]
    node = pod["spec"].get("nodeName")
    if node is None:
        return f"{kind} waits"
    kubelet = real_nodes.kubelets[node]
    shown = real_nodes.follower.held(node, name)
    if _phase(pod) == "Failed":
        assert shown is None, pod["status"]
        return f"{kind} refused: {pod['status'].get('reason')}"
    if shown is None:
        assert kind == "single", f"{name} was never shown: {pod['status']}"
        return "single ran, and was over before it was published"
    got = kubelet.positions(shown["c0"])
    if kind == "pair":
        placement = json.loads(pod["metadata"]["annotations"]["gpu-topology.io/placement"])
        link = next(k for k in kubelet.topology.links if (k.a, k.b) == got)
        assert link.nvlinks, f"{name} got {got} on {node}, promised {placement}"
        if placement["verdict"] == "guaranteed" and "setsOmitted" not in placement:
            assert list(got) in placement["sets"], f"{name} got {got}, promised {placement}"
        return f"pair ran on {node}, {placement['verdict']}"
    assert len(got) == 1
    return "single ran"
