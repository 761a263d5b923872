"""The report of a node's agent: the pods that hold devices, and the health of the GPUs."""

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
    sharers: tuple[PodUid, ...] = ()  # the pods that share it, if it is a claim of several pods
    claim: str = ""  # the name of the claim, if it is one

    def without(self, gone: Collection[PodUid]) -> Allocation | None:
        """Return the allocation without these pods; None if no other pod holds it."""
        sharers = tuple(uid for uid in self.sharers if uid not in gone)
        if self.pod_uid in gone or (self.sharers and not sharers):
            return None
        return self if sharers == self.sharers else replace(self, sharers=sharers)


@dataclass(frozen=True, slots=True, order=True)
class IdleAllocation:
    """An allocation whose devices are all unused.

    It is separate from :class:`Allocation`, because idleness does not change which pod holds a
    device.
    """

    pod_uid: PodUid
    container: str
    resource: str
    since: str  # RFC 3339, rounded down


FABRIC_NOT_READY = "FabricNotReady"
FABRIC_MISCONFIGURED = "FabricMisconfigured"
FABRIC_ROUTE_UNHEALTHY = "FabricRouteUnhealthy"
# Reasons for which a GPU that is healthy otherwise has no NVLinks through a switch.
OFF_FABRIC = (FABRIC_NOT_READY, FABRIC_MISCONFIGURED, FABRIC_ROUTE_UNHEALTHY)


@dataclass(frozen=True, slots=True)
class Health:
    """The health of one GPU as the agent sees it, until the GPU is reset or the node reboots."""

    uuid: GpuUuid
    healthy: bool
    # The fault. A healthy GPU may have one with which it still works, such as an NVLink that is
    # down.
    reason: str = ""
    since: str = ""  # RFC 3339
    # NVLinks (NVML's numbers) that are down and were up earlier in this boot.
    links_down: tuple[int, ...] = ()
    # The GPU's energy counter in mJ when the reason appeared. A lower value later means that the
    # GPU was reset.
    energy: int | None = None

    @property
    def off_fabric(self) -> bool:
        """Whether the GPU has no NVLinks through a switch now."""
        return any(reason in OFF_FABRIC for reason in self.reason.split(", "))


@dataclass(frozen=True, slots=True, order=True)
class MissingGpu:
    """A GPU that should answer the driver and does not, as after Xid 79."""

    name: str  # its UUID, or `GPU 3` by the driver's number if the UUID was never read
    # Whether the driver still counts the GPU among the node's GPUs. A program that opens the driver
    # later does not see a GPU that is not counted.
    counted: bool
    since: str = ""  # when it was first seen not to answer, RFC 3339


@dataclass(frozen=True, slots=True)
class SharesAnswer:
    """The device plugin's answer to a pod of which one container requested several GPU shares.

    The answer stays valid while the plugin has the same configuration. Times are RFC 3339.
    """

    refused: bool  # whether the plugin refused the pod
    pod_started: str  # when that pod started
    plugin_started: str  # when the plugin started
    # The Node's label that chooses the plugin's configuration file; empty if there is none.
    configuration: str = ""


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """A pod with GPUs that the kubelet has refused."""

    pod_uid: PodUid
    namespace: str
    pod: str
    resource: str
    devices: int  # the number of devices that it asked for
    reason: str  # one word of the kubelet
    at: str  # RFC 3339, by the node's clock


READY = "Ready"
# The GPU operator's label that allows programs to hold the driver: ``true``, or the reason against
# it.
CLIENT = "nvidia.com/gpu.deploy.client"
UNACCOUNTED_USE = "UnaccountedUse"
FABRIC_READY = "FabricReady"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition in the sense of the Kubernetes API.

    ``Ready`` is false while the agent cannot see which pod holds which devices. The rest of the
    report is then old. ``UnaccountedUse`` is true while a process computes on a GPU that no pod
    holds.
    """

    type: str
    status: bool
    reason: str
    message: str = ""
    since: str = ""  # its last transition, RFC 3339


@dataclass(frozen=True, slots=True)
class Report:
    """The part of a node's record that changes while the node runs."""

    boot_id: str = ""
    sequence: int = 0  # it only grows within one boot
    # The devices that the kubelet hands out, including those in use; None if these are all devices.
    allocatable: frozenset[DeviceId] | None = None
    allocations: tuple[Allocation, ...] = ()
    health: tuple[Health, ...] = ()
    conditions: tuple[Condition, ...] = ()
    # GPUs that do not answer now. `health` keeps the fact that a GPU was lost.
    missing: tuple[MissingGpu, ...] = ()
    # Exclusive CPUs and memory that pods have; None if the agent did not read them.
    holdings: tuple[Holding, ...] | None = None
    several_shares: SharesAnswer | None = None  # what the agents of this node have found out
    # Allocations that were not used for a while. The others are in use, or their use is unknown.
    idle: tuple[IdleAllocation, ...] = ()
    # Under DRA: devices that pods see by adminAccess. Other pods may hold them.
    watched: tuple[Allocation, ...] = ()

    history: tuple[RefusedPod, ...] = ()  # the latest refusals, the oldest first

    # When the agent read the node; empty if unknown. Both values do not count in comparisons.
    observed_at: str = field(default="", compare=False)  # by the node's clock, RFC 3339
    # The resourceVersion up to which the agent knew the node's pods when it asked the kubelet.
    pods_version: str = field(default="", compare=False)

    @property
    def not_ready(self) -> str:
        """The reason why the agent cannot vouch for this report; empty if it can."""
        for condition in self.conditions:
            if condition.type == READY and not condition.status:
                return condition.message or condition.reason
        return ""

    def follows(self, earlier: Report) -> bool:
        """Check whether this report is not older than ``earlier``.

        It is of another boot, or its sequence number is not lower.
        """
        return self.boot_id != earlier.boot_id or self.sequence >= earlier.sequence

    def knew_pods_at(self, version: int) -> bool | None:
        """Return whether the agent knew all changes of pods up to ``version`` when it looked.

        The result is None if the report does not say. Kubernetes promises that the
        resourceVersions of pods can be compared as whole numbers, but an agent may leave its own
        out.
        """
        known = self.pods_version
        return int(known) >= version if known.isdecimal() and len(known) <= 20 else None
