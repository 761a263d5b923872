"""A place and a home need CPU and memory, too."""

from dataclasses import replace

from scheduler_extender.evictions import Advice, search
from scheduler_extender.evictions.relocation import MAX_NODES
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import (
    Amounts,
    Others,
    SchedulingAttributes,
    amounts_of,
)
from scheduler_extender.state.pods.record import PodRecord
from tests.scheduler_extender.evictions.scenes import (
    NVLINKED,
    Held,
    cluster_of,
    relocations,
    waiting,
)
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.core.requests import gpu_request
from topology.machines import machine

PAIRS = machine("a100-pcie-4-bridged").topology("pairs")
PCIE = machine("l40s-4").topology("pcie")
ROOMY = machine("l40s-4").topology("roomy")
EIGHT: Amounts = (("cpu", 8000),)  # what each pod with GPUs asks for here


def cluster(*nodes: tuple[NodeTopology, str]) -> Cache:
    """A node with two linked pairs, held by four pods, with just the CPUs for them; and empty nodes
    with so many CPUs."""
    held = {f"h{i}": Held((i,), asks=EIGHT) for i in range(4)}
    found = cluster_of({PAIRS: held, **{node: {} for node, _ in nodes}})
    for node, cpus in ((PAIRS, "32"), *nodes):
        found.put_node(node.name, NodeObject(allocatable=amounts_of({"cpu": cpus, "pods": "110"})))
    return found


def pair(asks: Amounts = EIGHT) -> PodRecord:
    """A pod that waits for a linked pair, and for CPUs."""
    return waiting("wants", gpu_request(2, NVLINKED), SchedulingAttributes(0, requests=asks))


def plan(of: Cache, pod: PodRecord, others: Others) -> Advice:
    of.others = others
    return search(of.snapshot(), pod)


def busy(**milli: int) -> Others:
    """Pods without devices that ask for so much CPU on these nodes, and nothing elsewhere."""
    return lambda name: (("cpu", milli.get(name, 0)), ("pods", 1000))


def test_a_pod_moves_where_cpus_are_left() -> None:
    nodes = cluster((PCIE, "64"), (ROOMY, "64"))
    assert relocations(plan(nodes, pair(), busy())) == {"pcie", "roomy"}
    assert relocations(plan(nodes, pair(), busy(pcie=60_000))) == {"roomy"}
    assert relocations(plan(nodes, pair(), busy(roomy=60_000))) == {"pcie"}


def test_pods_that_moved_before_count() -> None:
    """There are GPUs for both victims; CPUs for the second one are missing, or just there."""
    assert plan(cluster((PCIE, "15")), pair(), busy()).plan is None
    assert relocations(plan(cluster((PCIE, "16")), pair(), busy())) == {"pcie"}


def test_where_no_node_has_cpus_no_pod_moves() -> None:
    found = plan(cluster((PCIE, "7"), (ROOMY, "64")), pair(), busy(roomy=57_000))
    assert found.plan is None
    assert found.whole


def test_the_waiting_pod_needs_cpus_itself() -> None:
    """Without two of the four pods 16 CPUs are free on the node; the pod asks for more."""
    nodes = cluster((PCIE, "64"))
    assert relocations(plan(nodes, pair((("cpu", 16_000),)), busy())) == {"pcie"}
    found = plan(nodes, pair((("cpu", 16_001),)), busy())
    # A third one would have to go for its CPUs.
    assert found.plan is not None
    assert len(found.plan.steps) == 3
    assert plan(nodes, pair((("cpu", 33_000),)), busy()).plan is None


def test_a_node_with_gpus_but_no_cpus_takes_no_pod() -> None:
    free = machine("a100-pcie-4-bridged").topology("free")
    nodes = cluster((free, "64"))
    assert plan(nodes, pair(), busy()).takes == "free"
    assert plan(nodes, pair(), busy(free=60_000)).takes is None


def test_of_nodes_that_are_alike_the_one_with_room_is_cleared() -> None:
    """They differ in their CPUs alone."""
    again = machine("a100-pcie-4-bridged").topology("pairs-2")
    nodes = cluster((PCIE, "64"))
    twin = cluster_of({again: {f"g{i}": Held((i,), asks=EIGHT) for i in range(4)}})
    node = NodeObject(exists=True, allocatable=EIGHT_TIMES_FOUR)
    info = [replace(each, node_object=node) for each in twin.snapshot().nodes]
    for full, cleared in (("pairs", "pairs-2"), ("pairs-2", "pairs")):
        nodes.others = busy(**{full: 16_000})
        found = search(nodes.snapshot().with_node_infos(info), pair())
        assert found.plan is not None
        assert found.plan.node == cleared
        assert {step.pod.name[0] for step in found.plan.steps} == {
            "h" if cleared == "pairs" else "g"
        }


EIGHT_TIMES_FOUR = amounts_of({"cpu": "32", "pods": "110"})


def test_the_number_of_pods_is_limited_too() -> None:
    nodes = cluster((PCIE, "64"), (ROOMY, "64"))

    def full(name: NodeName) -> Amounts:
        return (("pods", 110_000 if name == "pcie" else 0),)

    assert relocations(plan(nodes, pair(), full)) == {"roomy"}


def test_what_is_not_known_is_reported() -> None:
    found = plan(cluster((PCIE, "64")), pair(), lambda name: None)
    assert relocations(found) == {"pcie"}
    assert found.plan is not None
    assert found.plan.resources_unknown == ("pairs", "pcie")
    assert found.lines(pair())[-1] == (
        "whether enough CPU and memory are free is unknown for pairs, pcie"
    )


def test_no_more_nodes_are_asked_than_that() -> None:
    """Each of them is a request to the API server."""
    many = [machine("l40s-4").topology(f"n{i:03}") for i in range(MAX_NODES + 50)]
    nodes = cluster(*((node, "8") for node in many))
    asked: list[NodeName] = []

    def others(name: NodeName) -> Amounts:
        asked.append(name)
        return (("cpu", 1000),)

    found = plan(nodes, pair(), others)
    assert len(asked) == len(set(asked)) == MAX_NODES
    assert found.plan is None
    assert not found.whole
