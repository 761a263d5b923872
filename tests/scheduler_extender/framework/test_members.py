"""What the members of a gang ask that wait to be bound: counted by kind, the largest first."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from scheduler_extender.framework.members import OTHER_KINDS, Member, member_of
from scheduler_extender.groupreference import Group, GroupReference
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.groups.groups import Groups
from scheduler_extender.state.pods.record import PodRecord
from tests.counting import calls
from tests.nodes import GIB
from topology.core.devices import Bytes, NodeName, PodUid
from topology.core.requests import Constraints, GpuRequest, gpu_request

GANG = GroupReference(Group("team", "gang"), 4096, gang=True, peers_counted=True)


def waiting(name: str, request: GpuRequest) -> PodRecord:
    return PodRecord(PodUid(name), "team", name, None, request, group_ref=GANG)


def kind(gib: int, count: int = 1) -> GpuRequest:
    return gpu_request(count, Constraints(min_gpu_memory=Bytes(gib * GIB)))


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_kinds_are_listed_as_members_come_and_go(seed: int) -> None:
    random = Random(seed)
    groups, there = Groups(), dict[str, GpuRequest]()
    for _ in range(200):
        name = f"p{random.randrange(30)}"
        what = random.randrange(3)
        if what == 0:
            groups.drop(PodUid(name))
            there.pop(name, None)
        elif what == 1:
            request = kind(random.randrange(1, 4), random.randrange(1, 5))
            groups.expect(waiting(name, request))
            there[name] = request
        else:
            groups.put(replace(waiting(name, kind(1)), node=NodeName("n")))
            there.pop(name, None)
        asks, but = kind(random.randrange(1, 4)), f"p{random.randrange(30)}"
        others = Counter(r for n, r in there.items() if n != but and r != asks)
        expected = sorted(others.items(), key=lambda each: (-each[0].count, each[0].text))
        members = groups.seen().members.get(GANG.group)
        answer = members.expected(there.get(but), asks, 4) if members is not None else []
        assert answer == expected[:4]


def calls_of_a_member(kinds: int) -> int:
    """How many calls are made to learn what comes before a member of a gang of so many kinds."""
    cluster = Cache(lambda: 0.0)
    for i in range(kinds):
        cluster.put_pod(waiting(f"p{i}", kind(i + 1)))

    def member() -> Member | None:
        return member_of(cluster.snapshot(), waiting("p0", kind(1)), kind(1))

    made, found = calls(member), member()
    assert found is not None
    assert len(found.request.others) == OTHER_KINDS
    return made


def test_a_gang_of_a_thousand_kinds_costs_no_more_than_one_of_ten() -> None:
    calls_of_a_member(10)
    assert calls_of_a_member(1000) <= 2 * calls_of_a_member(10)
