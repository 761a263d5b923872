"""A node's topology, from what NVML and sysfs show now and what was seen earlier in this boot.

A link counts only if it can be relied on. NVLinks that peers may not use (NVML's P2P status) are
left out. In many virtual machines a link's far end cannot be identified. Then a pair whose peers
may use NVLink counts as one link through a switch. That much is certain, and the plugin's
allocator, which sees the same, gives it a score of zero.

Within one boot nothing is forgotten. A GPU that was there and is gone is lost, not absent. A link
that has dropped does not count again. :class:`HardwareTracker` starts from the record that the
former agent published.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, count

from topology.agent.model import recordlimits
from topology.agent.model.observations import (
    NvlinkEnd,
    NvmlState,
    PciNic,
    PciTree,
    Remote,
    SeenGpu,
    SeenNode,
    Unseen,
    pcie_class,
)
from topology.core.devices import Fabric, Gpu, GpuUuid, Nic, NodeName
from topology.core.graph import UNKNOWN, AllocatorConfig, NodeTopology, TopologyError
from topology.core.links import GBps, Link, LinkKind, Via, nvlink_port, wired_links

VERSION_ONE_WAY: dict[int, GBps] = {
    # nvmlNvlinkVersion_t → GB/s of one link in one direction, for products that links.py lacks.
    1: GBps(20.0),
    2: GBps(25.0),
    3: GBps(25.0),
    4: GBps(25.0),
    5: GBps(25.0),
    6: GBps(25.0),
    7: GBps(50.0),
}


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """The NVLinks that do not count, whatever they show now."""

    down: Mapping[GpuUuid, frozenset[int]] = field(default_factory=dict)  # NVML's numbers
    off_fabric: frozenset[GpuUuid] = frozenset()  # GPUs without usable links through a switch
    # GPUs whose links through a switch have an unknown speed
    degraded: frozenset[GpuUuid] = frozenset()


NO_FAULTS = LinkFaults()


def topology_of(
    name: NodeName, seen: SeenNode, pci: PciTree, faults: LinkFaults = NO_FAULTS
) -> tuple[NodeTopology, tuple[Unseen, ...]]:
    """Return a node's hardware, without its device policy, and the parts that are not known."""
    unseen = [*seen.unseen, *pci.unseen]
    by_index = sorted(seen.gpus, key=lambda each: each.gpu.index)
    links = tuple(_link(a, b, seen, pci, faults, unseen) for a, b in combinations(by_index, 2))
    numa = pci.numa  # NVML may show no NUMA node
    gpus = tuple(
        replace(
            gpu,
            numa_node=numa.get(gpu.pci_bus_id or "") if gpu.numa_node is None else gpu.numa_node,
            topology_nodes=None,
        )
        for gpu in (each.gpu for each in by_index)
    )
    nics = tuple(_nic(nic, there, by_index, pci) for nic, there in pci.nics.items())
    config = AllocatorConfig(numa_distances=pci.numa_distances)
    off = any(each.gpu.uuid in faults.off_fabric for each in by_index)
    fabric = None if off else _fabric(seen.gpus, unseen)
    topology = NodeTopology(name, gpus, links, nics, allocator=config, fabric=fabric)
    return topology, tuple(sorted(set(unseen)))


def wired(seen: SeenNode) -> Mapping[GpuUuid, int]:
    """Return how many NVLinks of each GPU should be up.

    These are all that its product has, or none in MIG mode. A virtual machine with a part of a
    machine lacks some of the links. So a GPU is in the result only if it is in MIG mode, if it has
    links to a switch, or if a GPU of the same product on the node has all its links up.
    """
    up = {each.gpu.uuid: sum(e.active for e in each.nvlinks) for each in seen.gpus}
    products = {each.gpu.product for each in seen.gpus}
    ports = {product: wired_links(product) for product in products}
    whole = {g.gpu.product for g in seen.gpus if up[g.gpu.uuid] == ports[g.gpu.product]}
    return {
        each.gpu.uuid: 0 if each.gpu.mig_mode == "enabled" else ports[each.gpu.product]
        for each in seen.gpus
        if each.gpu.mig_mode == "enabled"
        or each.gpu.product in whole
        or any(e.remote is Remote.SWITCH for e in each.nvlinks)
    }


