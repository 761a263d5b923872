"""What the Topology Manager makes of NUMA nodes: options, GPUs on none or several, other managers.

Every case here was first seen with the real managers (``tests/differential``).
"""

from dataclasses import replace

import pytest

from tests.nodes import gpus
from topology.core.admission import (
    AFFINITY,
    MANAGERS,
    SEVERAL,
    Admissions,
    DeviceManager,
    admissions,
    device_manager_of,
    provider_answers,
)
from topology.core.availability import Availability
from topology.core.devices import GpuResource, NodeName
from topology.core.devicesets import DeviceSet, pack
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.possiblestates import possible_states
from topology.core.requests import Exclusive, Role

APP = Role.APP
NO_ANSWERS = AllocatorConfig("any", None, "best-effort", "container", "none", "None", False)


def node(*named: tuple[int, ...], config: AllocatorConfig = NO_ANSWERS) -> DeviceManager:
    """Unlinked GPUs of which the plugin names these NUMA nodes."""
    found = tuple(
        replace(g, topology_nodes=n) for g, n in zip(gpus(len(named)), named, strict=True)
    )
    return DeviceManager(NodeTopology(NodeName("n"), found).shape, config)


def sets(found: Admissions) -> set[int]:
    assert found.sets is not None
    return set(found.sets)


THREE = ((0,), (1,), (2,))
# Of three NUMA nodes the first and the last are the nearest to each other.
APART = ((10, 21, 12), (21, 10, 30), (12, 30, 10))


@pytest.mark.parametrize(
    ("prefers", "distances", "pairs"),
    [
        pytest.param(False, APART, {0b011}, id="the lowest numbers"),
        pytest.param(True, APART, {0b101}, id="the nearest nodes"),
        pytest.param(None, APART, {0b011, 0b101}, id="the option is not known"),
        pytest.param(True, None, {0b011, 0b101, 0b110}, id="the distances are not known"),
    ],
)
def test_of_hints_as_narrow_the_lowest_or_the_nearest_wins(
    prefers: bool | None, distances: tuple[tuple[int, ...], ...] | None, pairs: set[int]
) -> None:
    config = replace(NO_ANSWERS, prefers_closest=prefers, numa_distances=distances)
    found = admissions(node(*THREE, config=config), 0b111, ((APP, 2),))
    assert (sets(found), found.hazards) == (pairs, ())


@pytest.mark.parametrize("prefers", [False, True, None])
@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node", "unknown"])
def test_numa_nodes_that_the_machine_has_not_may_align_in_any_way(
    policy: str, prefers: bool | None
) -> None:
    """A plugin names NUMA node 1 to a kubelet that knows of node 0 only."""
    config = replace(
        NO_ANSWERS,
        topology_manager_policy=policy,
        prefers_closest=prefers,
        numa_distances=((10,),),
        cpu_manager_policy="static",
    )
    strange = node((0,), (0,), (1,), (1,), config=config)
    for exclusive in (Exclusive.NOTHING, Exclusive.CPUS):
        for count in (1, 2, 3):
            found = admitted(strange, 0b1111, count, exclusive)
            assert sets(found) == {s for s in range(16) if s.bit_count() == count}
            assert (AFFINITY in found.hazards) == (policy != "best-effort")


def test_where_no_hint_is_possible_the_gpus_with_a_numa_node_go_first() -> None:
    # One GPU with a NUMA node and two without: no NUMA nodes have two GPUs.
    assert sets(admissions(node((0,), (), ()), 0b111, ((APP, 2),))) == {0b011, 0b101}
    for policy in ("restricted", "single-numa-node"):
        strict = replace(NO_ANSWERS, topology_manager_policy=policy)
        refused = admissions(node((0,), (), (), config=strict), 0b111, ((APP, 2),))
        assert (refused.sets, refused.hazards) == ((), (AFFINITY,))


def test_a_gpu_on_several_numa_nodes_belongs_to_each_hint_that_names_one() -> None:
    both = node((0, 1), (1,), (0,))
    assert sets(admissions(both, 0b111, ((APP, 2),))) == {0b101}  # node 0 has two
    assert sets(admissions(both, 0b011, ((APP, 2),))) == {0b011}  # then node 1


def admitted(
    kubelet: DeviceManager, free: DeviceSet, count: int, exclusive: Exclusive
) -> Admissions:
    """The outcomes of a pod whose CPUs and memory are unknown."""
    counts = ((APP, count),)
    return admissions(
        kubelet, free, counts, provider_answers(kubelet, None, counts, exclusive=exclusive)
    )


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_without_numa_nodes_of_gpus_others_may_still_refuse(policy: str) -> None:
    config = replace(NO_ANSWERS, topology_manager_policy=policy, cpu_manager_policy="static")
    nowhere = node((), (), config=config)
    assert admissions(nowhere, 0b11, ((APP, 2),)).hazards == ()
    assert AFFINITY in admitted(nowhere, 0b11, 2, Exclusive.CPUS).hazards


