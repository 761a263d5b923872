"""An unknown plugin: one class and its name in the registry, and all else follows.

It hands out devices in the order in which its node publishes them, and refuses every container
that asks for three.
"""

from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest

from tests.nodes import (
    bridged,
    guaranteed_capacity,
    score_of,
)
from topology.core.admission import DeviceManager, device_manager_of
from topology.core.allocators import ALLOCATORS, Allocator, Call, Outcomes
from topology.core.availability import Availability, Holder, Unacknowledged
from topology.core.devices import GpuResource
from topology.core.devicesets import count, pack, total
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.links import LinkKind
from topology.core.placement import Verdict, assess, endangers, keeps, predicted
from topology.core.report import MissingGpu
from topology.core.requests import Constraints, GpuRequest, Role, gpu_request
from topology.core.scoring import PRIOR, normalized_scores

NVLINK = Constraints(link=LinkKind.NVLINK)
THREE = "nobody-gets-three"
WORDS = "the driver gives nobody three GPUs"


@dataclass(frozen=True, slots=True)
class FirstFit(Allocator):
    """The next devices in a published order."""

    order: tuple[int, ...] = ()

    name = "first-fit"
    hazards = MappingProxyType({THREE: WORDS})

    def outcomes(self, call: Call) -> Outcomes:
        if call.size == 3:
            return Outcomes((), hazards=(THREE,))
        found, width = call.required, call.width
        for p in self.order or range(call.shape.size):
            missing = call.size - total(found, width)
            found += min(missing, count(call.available - found, p, width)) << p * width
        return Outcomes((found,))

    def never_refuses(self, shape: object, size: int, counts: frozenset[int] | None) -> bool:
        return size != 3

    def on_node(
        self, topology: NodeTopology, served: GpuResource, missing: tuple[MissingGpu, ...]
    ) -> Allocator:
        """The node publishes its GPUs by UUID, the highest first."""
        uuids = [gpu.uuid for gpu in topology.gpus]
        return FirstFit(tuple(sorted(range(len(uuids)), key=uuids.__getitem__, reverse=True)))


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALLOCATORS, FirstFit.name, FirstFit())


def node() -> DeviceManager:
    """Six GPUs in bridged pairs, published in the order 5, 4 … 0."""
    topology = replace(bridged(6), allocator=AllocatorConfig("first-fit"))
    found = device_manager_of(topology, topology.resources[0])
    assert found.allocator == FirstFit((5, 4, 3, 2, 1, 0))
    return found


def verdict(availability: Availability, request: GpuRequest) -> Verdict:
    return assess(node(), availability, request).verdict


def test_verdicts_follow_from_its_outcomes() -> None:
    pair = gpu_request(2, NVLINK)
    assert verdict(Availability(0b111111), pair) is Verdict.GUARANTEED
    assert verdict(Availability(0b011011), pair) is Verdict.NOT_NOW, "4 and 3 come"
    held = Availability(0b001111, running=(Holder(0b100000),))
    assert verdict(held, pair) is Verdict.EXPECTED, "with GPU 5 free again, 5 and 3 come"


def test_what_it_refuses_is_reported_in_its_words() -> None:
    found = assess(node(), Availability(0b111111), gpu_request(3))
    assert found.refusal is not None
    assert (found.refusal.message, found.refusal.resolvable) == (WORDS, False)
    assert found.hazards == (THREE,)
    assert assess(node(), Availability(0b111111), gpu_request(2)).refusal is None


def test_pods_that_come_first_are_followed() -> None:
    single, pair = ((Role.APP, 1),), ((Role.APP, 2),)
    availability = Availability(
        0b111111, unacknowledged=(Unacknowledged(pair, NVLINK, survives_endings=True),)
    )
    assert endangers(node(), availability, gpu_request(1)), "it may take GPU 5 first"
    assert not endangers(node(), availability, gpu_request(2))
    assert predicted(node(), Availability(0b111111), Unacknowledged(pair)) == ((0b110000,), ())
    assert not keeps(
        node(),
        Availability(0b111111, unacknowledged=(Unacknowledged(single),)),
        Unacknowledged(pair, NVLINK),
    ).every


def test_guaranteed_capacity_and_scores_follow() -> None:
    whole, broken = Availability(0b111111), Availability(0b011111)
    assert (
        guaranteed_capacity(node(), whole.free, PRIOR)
        > guaranteed_capacity(node(), broken.free, PRIOR) + 1
    )
    single = gpu_request(1)
    node_scores = [
        score_of(node(), availability, single, assess(node(), availability, single), PRIOR)
        for availability in (whole, broken)
    ]
    rated = normalized_scores(single, node_scores)
    assert rated[node_scores[1]] > rated[node_scores[0]], (
        "a single goes where a pair is broken already"
    )


def test_where_the_plugin_is_called_in_an_unknown_way_any_devices_may_come() -> None:
    config = AllocatorConfig("first-fit", None, "restricted", sees_topology=False)
    kubelet = DeviceManager(node().shape, config)
    found = assess(kubelet, Availability(0b111111), gpu_request(2, NVLINK))
    assert not found.verdict.holds
    assert THREE in found.hazards


def test_memory_of_shared_gpus_is_added_up() -> None:
    """Any share may come next, as far as memory is concerned: it does not spread them."""
    kubelet = DeviceManager(node().shape, AllocatorConfig("first-fit"), replicas=2)
    half = gpu_request(1, Constraints(gpu_memory=kubelet.shape.memory[0]))
    user = Holder(pack([1, 0, 0, 0, 0, 0], 2), memory=kubelet.shape.memory[0])
    availability = Availability(pack([1, 2, 2, 2, 2, 2], 2), running=(user,), width=2)
    assert assess(kubelet, availability, half).memory is not None
