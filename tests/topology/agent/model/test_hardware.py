"""What NVML and sysfs say, made into a topology: what counts, and what is kept over one boot."""

from dataclasses import replace

import pytest

from tests.topology.agent.scriptednode import BUS, seen_gpu, vital
from topology.agent.model.hardware import (
    NO_FAULTS,
    HardwareTracker,
    LinkFaults,
    keep_lost,
    plugins_doubt,
    topology_of,
    wired,
)
from topology.agent.model.observations import (
    NvlinkEnd,
    NvmlState,
    PciTree,
    Remote,
    SeenGpu,
    SeenNode,
    Unseen,
)
from topology.core.devices import MIB, Bytes, Fabric, Gpu, GpuUuid, NodeName
from topology.core.graph import TopologyError
from topology.core.links import LinkKind, Via
from topology.machines import machine

V100 = "Tesla V100-SXM2-16GB"
NODE = NodeName("n")


def bus(index: int) -> str:
    return f"0000:{index + 1:02x}:00.0"


def gpu(index: int, *ends: NvlinkEnd, product: str = V100) -> SeenGpu:
    uuid = GpuUuid(f"GPU-{index}")
    return SeenGpu(Gpu(index, uuid, product, Bytes(16384 * MIB), 0, bus(index)), ends)


def to(other: int, *numbers: int, active: bool = True) -> list[NvlinkEnd]:
    return [NvlinkEnd(n, active, Remote.GPU, bus(other), 2) for n in numbers]


def pair(*gpus: SeenGpu, p2p: bool | None = True) -> SeenNode:
    peers = {} if p2p is None else {(0, 1): p2p}
    return SeenNode(tuple(gpus), pcie={(0, 1): LinkKind.PIX}, p2p=peers)


def link_of(seen: SeenNode, **known: object) -> tuple[int, Via, bool, list[str]]:
    topology, unseen = topology_of(NODE, seen, PciTree(), **known)  # type: ignore[arg-type]
    (link,) = topology.links
    return link.nvlinks, link.via, link.one_sided, [u.fact for u in unseen]


def test_direct_links_count_once() -> None:
    seen = pair(gpu(0, *to(1, 0, 3)), gpu(1, *to(0, 1, 2)))
    assert link_of(seen) == (2, Via.DIRECT, False, [])


def test_links_that_one_end_alone_shows_are_one_sided() -> None:
    seen = pair(gpu(0, *to(1, 0, 3)), gpu(1))
    assert link_of(seen) == (2, Via.DIRECT, True, [])


def test_a_link_that_is_down_at_one_end_is_down() -> None:
    seen = pair(gpu(0, *to(1, 0), *to(1, 3, active=False)), gpu(1, *to(0, 1, 2)))
    assert link_of(seen) == (1, Via.DIRECT, False, [])
    whole = pair(gpu(0, *to(1, 0, 3)), gpu(1, *to(0, 1, 2)))
    assert link_of(whole, faults=LinkFaults({GpuUuid("GPU-0"): frozenset({3})}))[0] == 1


def test_the_plugin_may_see_links_that_do_not_count() -> None:
    """It looks for itself, and knows neither what has flapped nor what peers may use."""
    flapped = pair(gpu(0, *to(1, 0, 3)), gpu(1, *to(0, 1, 2)))
    down = {GpuUuid("GPU-0"): frozenset({3}), GpuUuid("GPU-1"): frozenset({2})}
    trusted, _ = topology_of(NODE, flapped, PciTree(), LinkFaults(down))
    assert plugins_doubt(flapped, trusted)
    denied = pair(gpu(0, *to(1, 0)), gpu(1, *to(0, 0)), p2p=False)
    assert plugins_doubt(denied, topology_of(NODE, denied, PciTree())[0])
    well = pair(gpu(0, *to(1, 0)), gpu(1, *to(0, 0)))
    assert plugins_doubt(well, topology_of(NODE, well, PciTree())[0]) == ""


def test_a_switch_counts_the_smaller_attachment() -> None:
    ends = [NvlinkEnd(n, True, Remote.SWITCH) for n in range(12)]
    assert link_of(pair(gpu(0, *ends), gpu(1, *ends[:10]))) == (10, Via.SWITCH, False, [])


