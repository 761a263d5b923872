"""The Topology Manager: one table of hints, and what each policy makes of it.

The machine has two NUMA nodes with four GPUs each: 0 to 3 and 4 to 7. What the policies do to a
whole pod is tested in ``test_admission``, against the emulated kubelet and recorded admissions.
"""

from dataclasses import replace

import pytest

from tests.nodes import switched
from topology.core.admission import DeviceManager, admissions
from topology.core.admission.topologymanager import (
    TOO_MANY_NODES,
    Aligned,
    device_hints,
    hints_whole_pods,
    merged_hints,
)
from topology.core.devices import Mask
from topology.core.graph import AllocatorConfig
from topology.core.requests import Role

LOWER, UPPER, BOTH = 0x0F, 0xF0, 0xFF
FIRST, SECOND, EITHER = 0b01, 0b10, 0b11  # Sets of NUMA nodes
EVERY_UNION = (None, LOWER, UPPER, BOTH)


def kubelet(policy: str, *, scope: str = "container") -> DeviceManager:
    """A node under a policy."""
    return DeviceManager(switched(8).shape, AllocatorConfig("best-effort", None, policy, scope))


HINTS = [
    pytest.param(BOTH, 0, 2, [(FIRST, True), (SECOND, True), (EITHER, False)], id="either node"),
    pytest.param(0xF1, 0, 2, [(SECOND, True), (EITHER, False)], id="one node alone has enough"),
    pytest.param(0x11, 0, 2, [(EITHER, False)], id="both are needed, and would not be if empty"),
    pytest.param(BOTH, 0, 6, [(EITHER, True)], id="no node alone could ever do"),
    pytest.param(0x01, 0, 2, [], id="too few"),
    pytest.param(0xFC, 0x01, 2, [(FIRST, True), (EITHER, False)], id="where the reused one is"),
]


@pytest.mark.parametrize(("free", "reusable", "count", "expected"), HINTS)
def test_the_hints_of_the_device_manager(
    free: Mask, reusable: Mask, count: int, expected: list[tuple[Mask, bool]]
) -> None:
    found = device_hints(kubelet("restricted"), free, reusable, count)
    assert [(hint.nodes, hint.preferred) for hint in found] == expected
    assert all(hint.sure for hint in found)


ALONE = [
    # free GPUs, count, and what comes of it: the one hint, or nothing where it is refused
    pytest.param("best-effort", BOTH, 2, (LOWER,), id="best-effort: the lower of two equal nodes"),
    pytest.param("best-effort", 0x11, 2, (BOTH,), id="best-effort: split"),
    pytest.param("best-effort", 0x01, 2, (BOTH,), id="best-effort: none is possible, so all"),
    pytest.param("restricted", 0xF1, 2, (UPPER,), id="restricted: on one node"),
    pytest.param("restricted", BOTH, 6, (BOTH,), id="restricted: on two, for one cannot do"),
    pytest.param("restricted", 0x11, 2, (), id="restricted: split, refused"),
    pytest.param("single-numa-node", 0xF1, 2, (UPPER,), id="single-numa-node: on one node"),
    pytest.param("single-numa-node", BOTH, 6, (), id="single-numa-node: on two, refused"),
]


@pytest.mark.parametrize(("policy", "free", "count", "hints"), ALONE)
def test_where_no_other_provider_has_hints(
    policy: str, free: Mask, count: int, hints: tuple[Aligned, ...]
) -> None:
    found = merged_hints(kubelet(policy), free, 0, count)
    assert (found.hints, found.may_refuse) == (hints, not hints)


@pytest.mark.parametrize(
    ("policy", "hints", "may_refuse"),
    [
        pytest.param("best-effort", EVERY_UNION, False, id="best-effort: anything, admitted"),
        pytest.param("restricted", (LOWER, UPPER), True, id="restricted: one of ours, or refused"),
        pytest.param("single-numa-node", (LOWER, UPPER), True, id="single-numa-node: the same"),
        pytest.param("unknown", EVERY_UNION, True, id="unknown: what any of them does"),
    ],
)
def test_where_other_providers_have_unknown_hints(
    policy: str, hints: tuple[Aligned, ...], may_refuse: bool
) -> None:
    found = merged_hints(kubelet(policy), BOTH, 0, 2, None)
    assert (found.hints, found.may_refuse) == (hints, may_refuse)


@pytest.mark.parametrize(
    ("policy", "scope", "whole"),
    [
        pytest.param("restricted", "pod", True, id="scope pod"),
        pytest.param("restricted", "container", False, id="scope container"),
        pytest.param("none", "pod", False, id="no policy"),
        pytest.param("unknown", "pod", False, id="unknown: each container may have any"),
    ],
)
def test_when_one_hint_is_for_the_whole_pod(policy: str, scope: str, whole: bool) -> None:
    assert hints_whole_pods(kubelet(policy, scope=scope)) is whole


def test_hints_are_followed_on_eight_numa_nodes_at_most() -> None:
    aligned = AllocatorConfig("best-effort", None, "restricted")
    for nodes, followed in ((8, True), (9, False)):
        topology = switched(9)
        gpus = tuple(replace(gpu, topology_nodes=(gpu.index % nodes,)) for gpu in topology.gpus)
        shape = replace(topology, gpus=gpus).shape
        found = admissions(DeviceManager(shape, aligned), shape.all_gpus, ((Role.APP, 1),))
        assert (TOO_MANY_NODES not in found.hazards) is followed
        assert admissions(DeviceManager(shape), shape.all_gpus, ((Role.APP, 1),)).hazards == ()
