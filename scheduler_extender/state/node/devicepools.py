"""Device ids as sets: what a report calls allocatable and taken, counted by GPU.

Each evaluation of a changed node counts its devices. Most devices are whole GPUs, so these have a
faster class: a device id is then a GPU's UUID, and a set of them is a mask.
"""

from collections.abc import Collection, Iterable

from topology.core.devices import GpuResource, Mask, base_uuid
from topology.core.devicesets import DeviceSet, count, pack, total, width_for
from topology.core.graph import NodeTopology
from topology.core.mig import MIG, ServedDevices, served_devices
from topology.core.report import Report


class WholeGpus:
    """Devices that are whole GPUs."""

    width = 1  # bits per GPU in the sets

    def __init__(self, topology: NodeTopology, report: Report) -> None:
        self._bits = topology.bit_of_uuid
        self._all = (1 << len(topology.gpus)) - 1
        if any(served.strategy == MIG for served in topology.resources):
            # the plugin serves their MIG instances instead
            self._all &= ~topology.shape.in_mig_mode
        allocatable = report.allocatable
        self._allocatable = self._all if allocatable is None else self._mask(allocatable)

    def _mask(self, devices: Iterable[str]) -> Mask:
        bits, mask = self._bits, 0
        for device in devices:
            mask |= bits.get(device, 0)
        return mask

    def shown_and_returning(self, devices: Collection[str]) -> tuple[DeviceSet, DeviceSet]:
        """Return device ids as a mask, and the part of it that the kubelet would hand out again.

        A device that the node does not have, or no longer has, is ignored.
        """
        shown = self._mask(devices)
        return shown, shown & self._allocatable

    def free(self, taken: Collection[str]) -> DeviceSet:
        """Return the allocatable GPUs that are not taken."""
        return self._allocatable & ~self._mask(taken)

    def gone(self, taken: Collection[str]) -> int:
        """Return how many GPUs are neither taken nor allocatable."""
        return (self._all & ~(self._allocatable | self._mask(taken))).bit_count()

    def withheld(self, taken: Collection[str]) -> DeviceSet:
        """Return the GPUs that are not allocatable."""
        return self._all & ~self._allocatable


class SeveralDevices:
    """Devices of which a position has several: shares of a GPU, or MIG instances of one kind."""

    def __init__(self, devices: ServedDevices, report: Report) -> None:
        self.width = width_for(max(devices.counts, default=1))
        self._position_of = devices.position_of
        self._allocatable = report.allocatable
        self._counts = devices.counts

    def _pool(self, devices: Iterable[str]) -> DeviceSet:
        """Return device ids as a set.

        If there are more ids at a position than it has devices, they count as all of its devices.
        """
        position_of, most = self._position_of, self._counts
        counts = [0] * len(most)
        for device in devices:
            position = position_of.get(base_uuid(device))
            if position is not None:
                counts[position] = min(counts[position] + 1, most[position])
        return pack(counts, self.width)

    def shown_and_returning(self, devices: Collection[str]) -> tuple[DeviceSet, DeviceSet]:
        """Return device ids as a set, and the part of it that is allocatable by its ids."""
        return self._pool(devices), self._returning(devices)

    def _returning(self, devices: Iterable[str]) -> DeviceSet:
        return self._pool(filter(self._is_allocatable, devices))

    def free(self, taken: Collection[str]) -> DeviceSet:
        """Return the allocatable devices that are not taken."""
        if self._allocatable is None:
            return self._everything - self._pool(taken)
        return self._pool(device for device in self._allocatable if device not in taken)

    def gone(self, taken: Collection[str]) -> int:
        """Return how many devices are neither taken nor allocatable."""
        there, width = total(self._everything, self.width), self.width
        left = there - total(self._pool(taken), width) - total(self.free(taken), width)
        return max(0, left)

    def withheld(self, taken: Collection[str]) -> DeviceSet:
        """Return by GPU how many devices are neither free nor taken and allocatable."""
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
    """Return the devices of a resource.

    A resource counts as whole GPUs only if it is served without MIG and without replicas.
    """
    if served.strategy == "none" and served.replicas == 1:
        return WholeGpus(topology, report)
    return SeveralDevices(served_devices(topology, served), report)
