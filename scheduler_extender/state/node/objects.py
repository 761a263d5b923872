"""The two objects of a node on the API server: its Node, and the record that its agent publishes.

A record may contradict itself. For example, it names devices that no resource serves, or gives one
device to two pods.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from scheduler_extender.state.pods.attributes import Amounts, pieces
from scheduler_extender.wire import Taint
from topology.core.devices import GpuResource, base_uuid
from topology.core.graph import NodeTopology
from topology.core.mig import MIG, MIG_IDS, instance_ids, served_devices
from topology.core.report import CLIENT, Allocation, MissingGpu, Report


@dataclass(frozen=True, slots=True)
class NodeObject:
    """What is known of a Node object.

    Of its labels, taints and cordon, one label alone affects verdicts: whether the node is under
    maintenance.
    """

    exists: bool = False  # whether the object was seen
    advertises_none: bool = False  # whether it advertises none of the managed resources
    labels: Mapping[str, str] = field(default_factory=dict)
    cordoned: bool = False  # whether kube-scheduler sends no pods here
    taints: tuple[Taint, ...] = ()
    allocatable: Amounts | None = None  # what kube-scheduler gives out; None if not known
    partial: bool = False  # written by hand: a resource that it does not name is not limited

    @property
    def maintained(self) -> bool:
        """Whether the GPU operator now keeps all clients off the GPUs, our agent included."""
        return self.labels.get(CLIENT, "true") != "true"

    def pieces(self, resource: str) -> int | None:
        """Return how much of a resource kube-scheduler gives out; None if that is not known."""
        return None if self.partial else pieces(self.allocatable or (), resource)


def contradiction(topology: NodeTopology, report: Report, resource: str) -> str | None:
    """Return where a report cannot be true over a resource; None if it can be true."""
    served = topology.resource(resource) or GpuResource(resource)
    return next(_contradictions(topology, report, served), None)


def _contradictions(topology: NodeTopology, report: Report, served: GpuResource) -> Iterator[str]:
    if served.replicas > 1:
        yield from _in_shares(topology, report, served)
    if served.strategy == MIG:
        yield from _in_instances(topology, report, served)
    elif served.strategy == "none" and served.replicas == 1:
        yield from _in_whole(topology, report)
    devices = [device for allocation in report.allocations for device in allocation.device_ids]
    if len(set(devices)) < len(devices):
        yield from _twice_held(report.allocations)


def _in_instances(topology: NodeTopology, report: Report, served: GpuResource) -> Iterator[str]:
    """Yield the contradictions of a resource that is served from MIG instances.

    Each allocatable instance must be one that we know, and none may be there too often.
    """
    devices = served_devices(topology, served)
    if devices.problem:
        yield devices.problem
    if not devices.counts:
        yield (
            f"resources: {served.name} is served from MIG instances, but no device in the record "
            "has any"
        )
    known = instance_ids(topology)
    for device in report.allocatable or ():
        if device.startswith(MIG_IDS) and base_uuid(device) not in known:
            yield (
                f"status.allocatable: {device} is not among the MIG instances of the node's devices"
            )


def _in_shares(topology: NodeTopology, report: Report, served: GpuResource) -> Iterator[str]:
    """Yield each share that does not fit the way in which the resource is shared now.

    A pod keeps its device when the plugin is started with another configuration. The kubelet no
    longer knows that device, and hands out every share beside it. So the device counts nowhere, and
    it is not known how much of the memory the pod may use.
    """
    for device in report.allocatable or ():
        number = device.rpartition("::")[2] if "::" in device else ""
        if number.isdecimal() and int(number) >= served.replicas:
            yield (
                f"status.allocatable: {device} is not one of the {served.replicas} shares of its "
                "GPU"
            )
    parts = instance_ids(topology) if served.strategy == MIG else topology.bit_of_uuid.keys()
    for allocation in report.allocations:
        if topology.resource(allocation.resource) not in (None, served):
            continue  # it is of another resource that the node now serves
        for device in allocation.device_ids:
            base, _, share = device.partition("::")
            if base not in parts or (share.isdecimal() and int(share) < served.replicas):
                continue
            if device not in (report.allocatable or ()):
                yield (
                    f"status.allocations: {device} is not one of the {served.replicas} shares of "
                    "its GPU: a pod holds it since before the device plugin's configuration "
                    "changed"
                )


def _in_whole(topology: NodeTopology, report: Report) -> Iterator[str]:
    """Yield the contradictions of a resource that is served as whole GPUs.

    Each allocatable device must be a GPU that we know, and none may be a share of one.
    """
    known, instances = topology.bit_of_uuid, instance_ids(topology)
    for device in report.allocatable or ():
        if base_uuid(device) in instances:
            continue  # it is of another resource
        if device not in known or "::" in device:
            yield f"status.allocatable: {device} is not among the devices of the node"
    for allocation in report.allocations:
        for device in allocation.device_ids:
            if "::" in device and base_uuid(device) not in instances:
                yield (
                    f"status.allocations: {device} is a share of a GPU, but the record's "
                    "resources are whole GPUs"
                )


def _twice_held(allocations: Iterable[Allocation]) -> Iterator[str]:
    holder: dict[str, Allocation] = {}
    for allocation in allocations:
        for i, device in enumerate(allocation.device_ids):
            first = holder.setdefault(device, allocation)
            if device in allocation.device_ids[:i]:
                yield f"status.allocations: {device} is listed twice for one container"
            if first is not allocation:
                # Do not name the holders: Events and commands show this text to people who may not
                # see these pods.
                yield (
                    f"status.allocations: {device} is held by two pods or containers; only one "
                    "may hold it"
                )


@dataclass(frozen=True, slots=True, eq=False)
class AgentRecord:
    """The record of a node: its hardware, and its last report."""

    topology: NodeTopology | None = None
    report: Report | None = None
    problem: str | None = None  # why the record cannot be used; topology and report are then None
    uid: str = ""  # the object's UID
    boot_id: str = ""  # of the last report; it is kept when the record is gone
    stale: bool = False  # whether the agent has not reported for too long
    _contradictions: dict[str, str | None] = field(init=False, repr=False, default_factory=dict)

    @property
    def missing(self) -> tuple[MissingGpu, ...]:
        """The GPUs that do not answer their driver."""
        return self.report.missing if self.report is not None else ()

    def contradiction(self, resource: str) -> str | None:
        """Return why the record cannot be true over a resource; None if it can be true."""
        if self.topology is None:
            return None
        if resource not in self._contradictions:
            why = contradiction(self.topology, self.report or Report(), resource)
            self._contradictions[resource] = why
        return self._contradictions[resource]
