"""Two replicas as processes in front of the real kube-scheduler: one ends, another takes over.

How long it takes until kube-scheduler gets an answer again is printed. What is asserted is that
nothing is lost and nothing is given twice, by the checker of :mod:`tests.chaos`.
"""

import signal
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.chaos.replicas import Replica, ReplicatedCluster
from tests.e2e.chaos.workload import Workload
from tests.e2e.chaos.worlds import CUT_OFF, World, judged, kept_at, world
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings(CUT_OFF)]

FLEET = (("dgx1-v100", 2), ("a100-pcie-4-bridged", 2), ("hgx-h100-8", 1))
RATE = 3.0


@pytest.fixture(scope="module")
def two(cluster: ReplicatedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The replicas have the Lease that we ship."""
    cluster.replace_replicas()
    path = kept_at("replicas", tmp_path_factory.mktemp("replicas"))
    with world(cluster, path, FLEET, seed=3) as found:
        yield found


def both_ready(two: World) -> tuple[Replica, Replica]:
    """The leader and the standby, once both are ready."""
    cluster = two.cluster
    cluster.until(lambda: all(map(cluster.ready, cluster.replicas)), "both replicas are ready")
    return cluster.leader(), cluster.standby()


def more_created(two: World, workload: Workload) -> None:
    """Wait until some more pods were created, so that binds are under way."""
    wanted = workload.created + 8
    two.cluster.until(lambda: workload.created >= wanted, "pods are created")


def answered_after(two: World, since: float, replica: Replica) -> float:
    """Wait until a replica answers kube-scheduler, and return how many seconds after ``since``."""
    answered = two.cluster.service.answered

    def first() -> list[float]:
        return [t for t, p, _, code in answered if t > since and (p, code) == (replica.port, 200)]

    two.cluster.until(first, "the other replica answers kube-scheduler")
    return first()[0] - since


def refuses(two: World, replica: Replica) -> bool:
    """Whether a replica has answered 503, which is all that it may answer. Not where it closed the
    connection first: it closes all of them when it hears that it leads no more."""
    try:
        status = two.cluster.ask(replica)
    except httpx.RemoteProtocolError:
        return False
    assert status == 503
    return True


def test_a_rolling_restart_under_load_loses_no_pod(two: World) -> None:
    leader, standby = both_ready(two)
    assert leader.process is not None
    with Workload(two.cluster.control_plane, two.history, 1, RATE, "rolled") as workload:
        more_created(two, workload)
        began = time.monotonic()
        leader.process.signal(signal.SIGTERM)
        took = answered_after(two, began, standby)
        print(f"\nSIGTERM of the leader: kube-scheduler has an answer again after {took:.2f} s")
        leader.process.stop()
        two.cluster.start(leader)
        more_created(two, workload)
    assert judged(two.finish(), two.history) == []


def test_after_kill_of_the_leader_another_takes_over(two: World) -> None:
    leader, standby = both_ready(two)
    assert leader.process is not None
    with Workload(two.cluster.control_plane, two.history, 2, RATE, "killed") as workload:
        more_created(two, workload)
        began = time.monotonic()
        leader.process.stop(signal.SIGKILL)
        took = answered_after(two, began, standby)
        print(f"\nkill -9 of the leader: kube-scheduler has an answer again after {took:.2f} s")
        two.cluster.start(leader)
    assert judged(two.finish(), two.history) == []


def test_a_leader_that_was_paused_past_its_lease_answers_no_more(two: World) -> None:
    leader, standby = both_ready(two)
    with Workload(two.cluster.control_plane, two.history, 3, RATE, "paused") as workload:
        more_created(two, workload)
        began = time.monotonic()
        leader.pause()
        took = answered_after(two, began, standby)
        print(f"\nSIGSTOP of the leader: kube-scheduler has an answer again after {took:.2f} s")
        leader.resume()
    eventually(lambda: refuses(two, leader), "the former leader answers")
    assert judged(two.finish(), two.history) == []
