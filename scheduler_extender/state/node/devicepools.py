"""Device ids as pools: what a report calls allocatable and taken, counted by GPU.

Every look at a node that has changed counts its devices, so whole GPUs, which are most, have a way
of their own: a device id is then a GPU's UUID, and a set of them is a mask.
"""

from collections.abc import Collection, Iterable

from topology.core.devices import GpuResource, Mask, base_uuid
from topology.core.devicesets import DeviceSet, count, pack, total, width_for
from topology.core.graph import NodeTopology
from topology.core.mig import MIG, ServedDevices, served_devices
from topology.core.report import Report


class WholeGpus:
    """Devices that are whole GPUs."""

    width = 1  # bits per GPU in the pools

    def __init__(self, topology: NodeTopology, report: Report) -> None:
        self._bits = topology.bit_of_uuid
        self._all = (1 << len(topology.gpus)) - 1
        if any(served.strategy == MIG for served in topology.resources):
            self._all &= ~topology.shape.in_mig_mode  # the plugin serves their instances instead
        allocatable = report.allocatable
        self._allocatable = self._all if allocatable is None else self._mask(allocatable)

    def _mask(self, devices: Iterable[str]) -> Mask:
        bits, mask = self._bits, 0
        for device in devices:
            mask |= bits.get(device, 0)
        return mask

    def shown_and_returning(self, devices: Collection[str]) -> tuple[DeviceSet, DeviceSet]:
        """Device ids as a mask, and those of them that the kubelet would hand out again.

        A device that the node does not have (any more) counts nothing.
        """
        shown = self._mask(devices)
        return shown, shown & self._allocatable

    def free(self, taken: Collection[str]) -> DeviceSet:
        """The allocatable GPUs without those taken."""
        return self._allocatable & ~self._mask(taken)

    def gone(self, taken: Collection[str]) -> int:
        """How many GPUs are neither taken nor allocatable."""
        return (self._all & ~(self._allocatable | self._mask(taken))).bit_count()

    def withheld(self, taken: Collection[str]) -> DeviceSet:
        """The GPUs that are not allocatable."""
        return self._all & ~self._allocatable


class SeveralDevices:
    """Devices of which a position has several: shares of a GPU, MIG instances of one kind."""

    def __init__(self, devices: ServedDevices, report: Report) -> None:
        self.width = width_for(max(devices.counts, default=1))
        self._position_of = devices.position_of
        self._allocatable = report.allocatable
        self._counts = devices.counts

    def _pool(self, devices: Iterable[str]) -> DeviceSet:
        """Device ids as a pool; more than there are at a position count as all of them."""
        position_of, most = self._position_of, self._counts
        counts = [0] * len(most)
        for device in devices:
            position = position_of.get(base_uuid(device))
            if position is not None:
                counts[position] = min(counts[position] + 1, most[position])
        return pack(counts, self.width)

    def shown_and_returning(self, devices: Collection[str]) -> tuple[DeviceSet, DeviceSet]:
        """Device ids as a pool, and those of them that are allocatable, by their ids."""
        return self._pool(devices), self._returning(devices)

    def _returning(self, devices: Iterable[str]) -> DeviceSet:
        return self._pool(filter(self._is_allocatable, devices))

    def free(self, taken: Collection[str]) -> DeviceSet:
        """The allocatable devices without those taken."""
        if self._allocatable is None:
            return self._everything - self._pool(taken)
        return self._pool(device for device in self._allocatable if device not in taken)

    def gone(self, taken: Collection[str]) -> int:
        """How many devices are neither taken nor allocatable."""
        there, width = total(self._everything, self.width), self.width
        left = there - total(self._pool(taken), width) - total(self.free(taken), width)
        return max(0, left)

    def withheld(self, taken: Collection[str]) -> DeviceSet:
        """By GPU, the devices that are neither free nor taken and allocatable."""
        if self._allocatable is None:
            return 0
        width, free, used = self.width, self.free(taken), self._returning(taken)
        left = (
            most - count(used, p, width) - count(free, p, width)
            for p, most in enumerate(self._counts)
        )
        return pack([max(0, devices) for devices in left], width)

    @property
    def _everything(self) -> DeviceSet:
        return pack(self._counts, self.width)

    def _is_allocatable(self, device: str) -> bool:
        return self._allocatable is None or device in self._allocatable


DevicePools = WholeGpus | SeveralDevices


def device_pools(topology: NodeTopology, report: Report, served: GpuResource) -> DevicePools:
    """The devices of a resource; for whole GPUs the report has to name no shares of any."""
    if served.strategy == "none" and served.replicas == 1:
        return WholeGpus(topology, report)
    return SeveralDevices(served_devices(topology, served), report)
