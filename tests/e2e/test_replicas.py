"""Two replicas as processes in front of the real kube-scheduler: one ends, another takes over.

How long it takes until kube-scheduler gets an answer again is printed. What is asserted is that
nothing is lost and nothing is given twice, by the checker of :mod:`tests.chaos`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.chaos.checks import findings
from tests.chaos.history import Recorder, read
from tests.chaos.report import report
from tests.chaos.story import Story, story_of
from tests.e2e.chaos.kubelets import Kubelets
from tests.e2e.chaos.network import Network
from tests.e2e.chaos.replicas import Replica, ReplicatedCluster
from tests.e2e.chaos.workload import Submitter, Workload
from tests.e2e.cluster import PODS
from tests.waiting import FOREVER, eventually
from topology.machines import machine

pytestmark = pytest.mark.e2e

FLEET = (("dgx1-v100", 2), ("a100-pcie-4-bridged", 2), ("hgx-h100-8", 1))
RATE = 3.0


@dataclass
class World:
    """The cluster with its replicas, nodes, and the history so far."""

    cluster: ReplicatedCluster
    kubelets: Kubelets
    history: Recorder
    submitter: Submitter

    def finish(self) -> Story:
        """Wait until every pod is over, and judge all that has happened so far."""
        eventually(
            lambda: not self.unfinished(),
            "every pod has ended or is gone",
            within=FOREVER,
            every=0.5,
            told=lambda: f"{self.unfinished()}\n{self.cluster._logs()}",
        )
        assert self.kubelets.errors == []
        self.cluster.take_down()
        self.cluster.take_down_writes()
        return story_of(read(self.history.path))

    def unfinished(self) -> list[str]:
        items = self.cluster.api.get(PODS).json()["items"]
        over = ("Succeeded", "Failed")
        return [i["metadata"]["name"] for i in items if i["status"].get("phase") not in over]

    def answered_after(self, since: float, port: int) -> float:
        """Wait until a replica answers kube-scheduler, and return how long after ``since``."""

        def first() -> float | None:
            found = self.cluster.service.answered
            return next(
                (t for t, p, _, code in found if t > since and p == port and code == 200), None
            )

        self.cluster.until(first, "the other replica answers kube-scheduler")
        found = first()
        assert found is not None
        return found - since


@pytest.fixture(scope="module")
def world(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("replicas")
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        history = stack.enter_context(Recorder(folder / "history.jsonl"))
        cluster = stack.enter_context(
            ReplicatedCluster(folder, control_plane_binaries, network, history)
        )
        fleet = [machine(name).topology(f"{name}-{i}") for name, n in FLEET for i in range(n)]
        for node in fleet:
            cluster.add_machine(node)
        kubelets = stack.enter_context(Kubelets(cluster.control_plane, fleet, 3, history))
        submitter = Submitter(cluster.control_plane, history)
        stack.callback(submitter.close)
        yield World(cluster, kubelets, history, submitter)


def both_ready(world: World) -> tuple[Replica, Replica]:
    """The leader and the standby, once both are ready."""
    cluster = world.cluster
    cluster.until(lambda: all(map(cluster.ready, cluster.replicas)), "both replicas are ready")
    return cluster.leader(), cluster.standby()


def some_bound(world: World, workload: Workload, more: int = 12) -> None:
    """Wait until so many more pods were created, so that binds are under way."""
    wanted = workload.created + more
    world.cluster.until(lambda: workload.created >= wanted, "pods are created")


def check(world: World, what: str) -> None:
    story = world.finish()
    print(report(story))
    assert findings(story) == [], what


def test_a_rolling_restart_under_load_loses_no_pod(world: World) -> None:
    leader, standby = both_ready(world)
    with Workload(world.cluster.control_plane, world.history, 1, RATE, "rolled") as workload:
        some_bound(world, workload)
        began = time.monotonic()
        assert leader.process is not None
        leader.process.signal(signal.SIGTERM)
        took = world.answered_after(began, standby.port)
        print(f"\nSIGTERM of the leader: kube-scheduler has an answer again after {took:.2f} s")
        leader.process.stop()
        world.cluster.start(leader)
        some_bound(world, workload)
    check(world, "a rolling restart")


def test_after_kill_of_the_leader_another_takes_over(world: World) -> None:
    leader, standby = both_ready(world)
    with Workload(world.cluster.control_plane, world.history, 2, RATE, "killed") as workload:
        some_bound(world, workload)
        began = time.monotonic()
        assert leader.process is not None
        leader.process.stop(signal.SIGKILL)
        took = world.answered_after(began, standby.port)
        print(f"\nkill -9 of the leader: kube-scheduler has an answer again after {took:.2f} s")
        world.cluster.start(leader)
    check(world, "kill -9 of the leader")


def test_a_leader_that_was_paused_past_its_lease_binds_nothing_more(world: World) -> None:
    cluster = world.cluster
    leader, standby = both_ready(world)
    with Workload(cluster.control_plane, world.history, 3, RATE, "paused") as workload:
        some_bound(world, workload)
        began = time.monotonic()
        leader.pause()
        took = world.answered_after(began, standby.port)
        print(f"\nSIGSTOP of the leader: kube-scheduler has an answer again after {took:.2f} s")
        leader.resume()
        some_bound(world, workload)
        url = f"http://127.0.0.1:{leader.port}/scheduler/filter"
        body = {"Pod": {"metadata": {"name": "x"}}, "NodeNames": []}

        def refuses() -> bool:
            return httpx.post(url, json=body).status_code == 503

        cluster.until(refuses, "the former leader answers 503")
    check(world, "SIGSTOP of the leader")
