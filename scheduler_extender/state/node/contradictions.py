"""Reports that cannot be true: they name devices that nobody serves, or give one to two pods."""

from __future__ import annotations

from collections.abc import Iterable

from topology.core.devices import GpuResource, base_uuid
from topology.core.graph import NodeTopology
from topology.core.mig import MIG, MIG_IDS, instance_ids, served_devices
from topology.core.report import Allocation, Report


class ContradictionError(ValueError):
    """A report cannot be true as it stands; the message says where."""


def check_devices(topology: NodeTopology, report: Report, served: GpuResource) -> None:
    """Raise :class:`ContradictionError` where a report names devices that the node does not serve
    as ``served``."""
    if served.replicas > 1:
        _check_shares(topology, report, served)
    if served.strategy == MIG:
        _check_instances(topology, report, served)
    elif served.strategy == "none" and served.replicas == 1:
        _check_whole(topology, report)


def _check_instances(topology: NodeTopology, report: Report, served: GpuResource) -> None:
    """A kubelet that hands out MIG instances hands out those we know, and not too many."""
    devices = served_devices(topology, served)
    if devices.problem:
        raise ContradictionError(devices.problem)
    if not devices.counts:
        raise ContradictionError(
            f"resources: {served.name} is served from MIG instances, and the devices have none"
        )
    known = instance_ids(topology)
    for device in report.allocatable or ():
        if device.startswith(MIG_IDS) and base_uuid(device) not in known:
            raise ContradictionError(
                f"status.allocatable: {device} is not among the MIG instances of the node's devices"
            )


def _check_shares(topology: NodeTopology, report: Report, served: GpuResource) -> None:
    """No pod holds a GPU or a MIG instance from before it was shared as it is now.

    A pod keeps its device when the plugin is started with another configuration. The kubelet does
    not know that device any more, and hands out every share beside it: it counts nowhere, and what
    it may use of the memory is not known.
    """
    for device in report.allocatable or ():
        number = device.rpartition("::")[2] if "::" in device else ""
        if number.isdecimal() and int(number) >= served.replicas:
            raise ContradictionError(
                f"status.allocatable: {device} is none of the {served.replicas} shares of its GPU"
            )
    parts = instance_ids(topology) if served.strategy == MIG else topology.bit_of_uuid.keys()
    for allocation in report.allocations:
        if topology.resource(allocation.resource) not in (None, served):
            continue  # one of another resource that the node serves now
        for device in allocation.device_ids:
            base, _, share = device.partition("::")
            if base not in parts or (share.isdecimal() and int(share) < served.replicas):
                continue
            if device not in (report.allocatable or ()):
                raise ContradictionError(
                    f"status.allocations: {device} is none of the {served.replicas} shares of its "
                    "GPU: a pod holds it from before the device plugin's configuration was changed"
                )


def _check_whole(topology: NodeTopology, report: Report) -> None:
    """A kubelet that hands out whole GPUs hands out those we know, and no shares of them."""
    known, instances = topology.bit_of_uuid, instance_ids(topology)
    for device in report.allocatable or ():
        if base_uuid(device) in instances:
            continue  # another resource's
        if device not in known or "::" in device:
            raise ContradictionError(
                f"status.allocatable: {device} is not among the devices of the node"
            )
    for allocation in report.allocations:
        for device in allocation.device_ids:
            if "::" in device and base_uuid(device) not in instances:
                raise ContradictionError(
                    f"status.allocations: {device} is a share, but resources say whole GPUs"
                )


def raise_twice_held(allocations: Iterable[Allocation]) -> None:
    """Raise :class:`ContradictionError` for a report that gives one device away twice."""
    holder: dict[str, Allocation] = {}
    for allocation in allocations:
        for i, device in enumerate(allocation.device_ids):
            first = holder.setdefault(device, allocation)
            if device in allocation.device_ids[:i]:
                raise ContradictionError(f"status.allocations: {device} stands twice in one")
            if first is not allocation:
                # Not by whom: Events and commands tell this to people who may not see these pods.
                raise ContradictionError(
                    f"status.allocations: {device} is held by two pods or containers, one may "
                    "hold it"
                )
