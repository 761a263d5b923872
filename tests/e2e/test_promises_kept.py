"""Through scheduler and extender to real kubelets: whoever was admitted has what it requires."""

from __future__ import annotations

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
    """Pairs that require NVLink among single GPUs that come and go."""
    random = Random(11)
    names = [f"{kind}-{i}" for i in range(PODS_EACH) for kind in ("pair", "single")]
    random.shuffle(names)
    for name in names:
        pair = name.startswith("pair")
        pod = gpu_pod(
            name,
            [2 if pair else 1],
            finish_after=round(random.uniform(2, 5), 1),
            annotations={"link": "nvlink"} if pair else {},
        )
        real_nodes.cluster.create(PODS, pod)
        time.sleep(PERIOD)  # a stream, not one burst
    pods = _at_rest(real_nodes, names)
    told: Counter[str] = Counter()
    for name, pod in pods.items():
        told[_check(real_nodes, name, pod)] += 1
    print(dict(told))
    assert told["single ran"] == PODS_EACH
    assert told["pair ran on dgx1, guaranteed"] > 0
    assert sum(n for what, n in told.items() if what.startswith("pair ran")) == PODS_EACH
    for node in MACHINES:
        real_nodes.cluster.until(
            lambda node=node: real_nodes.follower.followed(node),  # type: ignore[misc]
            f"the record of {node} has what its kubelet shows",
        )
    if lags := real_nodes.follower.lags():
        print(f"{len(lags)} states, lag median {median(lags):.2f} s, most {max(lags):.2f} s")
    metrics = real_nodes.cluster.admin.get("/metrics").text
    assert 'gpu_topology_surprises_total{kind="outside-outcomes"} 0.0' in metrics
    assert 'gpu_topology_surprises_total{kind="promise-broken"} 0.0' in metrics


def _at_rest(real_nodes: RealNodes, names: list[str]) -> dict[str, dict[str, Any]]:
    """The pods, once all have ended."""
    pods: dict[str, dict[str, Any]] = {}

    def ended() -> bool:
        items = real_nodes.cluster.api.get(PODS).json()["items"]
        pods.update((pod["metadata"]["name"], pod) for pod in items)
        for kubelet in real_nodes.kubelets.values():
            kubelet.heal_plugin()
        return all(_phase(pods[name]) in ("Succeeded", "Failed") for name in names)

    eventually(
        ended,
        "all pods have ended",
        within=FOREVER,
        every=0.5,
        told=lambda: str({name: _phase(pod) for name, pod in pods.items()}),
    )
    return {name: pods[name] for name in names}


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
    assert shown is not None, f"{name} was never shown: {pod['status']}"
    got = kubelet.positions(shown["c0"])
    if kind == "pair":
        placement = json.loads(pod["metadata"]["annotations"]["gpu-topology.io/placement"])
        link = next(k for k in kubelet.topology.links if (k.a, k.b) == got)
        assert link.nvlinks, f"{name} got {got} on {node}, promised {placement}"
        if placement["verdict"] == "guaranteed" and "setsOmitted" not in placement:
            # Other sets come only of a pod that ended between bind and admission.
            fresh = set(got).difference(*placement["sets"])
            assert list(got) in placement["sets"] or fresh <= _once_held(real_nodes, node, name), (
                f"{name} got {got}, promised {placement}"
            )
        return f"pair ran on {node}, {placement['verdict']}"
    assert len(got) == 1
    return "single ran"


def _once_held(real_nodes: RealNodes, node: str, name: str) -> set[int]:
    """The GPUs that other pods of the node have held at some time."""
    kubelet, follower = real_nodes.kubelets[node], real_nodes.follower
    ids = [
        i for _, s in follower.published[node] for pod, _, held in s if pod != name for i in held
    ]
    return set(kubelet.positions(ids))
