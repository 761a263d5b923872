"""Groups with many members on one node, and groups that a domain could never hold."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from scheduler_extender.files.clusterfile import feed, parse
from scheduler_extender.state.groups.groups import NEVER, NO_LONGER, RESERVED_FOR_GROUP, TOO_SMALL
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord
from tests.nodes import pod, record_of
from tests.scheduler_extender.verbs.racks import Scheduler, member
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine

ON_ONE_NODE = {"group-domain": "node"}
SHARED = """
kind: MachineGroup
machine: hgx-h100-8
count: 2
namePrefix: shared-
sharing: {replicas: 8}
"""
SLICED = """
kind: MachineGroup
machine: hgx-h100-8
count: 1
namePrefix: sliced-
mig: {profiles: [1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb], strategy: single}
"""
LARGE = "{kind: MachineGroup, machine: dgx2, count: 1, namePrefix: large-}"
WHOLE = "{kind: MachineGroup, machine: hgx-h100-8, count: 1, namePrefix: whole-}"


def over(text: str) -> Scheduler:
    """A scheduler over the nodes of a cluster file."""
    scheduler, content = Scheduler({}), parse(text)
    feed(scheduler.cluster, content)
    scheduler.names = sorted(record.topology.name for record in content.records)
    return scheduler


@pytest.mark.parametrize(
    ("cluster", "link", "size", "held"),
    [
        pytest.param(SHARED, "", 64, True, id="all shares of eight GPUs"),
        pytest.param(SHARED, "", 65, False, id="and one more"),
        pytest.param(SHARED, "nvlink", 17, True, id="one share has no links that could be wrong"),
        pytest.param(SLICED, "", 56, True, id="all instances of eight GPUs"),
        pytest.param(SLICED, "", 57, False, id="one instance more"),
        pytest.param(LARGE, "nvlink", 16, True, id="sixteen whole GPUs"),
        pytest.param(LARGE, "nvlink", 17, False, id="seventeen of sixteen"),
        pytest.param(WHOLE, "nvlink", 8, True, id="eight whole GPUs"),
    ],
)
def test_a_group_on_one_node_may_have_as_many_members_as_the_node_has_devices(
    cluster: str, link: str, size: int, held: bool
) -> None:
    scheduler = over(cluster)
    annotations = {**ON_ONE_NODE, "link": link}
    first = member("m0", "g", size, 1, annotations)
    if not held:
        found = scheduler.filter(first)
        assert found.unresolvable == dict.fromkeys(scheduler.names, NEVER.message)
        assert scheduler.bind(first, scheduler.names[0]) == NEVER.message
        return
    nodes = {scheduler.place(member(f"m{i}", "g", size, 1, annotations)) for i in range(size)}
    assert len(nodes) == 1
    assert "" not in nodes


@pytest.mark.parametrize(("gpus", "size"), [(2, 8), (4, 4), (8, 2)])
def test_linked_members_fill_a_machine_of_sixteen_gpus(gpus: int, size: int) -> None:
    """Its NVSwitches join all GPUs alike, so any will do, however many members come first."""
    scheduler = over(LARGE)
    too_many = scheduler.filter(member("t0", "t", size + 1, gpus, ON_ONE_NODE))
    assert too_many.unresolvable == {"large-00": NEVER.message}
    for i in range(size):
        assert scheduler.place(member(f"m{i}", "g", size, gpus, ON_ONE_NODE)) == "large-00"


def test_a_large_group_has_reservations_for_all_waiting_members() -> None:
    """Of the 64 shares 40 are a group's, of which one member is bound."""
    scheduler = over(SHARED)
    node = scheduler.place(member("m0", "g", 40, 1, {**ON_ONE_NODE, "link": ""}))
    annotations = {**ON_ONE_NODE, "link": ""}
    assert node in scheduler.passing(member("n0", "n", 24, 1, annotations))
    too_many = scheduler.filter(member("t0", "t", 25, 1, annotations))
    assert too_many.failed == {node: TOO_SMALL.message}
    for i in range(24):
        assert scheduler.bind(member(f"n{i}", "n", 24, 1, annotations), node) == ""
    small = scheduler.filter(member("s0", "s", 2, 1, annotations))
    assert small.failed[node] in (TOO_SMALL.message, RESERVED_FOR_GROUP.message)
    for i in range(1, 40):
        assert scheduler.bind(member(f"m{i}", "g", 40, 1, annotations), node) == ""


