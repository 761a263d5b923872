"""Groups judged as a whole: what is counted agrees with what the extender counts as places."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_extender.explain.groupfit import Wanted, judge
from scheduler_extender.framework.nodedecision import pod_capacity
from scheduler_extender.groupreference import Group, GroupReference
from tests.scheduler_extender.evictions.scenes import NVLINKED, Held, cluster_of, waiting
from topology.core.devices import NodeName
from topology.core.requests import GpuRequest, gpu_request
from topology.machines import machine

KINDS = ("a100-pcie-4-bridged", "l40s-4", "dgx1-v100")
REQUESTS = [gpu_request(count, *c) for count in (1, 2, 4) for c in ((), (NVLINKED,))]
GANG = GroupReference(Group("team", "podgroup/gang"), None, None, gang=True)


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3)), min_size=1, max_size=3),
    st.sampled_from(REQUESTS),
    st.integers(1, 8),
)
def test_members_that_ask_the_same_fit_as_often_as_the_capacity_allows(
    kinds: list[tuple[str, int]], asked: GpuRequest, members: int
) -> None:
    nodes = {
        machine(kind).topology(NodeName(f"n{i}")): {f"h{i}-{at}": Held((at,)) for at in range(held)}
        for i, (kind, held) in enumerate(kinds)
    }
    cluster = cluster_of(nodes)
    found = judge(cluster, [Wanted(f"w{i}", asked, group_ref=GANG) for i in range(members)])
    passing = {answer.node for answer in found.judged[0].answers if answer.may_come}
    (whole,) = found.groups
    room = {
        info.name: pod_capacity(info, asked, cluster.settings, members)
        for info in cluster.snapshot().nodes
    }
    assert whole.members == members
    if whole.fit == members:
        assert sum(room[NodeName(name)] for name in passing) >= members
    else:
        assert not passing
        assert not found.all_may_come
        assert whole.fit <= sum(room.values())
        assert whole.fit < members


def test_a_bound_member_needs_no_gpus() -> None:
    node = machine("a100-pcie-4-bridged").topology(NodeName("n"))
    cluster = cluster_of({node: {"w0": Held((0, 1))}})
    pod = waiting("w0", gpu_request(2, NVLINKED))
    cluster.put_pod(
        type(pod)(
            pod.uid, "team", "w0", node.name, pod.request, group_ref=GANG, phase="Running",
            admitted=True, started=1.0,
        )
    )  # fmt: skip
    request = gpu_request(2, NVLINKED)
    found = judge(cluster, [Wanted(f"w{i}", request, group_ref=GANG) for i in range(2)])
    (whole,) = found.groups
    assert (whole.members, whole.fit) == (1, 1)


@given(
    st.lists(st.sampled_from(REQUESTS), min_size=2, max_size=4),
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=2),
)
def test_templates_of_one_name_are_pods_of_their_own(
    asked: list[GpuRequest], kinds: list[str]
) -> None:
    """A file may have a Job and a Deployment of the same name."""
    nodes = [machine(kind).topology(NodeName(f"n{i}")) for i, kind in enumerate(kinds)]

    def answer(name: str) -> list[object]:
        cluster = cluster_of({node: dict[str, Held]() for node in nodes})
        wanted = [
            Wanted(name.format(i), request, group_ref=GANG) for i, request in enumerate(asked)
        ]
        found = judge(cluster, wanted)
        (whole,) = found.groups
        answers = [(a.node, a.passes, a.score) for each in found.judged for a in each.answers]
        return [whole.members, whole.fit, *answers]

    assert answer("same") == answer("w{}")
