"""Pods that succeed: the next pod finds their devices free, though reports still show them."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.kube.sinks import PodSink
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import Pod
from tests.nodes import offered, pod, record_of, shown, switched, unacknowledged
from tests.scheduler_extender.conftest import raw
from tests.scheduler_extender.serving import Clock
from topology.core.availability import Availability, Holder
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.report import READY, Allocation, Condition, Report

NODE = switched(4, "node")
NAME = NodeName("node")
GPU = "nvidia.com/gpu"


def bound(uid: str, count: int = 2, **more: Any) -> PodRecord:
    return replace(record_of(pod(count, name=uid, uid=uid, node="node")), **more)


def report(sequence: int, *allocations: Allocation, **more: Any) -> Report:
    return Report("boot", sequence, allocations=allocations, **more)


def available(cluster: Cache) -> Availability:
    found = offered(cluster.node_info(NAME)).availability
    assert isinstance(found, Availability)
    return found


@pytest.fixture
def cluster() -> Cache:
    """The pod ``first`` holds the GPUs 1 and 2, and a report shows it."""
    found = Cache(Clock())
    found.put_pod(bound("first"))
    found.put_record(NODE, report(1, shown("first", 1, 2)))
    assert available(found) == Availability(0b1001, running=(Holder(0b0110),))
    return found


def succeed(cluster: Cache, uid: str = "first") -> None:
    cluster.put_pod(bound(uid, phase="Succeeded"))


def test_its_devices_are_free_at_once(cluster: Cache) -> None:
    asked = msgspec.convert(pod(4, {"link": "nvlink"}, uid="next"), Pod)
    assert not verbs.filter_nodes(cluster, asked, ["node"]).node_names
    succeed(cluster)
    assert available(cluster) == Availability(0b1111)
    assert verbs.filter_nodes(cluster, asked, ["node"]).node_names == ["node"]


def test_a_report_may_show_them_for_a_while_yet(cluster: Cache) -> None:
    succeed(cluster)
    cluster.put_record(NODE, report(2, shown("first", 1, 2)))
    assert available(cluster) == Availability(0b1111)
    cluster.drop_pod(PodUid("first"), 7)
    cluster.put_record(NODE, report(3, shown("first", 1, 2)))
    assert available(cluster) == Availability(0b1111)
    cluster.put_record(NODE, report(4))
    assert not cluster.node_info(NAME).pods.released, "nobody shows it any more"


def test_they_stay_free_while_the_next_pod_waits_for_its_report(cluster: Cache) -> None:
    """It comes after the end, so it finds them free, and so does the pod after it."""
    succeed(cluster)
    cluster.put_pod(bound("next", 1))
    assert available(cluster) == Availability(0b1111, unacknowledged=(unacknowledged(1),))
    cluster.put_record(NODE, report(2, shown("first", 1, 2)))
    assert available(cluster) == Availability(0b1111, unacknowledged=(unacknowledged(1),))
    cluster.put_record(NODE, report(3, shown("next", 2)))
    assert available(cluster) == Availability(0b1011, running=(Holder(0b0100),))


def test_a_pod_that_is_unacknowledged_then_may_have_found_them_held(cluster: Cache) -> None:
    cluster.put_pod(bound("second", 1))
    succeed(cluster)
    both = Availability(0b1001, releasing=(Holder(0b0110),), unacknowledged=(unacknowledged(1),))
    assert available(cluster) == both


def test_an_assumed_pod_may_be_such_a_pod(cluster: Cache) -> None:
    cluster.assume(NAME, bound("second", 1, node=None))
    succeed(cluster)
    assert available(cluster).releasing == (Holder(0b0110),)


def test_not_only_its_kubelet_says_that_a_pod_has_failed(cluster: Cache) -> None:
    cluster.put_pod(bound("first", phase="Failed"))
    assert available(cluster) == Availability(0b1001, releasing=(Holder(0b0110),))


def test_a_pod_that_a_list_shows_as_succeeded_may_have_done_so_after_others_came() -> None:
    cluster = Cache(Clock())
    cluster.put_record(NODE, report(1, shown("first", 1, 2)))
    succeed(cluster)
    assert available(cluster) == Availability(0b1001, releasing=(Holder(0b0110),))


def test_a_list_may_show_the_end_of_one_pod_before_the_start_of_another(cluster: Cache) -> None:
    """Both happened while the watch was broken, and the list names them in another order."""
    sink = PodSink(cluster)
    first = pod(2, name="first", uid="first", node="node", phase="Succeeded")
    sink.replace([raw(first), raw(pod(1, name="other", uid="other", node="node"))], "9")
    now = available(cluster)
    assert now.releasing == (Holder(0b0110),)
    assert now.unacknowledged == (unacknowledged(1),)


def test_an_agent_that_cannot_see_the_kubelet_vouches_for_nothing(cluster: Cache) -> None:
    silent = Condition(READY, status=False, reason="KubeletUnavailable")
    cluster.put_record(NODE, report(2, shown("first", 1, 2), conditions=(silent,)))
    succeed(cluster)
    assert available(cluster) == Availability(0b1001, releasing=(Holder(0b0110),))


def test_a_device_that_the_kubelet_does_not_hand_out_does_not_come_free(cluster: Cache) -> None:
    well = frozenset(DeviceId(f"GPU-{i}") for i in (0, 1, 3))
    cluster.put_record(NODE, report(2, shown("first", 1, 2), allocatable=well))
    succeed(cluster)
    assert available(cluster) == Availability(0b1011, withheld=0b0100)


def test_an_older_report_does_not_bring_it_back(cluster: Cache) -> None:
    cluster.put_record(NODE, report(3, shown("first", 1, 2)))
    succeed(cluster)
    cluster.put_record(NODE, report(2))
    cluster.put_record(NODE, report(4, shown("first", 1, 2)))
    assert available(cluster) == Availability(0b1111)


def test_after_a_reboot_nothing_is_left_of_it(cluster: Cache) -> None:
    succeed(cluster)
    cluster.put_record(NODE, Report("another boot", 1))
    assert not cluster.node_info(NAME).pods.released
