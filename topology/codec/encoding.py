"""Conversion of our model to a GPUTopology object of JSON-ready values."""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from pydantic import BaseModel

from topology.codec import wire
from topology.core.devices import Gpu, Nic, base_uuid
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.links import Link
from topology.core.numa import Holding, cpu_list
from topology.core.report import Report

_word = partial(cast, Any)  # passes a string to a field whose type is a Literal of allowed words


def encode(topology: NodeTopology, report: Report | None = None) -> dict[str, object]:
    """Return the GPUTopology object of a node. :func:`~topology.codec.decode` is the inverse."""
    found: dict[str, object] = {
        "apiVersion": wire.API_VERSION,
        "kind": wire.KIND,
        "metadata": {"name": topology.name},
        "spec": encode_spec(topology),
    }
    if report is not None:
        found["status"] = encode_report(report, topology)
    return found


def encode_spec(topology: NodeTopology) -> dict[str, object]:
    """Return the ``spec`` object of a node's hardware."""
    fabric = topology.fabric
    spec = wire.Spec(
        resources=[
            wire.Resource(
                name=r.name,
                strategy=_word(r.strategy),
                replicas=r.replicas,
                fail_requests_greater_than_one=r.refuses_several,
            )
            for r in topology.resources
        ],
        allocator=_allocator(topology.allocator),
        devices=[_device(gpu, topology.allocator) for gpu in topology.gpus],
        links=[_link(link) for link in topology.links],
        nics=[_nic(nic) for nic in topology.nics],
        fabric=None
        if fabric is None
        else wire.Fabric(clusterUUID=fabric.cluster_uuid, clique_id=fabric.clique_id),
        numa_nodes=_numa_nodes(topology.allocator),
        cpus=_cpus(topology.allocator),
    )
    return _dump(spec)


def encode_report(report: Report, topology: NodeTopology | None = None) -> dict[str, object]:
    """Return the ``status`` object of a report.

    With the topology it has the summary that ``kubectl get`` shows.
    """
    idle = {(i.pod_uid, i.container, i.resource): i.since for i in report.idle}
    shares = report.several_shares
    status = wire.Status(
        bootID=report.boot_id,
        sequence=report.sequence,
        observed_at=report.observed_at or None,
        pods_resource_version=report.pods_version or None,
        allocatable=None if report.allocatable is None else sorted(report.allocatable),
        allocations=[
            wire.Allocation(
                podUID=a.pod_uid,
                namespace=a.namespace,
                pod=a.pod,
                container=a.container,
                resource=a.resource,
                idle_since=idle.get((a.pod_uid, a.container, a.resource)),
                device_ids=list(a.device_ids),
            )
            for a in report.allocations
        ],
        exclusive=_exclusive(report.holdings),
        health=[
            wire.Health(
                uuid=h.uuid,
                healthy=h.healthy,
                reason=h.reason,
                since=h.since or None,
                links_down=list(h.links_down) or None,
                energy_millijoules=h.energy,
            )
            for h in report.health
        ],
        missing=[
            wire.MissingGpu(name=m.name, counted=m.counted, since=m.since or None)
            for m in report.missing
        ]
        or None,
        several_shares=None
        if shares is None
        else wire.SeveralShares(
            refused=shares.refused,
            pod_started=shares.pod_started,
            plugin_started=shares.plugin_started,
            configuration=shares.configuration or None,
        ),
        history=[
            wire.Refused(
                podUID=r.pod_uid,
                namespace=r.namespace,
                pod=r.pod,
                resource=r.resource,
                devices=r.devices,
                reason=r.reason,
                at=r.at,
            )
            for r in report.history
        ]
        or None,
        conditions=[
            wire.Condition(
                type=c.type,
                status="True" if c.status else "False",
                reason=c.reason,
                message=c.message,
                last_transition_time=c.since or None,
            )
            for c in report.conditions
        ],
        summary=None if topology is None else _summary(topology, report),
    )
    return _dump(status)


def _topology_nodes(gpu: Gpu, config: AllocatorConfig) -> list[int] | None:
    """Return the NUMA nodes that the plugin names to the kubelet; None leaves the field out.

    The field is left out if these NUMA nodes are unknown. It is also left out if the kubelet does
    not align devices, the GPU's own NUMA node is the only one, and CPUs do not matter either.
    """
    alone = () if gpu.numa_node is None else (gpu.numa_node,)
    if not config.sees_topology:
        return None
    aligns = config.topology_manager_policy != "none" or config.numa is not None
    if not aligns and gpu.topology_nodes == alone:
        return None
    return list(gpu.topology_nodes or ())