def plugins_doubt(seen: SeenNode, trusted: NodeTopology) -> str:
    """Return why the device plugin sees other direct links than the record has.

    The result is empty if the plugin sees the same links. The plugin reads the links at each call,
    and uses those that are up at that time.
    """
    plugins, _ = topology_of(trusted.name, replace(seen, p2p={}), PciTree())
    indices = {gpu.uuid: gpu.index for gpu in trusted.gpus}
    ours = {(k.a, k.b): k.nvlinks for k in trusted.links if k.via is Via.DIRECT}
    uuids = {gpu.index: gpu.uuid for gpu in plugins.gpus}
    for link in plugins.links:
        a, b = sorted((indices[uuids[link.a]], indices[uuids[link.b]]))
        if link.via is Via.DIRECT and link.nvlinks != ours.get((a, b), 0):
            return "the plugin counts NVLinks that have dropped before, or that peers may not use"
    return ""


def keep_lost(seen: NodeTopology, former: NodeTopology | None) -> NodeTopology:
    """Return what is seen now, completed by the GPUs that have been lost in this boot.

    A GPU that was there is lost, not free. No other GPU gets its index, although the driver
    renumbers the rest. So GPUs keep the index that they had, and lost GPUs keep their links.
    """
    if former is None:
        return seen
    had = {gpu.uuid: gpu for gpu in former.gpus}
    now = {gpu.uuid for gpu in seen.gpus}
    lost = [gpu for gpu in former.gpus if gpu.uuid not in now]
    taken = {gpu.index for gpu in former.gpus}
    index: dict[int, int] = {}
    for gpu in seen.gpus:
        if gpu.uuid in had:
            index[gpu.index] = had[gpu.uuid].index
    for gpu in seen.gpus:
        if gpu.uuid not in had:
            lowest_free = next(i for i in count() if i not in taken)
            index[gpu.index] = lowest_free if gpu.index in taken else gpu.index
            taken.add(index[gpu.index])
    gone = {gpu.index for gpu in lost}
    links = [
        replace(k, a=min(index[k.a], index[k.b]), b=max(index[k.a], index[k.b])) for k in seen.links
    ]
    links += [k for k in former.links if k.a in gone or k.b in gone]
    nics = [
        replace(nic, distances=tuple((index[i], kind) for i, kind in nic.distances))
        for nic in seen.nics
    ]
    return replace(
        seen,
        gpus=(*(replace(g, index=index[g.index]) for g in seen.gpus), *lost),
        links=tuple(links),
        nics=tuple(nics),
    )


def _link(
    a: SeenGpu,
    b: SeenGpu,
    seen: SeenNode,
    pci: PciTree,
    faults: LinkFaults,
    unseen: list[Unseen],
) -> Link:
    pair = (a.gpu.index, b.gpu.index)
    of = f"GPUs {pair[0]} and {pair[1]}"
    pcie = seen.pcie.get(pair, LinkKind.UNKNOWN) or pci.between(a.gpu, b.gpu)
    if not pcie:
        unseen.append(Unseen("PCIe class", "neither NVML nor sysfs says", of))
    bare = Link(*pair, pcie)
    if "enabled" in (a.gpu.mig_mode, b.gpu.mig_mode):
        return bare  # MIG instances have no NVLinks
    ends_a, ends_b = _up(a, faults), _up(b, faults)
    ours = {a.gpu.uuid, b.gpu.uuid}
    there = sum(e.remote is Remote.GPU and e.remote_bus == b.gpu.pci_bus_id for e in ends_a)
    back = sum(e.remote is Remote.GPU and e.remote_bus == a.gpu.pci_bus_id for e in ends_b)
    switched = min(sum(e.remote is Remote.SWITCH for e in ends) for ends in (ends_a, ends_b))
    hidden = all(any(e.remote is Remote.UNKNOWN for e in ends) for ends in (ends_a, ends_b))
    usable = seen.p2p.get(pair)
    if ours & faults.off_fabric:
        switched, hidden = 0, False
    if not (there or back or switched or hidden):
        return bare
    if usable is False:
        if not hidden:
            unseen.append(
                Unseen("NVLinks", "they are up, but peers may not use them (P2P status)", of)
            )
        return bare
    speed = _one_way(a.gpu, ends_a)
    through_switch = GBps(0.0) if ours & faults.degraded else speed
    if there or back:
        # A link is up if it is up at both ends; some drivers show only one end.
        both = min(there, back)
        uneven = both > 0 and there != back
        return Link(*pair, pcie, both or max(there, back), Via.DIRECT, speed, not both, uneven)
    if switched:
        return Link(*pair, pcie, switched, Via.SWITCH, through_switch)
    if usable is None:
        unseen.append(Unseen("NVLinks", "their far ends cannot be identified", of))
        return bare
    unseen.append(
        Unseen("NVLink count", "the far ends cannot be identified, so at least 1 is assumed", of)
    )
    return Link(*pair, pcie, 1, Via.SWITCH, through_switch)


