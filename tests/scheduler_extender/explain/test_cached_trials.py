"""Trials of a pod's end: cached answers equal fresh ones, and few are computed."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_extender.deadline import NO_DEADLINE, Deadline, OutOfTimeError
from scheduler_extender.explain.idle import idle_pods, what_ends_would_do
from scheduler_extender.explain.remedies import Ends
from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.framework.trials import Trials
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from tests.deadlines import ending_when
from tests.nodes import last_report
from tests.scheduler_extender.evictions.scenes import NVLINKED, Held, cluster_of, waiting
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.placement import Verdict
from topology.core.report import Health, IdleAllocation
from topology.core.requests import GpuRequest, Policy, gpu_request
from topology.machines import machine

GPU = "nvidia.com/gpu"
KINDS = ("a100-pcie-4-bridged", "l40s-4", "dgx1-v100")
REQUESTS = tuple(
    replace(gpu_request(count, *constraints), policy=policy)
    for count in (1, 2, 3, 4)
    for constraints in ((), (NVLINKED,))
    for policy in Policy
)


def ends_of(snapshot: Snapshot, deadline: Deadline = NO_DEADLINE) -> Ends:
    return Ends(snapshot, Trials(snapshot), waiting("waits", REQUESTS[0]), deadline)


def node(kind: str, number: int) -> NodeTopology:
    return machine(kind).topology(NodeName(f"n{number}"))


@st.composite
def clusters(draw: st.DrawFn) -> Cache:
    """A few nodes, some of them alike, with pods of one to three GPUs, of which some are bound and
    in no report; with sick GPUs."""
    nodes: dict[NodeTopology, Mapping[str, Held]] = {}
    for number in range(draw(st.integers(1, 3))):
        made = node(draw(st.sampled_from(KINDS)), number)
        order = draw(st.permutations(range(len(made.gpus))))
        pods, at = {}, 0
        for size in draw(st.lists(st.integers(1, 3), max_size=4)):
            if at + size <= len(order):
                mine = tuple(sorted(order[at : at + size]))
                asked = NVLINKED if size > 1 and draw(st.booleans()) else None
                pods[f"p{number}-{at}"] = Held(mine, constraints=asked)
                at += size
        nodes[made] = pods
    cluster = cluster_of(nodes)
    for made in nodes:
        if draw(st.booleans()):
            uid = f"new-{made.name}"
            coming = waiting(uid, draw(st.sampled_from(REQUESTS)))
            cluster.put_pod(replace(coming, node=made.name, phase="Running"))
        if draw(st.booleans()):
            report = last_report(cluster.node_info(made.name))
            sick = (Health(made.gpus[0].uuid, False, "Xid79"),)
            cluster.put_report(made.name, replace(report, sequence=2, health=sick))
    return cluster


@given(
    clusters(),
    st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=4),
    st.sampled_from([Verdict.EXPECTED, Verdict.GUARANTEED]),
    st.data(),
)
def test_a_cached_answer_equals_a_fresh_one(
    cluster: Cache, requests: list[GpuRequest], weakest: Verdict, data: st.DataObject
) -> None:
    settings = cluster.settings = Settings(weakest, None)
    ends = ends_of(cluster.snapshot())
    for info in cluster.snapshot().nodes:
        there = sorted(pod.uid for pod in info.pods.every)
        sets = [frozenset[PodUid](), *(frozenset({uid}) for uid in there), frozenset(there)]
        if there:
            sets.append(data.draw(st.frozensets(st.sampled_from(there))))
        for request in requests:
            for gone in sets:
                anew = decide(info.without(gone), request, settings).rejection is None
                assert ends.lets_in(info, request, gone) is anew


@given(clusters(), st.sampled_from(REQUESTS))
def test_of_the_fewest_none_can_stay_and_without_all_nothing_helps(
    cluster: Cache, request: GpuRequest
) -> None:
    ends = ends_of(cluster.snapshot())

    def takes(info: NodeInfo, gone: frozenset[PodUid]) -> bool:
        return decide(info.without(gone), request, cluster.settings).rejection is None

    for info in cluster.snapshot().nodes:
        uids = sorted(pod.uid for pod in info.pods.every)
        found = ends.fewest(info, request, uids)
        assert (found is not None) is takes(info, frozenset(uids))
        if found is not None:
            assert takes(info, found)


def test_time_is_looked_at_before_each_try() -> None:
    seen = cluster_of({node(KINDS[0], 0): {"a": Held((0,))}}).snapshot()
    (info,) = seen.nodes
    with pytest.raises(OutOfTimeError):
        ends_of(seen, ending_when(lambda: True)).lets_in(info, REQUESTS[0], frozenset())


def test_a_node_without_certain_pods_is_counted_once_for_all_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of idle pods beside several waiting requests: what costs time is done for each pod,
    and not for each pod and each request; nodes that are alike are decided about once."""
    nodes = [node(KINDS[0], number) for number in range(20)]
    cluster = cluster_of(
        {each: {f"p{i}-{each.name}": Held((i,)) for i in range(4)} for each in nodes}
    )
    for info in cluster.snapshot().nodes:
        report = last_report(info)
        since = "2026-01-01T10:00:00Z"
        idle = tuple(IdleAllocation(a.pod_uid, "main", GPU, since) for a in report.allocations)
        cluster.put_report(info.name, replace(report, sequence=2, idle=idle))
    for number, request in enumerate(REQUESTS):
        cluster.put_pod(waiting(f"w{number}", request))
    counted, without = 0, NodeInfo.without

    def counting(info: NodeInfo, gone: frozenset[PodUid]) -> NodeInfo:
        nonlocal counted
        counted += 1
        return without(info, gone)

    monkeypatch.setattr(NodeInfo, "without", counting)
    seen = cluster.snapshot()
    found = what_ends_would_do(seen, idle_pods(seen, 0.0), NO_DEADLINE)
    assert found.whole
    assert len(found.completes) == 80
    possible = 2**4  # sets of pods of a node that may end
    assert counted < len(nodes) * possible + len(REQUESTS) * possible
