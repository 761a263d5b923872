"""Nodes under DRA: what DeviceClasses, ResourceSlices and ResourceClaims make of a record."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from scheduler_extender.framework.capacity import Capacities
from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.kube.devicetracker import UNREAD
from scheduler_extender.kube.draobjects import MOST_ASKED, Slice
from scheduler_extender.kube.nodedevices import MOST_DEVICES, NO_DEVICES, Barred, NodeDevices
from scheduler_extender.state.node.nodeinfo import Offer
from scheduler_extender.state.node.objects import NodeObject
from tests.dranodes import (
    DRIVER,
    IS_GPU,
    NODE,
    PUBLISHED,
    STALE_AFTER,
    DraWorld,
    Json,
    a_slice,
    asking,
    claim,
    device,
    device_class,
    exactly,
    order,
    raw,
    slice_of,
)
from tests.nodes import bridged
from topology import codec
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.dra import served
from topology.core.graph import NodeTopology
from topology.core.placement import (
    DRIVER_WAITS,
    NO_ALLOCATOR,
    OWN_CLAIMS_ONLY,
    STALE,
    Reason,
    Rejection,
)
from topology.core.report import Report
from topology.core.requests import gpu_request
from topology.machines import machine


@pytest.fixture
def world() -> DraWorld:
    return DraWorld()


CHANGES: tuple[Callable[[DraWorld], None], ...] = (
    lambda world: world.classes.apply(device_class()),
    lambda world: world.slices.apply(a_slice(*map(device, (3, 1, 0, 2)))),
    lambda world: world.claims.apply(claim("c", 3, pod="p")),
    lambda world: world.speak(2),
)


@pytest.mark.parametrize("first", range(len(CHANGES)))
def test_whatever_comes_first_the_node_is_put_together(world: DraWorld, first: int) -> None:
    assert world.offer == NO_ALLOCATOR
    for tell in (*CHANGES[first:], *CHANGES[:first]):
        tell(world)
    assert order(world) == (3, 1, 0, 2)
    assert world.offer.availability.free == 0b0111


def informed(world: DraWorld) -> DraWorld:
    for tell in CHANGES:
        tell(world)
    return world


def test_an_empty_slice_says_that_the_driver_serves_nothing_yet(world: DraWorld) -> None:
    informed(world).slices.apply(a_slice(generation=2))
    assert world.offer == DRIVER_WAITS
    world.slices.apply(a_slice(*map(device, PUBLISHED), generation=3))
    assert order(world) == PUBLISHED
    world.slices.delete(a_slice())
    assert world.offer == NO_ALLOCATOR


def test_a_claim_that_goes_gives_its_devices_back(world: DraWorld) -> None:
    informed(world).claims.delete(claim("c", 3, pod="p"))
    assert world.offer.availability.free == 0b1111
    world.claims.apply(claim("c", 0, 1))
    world.claims.apply(claim("c", 2))
    assert world.offer.availability.free == 0b1011
    world.claims.apply(claim("monitor", 0, adminAccess=True))
    assert world.offer.availability.free == 0b1011, "who only looks holds nothing"
    world.claims.replace([claim("d", 1)], "9")
    assert world.offer.availability.free == 0b1101


def test_a_claim_that_cannot_be_read_any_more_keeps_its_devices(world: DraWorld) -> None:
    bad = json.loads(bytes(claim("c", 3, pod="p")))
    bad["status"]["allocation"] = 7
    informed(world).claims.apply(raw(bad))
    assert world.offer.availability.free == 0b0111
    for version in "89":
        world.claims.replace([raw(bad)], version)
        assert world.offer.availability.free == 0b0111
    world.claims.delete(raw(bad))
    assert world.offer.availability.free == 0b1111


@pytest.mark.parametrize("listed", [False, True], ids=["watch", "list"])
@pytest.mark.parametrize(
    "former",
    [
        pytest.param(None, id="new"),
        pytest.param({"uid": "c", "gpus": ()}, id="pending"),
        pytest.param({"uid": "former", "gpus": (2,)}, id="another"),
    ],
)
def test_devices_are_unknown_while_a_claim_cannot_be_read(
    world: DraWorld, former: dict[str, Any] | None, *, listed: bool
) -> None:
    informed(world).claims.delete(claim("c", 3, pod="p"))
    if former is not None:
        before = json.loads(bytes(claim("c", *former["gpus"])))
        before["metadata"]["uid"] = former["uid"]
        world.claims.apply(raw(before))
    bad = json.loads(bytes(claim("c", 3)))
    bad["status"]["allocation"]["devices"]["results"][0]["device"] = 7
    if listed:
        world.claims.replace([raw(bad)], "8")
    else:
        world.claims.apply(raw(bad))
    assert world.problem == UNREAD
    world.claims.apply(claim("c", 3))
    assert world.offer.availability.free == 0b0111
    world.claims.apply(raw(bad))
    assert world.offer.availability.free == 0b0111, "its devices are known"


def test_a_claim_that_cannot_be_read_concerns_the_nodes_whose_pools_it_names(
    world: DraWorld,
) -> None:
    bad = json.loads(bytes(claim("d", 1)))
    bad["status"]["allocation"]["devices"]["results"][0] |= {"pool": "another", "device": 7}
    changed: list[str] = []
    informed(world).cluster.on_change.append(changed.append)
    world.claims.apply(raw(bad))
    assert not changed
    assert world.offer.availability.free == 0b0111
    world.slices.apply(a_slice(name="t", pool="another"))
    assert world.problem == UNREAD
    world.claims.delete(raw(bad))
    assert world.offer.availability.free == 0b0111


def test_little_is_kept_of_claims_that_cannot_be_read(world: DraWorld) -> None:
    bad = json.loads(bytes(claim("d", 1)))
    bad["status"]["allocation"]["devices"]["results"][0] = "x" * MOST_ASKED
    informed(world).claims.apply(raw(bad))
    assert world.claims.outside == 1
    assert world.problem == UNREAD, "it may name any pool"


def test_devices_are_unknown_while_a_slice_or_a_rule_cannot_be_read(world: DraWorld) -> None:
    bad = json.loads(bytes(a_slice(device(0), name="t", pool="another")))
    bad["spec"]["pool"] = 7
    informed(world).slices.apply(raw(bad))
    assert world.problem == UNREAD
    world.slices.delete(raw(bad))
    assert world.offer.availability.free == 0b0111
    world.rules.apply(raw({"metadata": {"name": "r"}, "spec": {"taint": 7}}))
    assert world.problem == UNREAD
    world.rules.replace([], "9")
    assert world.offer.availability.free == 0b0111
    for selectors in (7, "x" * 2 * MOST_ASKED):
        world.classes.apply(raw({"metadata": {"name": "c"}, "spec": {"selectors": selectors}}))
        assert world.offer.availability.free == 0b0111, "claims of this class are not foreseen"


def test_a_pod_with_a_claim_runs_also_if_it_is_unknown(world: DraWorld) -> None:
    held = informed(world).offer.availability
    assert [holder.shown for holder in held.running] == [0b1000]
    assert held.releasing == ()


def test_pools_and_slices_come_in_their_order(world: DraWorld) -> None:
    world.classes.apply(device_class())
    world.slices.replace(
        [
            a_slice(device(2), name="b", count=2),
            a_slice(device(3), name="a", count=2),
            a_slice(device(0), name="old", generation=0),
            a_slice(device(1), name="z", pool="an earlier pool"),
        ],
        "9",
    )
    assert order(world) == (1, 3, 2)
    world.slices.delete(a_slice(device(3), name="a", count=2))
    assert "pool node of the node's ResourceSlices is incomplete" in world.problem
    world.slices.replace([], "10")
    assert world.offer == NO_ALLOCATOR


def test_only_devices_of_the_class_count_and_the_newest_class_serves(world: DraWorld) -> None:
    world.slices.apply(a_slice(device(0, "mig"), device(1), device(2, "vfio")))
    world.classes.replace([device_class("b", made="1"), device_class("a", made="1")], "9")
    assert order(world) == (1,)
    newer = "device.attributes['gpu.nvidia.com'].type == 'vfio'"
    world.classes.apply(device_class("c", newer, made="2"))
    assert order(world) == (2,)


def test_the_class_of_nvidias_driver_serves_claims_under_no_name_for_pods(world: DraWorld) -> None:
    """The GPU Operator may have made it so: kube-scheduler sends claims there, and no others."""
    selector = {"cel": {"expression": IS_GPU}}

    def nameless(name: str) -> msgspec.Raw:
        return raw({"metadata": {"name": name}, "spec": {"selectors": [selector]}})

    world.slices.apply(a_slice(*map(device, PUBLISHED)))
    world.classes.apply(nameless("mine"))
    assert world.offer == NO_ALLOCATOR
    world.classes.apply(nameless(DRIVER))
    assert order(world) == PUBLISHED
    info, settings = world.cluster.node_info(NODE), world.cluster.settings
    assert decide(info, gpu_request(1), settings).rejection == OWN_CLAIMS_ONLY
    assert Capacities(settings).of(info).nodes == 1, "for claims"
    world.claims.apply(asking("next", exactly(2)))
    coming = world.cluster.foresees("ns", ("next",))(world.cluster.node_info(NODE))
    assert coming == ("GPU-3", "GPU-1")
    claimed = info.as_claimed(PodUid("p"), coming)
    assert decide(claimed, gpu_request(2), settings).rejection is None
    first = f"{IS_GPU} && device.attributes['{DRIVER}'].number < 2"
    world.classes.apply(device_class("mine", first, made=""))
    assert order(world) == (1, 0), "the one that pods ask for by name"
    assert decide(world.cluster.node_info(NODE), gpu_request(1), settings).rejection is None


@pytest.mark.parametrize(
    ("value", "takes"),
    [("'gpu'", True), ("'say \"gpu\"'", False), ("007", False), ("true", False)],
)
def test_a_value_of_any_form_is_read(world: DraWorld, value: str, takes: bool) -> None:
    world.classes.apply(device_class(expression=f"device.attributes['{DRIVER}'].type == {value}"))
    world.slices.replace([a_slice(device(0))], "9")
    assert world.problem == ""
    assert isinstance(world.offer, Offer) == takes


def test_a_tainted_device_is_given_to_no_pod(world: DraWorld) -> None:
    world.classes.apply(device_class())
    bad, seen = [{"effect": "NoExecute"}], [{"effect": "None"}]
    world.slices.apply(a_slice(device(0, taints=bad), device(1, taints=seen)))
    assert world.offer.availability.free == 0b0010


@pytest.mark.parametrize(
    ("selected", "barred"),
    [
        ({}, 0b1111),
        ({"driver": DRIVER}, 0b1111),
        ({"driver": "another"}, 0),
        ({"pool": NODE, "device": "gpu-1"}, 0b0010),
        ({"pool": "another"}, 0),
        (None, 0),
    ],
)
def test_a_rule_taints_devices_as_long_as_it_stands(
    world: DraWorld, selected: Json | None, barred: int
) -> None:
    taint = {"key": "sick", "effect": "NoSchedule"}
    spec = {"taint": taint} if selected is None else {"taint": taint, "deviceSelector": selected}
    rule = raw({"metadata": {"name": "sick"}, "spec": spec})
    informed(world).claims.delete(claim("c", 3, pod="p"))
    world.rules.apply(rule)
    left = 0b1111 & ~barred
    assert isinstance(world.offer, Offer)
    assert world.offer.availability.free == left
    world.claims.apply(asking("next", exactly(1)))
    found = world.cluster.foresees("ns", ("next",))(world.cluster.node_info(NODE))
    first = next((gpu for gpu in (3, 1, 0, 2) if left >> gpu & 1), None)
    assert found == (NO_DEVICES if first is None else (f"GPU-{first}",))
    world.rules.apply(raw({"metadata": {"name": "sick"}, "spec": {"taint": {"effect": "None"}}}))
    assert world.offer.availability.free == 0b1111
    world.rules.apply(rule)
    world.rules.delete(rule)
    assert world.offer.availability.free == 0b1111


@pytest.mark.parametrize(
    ("expression", "devices", "message"),
    [
        pytest.param(
            "device.driver.substring(1) == 'gpu'", [device(0)], "cannot be evaluated", id="cel"
        ),
        pytest.param(IS_GPU, [device(7)], "is not among the GPUs of the record", id="another GPU"),
        pytest.param(
            IS_GPU,
            [device(0, allowMultipleAllocations=True)],
            "allowMultipleAllocations",
            id="many",
        ),
        pytest.param(IS_GPU, [device(0, consumesCounters=[{}])], "consumesCounters", id="parts"),
        pytest.param(IS_GPU, [device(0, bindingConditions=["x"])], "bindingConditions", id="late"),
        pytest.param(
            IS_GPU, [device(n) for n in range(MOST_DEVICES + 1)], "more than", id="too many"
        ),
    ],
)
def test_what_is_not_followed_makes_the_node_unusable_and_is_named(
    world: DraWorld, expression: str, devices: list[Json], message: str
) -> None:
    world.classes.apply(device_class(expression=expression))
    world.slices.apply(a_slice(*devices))
    assert message in world.problem
    assert len(world.problem) < 200
    world.slices.apply(a_slice(device(0)))
    world.classes.apply(device_class())
    assert order(world) == (0,)


def test_an_object_that_cannot_be_read_costs_no_other(world: DraWorld) -> None:
    informed(world).claims.replace([msgspec.Raw(b'{"metadata": 7}'), claim("d", 1)], "9")
    assert world.offer.availability.free == 0b1101
    world.slices.apply(msgspec.Raw(b"{"))
    assert order(world) == (3, 1, 0, 2)


def test_a_fault_of_ours_costs_one_node(world: DraWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    other = NodeName("other")
    world.speak(1, other)

    def faulty(topology: NodeTopology, *given: Any) -> tuple[NodeTopology, Report]:
        if topology.name == other:
            raise ZeroDivisionError
        return served(topology, *given)

    monkeypatch.setattr("scheduler_extender.kube.devicetracker.served", faulty)
    informed(world).slices.apply(slice_of(other, device(0), name="o", pool=other))
    assert order(world) == (3, 1, 0, 2)
    problem = world.cluster.node_info(other).record.problem
    assert problem == "internal error: ZeroDivisionError"


def test_a_fault_of_ours_in_a_nodes_devices_costs_that_node_alone(
    world: DraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that asks meanwhile reads that its devices are unknown."""

    def faulty(slices: Sequence[Slice], barred: Mapping[str, Barred]) -> NodeDevices:
        if any(each.owner in (first, "") for each in slices):
            raise ZeroDivisionError
        return NodeDevices(slices, barred)

    first = NodeName("first")
    world.speak(1, first)
    monkeypatch.setattr("scheduler_extender.kube.devicetracker.NodeDevices", faulty)
    broken = slice_of(first, device(0), name="f", pool=first)
    nowhere = slice_of("", device(0), name="n", pool="n")
    informed(world).slices.replace(iter([a_slice(*map(device, PUBLISHED)), broken, nowhere]), "2")
    assert order(world) == PUBLISHED
    world.speak(2, first)
    problem = world.cluster.node_info(first).record.problem
    assert problem == "internal error: ZeroDivisionError"
    world.claims.apply(asking("c", exactly(1)))
    coming = world.cluster.foresees("ns", ["c"])(world.cluster.node_info(NODE))
    assert isinstance(coming, Rejection)
    assert coming.reason is Reason.UNDECIDED


