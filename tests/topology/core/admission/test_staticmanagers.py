"""The static CPU and Memory Managers on a small machine: hints, refusals, and what is not sure.

The machine has two NUMA nodes on two sockets, each with four cores of two threads, 16 GiB, and two
GPUs. The differential test holds the same rules against Kubernetes' own managers.
"""

import random
from dataclasses import replace

import pytest

from tests.nodes import gpus
from topology.core.admission import AFFINITY, MANAGERS, DeviceManager, admissions, provider_answers
from topology.core.admission.staticmanagers import MemoryManager, cpu_hints
from topology.core.admission.topologyhints import ProviderHints
from topology.core.availability import Availability, Unacknowledged
from topology.core.budget import HINT_STEPS
from topology.core.devices import NodeName
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.numa import MemoryBlock, NumaConfig, NumaNode, cpu_set
from topology.core.numaresources import FreeNumaResources, added_up, at_any_moment, emptied
from topology.core.placement import Verdict, assess
from topology.core.placement.podoutcomes import pod_outcomes
from topology.core.requests import Constraints, Demand, Exclusive, GpuRequest, Role, gpu_request

GIB = 1 << 30
APP, INIT = Role.APP, Role.INIT
NUMA = NumaConfig(
    nodes=(
        NumaNode(cpu_set("0-7"), 0, (("memory", 16 * GIB),)),
        NumaNode(cpu_set("8-15"), 1, (("memory", 16 * GIB),)),
    ),
    allocatable=cpu_set("1-15"),
    whole_cores=cpu_set("2-15"),
    threads=2,
)
EMPTY = emptied(NUMA)
STATIC = AllocatorConfig(
    "any",
    None,
    "single-numa-node",
    "container",
    "static",
    "None",
    False,
    ((10, 21), (21, 10)),
    full_cores_only=False,
    numa=NUMA,
)
ONE, TWO, BOTH = 0b01, 0b10, 0b11


