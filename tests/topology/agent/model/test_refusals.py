"""The refusals that a record keeps: each pod once, the newest, over restarts of the agent."""

from dataclasses import replace

from tests.crd import faults
from topology import codec
from topology.agent.model.podentries import NodePod
from topology.agent.model.recordlimits import LARGEST_AMOUNT, LONGEST_REASON, MOST_REFUSED
from topology.agent.model.refusals import RefusalTracker
from topology.core.devices import NodeName, PodUid
from topology.core.report import RefusedPod, Report
from topology.machines import machine

GPU = "nvidia.com/gpu"
AFFINITY = "TopologyAffinityError"


def pod(uid: str, at: str, reason: str = AFFINITY, **wants: int) -> NodePod:
    asked = {(container, GPU): devices for container, devices in wants.items()}
    return NodePod(PodUid(uid), "ns", f"pod-{uid}", asked, started=at, refused=reason)


def seen(*pods: NodePod) -> dict[PodUid, NodePod]:
    return {each.uid: each for each in pods}


def minute(n: int) -> str:
    return f"2026-01-01T00:{n:02}:00Z"


def test_a_refused_pod_counts_once_and_outlives_its_deletion() -> None:
    tracker = RefusalTracker()
    tracker.look(seen(pod("a", minute(1), main=2, side=1)))
    once = tracker.latest
    assert once == (RefusedPod(PodUid("a"), "ns", "pod-a", GPU, 3, AFFINITY, minute(1)),)
    tracker.look(seen(pod("a", minute(1), main=2, side=1)))
    tracker.look({})
    assert tracker.latest == once, "equal histories cause no write"
    assert tracker.counts == {AFFINITY: 1}


def test_the_resource_of_which_a_pod_requests_the_most_devices_is_told() -> None:
    many = pod("a", minute(1), main=2, side=2)
    tracker = RefusalTracker()
    tracker.look(seen(replace(many, wants={**many.wants, ("main", "nvidia.com/mig-1g.5gb"): 3})))
    assert [(each.resource, each.devices) for each in tracker.latest] == [(GPU, 4)]


def test_pods_without_gpus_and_pods_that_run_are_no_refusals() -> None:
    tracker = RefusalTracker()
    tracker.look(seen(pod("cpu", minute(1)), pod("runs", minute(1), "", main=1)))
    assert (tracker.latest, tracker.counts) == ((), {})


def test_the_newest_refusals_stay_and_the_others_are_not_counted_again() -> None:
    tracker, pods = RefusalTracker(), [pod(str(n), minute(n), main=1) for n in range(40)]
    for _ in range(2):
        tracker.look(seen(*reversed(pods)))
        assert [each.at for each in tracker.latest] == [minute(n) for n in range(8, 40)]
        assert len(tracker.latest) == MOST_REFUSED
    assert tracker.counts == {AFFINITY: 40}


def test_a_new_agent_goes_on_where_the_former_one_ended() -> None:
    former, tracker = RefusalTracker(), RefusalTracker()
    former.look(seen(pod("a", minute(1), main=1)))
    tracker.remember(former.latest)
    tracker.look(seen(pod("a", minute(1), main=1), pod("b", minute(2), main=1)))
    assert [each.pod_uid for each in tracker.latest] == ["a", "b"]
    assert tracker.counts == {AFFINITY: 1}


def test_a_new_agent_does_not_count_what_the_full_history_of_the_former_one_has_dropped() -> None:
    former, tracker = RefusalTracker(), RefusalTracker()
    pods = [pod(str(n), minute(n), main=1) for n in range(40)]
    former.look(seen(*pods))
    tracker.remember(former.latest)
    tracker.look(seen(*pods, pod("new", minute(40), main=1)))
    assert tracker.counts == {AFFINITY: 1}
    assert [each.at for each in tracker.latest] == [minute(n) for n in range(9, 41)]


def test_any_resource_may_be_out() -> None:
    tracker = RefusalTracker()
    tracker.look(seen(pod("a", minute(1), "OutOf" + "r" * 300, main=1)))
    assert len(tracker.latest[0].reason) == LONGEST_REASON
    assert tracker.counts == {"OutOfDevices": 1}


def test_a_pod_that_requests_more_devices_than_a_record_can_say_does_not_spoil_it() -> None:
    """A user names the node in such a pod; then the API server would refuse all reports."""
    tracker = RefusalTracker()
    tracker.look(seen(pod("a", minute(1), main=LARGEST_AMOUNT, side=LARGEST_AMOUNT)))
    report = Report("boot", 1, None, (), history=tracker.latest)
    record = codec.encode(machine("dgx-h100").topology(NodeName("n")), report)
    assert faults(record) == []
    assert codec.decode(record).report == report