def test_inactive_links_and_dropped_ones_do_not_count() -> None:
    seen = pair(
        gpu(0, *to(1, 0), *to(1, 3, active=False)), gpu(1, *to(0, 1), *to(0, 2, active=False))
    )
    assert link_of(seen)[0] == 1
    down = {GpuUuid("GPU-0"): frozenset({0}), GpuUuid("GPU-1"): frozenset({1})}
    assert link_of(seen, faults=LinkFaults(down))[0] == 0


def test_links_that_peers_may_not_use_do_not_count() -> None:
    seen = pair(gpu(0, *to(1, 0)), gpu(1, *to(0, 0)), p2p=False)
    assert link_of(seen) == (0, Via.DIRECT, False, ["NVLinks"])


def test_links_count_where_the_driver_does_not_name_peers() -> None:
    assert link_of(pair(gpu(0, *to(1, 0)), gpu(1, *to(0, 0)), p2p=None))[0] == 1


@pytest.mark.parametrize(
    ("p2p", "count", "notes"),
    [
        pytest.param(True, 1, ["NVLink count"], id="peers may use it: at least one"),
        pytest.param(False, 0, [], id="peers may not: they are other GPUs' links"),
        pytest.param(None, 0, ["NVLinks"], id="nobody tells: none"),
    ],
)
def test_far_ends_that_cannot_be_identified(p2p: bool | None, count: int, notes: list[str]) -> None:
    ends = [NvlinkEnd(n, True, Remote.UNKNOWN) for n in range(6)]
    found = link_of(pair(gpu(0, *ends), gpu(1, *ends), p2p=p2p))
    assert (found[0], found[3]) == (count, notes)
    assert count == 0 or found[1] is Via.SWITCH


def test_an_unknown_product_gets_its_speed_from_the_links_version() -> None:
    seen = pair(gpu(0, *to(1, 0), product="X-1"), gpu(1, *to(0, 0), product="X-1"))
    topology, _ = topology_of(NODE, seen, PciTree())
    assert float(topology.links[0].bandwidth) == 50.0


def test_pcie_classes_come_from_sysfs_where_nvml_is_silent() -> None:
    places = {bus(0): ("pci0", "p0", "g"), bus(1): ("pci0", "p1", "g")}
    seen = replace(pair(gpu(0), gpu(1)), pcie={})
    topology, unseen = topology_of(NODE, seen, PciTree(places))
    assert (topology.links[0].pcie, unseen) == (LinkKind.PHB, ())


def test_a_pair_of_unknown_class_is_reported() -> None:
    topology, unseen = topology_of(NODE, replace(pair(gpu(0), gpu(1)), pcie={}), PciTree())
    assert topology.links[0].pcie is LinkKind.UNKNOWN
    assert [str(u) for u in unseen] == ["PCIe class of GPUs 0 and 1: neither NVML nor sysfs says"]


def test_two_fabrics_are_none() -> None:
    a, b = Fabric("a", 1), Fabric("b", 1)
    one = pair(replace(gpu(0), fabric=a), replace(gpu(1), fabric=a))
    assert topology_of(NODE, one, PciTree())[0].fabric == a
    two = pair(replace(gpu(0), fabric=a), replace(gpu(1), fabric=b))
    topology, unseen = topology_of(NODE, two, PciTree())
    assert topology.fabric is None
    assert [u.fact for u in unseen] == ["fabric"]


SWITCHED = [NvlinkEnd(n, True, Remote.SWITCH, None, 7) for n in range(18)]
HIDDEN = [NvlinkEnd(n, True, Remote.UNKNOWN) for n in range(6)]
ONE = frozenset({GpuUuid("GPU-1")})


@pytest.mark.parametrize(
    ("ends", "count"),
    [
        pytest.param((SWITCHED, SWITCHED), 0, id="through a switch"),
        pytest.param((HIDDEN, HIDDEN), 0, id="perhaps through a switch"),
        pytest.param((to(1, 0, 3), to(0, 1, 2)), 2, id="direct: no fabric is in between"),
    ],
)
def test_a_gpu_off_its_fabric_has_no_links_through_a_switch(
    ends: tuple[list[NvlinkEnd], list[NvlinkEnd]], count: int
) -> None:
    seen = pair(gpu(0, *ends[0]), gpu(1, *ends[1]))
    assert link_of(seen)[0] > 0
    assert link_of(seen, faults=LinkFaults(off_fabric=ONE))[0] == count


