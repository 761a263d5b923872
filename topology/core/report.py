"""What a node's agent reports: who holds which devices, and which GPUs are sick."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from topology.core.devices import DeviceId, GpuUuid, PodUid
from topology.core.numa import Holding


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices that the kubelet gave to one container of one pod."""

    pod_uid: PodUid
    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[DeviceId, ...]
    sharers: tuple[PodUid, ...] = ()  # the pods that share it, where it is a claim of several
    claim: str = ""  # the name of the claim that it is

    def without(self, gone: Collection[PodUid]) -> Allocation | None:
        """The same once these pods are gone; None if nobody is left who holds it."""
        sharers = tuple(uid for uid in self.sharers if uid not in gone)
        if self.pod_uid in gone or (self.sharers and not sharers):
            return None
        return self if sharers == self.sharers else replace(self, sharers=sharers)


@dataclass(frozen=True, slots=True, order=True)
class IdleAllocation:
    """An allocation whose devices are all unused.

    It is told apart from :class:`Allocation`, for who holds what does not change by it.
    """

    pod_uid: PodUid
    container: str
    resource: str
    since: str  # RFC 3339, rounded down


FABRIC_NOT_READY = "FabricNotReady"
FABRIC_MISCONFIGURED = "FabricMisconfigured"
FABRIC_ROUTE_UNHEALTHY = "FabricRouteUnhealthy"
OFF_FABRIC = (FABRIC_NOT_READY, FABRIC_MISCONFIGURED, FABRIC_ROUTE_UNHEALTHY)
"""Reasons with which a GPU has no NVLinks through a switch, although it is in order itself."""


@dataclass(frozen=True, slots=True)
class Health:
    """The agent's view of one GPU's health, kept until the GPU is reset or the node reboots."""

    uuid: GpuUuid
    healthy: bool
    reason: str = ""  # of a healthy GPU: a fault with which it still works, as an NVLink is down
    since: str = ""  # RFC 3339
    links_down: tuple[int, ...] = ()  # NVLinks (NVML's numbers) that were up earlier in this boot
    # The GPU's energy counter in mJ when the reason came up: a lower one later tells of a reset.
    energy: int | None = None

    @property
    def off_fabric(self) -> bool:
        """Whether the GPU has no NVLinks through a switch now."""
        return any(reason in OFF_FABRIC for reason in self.reason.split(", "))


@dataclass(frozen=True, slots=True, order=True)
class MissingGpu:
    """A GPU that ought to answer the driver and does not, as after Xid 79."""

    name: str  # its UUID, or `GPU 3` by the driver's number where the UUID was never told
    # Whether the driver still counts the GPU among the node's. One that it does not count is gone
    # for every program that opens the driver from then on.
    counted: bool
    since: str = ""  # when it was first seen not to answer, RFC 3339


@dataclass(frozen=True, slots=True)
class SharesAnswer:
    """What the device plugin did with a pod one of whose containers wanted several shares of GPUs.

    It holds for as long as the plugin has the same configuration. Times are RFC 3339.
    """

    refused: bool  # whether the pod was refused
    pod_started: str  # when that was
    plugin_started: str  # since when the plugin runs
    configuration: str = ""  # the Node's label that chooses its configuration file; empty: none


READY = "Ready"
CLIENT = "nvidia.com/gpu.deploy.client"
"""The GPU operator's label that lets programs hold the driver: ``true``, or why not now."""
UNACCOUNTED_USE = "UnaccountedUse"
FABRIC_READY = "FabricReady"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition in the sense of the Kubernetes API.

    ``Ready`` is false while the agent cannot see who holds what: the rest of the report is old
    then. ``UnaccountedUse`` is true while a process computes on a GPU that no pod holds.
    """

    type: str
    status: bool
    reason: str
    message: str = ""
    since: str = ""  # its last transition, RFC 3339


@dataclass(frozen=True, slots=True)
class Report:
    """The moving part of a node's record."""

    boot_id: str = ""
    sequence: int = 0  # it only grows within one boot
    # What the kubelet would hand out from, devices in use included; None: every device.
    allocatable: frozenset[DeviceId] | None = None
    allocations: tuple[Allocation, ...] = ()
    health: tuple[Health, ...] = ()
    conditions: tuple[Condition, ...] = ()
    missing: tuple[MissingGpu, ...] = ()  # GPUs that do not answer now; health remembers them
    # Exclusive CPUs and memory that pods have; None where nobody has looked.
    holdings: tuple[Holding, ...] | None = None
    several_shares: SharesAnswer | None = None  # what the agents of this node have learnt
    # Those that have not been used for a while. Of the others nobody can tell, or they are used.
    idle: tuple[IdleAllocation, ...] = ()
    # Under DRA: devices that pods see by adminAccess, whoever has them.
    watched: tuple[Allocation, ...] = ()

    # When the agent looked; empty where it does not say. They make no report differ from another.
    observed_at: str = field(default="", compare=False)  # by the node's clock, RFC 3339
    # The resourceVersion up to which the agent knew the node's pods when it asked the kubelet.
    pods_version: str = field(default="", compare=False)

    @property
    def not_ready(self) -> str:
        """Why the agent cannot vouch for this report; empty where it can."""
        for condition in self.conditions:
            if condition.type == READY and not condition.status:
                return condition.message or condition.reason
        return ""

    def follows(self, earlier: Report) -> bool:
        """Whether this report is not older than ``earlier``: another boot, or no lower sequence."""
        return self.boot_id != earlier.boot_id or self.sequence >= earlier.sequence

    def knew_pods_at(self, version: int) -> bool | None:
        """Whether the agent had seen all changes of pods up to this resourceVersion when it looked.

        None where the report does not say: Kubernetes promises that versions of pods can be
        compared as whole numbers, but an agent may leave its own out.
        """
        known = self.pods_version
        return int(known) >= version if known.isdecimal() and len(known) <= 20 else None
