"""Several hundred pods through the real API server and scheduler onto emulated kubelets.

Pods come and go, some are deleted, reports come late, and the extender is killed in the middle. No
promise that was called guaranteed may be broken, and no kubelet may find too few GPUs.
"""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from tests.e2e.cluster import PODS, RealCluster
from tests.e2e.emulated import RUNS, Kubelets
from tests.waiting import FOREVER, eventually
from topology.machines import machine

pytestmark = pytest.mark.e2e

PODS_SENT = 320
RATE = 9.0  # pods a second; the fleet has room for most of them at any time

FLEET = (
    ("dgx1-v100", 4),
    ("dgx1-p100", 1),
    ("a100-pcie-4-bridged", 3),
    ("l40s-4", 1),
    ("hgx-h100-8", 2),
)
NVLINK = {"link": "nvlink"}
KINDS: tuple[tuple[int, dict[str, str], tuple[int, ...], tuple[int, ...]], ...] = (
    # weight, annotations, GPUs of app containers, GPUs of init containers
    (30, {}, (1,), ()),
    (25, NVLINK, (2,), ()),
    (8, NVLINK, (3,), ()),
    (10, NVLINK, (4,), ()),
    (5, NVLINK, (1, 1), ()),
    (4, NVLINK, (2,), (1,)),
    (4, {"link": "nvlink", "policy": "preferred"}, (2,), ()),
)


def _pod(number: int, rng: random.Random) -> dict[str, Any]:
    _, annotations, apps, inits = rng.choices(KINDS, [kind[0] for kind in KINDS])[0]

    def containers(prefix: str, counts: tuple[int, ...]) -> list[dict[str, Any]]:
        return [
            {
                "name": f"{prefix}{i}",
                "image": "example/work",
                "resources": {"limits": {"nvidia.com/gpu": str(n)}},
            }
            for i, n in enumerate(counts)
        ]

    ours = {f"gpu-topology.io/{key}": value for key, value in annotations.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{number}",
            "annotations": {**ours, RUNS: f"{rng.uniform(1.0, 6.0):.2f}"},
        },
        "spec": {
            "containers": containers("app", apps),
            **({"initContainers": containers("init", inits)} if inits else {}),
        },
    }


def test_promises_hold_while_pods_come_and_go_and_the_extender_is_killed(real: RealCluster) -> None:
    rng = random.Random(5)
    fleet = [machine(name).topology(f"{name}-{i}") for name, n in FLEET for i in range(n)]
    for node in fleet:
        real.add_machine(node)
    with Kubelets(real, fleet, seed=5) as kubelets:
        started = time.monotonic()
        for number in range(PODS_SENT):
            real.create(PODS, _pod(number, rng))
            if number % 20 == 7:
                real.api.delete(f"{PODS}/pod-{rng.randrange(number)}")
            if number == PODS_SENT // 2:
                real.kill_extender()
                real.start_extender()
            time.sleep(max(0.0, started + number / RATE - time.monotonic()))
        eventually(
            lambda: not _unfinished(real),
            "every pod has ended or is gone",
            within=FOREVER,
            every=0.5,
            told=lambda: str(_unfinished(real)),
        )
        kept = kubelets.kept
        assert kubelets.errors == []
    guaranteed = [words for words in kept.broken if words.startswith("guaranteed")]
    surprises = [
        line
        for line in real.metrics.get("/metrics").text.splitlines()
        if line.startswith("gpu_topology_surprises_total")
    ]
    print(f"\n{kept.admitted} pods admitted, {kept.promised} on a promise, broken: {kept.broken}")
    print(f"refused: {kept.refused}; {surprises}; {time.monotonic() - started:.0f} s")
    assert guaranteed == []
    assert kept.refused == []
    assert kept.admitted > 0.9 * PODS_SENT
    assert kept.promised > 0.4 * PODS_SENT
    assert 'gpu_topology_surprises_total{kind="outside-outcomes"} 0.0' in surprises


def _unfinished(real: RealCluster) -> list[str]:
    items = real.api.get(PODS).json()["items"]
    return [
        item["metadata"]["name"]
        for item in items
        if item["status"].get("phase") not in ("Succeeded", "Failed")
    ]