def test_static_managers_care_about_the_class_guaranteed_alone() -> None:
    config = replace(
        NO_ANSWERS,
        topology_manager_policy="single-numa-node",
        cpu_manager_policy="static",
        full_cores_only=False,
    )
    kubelet = node((0,), (0,), (1,), (1,), config=config)
    calm = admissions(kubelet, 0b1111, ((APP, 2),))
    assert (sets(calm), calm.hazards) == ({0b0011}, ())
    memory = admitted(kubelet, 0b1111, 2, Exclusive.MEMORY)
    assert memory.ways == calm.ways  # no whole CPUs are asked for, and nobody hands out memory
    cpus = admitted(kubelet, 0b1111, 2, Exclusive.CPUS)
    assert (sets(cpus), cpus.hazards) == ({0b0011, 0b1100}, (AFFINITY,))


@pytest.mark.parametrize(
    ("full_cores", "exclusive", "hazards"),
    [
        pytest.param(True, Exclusive.CPUS, (MANAGERS,), id="whole cores may not suffice"),
        pytest.param(None, Exclusive.CPUS, (MANAGERS,), id="the option is not known"),
        pytest.param(False, Exclusive.CPUS, (), id="CPUs are counted by the scheduler"),
        pytest.param(True, Exclusive.MEMORY, (), id="no whole CPUs are asked for"),
        pytest.param(True, Exclusive.NOTHING, (), id="not of the class Guaranteed"),
    ],
)
def test_the_cpu_manager_may_refuse_without_any_topology_manager(
    full_cores: bool | None, exclusive: Exclusive, hazards: tuple[str, ...]
) -> None:
    config = AllocatorConfig("any", None, "none", "container", "static", "None")
    kubelet = node((0,), (1,), config=replace(config, full_cores_only=full_cores))
    assert admitted(kubelet, 0b11, 1, exclusive).hazards == hazards


def test_a_record_that_does_not_know_numa_nodes_promises_no_alignment() -> None:
    config = replace(NO_ANSWERS, sees_topology=False)
    found = admissions(node((0,), (0,), (1,), (1,), config=config), 0b1111, ((APP, 2),))
    assert len(sets(found)) == 6


def test_a_pod_may_end_between_a_hint_and_what_is_handed_out_under_it() -> None:
    """Two GPUs are free on two NUMA nodes, so the hint names both; then a third comes free."""
    kubelet = node((0,), (0,), (1,), (1,))
    before = admissions(kubelet, 0b0101, ((APP, 2),))
    later = admissions(kubelet, 0b0101, ((APP, 2),), releasing=(0b0010,))
    assert sets(before) == {0b0101}
    assert sets(later) == {0b0101, 0b0011, 0b0110}


@pytest.mark.parametrize(
    ("strategy", "version", "answer", "count", "hazards", "sure"),
    [
        pytest.param("mps", "0.19.3", None, 2, (SEVERAL,), True, id="MPS up to 0.19"),
        pytest.param("mps", "0.20.0", None, 2, (SEVERAL,), False, id="MPS since, not told"),
        pytest.param("mps", "0.20.0", False, 2, (), False, id="MPS since, turned off"),
        pytest.param("time-slicing", None, None, 2, (SEVERAL,), False, id="time-slicing, not told"),
        pytest.param("time-slicing", None, True, 2, (SEVERAL,), True, id="time-slicing, told so"),
        pytest.param("time-slicing", None, True, 1, (), False, id="one share is always served"),
    ],
)
def test_a_plugin_may_refuse_more_than_one_share(
    strategy: str,
    version: str | None,
    answer: bool | None,
    count: int,
    hazards: tuple[str, ...],
    sure: bool,
) -> None:
    served = GpuResource("nvidia.com/gpu", strategy, 2, answer)
    config = AllocatorConfig("distributed", version)
    topology = NodeTopology(NodeName("n"), gpus(2), resources=(served,), allocator=config)
    found = admissions(device_manager_of(topology, served), 0b1010, ((APP, count),))
    assert (found.hazards, found.sets == ()) == (hazards, sure)


def test_withheld_gpus_may_come_back_but_only_if_much_may_happen() -> None:
    kubelet = node((0,), (0,), (0,), config=AllocatorConfig("best-effort"))
    now = Availability(0b001, withheld=0b110)
    assert {s.free for s in possible_states(kubelet, now).free_states or ()} == {0b001}
    everything = {s.free for s in possible_states(kubelet, now, endings=True).free_states or ()}
    assert everything == {0b001, 0b011, 0b101, 0b111}


def test_shares_of_one_withheld_gpu_come_back_one_by_one() -> None:
    """Two pods may hold a share each of a GPU that heals; both may end, or one of them."""
    topology = NodeTopology(NodeName("n"), gpus(2), allocator=AllocatorConfig("distributed"))
    kubelet = DeviceManager(topology.shape, topology.allocator, replicas=3)
    now = Availability(0, width=2, withheld=pack([0, 2], 2))
    found = {s.free for s in possible_states(kubelet, now, endings=True).free_states or ()}
    assert found == {pack([0, n], 2) for n in (0, 1, 2)}
