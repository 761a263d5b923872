"""What is counted on a former snapshot while a node changes: whoever asks on a later snapshot gets
nothing of it, nor the other way round.

Each test names the mix-up of two snapshots that it would show.
"""

from dataclasses import replace

from scheduler_extender.deadline import NO_DEADLINE
from scheduler_extender.framework.capacitycounter import CapacityCounter
from scheduler_extender.framework.groupquestion import ask_group
from scheduler_extender.framework.members import member_of, rack_rooms
from scheduler_extender.state.answers.answercache import CapacityQuery
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.groups import ELSEWHERE
from scheduler_extender.state.node.objects import NodeObject
from tests.nodes import pod, record_of, switched
from tests.scheduler_extender.verbs.racks import member
from topology.core.devices import NodeName
from topology.core.report import Report
from topology.core.requests import gpu_request
from topology.machines import machine

SINGLE = CapacityQuery(gpu_request(1), 100)


def racks(**of: str) -> Cache:
    """Nodes with four GPUs, each in the given rack."""
    found = Cache(lambda: 0.0, Settings(stale_after=None))
    for name, rack in of.items():
        found.put_record(switched(4, name), Report())
        move(found, name, rack)
    return found


def move(cluster: Cache, name: str, rack: str, *, cordoned: bool = False) -> None:
    """A node is in this rack now, by its labels."""
    labels = {"rack": rack, "nvidia.com/gpu.clique": rack}
    cluster.put_node(NodeName(name), NodeObject(exists=True, labels=labels, cordoned=cordoned))


def total(seen: Snapshot) -> int:
    """The places for single GPUs in rack r."""
    return CapacityCounter(seen, NO_DEADLINE).totals(SINGLE, "rack", ["r"])["r"]


def test_a_sum_of_a_domain_is_not_cached_once_a_node_has_come_into_it() -> None:
    """Else the domain would be without the node until one of its nodes changes."""
    cluster = racks(a="r", b="r", c="other")
    former = cluster.snapshot()
    move(cluster, "c", "r")
    assert total(former) == 8
    assert total(cluster.snapshot()) == 12
    former = cluster.snapshot()
    move(cluster, "c", "other")
    assert total(former) == 12
    assert total(cluster.snapshot()) == 8


def test_a_sum_of_a_domain_is_not_cached_once_a_node_of_it_is_open_again() -> None:
    """Else the domain would be without the node until one of its nodes changes."""
    cluster = racks(a="r", b="r")
    move(cluster, "b", "r", cordoned=True)
    former = cluster.snapshot()
    move(cluster, "b", "r")
    assert total(former) == 4
    assert total(cluster.snapshot()) == 8


def test_a_former_snapshot_has_its_own_sum() -> None:
    """Else a member that is bound meanwhile counts in the domain, and is still to come: its
    siblings' binds were refused."""
    cluster = racks(a="r", b="r")
    former = cluster.snapshot()
    cluster.put_pod(record_of(pod(4, name="x", uid="x", node="a")))
    assert total(cluster.snapshot()) == 4
    assert total(former) == 8
    assert total(cluster.snapshot()) == 4
    former = cluster.snapshot()
    move(cluster, "b", "other")
    assert total(cluster.snapshot()) == 0
    assert total(former) == 4


def test_the_capacity_of_a_rack_is_not_cached_once_a_tray_has_come_into_it() -> None:
    """Else its score would be without the tray until one of its trays changes."""
    cluster = racks(a="r", b="r", c="other", d="other")
    cluster.put_pod(record_of(member("w", "train", 2, 1)))  # somebody asks for a rack
    former = cluster.snapshot()
    move(cluster, "c", "r")
    assert rack_rooms(former, gpu_request(1), ["a"]) == [9]
    assert rack_rooms(cluster.snapshot(), gpu_request(1), ["a"]) == [13]


def test_a_trial_without_a_pod_is_not_cached_for_its_rack() -> None:
    """Else scores would rest on a rack without the pod until one of its trays changes."""
    cluster = racks(a="r", b="r")
    cluster.put_pod(record_of(member("w", "train", 2, 1)))
    there = record_of(pod(4, name="x", uid="x", node="a"))
    cluster.put_pod(there)
    seen = cluster.snapshot()
    if_gone = seen.with_node_infos([seen.node_info(NodeName("a")).without(frozenset({there.uid}))])
    assert rack_rooms(if_gone, gpu_request(1), ["a"]) == [5]
    assert rack_rooms(cluster.snapshot(), gpu_request(1), ["a"]) == [5]


def reserved_on(seen: Snapshot) -> set[NodeName]:
    """The nodes on which places are kept for groups."""
    return set(CapacityCounter(seen, NO_DEADLINE).reservations().reserved)


def test_a_former_snapshot_has_its_own_reservations() -> None:
    """Else what they take from nodes as they were then would be remembered for those who ask
    later."""
    cluster = racks(a="r", b="r")
    first = member("m", "train", 2, 2, {"group-domain": "rack"})
    first["spec"]["nodeName"] = "b"
    cluster.put_pod(record_of(first))
    former = cluster.snapshot()
    cluster.put_pod(record_of(pod(4, name="x", uid="x", node="a")))
    assert reserved_on(cluster.snapshot()) == {NodeName("b")}
    assert reserved_on(former) == {NodeName("a")}
    assert reserved_on(cluster.snapshot()) == {NodeName("b")}


def test_members_and_capacity_are_counted_on_one_snapshot() -> None:
    """A member that comes while places are counted takes one. Beside the members of before, the
    places of afterwards would be too few: a refusal that is never true."""
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    for name in ("a-0", "b-0"):
        cluster.put_record(machine("gb200-tray").topology(name, group=name[0]), Report())
    first = record_of(member("m0", size=4, gpus=1))
    cluster.put_pod(replace(first, node=NodeName("a-0")))
    others = [record_of(member(f"m{i}", size=4, gpus=1)) for i in (1, 2, 3)]
    seen = cluster.snapshot()
    asked = member_of(seen, others[0], gpu_request(1))
    assert asked is not None
    for other in others[1:]:
        cluster.put_pod(replace(other, node=NodeName("a-0")))
    for moment in (seen, cluster.snapshot()):
        found = ask_group(moment, asked, ["a-0", "b-0"])
        assert not found.late
        assert {why: names for why, names in found.by_rejection.items() if names} == {
            None: ["a-0"],
            ELSEWHERE: ["b-0"],
        }
