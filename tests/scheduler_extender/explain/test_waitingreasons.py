"""Waiting pods by reason: one reason for each pod, and a bounded look at all of them."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler_extender.annotations import Malformed
from scheduler_extender.deadline import NO_DEADLINE
from scheduler_extender.explain.answers import Counts, answers_to, by_reason, counts_of
from scheduler_extender.explain.waitingreasons import (
    LABELS,
    LASTING,
    LATER,
    SECONDS,
    UNKNOWN,
    WaitingReasons,
    main_reason,
    reason_of,
    rejection_counts,
)
from scheduler_extender.explain.wording import NOT_IN_TIME
from scheduler_extender.groupreference import Group, GroupReference
from scheduler_extender.kube.sinks import PodSink
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from tests.dranodes import NODE, claim, raw, two_pairs
from tests.nodes import pcie, pod, switched
from tests.scheduler_extender.evictions.scenes import NVLINKED, Held, cluster_of, waiting
from tests.scheduler_extender.serving import Clock
from topology.core.devices import NodeName, PodUid
from topology.core.placement import BUSY, Reason
from topology.core.report import Report
from topology.core.requests import gpu_request

PAIR = gpu_request(2, NVLINKED)


def counted(reasons: WaitingReasons) -> dict[str, int]:
    found = reasons.count()
    assert tuple(found) == LABELS
    return {label: many for label, many in found.items() if many}


def test_a_pod_counts_for_the_reason_of_nodes_whose_hardware_could_take_it() -> None:
    cluster = cluster_of({pcie(2, "a"): {}, pcie(2, "b"): {}, switched(2, "c"): {"x": Held((0,))}})
    for name in ("one", "two"):
        cluster.put_pod(waiting(name, PAIR))
    cluster.put_pod(waiting("many", gpu_request(16)))
    cluster.put_pod(waiting("small", gpu_request(1)))
    cluster.put_pod(replace(waiting("odd", PAIR), request=Malformed("link: ?", None)))
    assert counted(WaitingReasons(cluster)) == {
        "busy": 2,
        "too-few-gpus": 1,
        "none": 1,
        "malformed": 1,
    }


def test_undecided_nodes_hide_no_reason_and_are_hidden_by_none_that_lasts() -> None:
    assert main_reason({Reason.UNDECIDED: 9, Reason.BUSY: 1}) is Reason.BUSY
    assert main_reason({Reason.UNDECIDED: 1, Reason.LINKS: 9}) is Reason.UNDECIDED
    assert main_reason({Reason.STALE: 2, Reason.BUSY: 2}) is Reason.BUSY, "ties are stable"
    assert main_reason({Reason.BUSY: 2, Reason.STALE: 2}) is Reason.BUSY
    assert Reason.GROUP not in LASTING


def test_a_reason_is_looked_for_again_after_a_while_and_forgotten_with_its_pods() -> None:
    clock = Clock()
    cluster = Cache(clock, Settings(stale_after=None))
    cluster.put_record(switched(4), Report("boot", 1))
    cluster.put_pod(waiting("wants", gpu_request(8)))
    reasons = WaitingReasons(cluster)
    assert counted(reasons) == {"too-few-gpus": 1}
    cluster.put_record(switched(8, "large"), Report("boot", 1))
    assert counted(reasons) == {"too-few-gpus": 1}
    clock.now += LATER
    assert counted(reasons) == {"none": 1}
    cluster.keep_pods(set())
    assert counted(reasons) == {}
    assert not reasons._known


def test_pods_that_one_round_does_not_reach_the_next_rounds_reach() -> None:
    class Slow(Clock):
        """Each read of it uses up a part of a round's time."""

        def __call__(self) -> float:
            self.now += SECONDS / 8
            return self.now

    cluster = Cache(Slow(), Settings(stale_after=None))
    cluster.put_record(switched(4), Report("boot", 1))
    for count in range(5, 25):
        cluster.put_pod(waiting(f"p{count}", gpu_request(count)))
    reasons = WaitingReasons(cluster)
    left = [counted(reasons).get(UNKNOWN, 0) for _ in range(20)]
    assert 0 < left[0] < 20
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0
    assert cluster.node_info(NodeName("switched")).known


@pytest.mark.parametrize(
    ("pod", "counts", "words"),
    [
        pytest.param(
            {}, Counts(2, 0, 0, {BUSY: 2}), "no node takes it: not enough free GPUs (2 nodes)"
        ),
        pytest.param({}, None, f"{NOT_IN_TIME}: run gpu-topology why team/p", id="no time"),
        pytest.param({"gated": True}, Counts(1, 1), "held back by its scheduling gates; 1 of 1"),
        pytest.param({"called_unschedulable": True}, Counts(1, 1), "kube-scheduler finds no node"),
        pytest.param({"request": Malformed("link: no")}, None, "link: no", id="unreadable"),
    ],
)
def test_why_a_pod_waits_is_one_line(
    pod: dict[str, Any], counts: Counts | None, words: str
) -> None:
    record = PodRecord(PodUid("u"), "team", "p", None, gpu_request(1))
    assert words in reason_of(replace(record, **pod), counts)


def test_a_pod_does_not_wait_for_what_it_is_nominated_for() -> None:
    """Under DRA a pod counts where it is nominated. Its own Event and the metric said that the node
    is busy, and filter lets it in."""
    world = two_pairs()
    world.claims.apply(claim("held", 3, 1, pod="other"))
    manifest = pod(2, name="nominated", uid="nominated")
    manifest["status"] = {"phase": "Pending", "nominatedNodeName": NODE}
    PodSink(world.cluster).apply(raw(manifest))
    snapshot = world.cluster.snapshot()
    found = snapshot.nominated[PodUid("nominated")]
    assert rejection_counts(snapshot, found, NO_DEADLINE).rejected == {}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        pytest.param({"domain": "node"}, {}, id="a domain has room for both"),
        pytest.param({"domain": "node", "size": 3}, {Reason.GROUP: 2}, id="none has for three"),
        pytest.param({"domain": "zone"}, {Reason.GROUP: 2}, id="no node has the label"),
    ],
)
def test_a_group_is_asked_as_filter_asks_it(
    changes: dict[str, Any], found: dict[Reason, int]
) -> None:
    cluster = cluster_of({pcie(4, "a"): {}, pcie(4, "b"): {}})
    group = replace(GroupReference(Group("team", "g"), 2, "node"), **changes)
    member = replace(waiting("member", gpu_request(2)), group_ref=group)
    cluster.put_pod(member)
    assert by_reason(rejection_counts(cluster.snapshot(), member, NO_DEADLINE).rejected) == found
    assert by_reason(counts_of(answers_to(cluster.snapshot(), member)).rejected) == found
    assert counted(WaitingReasons(cluster)) == {"group" if found else "none": 1}