def node(**fields: object) -> DeviceManager:
    """The machine under other settings."""
    placed = tuple(replace(gpu, topology_nodes=(gpu.index // 2,)) for gpu in gpus(4))
    topology = NodeTopology(NodeName("n"), placed)
    return DeviceManager(topology.shape, replace(STATIC, **fields))  # type: ignore[arg-type]


def pod(cpus: int, devices: int = 1, memory: int = 1) -> GpuRequest:
    """A pod of the class Guaranteed with one container; memory in GiB."""
    demand = Demand(APP, devices, cpus, (("memory", memory * GIB),))
    asked = Exclusive(cpus=bool(cpus), memory=True, demands=(demand,))
    return replace(gpu_request(devices), exclusive=asked)


def hints_of(provider: ProviderHints | None) -> dict[int, tuple[bool, bool]]:
    """Hints by NUMA nodes: preferred, sure."""
    assert provider is not None
    return {hint.nodes: (hint.preferred, hint.sure) for hint in provider}


def test_a_hint_is_every_set_of_numa_nodes_with_cpus_enough() -> None:
    assert hints_of(cpu_hints(NUMA, EMPTY, 8)) == {TWO: (True, True), BOTH: (False, True)}
    assert hints_of(cpu_hints(NUMA, EMPTY, 9)) == {BOTH: (True, True)}
    assert cpu_hints(NUMA, EMPTY, 16) == ()  # one CPU is reserved


def test_what_others_may_take_first_makes_a_hint_unsure() -> None:
    some = replace(EMPTY, taken=4)
    assert hints_of(cpu_hints(NUMA, some, 4))[ONE] == (True, False)
    assert hints_of(cpu_hints(NUMA, some, 4))[TWO] == (True, True)
    released = replace(EMPTY, free=(0, 8), back=(7, 0))
    assert hints_of(cpu_hints(NUMA, released, 4))[ONE] == (True, False)


def test_cpus_for_use_again_make_every_hint_unsure() -> None:
    assert not any(sure for _, sure in hints_of(cpu_hints(NUMA, EMPTY, 2, reusable=2)).values())


def test_align_by_socket_prefers_whole_sockets() -> None:
    four = replace(
        NUMA,
        nodes=tuple(NumaNode(cpu_set(f"{4 * i}-{4 * i + 3}"), i // 2, ()) for i in range(4)),
        allocatable=cpu_set("0-15"),
        socket_aligned=True,
    )
    preferred = {m for m, (p, _) in hints_of(cpu_hints(four, emptied(four), 4)).items() if p}
    assert preferred == {0b0001, 0b0010, 0b0100, 0b1000, 0b0011, 0b1100}
    unknown = replace(four, nodes=tuple(replace(n, socket=None) for n in four.nodes))
    assert cpu_hints(unknown, emptied(four), 4) is None


def memory(
    numa_free: FreeNumaResources, amount: int, *, only_fewest: bool = True
) -> dict[int, tuple[bool, bool]]:
    """The Memory Manager's hints for so many GiB."""
    manager = MemoryManager(NUMA, numa_free, only_fewest=only_fewest)
    return hints_of(manager.hints((("memory", amount * GIB),)))


def block(amount: int, *nodes: int) -> MemoryBlock:
    """GiB on NUMA nodes."""
    return MemoryBlock("memory", amount * GIB, nodes)


def test_a_numa_node_serves_containers_on_it_alone_or_a_group() -> None:
    assert memory(EMPTY, 4) == {ONE: (True, True), TWO: (True, True), BOTH: (False, True)}
    alone = replace(EMPTY, blocks=(block(2, 0),))
    assert memory(alone, 4) == {ONE: (True, True), TWO: (True, True)}
    assert memory(alone, 20) == {}  # both together have 30 left, and one serves alone
    grouped = replace(EMPTY, blocks=(block(20, 0, 1),))
    assert memory(grouped, 4) == {BOTH: (False, True)}
    assert memory(grouped, 13) == {}


@pytest.mark.parametrize("seed", range(40))
def test_blocks_that_are_added_up_say_the_same(seed: int) -> None:
    """Of every hint and of what is served, whatever the blocks are; also those of no such node."""
    rng = random.Random(seed)
    kinds = ("memory", "hugepages-1Gi", "hugepages-2Mi")
    config = replace(
        NUMA,
        nodes=tuple(
            NumaNode(cpu_set(str(i)), 0, tuple((kind, rng.randint(0, 40)) for kind in kinds[:2]))
            for i in range(3)
        ),
        allocatable=cpu_set("0-2"),
        whole_cores=cpu_set("0-2"),
    )

    def blocks() -> list[MemoryBlock]:
        nodes = [n for n in range(4) for _ in range(rng.randint(1, 3))]
        found = [
            MemoryBlock(
                rng.choice(kinds),
                rng.randint(0, 9),
                tuple(sorted(set(rng.choices(nodes, k=rng.randint(1, 2))))),
            )
            for _ in range(rng.randint(0, 12))
        ]
        return sorted(found, key=lambda b: (b.nodes, b.type, b.amount))

    held, terminating = blocks(), blocks()
    each = replace(emptied(config), blocks=tuple(held), terminating=tuple(terminating))
    added = replace(each, blocks=added_up(config, held), terminating=added_up(config, terminating))
    for amount in range(0, 60, 7):
        asked = (("hugepages-1Gi", amount // 2), ("memory", amount))
        hints_of = [
            (manager.hints(asked), manager.accepted(asked, manager.hints(asked)))
            for manager in (MemoryManager(config, r, only_fewest=False) for r in (each, added))
        ]
        assert hints_of[0] == hints_of[1]


def test_tens_of_thousands_of_blocks_are_a_few() -> None:
    many = [MemoryBlock("memory", i, (i % 2,)) for i in range(30_000)]
    many += [MemoryBlock(f"kind-{i}", i, (0, 1)) for i in range(1_000)]
    assert [b.nodes for b in added_up(NUMA, many)] == [(0,), (0, 1), (1,)]


def test_what_other_managers_say_is_counted() -> None:
    """Each set of NUMA nodes for each container and manager, and again wherever it is used."""
    request = pod(2)
    answers = provider_answers(node(), EMPTY, request.counts, exclusive=request.exclusive)
    static = node(memory_manager_policy="Static")
    both = provider_answers(static, EMPTY, request.counts, exclusive=request.exclusive)
    assert (answers.steps, both.steps) == (HINT_STEPS * 4, HINT_STEPS * 8)
    now = Availability(0b1111, numa_free=EMPTY)
    alone = pod_outcomes(node(), now, request.counts, True).steps
    assert (
        pod_outcomes(node(), now, request.counts, True, request.exclusive).steps
        >= alone + answers.steps
    )


def test_memory_that_may_come_back_or_be_taken_is_not_sure() -> None:
    terminating = replace(EMPTY, terminating=(block(16, 0),))
    assert memory(terminating, 4) == {ONE: (True, False), TWO: (True, True), BOTH: (False, False)}
    taken = EMPTY.without(0, (("memory", 4 * GIB),))
    assert memory(taken, 4) == {ONE: (True, True), TWO: (True, True), BOTH: (False, False)}
    assert not memory(taken, 4, only_fewest=False)[ONE][1]  # it may form a group of both
    assert not any(sure for _, sure in memory(at_any_moment(NUMA, EMPTY), 4).values())


def test_a_merged_hint_may_name_fewer_numa_nodes_than_the_memory_needs() -> None:
    manager = MemoryManager(NUMA, EMPTY, only_fewest=False)
    amounts = (("memory", 20 * GIB),)
    assert manager.accepted(amounts, manager.hints(amounts)) == {ONE, TWO, BOTH}


def test_the_cpu_manager_decides_on_which_numa_node_the_gpus_are() -> None:
    kubelet, eight = node(), pod(8)
    others = provider_answers(kubelet, EMPTY, eight.counts, exclusive=eight.exclusive)
    found = admissions(kubelet, 0b1111, eight.counts, others)
    assert ({way.shown for way in found.ways or ()}, found.hazards) == ({0b0100, 0b1000}, ())
    low = pod(4)
    others = provider_answers(kubelet, EMPTY, low.counts, exclusive=low.exclusive)
    found = admissions(kubelet, 0b1111, low.counts, others)
    assert ({way.shown for way in found.ways or ()}, found.hazards) == ({0b0001, 0b0010}, ())


def test_a_pod_whose_cpus_and_gpus_are_apart_is_refused_for_certain() -> None:
    """The livelock that operators report: GPUs are free on one socket, CPUs on the other."""
    numa_free = replace(EMPTY, free=(7, 0))
    found = assess(node(), Availability(0b1100, numa_free=numa_free), pod(4))
    assert found.refusal is not None
    assert found.refusal.message == (
        "Topology Manager single-numa-node: no NUMA node has 1 GPU and 4 CPUs free"
    )
    assert found.refusal.resolvable
    never = assess(node(), Availability(0b1111, numa_free=EMPTY), pod(9)).refusal
    assert never is not None
    assert not never.resolvable


def test_another_pod_that_is_not_seen_yet_may_take_the_cpus_first() -> None:
    same = replace(pod(4, 2), constraints=Constraints(same_numa=True))
    calm = Availability(0b1111, numa_free=EMPTY)
    assert assess(node(), calm, same).verdict is Verdict.EXPECTED
    before = Unacknowledged(((APP, 1),), exclusive=pod(12).exclusive)
    assert not assess(node(), replace(calm, unacknowledged=(before,)), same).verdict.holds


def test_a_container_without_gpus_may_be_what_is_refused() -> None:
    demands = (Demand(APP, 1, 1), Demand(APP, 0, 12))
    asked = replace(gpu_request(1), exclusive=Exclusive(True, True, demands))
    found = assess(node(), Availability(0b1111, numa_free=EMPTY), asked).refusal
    assert found is not None
    assert found.message == (
        "Topology Manager single-numa-node: a container without GPUs requests 12 CPUs, "
        "and no NUMA node has them free"
    )


@pytest.mark.parametrize(
    ("cpus", "reason"),
    [
        pytest.param(3, "3 CPUs do not fill whole cores of 2 threads", id="half a core"),
        pytest.param(16, "too few whole cores are free for 16 CPUs", id="more than there are"),
        pytest.param(14, None, id="all whole cores"),
    ],
)
def test_whole_cores_only(cpus: int, reason: str | None) -> None:
    kubelet = node(topology_manager_policy="none", full_cores_only=True)
    found = assess(kubelet, Availability(0b1111, numa_free=EMPTY), pod(cpus))
    assert (found.refusal is None) == (reason is None)
    if found.refusal is not None and reason is not None:
        assert reason in found.refusal.message
    else:
        assert found.hazards == ()


def test_the_memory_manager_refuses_what_no_numa_nodes_have() -> None:
    kubelet = node(topology_manager_policy="none", memory_manager_policy="Static")
    full = replace(EMPTY, blocks=(block(10, 0), block(10, 1)))
    assert assess(kubelet, Availability(0b1111, numa_free=full), pod(0, memory=4)).hazards == ()
    found = assess(kubelet, Availability(0b1111, numa_free=full), pod(0, memory=8))
    assert found.refusal is not None
    assert "no NUMA nodes have the requested memory free" in found.refusal.message
    terminating = replace(full, blocks=(block(10, 1),), terminating=(block(10, 0),))
    unsure = assess(kubelet, Availability(0b1111, numa_free=terminating), pod(0, memory=8))
    assert (unsure.refusal, unsure.hazards) == (None, (MANAGERS,))


def test_best_effort_needs_the_memory_where_the_merge_ends() -> None:
    """GPUs are free on one NUMA node, memory is grouped over both: it is served all the same."""
    kubelet = node(topology_manager_policy="best-effort", memory_manager_policy="Static")
    grouped = replace(EMPTY, blocks=(block(4, 0, 1),))
    found = assess(kubelet, Availability(0b1100, numa_free=grouped), pod(0, 1, memory=4))
    assert (found.hazards, found.sets) == ((), (0b0100, 0b1000))


def test_where_the_record_does_not_say_what_is_left_any_hint_counts() -> None:
    found = assess(node(), Availability(0b1111), pod(4))
    assert AFFINITY in found.hazards
    assert found.refusal is None


def test_init_containers_cpus_are_used_again() -> None:
    asked = Exclusive(True, True, (Demand(INIT, 0, 6), Demand(APP, 1, 4), Demand(APP, 0, 4)))
    assert (asked.text, asked.most_cpus) == ("8 exclusive CPUs", 14)


# What attackers found, each seen with Kubernetes' own managers.


def test_more_numa_nodes_than_can_be_gone_through() -> None:
    """Some machines show each GPU's memory as NUMA nodes of its own: 34 and more."""
    many = NumaConfig(
        tuple(NumaNode(cpu_set(str(i))) for i in range(34)), cpu_set("0-33"), cpu_set("0-33")
    )
    now = Availability(0b1111, numa_free=emptied(many))
    strict = assess(node(numa=many), now, pod(4))
    assert AFFINITY in strict.hazards
    assert strict.refusal is None
    loose = node(numa=many, topology_manager_policy="none")
    assert assess(loose, now, pod(4)).hazards == ()


def test_cpus_of_init_containers_may_stay_taken() -> None:
    """The CPU Manager takes an app container's CPUs from all that is free, not from those first."""
    first = Exclusive(True, True, (Demand(INIT, 0, 1), Demand(APP, 1, 2)))
    assert (first.text, first.most_cpus) == ("2 exclusive CPUs", 3)
    kubelet = node(topology_manager_policy="none")
    before = Unacknowledged(((APP, 1),), exclusive=first)
    now = Availability(0b1111, numa_free=EMPTY, unacknowledged=(before,))
    assert assess(kubelet, now, pod(12)).hazards == ()
    assert assess(kubelet, now, pod(13)).hazards == (MANAGERS,)


def test_a_node_whose_cpus_do_not_suffice_refuses_for_certain() -> None:
    kubelet = node(topology_manager_policy="none")
    found = assess(kubelet, Availability(0b1111, numa_free=replace(EMPTY, free=(2, 3))), pod(6))
    assert found.refusal is not None
    assert found.refusal.message == "CPU Manager: fewer than 6 CPUs are free"
    assert found.refusal.resolvable


def test_a_type_of_memory_that_only_init_containers_ask_for_makes_no_hint_for_the_pod() -> None:
    """Scope ``pod``: huge pages that no NUMA node has alone, and no app container needs."""
    demands = (
        Demand(INIT, 0, 0, (("hugepages-1Gi", 2 * GIB), ("memory", GIB))),
        Demand(APP, 1, 0, (("memory", GIB),)),
    )
    nodes = tuple(
        replace(n, memory=(("hugepages-1Gi", GIB), ("memory", 16 * GIB))) for n in NUMA.nodes
    )
    kubelet = node(
        topology_manager_scope="pod",
        memory_manager_policy="Static",
        numa=replace(NUMA, nodes=nodes),
    )
    asked = replace(gpu_request(1), exclusive=Exclusive(False, True, demands))
    assert assess(kubelet, Availability(0b1111, numa_free=EMPTY), asked).refusal is None


def test_a_pods_memory_as_a_whole_is_never_refused_for_certain() -> None:
    """Scope ``pod``: the kubelet gives each container its own, wherever it fits."""
    demands = (
        Demand(APP, 1, 0, (("memory", 12 * GIB),)),
        Demand(APP, 0, 0, (("memory", 12 * GIB),)),
    )
    nowhere = NodeTopology(NodeName("n"), tuple(replace(g, topology_nodes=()) for g in gpus(4)))
    config = replace(
        STATIC,
        topology_manager_scope="pod",
        cpu_manager_policy="none",
        memory_manager_policy="Static",
    )
    numa_free = replace(EMPTY, blocks=(block(1, 0),))
    asked = replace(gpu_request(1), exclusive=Exclusive(False, True, demands))
    found = assess(
        DeviceManager(nowhere.shape, config), Availability(0b1111, numa_free=numa_free), asked
    )
    assert (found.refusal, MANAGERS in found.hazards) == (None, True)


def test_memory_that_may_have_no_hint_for_the_whole_pod_may_be_silent() -> None:
    """Scope ``pod``: the kubelet merges without the Memory Manager then, and may admit."""
    demands = (
        Demand(APP, 1, 0, (("memory", 12 * GIB),)),
        Demand(APP, 0, 0, (("memory", 12 * GIB),)),
    )
    kubelet = node(
        topology_manager_scope="pod", cpu_manager_policy="none", memory_manager_policy="Static"
    )
    asked = Exclusive(False, True, demands)
    received = provider_answers(kubelet, at_any_moment(NUMA, EMPTY), ((APP, 1),), exclusive=asked)
    assert received.pod is None
    assert not received.refused