def test_one_gpu_off_its_fabric_takes_the_node_out_of_the_domain() -> None:
    tray = pair(*(replace(gpu(i, *SWITCHED), fabric=Fabric("a", 1)) for i in (0, 1)))
    assert topology_of(NODE, tray, PciTree())[0].fabric == Fabric("a", 1)
    assert topology_of(NODE, tray, PciTree(), LinkFaults(off_fabric=ONE))[0].fabric is None


def test_a_degraded_fabric_has_links_of_no_known_speed() -> None:
    tray = pair(*(gpu(i, *SWITCHED, product="NVIDIA GB200") for i in (0, 1)))
    (well,) = topology_of(NODE, tray, PciTree())[0].links
    (slow,) = topology_of(NODE, tray, PciTree(), LinkFaults(degraded=ONE))[0].links
    assert (well.bandwidth, slow.bandwidth) == (1800.0, 0.0)
    assert (slow.nvlinks, slow.kind) == (18, LinkKind.NVLINK)


A100, BRIDGED = "NVIDIA A100-SXM4-40GB", "NVIDIA A100 80GB PCIe"


@pytest.mark.parametrize(
    ("product", "up", "expected"),
    [
        pytest.param(V100, (6, 6, 5, 5), 6, id="two ends of a link are down"),
        pytest.param(V100, (4, 4, 4, 4), 0, id="half of a cube mesh in a virtual machine"),
        pytest.param(BRIDGED, (12, 12, 0, 0), 0, id="a bridge joins two of four cards"),
        pytest.param("NVIDIA L40S", (0, 0), 0, id="a product without links"),
        pytest.param("NVIDIA X", (3, 2), 0, id="a product that nobody knows"),
    ],
)
def test_links_that_ought_to_be_up(product: str, up: tuple[int, ...], expected: int) -> None:
    gpus = [
        gpu(i, *to(i ^ 1, *range(n)), *to(i ^ 1, *range(n, 6), active=False), product=product)
        for i, n in enumerate(up)
    ]
    assert {*wired(SeenNode(tuple(gpus))).values()} <= {expected}
    assert bool(expected) <= (len(wired(SeenNode(tuple(gpus)))) == len(up))


def test_a_gpu_at_a_switch_ought_to_have_all_its_links_and_one_in_mig_mode_none() -> None:
    short = gpu(0, *SWITCHED[:11], product=A100)
    split = gpu(1, product=A100)
    split = replace(split, gpu=replace(split.gpu, mig_mode="enabled"))
    assert wired(SeenNode((short, split))) == {GpuUuid("GPU-0"): 12, split.gpu.uuid: 0}
    assert wired(SeenNode((gpu(0, product=A100),))) == {}, "a virtual machine with one of eight"


def test_a_lost_gpu_keeps_its_index_and_its_links() -> None:
    """The driver numbers the remaining GPUs again; the record does not."""
    former = machine("dgx1-v100").topology("n")
    left = [g for g in former.gpus if g.index != 3]
    renumbered = {g.index: i for i, g in enumerate(left)}
    now = replace(
        former,
        gpus=tuple(replace(g, index=renumbered[g.index]) for g in left),
        links=tuple(
            replace(k, a=renumbered[k.a], b=renumbered[k.b])
            for k in former.links
            if 3 not in (k.a, k.b)
        ),
        nics=tuple(
            replace(n, distances=tuple((renumbered[i], k) for i, k in n.distances if i != 3))
            for n in former.nics
        ),
    )
    kept = keep_lost(now, former)
    assert kept.gpus == former.gpus
    assert kept.links == former.links


def test_a_gpu_that_was_never_seen_gets_an_index_of_its_own() -> None:
    former = machine("p3.8xlarge").topology("n")
    other = replace(former.gpus[3], uuid=GpuUuid("GPU-new"))
    now = replace(former, gpus=(*former.gpus[:3], other), links=(), nics=())
    kept = keep_lost(now, former)
    assert {g.uuid: g.index for g in kept.gpus}[GpuUuid("GPU-new")] == 4
    assert [g.uuid for g in kept.gpus if g.index == 3] == [former.gpus[3].uuid]


