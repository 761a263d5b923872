"""Which places are kept for which group: the same as if each node were looked at by itself."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from scheduler_extender.groupreference import Group
from scheduler_extender.state.groups.groupreservations import (
    MOST_IN_VAIN,
    EqualNodes,
    GroupReservations,
    Placed,
    Where,
    alike_nodes,
    reserve,
)
from scheduler_extender.state.groups.groups import GroupStatus
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.node.objects import AgentRecord, NodeObject
from topology.core.devices import DeviceId, NodeName
from topology.core.report import Report
from topology.core.requests import GpuRequest, gpu_request
from topology.machines import machine

GPU = "nvidia.com/gpu"
KIND = "zone"


def group_status(name: str, gpus: int, to_come: int) -> GroupStatus:
    """A group with one living member, so many to come."""
    says = (to_come + 1, KIND)
    return GroupStatus(Group("d", name), {NodeName("x"): 1}, 0, says, False, gpu_request(gpus))


def _with(name: str, devices: int) -> NodeInfo:
    node = machine("hgx-h100-8").topology(name)
    allocatable = frozenset(DeviceId(gpu.uuid) for gpu in node.gpus[:devices])
    record = AgentRecord(node, Report(allocatable=allocatable))
    return NodeInfo(NodeName(name), record=record)


def look(
    nodes: Mapping[str, tuple[str, int]], waiting: list[tuple[GroupStatus, str]]
) -> tuple[Placed, tuple[EqualNodes, ...]]:
    """HGX machines by name, each with its zone and a number for its state: devices it lacks."""
    info = {NodeName(name): _with(name, 8 - class_id) for name, (_, class_id) in nodes.items()}
    domains: dict[Where, list[NodeName]] = {}
    for name, (zone, _) in nodes.items():
        domains.setdefault((KIND, zone), []).append(NodeName(name))
    class_ids = {GPU: {NodeName(name): class_id for name, (_, class_id) in nodes.items()}}
    placed = tuple((found, (KIND, zone)) for found, zone in waiting)
    return placed, alike_nodes(domains, info, class_ids)


def counted(equal: EqualNodes, request: GpuRequest) -> int:
    """A node in state s has 8 - s devices, of which those that are kept are taken."""
    class_id = equal.class_ids[GPU]
    assert class_id is not None
    taken = sum(found.count * found.request.count for _, found in equal.reserved)
    return max(0, 8 - class_id - taken) // request.count


def by_node(reserved: GroupReservations) -> dict[str, list[tuple[str, int]]]:
    """The groups for which places are kept on each node, with how many."""
    return {
        name: [(group.name, arrivals.count) for group, arrivals in found]
        for name, found in reserved.reserved.items()
    }


def one_by_one(
    nodes: Mapping[str, tuple[str, int]], waiting: list[tuple[GroupStatus, str]]
) -> dict[str, list[tuple[str, int]]]:
    """The same, each node by itself: the nodes with most places first, of these the ones with most
    devices left, and among equals those that begin with the first node that is alike."""
    free = {name: 8 - class_id for name, (_, class_id) in nodes.items()}
    found: dict[str, list[tuple[str, int]]] = {}
    for group, zone in waiting:
        assert group.request is not None
        left, each = group.to_come, group.request.count
        inside = sorted(name for name in nodes if nodes[name][0] == zone)
        capacity = {name: min(free[name] // each, left) for name in inside}
        equal, room = dict[object, str](), dict(free)
        for name in inside:
            equal.setdefault(_kind(nodes, found, name), name)
        for name in sorted(
            inside,
            key=lambda n: (-capacity[n], -room[n], equal[_kind(nodes, dict(found), n)], n),
        ):
            some = min(capacity[name], left)
            if some:
                found.setdefault(name, []).append((group.group.name, some))
                free[name] -= some * each
                left -= some
    return found


def _kind(
    nodes: Mapping[str, tuple[str, int]], found: Mapping[str, list[tuple[str, int]]], name: str
) -> object:
    return (nodes[name], tuple(found.get(name, ())))


@pytest.mark.parametrize("seed", range(40))
def test_reservations_equal_those_found_node_by_node(seed: int) -> None:
    rng = random.Random(seed)
    nodes = {
        f"n{i:02}": (rng.choice("ab"), rng.choice((0, 0, 3, 8))) for i in range(rng.randint(1, 14))
    }
    waiting = [
        (group_status(f"g{i}", rng.choice((1, 2, 3, 8)), rng.randint(1, 20)), rng.choice("ab"))
        for i in range(rng.randint(1, 8))
    ]
    found = by_node(reserve(*look(nodes, waiting), counted))
    assert found == one_by_one(nodes, waiting)


def test_the_first_group_to_start_gets_its_reservations_and_others_the_rest() -> None:
    nodes = {"n0": ("a", 0), "n1": ("a", 4)}
    waiting = [(group_status("first", 4, 2), "a"), (group_status("second", 4, 2), "a")]
    reserved = reserve(*look(nodes, waiting), counted)
    assert by_node(reserved) == {"n0": [("first", 2)], "n1": [("second", 1)]}
    n0 = NodeName("n0")
    assert reserved.by_beside([n0], Group("d", "first")) == {}
    ((beside, names),) = reserved.by_beside([n0], Group("d", "second")).items()
    assert ([each.count for each in beside], names) == ([2], ["n0"])


def test_nodes_that_are_alike_are_counted_once() -> None:
    nodes = {f"n{i:04}": ("a", 0) for i in range(1000)}
    waiting = [(group_status(f"g{i}", 8, 3), "a") for i in range(300)]
    reserved, counts = keep_counting(look(nodes, waiting))
    assert len(reserved.reserved) == 900
    assert counts == 1


def test_the_count_is_given_up_where_kind_after_kind_has_no_capacity() -> None:
    """By count each node has one, and none is to be had: only a few of them are counted."""
    nodes = {f"n{i:02}": ("a", 0) for i in range(50)}
    first = [(group_status(f"g{i}", 1, 1), "a") for i in range(50)]
    found = look(nodes, [*first, (group_status("last", 2, 3), "a")])
    _, counts = keep_counting(found, lambda equal, request: int(request.count == 1))
    assert counts <= 50 + 1 + MOST_IN_VAIN


def keep_counting(
    found: tuple[Placed, tuple[EqualNodes, ...]],
    count: Callable[[EqualNodes, GpuRequest], int] = counted,
) -> tuple[GroupReservations, int]:
    """The reservations, and how often nodes were counted for them."""
    counts = 0

    def counting(equal: EqualNodes, request: GpuRequest) -> int:
        nonlocal counts
        counts += 1
        return count(equal, request)

    return reserve(*found, counting), counts


def test_cordoned_nodes_have_no_capacity_for_members_that_do_not_tolerate_it() -> None:
    names = NodeName("n0"), NodeName("n1")
    nodes = {name: NodeInfo(name, NodeObject(cordoned=name == "n0")) for name in names}
    equal = alike_nodes({(KIND, "a"): list(nodes)}, nodes, {GPU: dict.fromkeys(nodes, 1)})
    assert [each.nodes for each in equal] == [["n0"], ["n1"]]
    for tolerates in (False, True):
        status = replace(group_status("g", 1, 2), tolerates_cordon=tolerates)
        fresh = alike_nodes({(KIND, "a"): list(nodes)}, nodes, {GPU: dict.fromkeys(nodes, 1)})
        for each in fresh:
            each.room = {GPU: 1}
        found = reserve(((status, (KIND, "a")),), fresh, lambda equal, _: not equal.reserved)
        assert found.reserved.keys() == ({"n0", "n1"} if tolerates else {"n1"})