def test_claims_alone_make_no_agent_speak(world: DraWorld) -> None:
    informed(world)
    world.now = 2 * STALE_AFTER
    world.claims.apply(claim("d", 1))
    world.cluster.expire()
    assert world.offer == STALE
    world.speak(3)
    assert isinstance(world.offer, Offer)


@pytest.mark.parametrize("between", [30, 2 * STALE_AFTER])
def test_a_node_whose_devices_come_back_is_no_younger(world: DraWorld, between: float) -> None:
    """Its agent has said nothing meanwhile."""
    informed(world)
    for kind in range(4):
        world.now += between
        if kind % 2:
            world.classes.replace([], "9")
            world.slices.replace([], "9")
        else:
            world.slices.apply(a_slice(device(0), device(0)))
            assert world.problem
        world.slices.apply(a_slice(*map(device, PUBLISHED)))
        world.classes.apply(device_class())
        world.cluster.expire()
        assert world.problem == ""
        assert (world.offer == STALE) == (world.now >= STALE_AFTER)
    world.speak(3)
    assert order(world) == PUBLISHED
    world.slices.apply(a_slice(device(0), device(0)))
    world.slices.apply(a_slice(*map(device, PUBLISHED)))
    world.cluster.expire()
    assert order(world) == PUBLISHED


