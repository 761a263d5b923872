"""Pods that come wherever enough GPUs are free: who comes before them need not be followed."""

from __future__ import annotations

from itertools import combinations

import pytest

from scheduler_extender.state.answers.decision import places
from tests.scheduler_extender.verbs.test_gangs import gang, on
from topology.core.admission import kubelet_of
from topology.core.allocators import Call
from topology.core.allocators.best_effort import BEST_EFFORT
from topology.core.availability import Availability, Unreported, unreported_order
from topology.core.belief import free_states
from topology.core.devices import NodeName
from topology.core.links import LinkKind
from topology.core.placement import Verdict, assess, endangers
from topology.core.placement.constraints import compiled
from topology.core.placement.indifference import indifferent_to, pool_sizes
from topology.core.placement.outlook import judged, outlook
from topology.core.requests import Constraints, Role, gpu_request
from topology.machines import MACHINES, machine

NVLINKED = Constraints(link=LinkKind.NVLINK)
SMALL = sorted(name for name in MACHINES if len(machine(name).topology(NodeName("n")).gpus) <= 8)


@pytest.mark.parametrize("name", SMALL)
def test_no_pool_of_a_small_machine_is_refused_where_none_should_be(name: str) -> None:
    shape = machine(name).topology(NodeName("n")).shape
    for size in range(1, shape.size + 1):
        for count in range(size, shape.size + 1):
            if not BEST_EFFORT.never_refuses(shape, size, frozenset({count})):
                assert not BEST_EFFORT.never_refuses(shape, size, None)
                continue
            for pool in combinations(range(shape.size), count):
                found = BEST_EFFORT.outcomes(Call(shape, sum(1 << p for p in pool), size))
                assert not found.hazards
                assert found.sets is None or found.sets


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("earlier", [(2,), (1, 2), (2, 2), (3, 1)])
def test_a_promise_over_any_devices_holds_in_each_state(
    name: str, size: int, earlier: tuple[int, ...]
) -> None:
    node = machine(name).topology(NodeName("n"))
    kubelet = kubelet_of(node, node.resources[0])
    counts = ((Role.APP, size),)
    unreported = unreported_order(tuple(Unreported(((Role.APP, n),)) for n in earlier))
    now = Availability(free=node.shape.all_gpus, unreported=unreported)
    wide = indifferent_to(kubelet, now, counts, Constraints())
    if wide is None or sum(earlier) + size > len(node.gpus):
        return
    constraints = compiled(node.shape, NVLINKED, 0, 1)
    assert free_states(kubelet, now) is not None  # followed to the end
    exact = outlook(kubelet, now, counts, True)
    broad = outlook(wide, now, counts, True)
    assert not exact.hazards
    assert exact.sets is not None
    assert broad.sets is not None
    assert set(exact.sets) <= set(broad.sets)
    if judged(wide, broad, constraints).every:
        assert judged(kubelet, exact, constraints).every


def test_a_gang_of_eight_pairs_fills_a_machine_of_sixteen_linked_gpus() -> None:
    scheduler = on("dgx2")
    (facts,) = scheduler.cluster.snapshot().nodes
    assert places(facts, gpu_request(2, NVLINKED), scheduler.cluster.settings, 64) == 8
    required = {"policy": "required", "group-domain": "node"}
    pods = [gang(f"m{i}", 8, 2, **required) for i in range(8)]
    assert all(scheduler.passing(each) for each in pods)
    assert {scheduler.bind(each, scheduler.names[0]) for each in pods} == {""}


@pytest.mark.parametrize(
    ("machine_name", "sizes"),
    [
        ("dgx2", (3, 3, 3, 3, 3)),
        ("dgx2", (4, 2, 4, 2, 4)),
        ("dgx2", (2, 2, 2, 2, 4, 4)),
        ("dgx2", (5, 5, 5)),
        ("hgx-h100-8", (3, 3)),
        ("hgx-h100-8", (2, 4, 2)),
    ],
)
def test_linked_pods_of_several_sizes_fill_a_machine(
    machine_name: str, sizes: tuple[int, ...]
) -> None:
    """No number of GPUs that these pods may leave each other makes the plugin fail."""
    node = machine(machine_name).topology(NodeName("n"))
    kubelet = kubelet_of(node, node.resources[0])
    for at, size in enumerate(sizes):
        earlier = [Unreported(((Role.APP, n),), NVLINKED, True) for n in sizes[:at]]
        now = Availability(node.shape.all_gpus, unreported=unreported_order(earlier))
        request = gpu_request(size, NVLINKED)
        assert assess(kubelet, now, request).verdict is Verdict.GUARANTEED, at
        assert not endangers(kubelet, now, request), at


def test_a_gang_of_five_triples_fits_a_machine_of_sixteen_linked_gpus() -> None:
    scheduler = on("dgx2")
    (facts,) = scheduler.cluster.snapshot().nodes
    assert places(facts, gpu_request(3, NVLINKED), scheduler.cluster.settings, 64) == 5
    required = {"policy": "required", "group-domain": "node"}
    pods = [gang(f"m{i}", 5, 3, **required) for i in range(5)]
    assert all(scheduler.passing(each) for each in pods)
    assert {scheduler.bind(each, scheduler.names[0]) for each in pods} == {""}


def test_triples_beside_pairs_are_followed_for_the_plugin_may_fail() -> None:
    """Eight GPUs are two triples and a pair, which may score more than a triple on a DGX-2."""
    node = machine("dgx2").topology(NodeName("n"))
    pairs = (Unreported(((Role.APP, 2),)),) * 4
    now = Availability(node.shape.all_gpus, unreported=pairs)
    kubelet = kubelet_of(node, node.resources[0])
    assert 8 in pool_sizes(kubelet, now)
    assert indifferent_to(kubelet, now, ((Role.APP, 3),), NVLINKED) is None
    assert indifferent_to(kubelet, now, ((Role.APP, 2),), NVLINKED) is not None


def test_pairs_that_must_be_linked_are_still_told_apart_on_a_cube_mesh() -> None:
    """Any pair may come there, so what comes first matters, and is followed."""
    scheduler = on("dgx1-v100")
    (facts,) = scheduler.cluster.snapshot().nodes
    assert places(facts, gpu_request(4, NVLINKED), scheduler.cluster.settings, 64) == 2
    scattered = on("dgx1-v100", free=[1, 2, 3, 4])
    assert not any(scattered.passing(gang(f"m{i}", 2, policy="required")) for i in range(2))
