"""The emulated kubelet's faults: restarts, sick GPUs, and other hint providers."""

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.nodes import bridged, gpus
from topology.core.admission import device_manager_of
from topology.core.devices import GpuResource, NodeName, PodUid
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.requests import ContainerRequest, Exclusive, GpuRequest, gpu_request
from topology.emulation import EmulatedKubelet, Refused
from topology.machines.mig import cut

ONE, TWO = PodUid("one"), PodUid("two")


def kubelet(topology: NodeTopology | None = None, *, others: bool = False) -> EmulatedKubelet:
    return EmulatedKubelet(topology or bridged(), random.Random(7), foreign_hints=others)


def admit(node: EmulatedKubelet, uid: PodUid, count: int) -> None:
    node.admit(uid, "default", str(uid), gpu_request(count))


def containers(*counts: int) -> GpuRequest:
    found = tuple(ContainerRequest(f"c{i}", n) for i, n in enumerate(counts))
    return GpuRequest("nvidia.com/gpu", found)


def test_after_a_restart_pods_keep_their_gpus_and_no_new_pod_is_admitted() -> None:
    node = kubelet()
    admit(node, ONE, 2)
    held = node.held(ONE)
    node.stop()
    node.start()
    assert (node.report().allocations, node.report().allocatable) == ((), frozenset())
    with pytest.raises(Refused, match="UnexpectedAdmissionError"):
        admit(node, TWO, 1)
    node.shows_pods = True
    node.register()
    (shown,) = node.report().allocations
    assert len(shown.device_ids) == 2
    admit(node, TWO, 2)
    assert set(node.held(TWO)) == set(range(4)) - set(held)


@pytest.mark.parametrize("registered", [True, False])
def test_a_half_admitted_pod_is_admitted_anew_if_the_plugin_is_back(registered: bool) -> None:
    node, request = kubelet(), containers(1, 1)
    next(node.admission(ONE, "default", "one", request))
    (first,) = node.report().allocations
    node.stop()
    node.start()
    node.shows_pods = True
    if not registered:
        with pytest.raises(Refused, match="UnexpectedAdmissionError"):
            node.admit(ONE, "default", "one", request)
        assert not node.holds(ONE)
        return
    node.register()
    node.admit(ONE, "default", "one", request)
    assert first in node.report().allocations, "its first container keeps what it had"
    assert len(node.held(ONE)) == 2


def test_a_sick_gpu_is_not_allocated_and_stays_with_its_pod() -> None:
    node = kubelet()
    admit(node, ONE, 1)
    (held,) = node.held(ONE)
    node.sicken([held, (held + 1) % 4])
    report = node.report()
    assert report.allocatable is not None
    assert len(report.allocatable) == 2
    assert node.held(ONE) == (held,)
    with pytest.raises(Refused):
        admit(node, TWO, 3)
    node.heal([held])
    node.end(ONE)
    admit(node, TWO, 3)
    assert held in node.held(TWO)


@pytest.mark.parametrize(
    ("strategy", "plugin", "answer", "refused"),
    [
        pytest.param("mps", "v0.19.3", False, True, id="MPS before it was an option"),
        pytest.param("mps", "v0.20.0", True, True, id="MPS that refuses"),
        pytest.param("mps", "v0.20.0", False, False, id="MPS that does not"),
        pytest.param("time-slicing", "v0.19.3", True, True, id="time-slicing that refuses"),
        pytest.param("time-slicing", "v0.19.3", False, False, id="time-slicing that does not"),
    ],
)
def test_a_plugin_may_refuse_more_than_one_share(
    strategy: str, plugin: str, answer: bool, refused: bool
) -> None:
    served = GpuResource("nvidia.com/gpu", strategy, 2, answer)
    config = AllocatorConfig("distributed", plugin)
    node = kubelet(replace(bridged(), resources=(served,), allocator=config))
    admit(node, ONE, 1)
    if refused:
        with pytest.raises(Refused, match="UnexpectedAdmissionError"):
            admit(node, TWO, 2)
    else:
        admit(node, TWO, 2)


DISTANCES = ((10, 32, 12, 32), (32, 10, 32, 12), (12, 32, 10, 32), (32, 12, 32, 10))


