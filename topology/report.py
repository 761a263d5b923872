"""What a node's agent reports: who holds which devices, and which GPUs are sick."""

from __future__ import annotations

from dataclasses import dataclass

from topology.devices import DeviceId, GpuUuid, PodUid


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices that the kubelet gave to one container of one pod."""

    pod_uid: PodUid
    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class Health:
    """The agent's view of one GPU's health."""

    uuid: GpuUuid
    healthy: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The moving part of a node's record.

    ``sequence`` only grows within one ``boot_id``. ``allocatable`` is what the kubelet would hand
    out from, devices in use included; None means every device of the node.
    """

    boot_id: str = ""
    sequence: int = 0
    allocatable: frozenset[DeviceId] | None = None
    allocations: tuple[Allocation, ...] = ()
    health: tuple[Health, ...] = ()

    def follows(self, earlier: Report) -> bool:
        """Whether this report is not older than ``earlier``: another boot, or no lower sequence."""
        return self.boot_id != earlier.boot_id or self.sequence >= earlier.sequence
