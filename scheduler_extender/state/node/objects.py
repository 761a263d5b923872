"""The two objects of a node on the API server: its Node, and the record that its agent publishes.

A record may contradict itself: it names devices that nobody serves, or gives one to two pods.
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
    """What is known of a Node object. Of labels, taints and cordons one label alone is in verdicts:
    whether the node is under maintenance."""

    exists: bool = False  # one was seen
    dra_only: bool = False  # it advertises none of the managed resources
    labels: Mapping[str, str] = field(default_factory=dict)
    cordoned: bool = False  # kube-scheduler sends nobody here
    taints: tuple[Taint, ...] = ()
    allocatable: Amounts | None = None  # what kube-scheduler gives out; None if nobody said so
    partial: bool = False  # a person has written it: what it does not name is no limit

    @property
    def maintained(self) -> bool:
        """Whether the GPU operator keeps our agent, too, off the node's GPUs for now."""
        return self.labels.get(CLIENT, "true") != "true"

    def pieces(self, resource: str) -> int | None:
        """How much kube-scheduler gives out of a resource; None if nobody said so."""
        return None if self.partial else pieces(self.allocatable or (), resource)


def contradiction(topology: NodeTopology, report: Report, resource: str) -> str | None:
    """Where a report cannot be true over a resource; None if it can."""
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
    """A kubelet that hands out MIG instances hands out those we know, and not too many."""
    devices = served_devices(topology, served)
    if devices.problem:
        yield devices.problem
    if not devices.counts:
        yield f"resources: {served.name} is served from MIG instances, and the devices have none"
    known = instance_ids(topology)
    for device in report.allocatable or ():
        if device.startswith(MIG_IDS) and base_uuid(device) not in known:
            yield (
                f"status.allocatable: {device} is not among the MIG instances of the node's devices"
            )


def _in_shares(topology: NodeTopology, report: Report, served: GpuResource) -> Iterator[str]:
    """No pod holds a GPU or a MIG instance from before it was shared as it is now.

    A pod keeps its device when the plugin is started with another configuration. The kubelet does
    not know that device any more, and hands out every share beside it: it counts nowhere, and what
    it may use of the memory is not known.
    """
    for device in report.allocatable or ():
        number = device.rpartition("::")[2] if "::" in device else ""
        if number.isdecimal() and int(number) >= served.replicas:
            yield f"status.allocatable: {device} is none of the {served.replicas} shares of its GPU"
    parts = instance_ids(topology) if served.strategy == MIG else topology.bit_of_uuid.keys()
    for allocation in report.allocations:
        if topology.resource(allocation.resource) not in (None, served):
            continue  # one of another resource that the node serves now
        for device in allocation.device_ids:
            base, _, share = device.partition("::")
            if base not in parts or (share.isdecimal() and int(share) < served.replicas):
                continue
            if device not in (report.allocatable or ()):
                yield (
                    f"status.allocations: {device} is none of the {served.replicas} shares of its "
                    "GPU: a pod holds it from before the device plugin's configuration was changed"
                )


def _in_whole(topology: NodeTopology, report: Report) -> Iterator[str]:
    """A kubelet that hands out whole GPUs hands out those we know, and no shares of them."""
    known, instances = topology.bit_of_uuid, instance_ids(topology)
    for device in report.allocatable or ():
        if base_uuid(device) in instances:
            continue  # another resource's
        if device not in known or "::" in device:
            yield f"status.allocatable: {device} is not among the devices of the node"
    for allocation in report.allocations:
        for device in allocation.device_ids:
            if "::" in device and base_uuid(device) not in instances:
                yield f"status.allocations: {device} is a share, but resources say whole GPUs"


def _twice_held(allocations: Iterable[Allocation]) -> Iterator[str]:
    holder: dict[str, Allocation] = {}
    for allocation in allocations:
        for i, device in enumerate(allocation.device_ids):
            first = holder.setdefault(device, allocation)
            if device in allocation.device_ids[:i]:
                yield f"status.allocations: {device} is listed twice for one container"
            if first is not allocation:
                # Not by whom: Events and commands tell this to people who may not see these pods.
                yield (
                    f"status.allocations: {device} is held by two pods or containers, one may "
                    "hold it"
                )


@dataclass(frozen=True, slots=True, eq=False)
class AgentRecord:
    """The record of a node: its hardware, and the last report about it."""

    topology: NodeTopology | None = None
    report: Report | None = None
    problem: str | None = None  # why the record cannot be used: then the two above are None
    uid: str = ""  # the object's own
    boot_id: str = ""  # the last that a report told of: it outlives the record
    stale: bool = False  # the agent has not reported for too long
    _contradictions: dict[str, str | None] = field(init=False, repr=False, default_factory=dict)

    @property
    def missing(self) -> tuple[MissingGpu, ...]:
        """The GPUs that do not answer their driver."""
        return self.report.missing if self.report is not None else ()

    def contradiction(self, resource: str) -> str | None:
        """Why the record cannot be true over a resource; None if it can."""
        if self.topology is None:
            return None
        if resource not in self._contradictions:
            why = contradiction(self.topology, self.report or Report(), resource)
            self._contradictions[resource] = why
        return self._contradictions[resource]