def test_evictions_are_tried_only_where_the_empty_domain_would_do() -> None:
    scheduler = over(f"{WHOLE}\n---\n{SHARED}")
    scheduler.bind(member("x", "", 0, 1, {"link": "", "group-size": ""}), "whole-00")
    quads = scheduler.filter(member("q0", "q", 2, 4, ON_ONE_NODE), ["whole-00"])
    assert quads.failed == {"whole-00": TOO_SMALL.message}
    fives = scheduler.filter(member("f0", "f", 2, 5, ON_ONE_NODE), ["whole-00"])
    assert fives.unresolvable == {"whole-00": NEVER.message}


class Bridged(Scheduler):
    """Two machines with two bridged pairs of GPUs each, and a device plugin that hands out any: a
    machine surely has a linked pair only once the other one is held."""

    def __init__(self) -> None:
        super().__init__({})
        self.names = ["b-0", "b-1"]
        for name in self.names:
            for pair in (0, 1):
                self.cluster.put_pod(running(f"{name}-{pair}", name))
            self.report(name, (0, 1))
            self.cluster.put_labels(NodeName(name), NodeObject(labels={"example.com/block": "one"}))

    def report(self, name: str, pairs: Iterable[int]) -> None:
        """The agent reports which pairs are held."""
        node = machine("a100-pcie-4-bridged").topology(name)
        node = replace(node, allocator=replace(node.allocator, policy="any"))
        held = tuple(
            Allocation(
                PodUid(f"{name}-{pair}"), "default", f"{name}-{pair}", "main", "nvidia.com/gpu",
                tuple(DeviceId(gpu.uuid) for gpu in node.gpus[2 * pair : 2 * pair + 2]),
            )
            for pair in pairs
        )  # fmt: skip
        self.cluster.put_record(node, Report("boot", 1, allocations=held))

    def evict(self, name: str) -> None:
        """The pod with the second pair goes."""
        self.cluster.drop_pod(PodUid(f"{name}-1"))
        self.report(name, (0,))


def running(name: str, node: str) -> PodRecord:
    found = pod(2, name=name, uid=name, node=node, phase="Running")
    return replace(record_of(found), admitted=True)


def test_evictions_may_help_a_domain_that_would_promise_less_if_it_were_empty() -> None:
    scheduler = Bridged()
    scheduler.evict("b-0")
    asked = member("m0", "g", 2, 2, {"group-domain": "example.com/block"})
    assert scheduler.filter(asked, ["b-0"]).failed == {"b-0": TOO_SMALL.message}
    scheduler.evict("b-1")
    assert scheduler.passing(asked) == ["b-0", "b-1"]


def test_a_domain_with_a_node_that_has_not_reported_may_do_one_day() -> None:
    scheduler = Scheduler({"a": 2})
    annotations = {"group-domain": "example.com/block"}
    for name in [*scheduler.names, "silent"]:
        scheduler.cluster.put_node(
            NodeName(name),
            NodeObject(
                labels={"example.com/block": "one"}, allocatable=(("nvidia.com/gpu", 4000),)
            ),
        )
    asked = member("m0", "g", 3, 4, annotations)
    assert scheduler.filter(asked).failed == dict.fromkeys(scheduler.names, TOO_SMALL.message)


def test_a_cordoned_tray_may_take_pods_again() -> None:
    scheduler = Scheduler({"a": 2})
    for i in range(2):
        scheduler.bind(member(f"m{i}", "g", 2), f"a-0{i}")
    scheduler.cluster.put_node(NodeName("a-01"), NodeObject(cordoned=True))
    gone = scheduler.cluster.snapshot().pod_named("default", "m1")
    assert gone is not None
    scheduler.cluster.drop_pod(gone.uid)
    again = member("again", "g", 2)
    assert scheduler.filter(again, ["a-01"]).failed == {"a-01": NO_LONGER.message}