def _up(seen: SeenGpu, faults: LinkFaults) -> list[NvlinkEnd]:
    dropped = faults.down.get(seen.gpu.uuid, frozenset())
    return [e for e in seen.nvlinks if e.active and e.number not in dropped]


def _one_way(gpu: Gpu, ends: list[NvlinkEnd]) -> GBps:
    port = nvlink_port(gpu.product)
    if port is not None and port.links:
        return port.one_way
    versions = [e.version for e in ends if e.version is not None]
    return VERSION_ONE_WAY.get(min(versions), GBps(0.0)) if versions else GBps(0.0)


def _nic(name: str, there: PciNic, gpus: Sequence[SeenGpu], pci: PciTree) -> Nic:
    distances = []
    for gpu in (each.gpu for each in gpus):
        bus = gpu.pci_bus_id or ""
        if (at := pci.places.get(bus)) is not None:
            own = pci.numa.get(bus, gpu.numa_node)
            distances.append((gpu.index, pcie_class(there.place, at, there.numa, own)))
    return Nic(name, tuple(distances), there.numa)


def _fabric(gpus: tuple[SeenGpu, ...], unseen: list[Unseen]) -> Fabric | None:
    """Return the node's multi-node fabric; None if there is none, or if there are several."""
    found = {gpu.fabric for gpu in gpus if gpu.fabric is not None}
    if len(found) > 1:
        unseen.append(Unseen("fabric", "the node's GPUs are in several fabrics"))
        return None
    return next(iter(found), None)


def nothing_seen(node: NodeName) -> NodeTopology:
    """Return a node whose hardware could not be read: no devices, and an unknown device policy."""
    return NodeTopology(node, (), allocator=AllocatorConfig(topology_manager_policy=UNKNOWN))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What is known of a node's hardware at one time."""

    # Without the device policy; None before the hardware was read or taken over.
    topology: NodeTopology | None = None
    # Whether the driver has been read; False if `topology` is only taken over from the record.
    looked: bool = False
    # parts that could not be seen, or that do not fit into a record
    unseen: tuple[Unseen, ...] = ()
    contradiction: str = ""  # why the last reading makes no topology; empty if it makes one
    # Why the device plugin sees other links than the record has; empty if it does not.
    doubt: str = ""

    @property
    def expected_gpus(self) -> int | None:
        """The number of GPUs that the driver should show; None before the first reading."""
        return len(self.topology.gpus) if self.looked and self.topology is not None else None


class HardwareTracker:
    """The hardware of one node, updated by each reading."""

    def __init__(self, node: NodeName) -> None:
        self._node = node
        self._looked_at: tuple[SeenNode, LinkFaults] | None = None
        self.hardware = Hardware()

    def remember(self, topology: NodeTopology) -> None:
        """Take over what the former agent published in the same boot."""
        self.hardware = Hardware(topology=topology)

    def is_news(self, seen: SeenNode, faults: LinkFaults) -> bool:
        """Check whether this differs from the last reading."""
        return self._looked_at != (seen, faults)

    def look(self, seen: SeenNode, faults: LinkFaults, pci: PciTree) -> TopologyError | None:
        """Store what the driver shows.

        If the driver contradicts itself, the topology stays as it was and the error is returned.
        """
        self._looked_at = (seen, faults)
        former = self.hardware.topology
        try:
            found, unseen = topology_of(self._node, seen, pci, faults)
            topology, left_out = recordlimits.hardware(keep_lost(found, former))
            doubt = plugins_doubt(seen, topology)
        except TopologyError as error:
            contradiction = f"the driver contradicts itself: {error}"
            self.hardware = Hardware(
                topology=former,
                looked=True,
                unseen=(Unseen("topology", contradiction),),
                contradiction=contradiction,
            )
            return error
        self.hardware = Hardware(
            topology=topology, looked=True, unseen=(*unseen, *left_out), doubt=doubt
        )
        return None

    def gone(self, state: NvmlState) -> list[GpuUuid]:
        """Return the GPUs that were there in this boot and that the driver no longer counts."""
        known = self.hardware.topology.gpus if self.hardware.topology is not None else ()
        seen = state.seen.gpus if state.seen is not None else ()
        here = {each.gpu.uuid for each in seen} | {vital.uuid for vital in state.vitals}
        return [gpu.uuid for gpu in known if gpu.uuid not in here]