def _allocator(config: AllocatorConfig) -> wire.Allocator:
    return wire.Allocator(
        policy=_word(config.policy),
        plugin_version=config.plugin_version,
        topology_manager_policy=_word(config.topology_manager_policy),
        topology_manager_scope=_word(config.topology_manager_scope),
        cpu_manager_policy=_word(config.cpu_manager_policy),
        memory_manager_policy=_word(config.memory_manager_policy),
        prefer_closest_numa_nodes=config.prefers_closest,
        full_pcpus_only=config.full_cores_only,
        align_by_socket=config.numa.socket_aligned if config.numa else None,
        published=list(config.published) or None,
        by_number=None if config.serves_extended_resource else False,
    )


def _device(gpu: Gpu, config: AllocatorConfig) -> wire.Device:
    return wire.Device(
        index=gpu.index,
        vendor=gpu.vendor,
        uuid=gpu.uuid,
        product=gpu.product,
        memory_bytes=gpu.memory,
        pci_bus_id=gpu.pci_bus_id,
        numa_node=gpu.numa_node,
        mig_mode=_word(gpu.mig_mode),
        mig_instances=[
            wire.MigInstance(uuid=m.uuid, profile=m.profile, memory_bytes=m.memory)
            for m in gpu.mig_instances
        ]
        or None,
        topology_nodes=_topology_nodes(gpu, config),
    )


def _link(link: Link) -> wire.Link:
    return wire.Link(
        a=link.a,
        b=link.b,
        pcie=_word(link.pcie.name) if link.pcie else None,
        nvlinks=link.nvlinks,
        via=link.via.value,
        nvlink_gbps=link.nvlink_one_way,
        one_sided=link.one_sided or None,
        uneven=link.uneven or None,
    )


def _nic(nic: Nic) -> wire.Nic:
    return wire.Nic(
        name=nic.name,
        numa_node=nic.numa_node,
        distances=[
            wire.Distance(index=i, pcie=_word(kind.name)) for i, kind in nic.distances if kind
        ],
    )


def _numa_nodes(config: AllocatorConfig) -> list[wire.NumaNode] | None:
    """Return ``spec.numaNodes``: the known distances, CPUs and memory."""
    rows = config.numa_distances or ()
    nodes = config.numa.nodes if config.numa else ()
    found = []
    for number in range(max(len(rows), len(nodes))):
        row = rows[number] if number < len(rows) else None
        node = nodes[number] if number < len(nodes) else None
        found.append(
            wire.NumaNode(
                id=number,
                distances=None if row is None else " ".join(map(str, row)),
                cpus=None if node is None else cpu_list(node.cpus),
                socket=None if node is None else node.socket,
                memory=None
                if node is None
                else [wire.Memory(type=kind, bytes=amount) for kind, amount in node.memory] or None,
            )
        )
    return found or None


def _cpus(config: AllocatorConfig) -> wire.Cpus | None:
    """Return ``spec.cpus``; None if it is unknown."""
    if config.numa is None:
        return None
    return wire.Cpus(
        allocatable=cpu_list(config.numa.allocatable),
        whole_cores=cpu_list(config.numa.whole_cores),
        threads_per_core=config.numa.threads,
    )


def _exclusive(given: Sequence[Holding] | None) -> list[wire.Exclusive] | None:
    """Return ``status.exclusive``; None if it is unknown."""
    if given is None:
        return None
    return [
        wire.Exclusive(
            namespace=holding.namespace,
            pod=holding.pod,
            cpus=cpu_list(holding.cpus) or None,
            memory=[
                wire.MemoryBlock(type=block.type, bytes=block.amount, numa_nodes=list(block.nodes))
                for block in holding.memory
            ]
            or None,
        )
        for holding in given
    ]


def _summary(topology: NodeTopology, report: Report) -> wire.Summary:
    """Return ``status.summary``, which is for people.

    A GPU is free if no pod holds a device of it and the kubelet hands out one of its devices. The
    devices of a GPU in MIG mode are its instances.
    """
    held = {base_uuid(i) for a in report.allocations for i in a.device_ids}
    offered = {base_uuid(i) for i in report.allocatable or ()}
    free = []
    for gpu in topology.gpus:
        devices = {str(gpu.uuid), *(part.uuid for part in gpu.mig_instances)}
        there = report.allocatable is None or not offered.isdisjoint(devices)
        if there and held.isdisjoint(devices):
            free.append(gpu)
    return wire.Summary(gpus=len(topology.gpus), free=len(free), links=topology.link_summary())


def _dump(model: BaseModel) -> dict[str, object]:
    return model.model_dump(by_alias=True, exclude_none=True)
