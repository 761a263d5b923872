"""What a node's agent reports: who holds which devices, and which GPUs are sick."""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True, order=True)
class IdleAllocation:
    """An allocation whose devices are all unused, and since when (RFC 3339, rounded down).

    It is told apart from :class:`Allocation`, for who holds what does not change by it.
    """

    pod_uid: PodUid
    container: str
    resource: str
    since: str


@dataclass(frozen=True, slots=True)
class Health:
    """The agent's view of one GPU's health, kept until the GPU is reset or the node reboots.

    A healthy GPU may have a ``reason``, too: a fault with which it still works, such as an NVLink
    that is down. ``since`` is RFC 3339.
    ``links_down`` are NVLinks (NVML's numbers) that were up earlier in this boot. ``energy`` is the
    GPU's energy counter in mJ when the reason was found: a lower one later tells of a reset.
    """

    uuid: GpuUuid
    healthy: bool
    reason: str = ""
    since: str = ""
    links_down: tuple[int, ...] = ()
    energy: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class MissingGpu:
    """A GPU that ought to answer the driver and does not, as after Xid 79.

    ``name`` is its UUID, or ``GPU 3`` by the driver's number where the UUID was never told.
    ``counted`` says whether the driver still counts the GPU among those of the node: one that it
    does not count is gone for every program that opens the driver from then on. ``since`` is when
    it was first seen not to answer, RFC 3339.
    """

    name: str
    counted: bool
    since: str = ""


@dataclass(frozen=True, slots=True)
class SharesAnswer:
    """What the device plugin did with a pod one of whose containers wanted several shares of GPUs.

    It holds for as long as the plugin has the same configuration. ``refused`` says that the pod was
    refused, ``pod_started`` when that was, ``plugin_started`` since when the plugin runs; both RFC
    3339. ``configuration`` is the Node's label that chooses the plugin's configuration file, empty
    where the Node has none.
    """

    refused: bool
    pod_started: str
    plugin_started: str
    configuration: str = ""


READY = "Ready"
UNACCOUNTED_USE = "UnaccountedUse"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition in the sense of the Kubernetes API; ``since`` is its last transition, RFC 3339.

    ``Ready`` is false while the agent cannot see who holds what: the rest of the report is old
    then. ``UnaccountedUse`` is true while a process computes on a GPU that no pod holds.
    """

    type: str
    status: bool
    reason: str
    message: str = ""
    since: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The moving part of a node's record.

    ``sequence`` only grows within one ``boot_id``. ``allocatable`` is what the kubelet would hand
    out from, devices in use included; None means every device of the node. ``holdings`` are the
    exclusive CPUs and memory that pods have; None where nobody has looked. ``missing`` are
    the GPUs that do not answer at this moment: health remembers, this does not. An agent that
    starts anew reads in ``several_shares`` what the one before it has learnt of the plugin.
    ``idle`` are the allocations that have not been used for a while; one that is not among them is
    used, or nobody can tell.

    Two fields say when the agent looked; they make no report differ from another. ``observed_at``
    is the time by the node's clock (RFC 3339), ``pods_version`` the resourceVersion up to which the
    agent knew the pods of its node when it asked the kubelet. Both are empty where the agent does
    not say.
    """

    boot_id: str = ""
    sequence: int = 0
    allocatable: frozenset[DeviceId] | None = None
    allocations: tuple[Allocation, ...] = ()
    health: tuple[Health, ...] = ()
    conditions: tuple[Condition, ...] = ()
    missing: tuple[MissingGpu, ...] = ()
    holdings: tuple[Holding, ...] | None = None
    several_shares: SharesAnswer | None = None
    idle: tuple[IdleAllocation, ...] = ()
    observed_at: str = field(default="", compare=False)
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
