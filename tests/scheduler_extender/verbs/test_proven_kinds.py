"""A bind waits behind more pods where one of its kind was admitted since the node last changed.

In each case one pod was admitted; then something has changed, or the next pod may differ.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.node.history import MOST_PROVEN
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs.binding import NO_ANSWER
from scheduler_extender.verbs.bindlimiter import AT_ONCE, KUBELET
from tests.deadlines import ending_when
from tests.nodes import last_report
from tests.scheduler_extender.verbs.crowd import NODE, SINGLE, WHOLE, Crowd
from topology.core.devices import DeviceId, GpuResource, GpuUuid, PodUid
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.links import LinkKind
from topology.core.report import READY, Allocation, Condition, Health, MissingGpu, Report
from topology.core.requests import Constraints, Exclusive, GpuRequest, gpu_request

MPS = GpuResource(strategy="mps", replicas=4)
QUIET = AllocatorConfig(cpu_manager_policy="none", memory_manager_policy="None")
STATIC = replace(QUIET, cpu_manager_policy="static")
STATIC_MEMORY = replace(QUIET, memory_manager_policy="Static")
RESTRICTED = replace(QUIET, topology_manager_policy="restricted")
PAIR = gpu_request(2)
PINNED = replace(SINGLE, exclusive=Exclusive(cpus=True))
MEMORY = replace(SINGLE, exclusive=Exclusive.MEMORY)
FEWER = frozenset(DeviceId(f"GPU-{i}") for i in range(15))
WITH_NICS = replace(SINGLE, only_gpu_plugin=False)


def is_limited(crowd: Crowd, request: GpuRequest = SINGLE, uid: str = "next") -> bool:
    """Whether a bind waits behind two pods without an answer. If so it is given up at once."""
    for i in range(AT_ONCE):
        pod = PodRecord(PodUid(f"unanswered-{i}"), "default", "unanswered", None, SINGLE)
        if crowd.cluster.assumed(pod.uid) is None:
            ours = crowd.cluster.assume(NODE, pod)
            assert ours is not None
            crowd.limiter.wait(ours, ending_when(lambda: True))
    asked = False

    def asks() -> bool:
        nonlocal asked
        asked |= len(crowd.limiter.waiting(KUBELET)) > 0
        return asked

    crowd.late = asks
    assert crowd.bind(uid, request=request) == (NO_ANSWER if asked else "")
    for i in range(AT_ONCE):
        ours = crowd.cluster.assumed(PodUid(f"unanswered-{i}"))
        assert ours is not None
        crowd.cluster.forget(ours)
    return asked


@pytest.mark.parametrize(
    ("config", "served", "request_", "needs"),
    [
        pytest.param(QUIET, WHOLE, SINGLE, False, id="whole GPUs"),
        pytest.param(QUIET, WHOLE, PAIR, False, id="a pair"),
        pytest.param(QUIET, MPS, SINGLE, False, id="a share"),
        pytest.param(QUIET, MPS, PAIR, True, id="hazard: a plugin that may refuse two shares"),
        pytest.param(RESTRICTED, WHOLE, SINGLE, True, id="restricted"),
        pytest.param(QUIET, WHOLE, PINNED, False, id="exclusive CPUs that nobody gives"),
        pytest.param(STATIC, WHOLE, SINGLE, False, id="static CPUs for others"),
        pytest.param(STATIC, WHOLE, PINNED, True, id="static CPUs"),
        pytest.param(STATIC, WHOLE, MEMORY, False, id="exclusive memory that nobody gives"),
        pytest.param(STATIC_MEMORY, WHOLE, MEMORY, True, id="static memory"),
        pytest.param(AllocatorConfig(), WHOLE, PINNED, True, id="managers that nobody knows"),
        pytest.param(QUIET, WHOLE, WITH_NICS, True, id="another device plugin"),
    ],
)
def test_the_next_pod_of_a_kind_may_differ(
    config: AllocatorConfig, served: GpuResource, request_: GpuRequest, *, needs: bool
) -> None:
    crowd = Crowd(config=config, served=served)
    crowd.admit("before", request_)
    assert is_limited(crowd, request_) is needs


def test_constraints_make_no_kind_and_containers_do() -> None:
    crowd = Crowd()
    crowd.admit("before", PAIR)
    assert not is_limited(crowd, gpu_request(2, Constraints(link=LinkKind.NVLINK)))
    assert is_limited(crowd, gpu_request(3), "another")


def test_a_pod_that_another_extender_has_seen_admitted_proves_nothing() -> None:
    """The node may have changed since."""
    crowd = Crowd()
    before = PodRecord(PodUid("before"), "default", "before", NODE, SINGLE, admitted=True)
    crowd.cluster.put_pod(before)
    assert is_limited(crowd)


def test_the_number_of_cached_kinds_is_bounded() -> None:
    crowd = Crowd()
    for i in range(3 * MOST_PROVEN):
        pod = PodRecord(PodUid("p"), "default", "p", NODE, gpu_request(i + 1))
        crowd.cluster.put_pod(pod)
        crowd.cluster.put_pod(replace(pod, admitted=True))
        crowd.cluster.drop_pod(pod.uid)
        assert len(crowd.cluster.node_info(NODE).history.proven) <= MOST_PROVEN
    assert is_limited(crowd, gpu_request(1))


def topology(crowd: Crowd) -> NodeTopology:
    found = crowd.cluster.node_info(NODE).topology
    assert found is not None
    return found


def report(crowd: Crowd, **fields: Any) -> None:
    """A report in which some fields are others than before."""
    known = last_report(crowd.cluster.node_info(NODE))
    crowd.cluster.put_report(NODE, replace(known, sequence=known.sequence + 1, **fields))


def not_ready(crowd: Crowd) -> None:
    """As while the kubelet starts; then it is well again."""
    report(crowd, conditions=(Condition(READY, status=False, reason="KubeletStarts"),))
    report(crowd, conditions=())


def sick_for_a_while(crowd: Crowd) -> None:
    report(crowd, health=(Health(GpuUuid("GPU-3"), healthy=False, reason="Xid79"),))
    report(crowd, health=())


def missing_for_a_while(crowd: Crowd) -> None:
    report(crowd, missing=(MissingGpu("GPU-3", counted=True),))
    report(crowd, missing=())


def other_policy_for_a_while(crowd: Crowd) -> None:
    before = topology(crowd)
    for node in (replace(before, allocator=RESTRICTED), before):
        crowd.cluster.put_record(node, crowd.cluster.node_info(NODE).report)


def record_gone_for_a_while(crowd: Crowd) -> None:
    before, shown = topology(crowd), crowd.cluster.node_info(NODE).report
    crowd.cluster.drop_record(NODE)
    crowd.cluster.put_record(before, shown)


def unusable_for_a_while(crowd: Crowd) -> None:
    before, shown = topology(crowd), crowd.cluster.node_info(NODE).report
    crowd.cluster.put_problem(NODE, "contradicts itself")
    crowd.cluster.put_record(before, shown)


def silent_for_long(crowd: Crowd) -> None:
    crowd.clock.now += 2 * (Settings().stale_after or 0)
    crowd.cluster.expire()
    report(crowd, observed_at="now")


def gives_out(crowd: Crowd, *counts: int) -> None:
    """What kube-scheduler gives out there, one number after the other."""
    for count in counts:
        amounts = (("nvidia.com/gpu", 1000 * count),)
        crowd.cluster.put_node(NODE, NodeObject(allocatable=amounts))


def node_gone_for_a_while(crowd: Crowd) -> None:
    crowd.cluster.drop_node(NODE)
    gives_out(crowd, 16)


def others_answered(crowd: Crowd) -> None:
    crowd.admit("bad", gpu_request(3), refused=True)
    crowd.admit("good", PAIR)


def shows_the_pod(crowd: Crowd) -> None:
    ids = (DeviceId("GPU-0"),)
    shown = Allocation(PodUid("before"), "default", "before", "main", "nvidia.com/gpu", ids)
    report(crowd, allocations=(shown,))


@pytest.mark.parametrize(
    ("change", "needs"),
    [
        pytest.param(report, False, id="a heartbeat"),
        pytest.param(shows_the_pod, False, id="a report that shows the pod"),
        pytest.param(lambda crowd: gives_out(crowd, 16), False, id="the same to give out"),
        pytest.param(lambda crowd: crowd.admit("more", PAIR), False, id="another kind admitted"),
        pytest.param(sick_for_a_while, True, id="a GPU was sick"),
        pytest.param(missing_for_a_while, True, id="a GPU was missing"),
        pytest.param(lambda crowd: report(crowd, allocatable=FEWER), True, id="fewer allocatable"),
        pytest.param(lambda crowd: report(crowd, boot_id="next"), True, id="a boot"),
        pytest.param(not_ready, True, id="not ready for a moment"),
        pytest.param(other_policy_for_a_while, True, id="another policy for a moment"),
        pytest.param(record_gone_for_a_while, True, id="record gone for a moment"),
        pytest.param(unusable_for_a_while, True, id="record unusable for a moment"),
        pytest.param(silent_for_long, True, id="stale for a moment"),
        pytest.param(lambda crowd: gives_out(crowd, 0, 16), True, id="nothing to give out"),
        pytest.param(node_gone_for_a_while, True, id="node gone for a moment"),
        pytest.param(others_answered, True, id="another kind refused, and one admitted"),
    ],
)
def test_a_change_of_the_node_ends_the_proof(
    change: Callable[[Crowd], None], *, needs: bool
) -> None:
    """Until a pod of the kind is admitted again."""
    crowd = Crowd()
    gives_out(crowd, 16)
    crowd.admit("before")
    change(crowd)
    assert is_limited(crowd) is needs
    crowd.late = lambda: False
    crowd.admit("again")
    assert not is_limited(crowd, uid="third")


def test_a_pod_that_came_before_the_change_proves_nothing() -> None:
    """It may have been admitted before, too: its status and the report come on two ways."""
    crowd = Crowd()
    assert crowd.bind("before") == ""
    sick_for_a_while(crowd)
    crowd.answer(refused=False)
    assert is_limited(crowd)


def test_an_agent_that_makes_its_record_anew_changes_nothing() -> None:
    crowd = Crowd()
    crowd.admit("before")
    crowd.cluster.put_record(topology(crowd), Report("boot", 0), uid="another")
    assert not is_limited(crowd)