@pytest.mark.parametrize(("closest", "given"), [(False, {0, 1}), (True, {0, 2})])
def test_the_nearest_numa_nodes_win_where_the_option_says_so(
    closest: bool, given: set[int]
) -> None:
    """A GPU on each of four NUMA nodes: two GPUs need two nodes, and 0 is nearest to 2."""
    found = tuple(replace(gpu, topology_nodes=(p,)) for p, gpu in enumerate(gpus(4)))
    config = AllocatorConfig(
        "any",
        topology_manager_policy="restricted",
        prefers_closest=closest,
        numa_distances=DISTANCES,
    )
    node = kubelet(NodeTopology(NodeName("n"), found, allocator=config))
    admit(node, ONE, 2)
    assert set(node.held(ONE)) == given


@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
def test_a_kubelet_hints_at_no_numa_node_that_its_machine_has_not(policy: str) -> None:
    """Two of the four GPUs are on such a node: a hint can name the other two only."""
    found = tuple(replace(gpu, topology_nodes=(p // 2,)) for p, gpu in enumerate(gpus(4)))
    config = AllocatorConfig(
        "any",
        topology_manager_policy=policy,
        prefers_closest=True,
        numa_distances=((10,),),
    )
    node = kubelet(NodeTopology(NodeName("n"), found, allocator=config))
    if policy == "best-effort":
        admit(node, ONE, 3)
    else:
        with pytest.raises(Refused, match="TopologyAffinityError"):
            admit(node, ONE, 3)


@pytest.mark.parametrize(
    ("exclusive", "reasons"),
    [
        (Exclusive.NOTHING, set()),
        (Exclusive.CPUS, {"SMTAlignmentError", "TopologyAffinityError"}),
    ],
)
def test_static_managers_have_a_say_in_pods_with_whole_cpus(
    exclusive: Exclusive, reasons: set[str]
) -> None:
    config = AllocatorConfig("best-effort", "v0.20.0", "restricted", "container", "static", "None")
    found = tuple(replace(gpu, topology_nodes=(p // 2,)) for p, gpu in enumerate(gpus(4)))
    node = kubelet(NodeTopology(NodeName("n"), found, allocator=config), others=True)
    seen = set()
    for _ in range(100):
        try:
            node.admit(ONE, "default", "one", replace(gpu_request(2), exclusive=exclusive))
        except Refused as refusal:
            seen.add(str(refusal))
        node.end(ONE)
    assert seen == reasons


def sliced(**how: Any) -> NodeTopology:
    found = cut(bridged(), ["2g.10gb", "1g.5gb", "1g.5gb"], **how)
    return replace(found, allocator=AllocatorConfig("distributed"))


def test_mig_instances_are_given_out_each_once_and_in_any_order() -> None:
    seen = set()
    for seed in range(40):
        node = EmulatedKubelet(sliced(), random.Random(seed), "nvidia.com/mig-1g.5gb")
        admit(node, ONE, 2)
        admit(node, TWO, 6)
        held = *node.held_ids(ONE), *node.held_ids(TWO)
        assert len(set(held)) == 8
        assert all(device.startswith("MIG-") for device in held)
        seen.add(len(node.held(ONE)))
    assert seen == {1, 2}  # of one GPU and of two


def test_a_sick_gpus_instances_are_not_given_out() -> None:
    node = EmulatedKubelet(sliced(), random.Random(7), "nvidia.com/mig-1g.5gb")
    node.sicken([0, 1, 2])
    admit(node, ONE, 2)
    assert node.held(ONE) == (3,)
    with pytest.raises(Refused):
        admit(node, TWO, 1)


def test_time_sliced_instances_are_given_out_from_those_used_least() -> None:
    node = EmulatedKubelet(sliced(replicas=2), random.Random(7), "nvidia.com/mig-1g.5gb")
    admit(node, ONE, 8)
    assert len({device.partition("::")[0] for device in node.held_ids(ONE)}) == 8


@pytest.mark.parametrize("mixed", [True, False])
def test_a_gpu_in_mig_mode_is_served_whole_unless_its_instances_are(*, mixed: bool) -> None:
    """Strategy ``none`` of NVIDIA's plugin does not look at MIG mode."""
    topology = cut(bridged(), ["3g.20gb", "3g.20gb"], gpus=[0])
    if not mixed:
        topology = replace(topology, resources=(GpuResource(),))
    node, served = kubelet(topology), device_manager_of(topology, topology.resources[0])
    assert len(node.free()) == served.devices_served == (3 if mixed else 4)