def test_a_node_that_gets_a_device_plugin_is_its_plugins(world: DraWorld) -> None:
    informed(world)
    topology = machine("a100-pcie-4-bridged").topology(NODE)
    served = frozenset(DeviceId(gpu.uuid) for gpu in topology.gpus)
    world.records.apply(raw(codec.encode(topology, Report("boot", 9, allocatable=served))))
    world.cluster.put_node(NODE, NodeObject(exists=True))
    world.claims.apply(claim("d", 1))
    assert order(world) == ()
    assert world.offer.availability.free == 0b1111
    world.speak(10)
    assert order(world) == (3, 1, 0, 2)


@pytest.mark.parametrize("to_dra", [True, False])
def test_an_old_record_does_not_move_a_node_back(world: DraWorld, to_dra: bool) -> None:
    informed(world)
    by_plugin = raw(codec.encode(bridged(name=NODE), Report("boot", 4 if not to_dra else 3)))
    if to_dra:
        world.speak(4)
        world.records.apply(by_plugin)
    else:
        world.records.apply(by_plugin)
        world.speak(3)
    assert world.cluster.node_info(NODE).serves_claims == to_dra
    world.slices.apply(a_slice(*map(device, (3, 1, 0))))
    assert world.cluster.node_info(NODE).serves_claims == to_dra
    assert world.cluster.reports_out_of_order


def test_a_record_that_is_gone_takes_nothing_with_it(world: DraWorld) -> None:
    informed(world).records.replace([], "9")
    assert not world.nodes.has_nodes
    world.claims.apply(claim("d", 1))
    assert world.cluster.node_info(NODE).topology is None
    world.speak(1)
    assert world.offer.availability.free == 0b0101


def test_a_slice_that_cannot_be_read_is_its_nodes_problem(world: DraWorld) -> None:
    informed(world)
    bad = json.loads(bytes(a_slice(device(0), name="bad\nname", pool="another")))
    bad["spec"]["devices"] = [7]
    world.slices.apply(raw(bad))
    assert "ResourceSlice bad" in world.problem
    world.slices.delete(raw(bad))
    assert order(world) == (3, 1, 0, 2)
