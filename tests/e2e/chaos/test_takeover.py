"""How long a takeover takes while many pods wait: each of them has to be changed.

``GPU_TOPOLOGY_WAITING_PODS`` says how many; the seconds are printed.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.chaos.replicas import ReplicatedCluster
from tests.e2e.chaos.workload import pod_body
from tests.e2e.cluster import PODS

pytestmark = pytest.mark.e2e

WAITING = int(os.environ.get("GPU_TOPOLOGY_WAITING_PODS", "300"))


@pytest.fixture
def waiting(cluster: ReplicatedCluster) -> Iterator[list[str]]:
    """Pods that fit on no node: there is none. kube-scheduler does not look at them."""
    names = [f"waits-{i}" for i in range(WAITING)]
    with cluster.without_scheduler(), ThreadPoolExecutor(16) as threads:
        try:
            bodies = [pod_body(name, 2, 1e6, linked=True) for name in names]
            for _ in threads.map(lambda body: cluster.create(PODS, body), bodies):
                pass
            yield names
        finally:
            now = {"gracePeriodSeconds": 0}
            list(threads.map(lambda name: cluster.api.delete(f"{PODS}/{name}", params=now), names))


def test_a_takeover_changes_every_pod_that_waits(
    cluster: ReplicatedCluster, waiting: list[str]
) -> None:
    cluster.replace_replicas()
    leader, standby = cluster.leader(), cluster.standby()
    cluster.until(lambda: cluster.ready(standby), "the standby is ready")
    assert leader.process is not None
    assert standby.process is not None
    before = len(takeovers(standby.process.text()))
    leader.process.stop(signal.SIGKILL)
    began = time.monotonic()
    found: list[dict[str, Any]] = []

    def taken_over() -> bool:
        assert standby.process is not None
        found[:] = takeovers(standby.process.text())[before:]
        return bool(found)

    cluster.until(taken_over, "the standby has taken over")
    took = time.monotonic() - began
    print(
        f"\n{WAITING} pods wait: the takeover took {found[0]['seconds']:.1f} s, "
        f"and was over {took:.1f} s after kill -9"
    )
    assert found[0]["pods_changed"] == len(waiting)
    cluster.start(leader)


def takeovers(log: str) -> list[dict[str, Any]]:
    """What a replica's log says of its takeovers."""
    entries = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [entry for entry in entries if entry.get("event") == "this replica leads"]