def test_without_a_former_observation_nothing_is_carried_over() -> None:
    now = machine("dgx1-v100").topology("n")
    assert keep_lost(now, None) is now


NO_TREE = PciTree()


def node(*numbers: int) -> SeenNode:
    found = tuple(seen_gpu(i, n) for i, n in enumerate(numbers))
    indices = [each.gpu.index for each in found]
    pairs = [(a, b) for a in indices for b in indices if a < b]
    return SeenNode(found, pcie=dict.fromkeys(pairs, LinkKind.PIX))


def tracker(*numbers: int) -> HardwareTracker:
    found = HardwareTracker(NodeName("n"))
    found.look(node(*numbers), NO_FAULTS, NO_TREE)
    return found


def test_it_is_looked_at_again_where_something_is_new() -> None:
    found = HardwareTracker(NodeName("n"))
    down = LinkFaults({GpuUuid("GPU-0"): frozenset({0})})
    assert found.is_news(node(0, 1), NO_FAULTS)
    found.look(node(0, 1), NO_FAULTS, NO_TREE)
    assert not found.is_news(node(0, 1), NO_FAULTS)
    assert found.is_news(node(0, 1), down)
    assert found.is_news(node(0), NO_FAULTS)


def test_nothing_is_expected_before_the_first_observation() -> None:
    former = tracker(0, 1, 2, 3).hardware.topology
    assert former is not None
    found = HardwareTracker(NodeName("n"))
    assert (found.hardware.expected_gpus, found.hardware.looked) == (None, False)
    found.remember(former)
    assert (found.hardware.expected_gpus, found.hardware.looked) == (None, False)
    found.look(node(0, 1), NO_FAULTS, NO_TREE)
    assert (found.hardware.expected_gpus, found.hardware.looked) == (4, True)


def test_gpus_that_are_not_counted_any_more_are_gone() -> None:
    found = tracker(0, 1, 2, 3)
    seen = node(0, 1)
    found.look(seen, NO_FAULTS, NO_TREE)
    assert found.gone(NvmlState(seen, (vital(0), vital(1)))) == ["GPU-2", "GPU-3"]
    lost = replace(vital(3), lost=True)
    assert found.gone(NvmlState(seen, (vital(0), vital(1), lost))) == ["GPU-2"]
    assert found.hardware.topology is not None
    assert [g.uuid for g in found.hardware.topology.gpus] == [f"GPU-{i}" for i in range(4)]


def test_a_contradiction_leaves_the_topology_as_it_was() -> None:
    found = tracker(0, 1)
    before = found.hardware.topology
    twice = SeenNode((seen_gpu(0, 0), seen_gpu(1, 0)))
    error = found.look(twice, NO_FAULTS, NO_TREE)
    assert isinstance(error, TopologyError)
    assert found.hardware.topology is before
    assert found.hardware.contradiction == f"the driver contradicts itself: {error}"
    assert found.hardware.unseen == (Unseen("topology", found.hardware.contradiction),)
    assert found.look(node(0, 1), NO_FAULTS, NO_TREE) is None
    assert not found.hardware.contradiction
    assert not found.hardware.unseen


def test_links_that_do_not_count_make_the_plugins_choice_doubtful() -> None:
    found = tracker(0, 1)
    assert found.hardware.doubt == ""
    both = {GpuUuid(f"GPU-{i}"): frozenset({0}) for i in (0, 1)}
    found.look(node(0, 1), LinkFaults(both), NO_TREE)
    assert "the plugin counts NVLinks that have dropped before" in found.hardware.doubt


def test_values_missing_from_sysfs_are_unseen() -> None:
    found = HardwareTracker(NodeName("n"))
    tree = PciTree({BUS(0): ("pci0000:00", "gpu")}, unseen=(Unseen("RDMA NICs", "denied"),))
    found.look(node(0, 1), NO_FAULTS, tree)
    assert found.hardware.unseen == (Unseen("RDMA NICs", "denied"),)
