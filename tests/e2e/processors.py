"""The processors and NUMA nodes of a host, as the kernel shows them to a kubelet."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NEAR, FAR = 10, 21  # Distances as firmware tells them: of a node to itself, of two sockets
SYSTEM = "/sys/devices/system"


@dataclass(frozen=True, slots=True)
class Processors:
    """So many sockets, each a NUMA node with so many cores of two threads, and kB of memory."""

    sockets: int = 2
    cores: int = 16
    memory_kb: int = 256 << 20

    def write(self, folder: Path) -> Mapping[str, Path]:
        """Lay out ``/sys/devices/system`` as ``folder``: what has to lie over which of the host's.

        What kubelet and agent read is there.
        """
        threads = 2 * self.sockets * self.cores
        cpus, nodes = folder / "cpu", folder / "node"
        cpus.mkdir(parents=True)
        (cpus / "online").write_text(f"0-{threads - 1}\n")
        for socket in range(self.sockets):
            node = nodes / f"node{socket}"
            (node / "hugepages").mkdir(parents=True)
            (node / "meminfo").write_text(f"Node {socket} MemTotal:       {self.memory_kb} kB\n")
            distances = (NEAR if other == socket else FAR for other in range(self.sockets))
            (node / "distance").write_text(" ".join(map(str, distances)) + "\n")
            numbers = self._threads(socket)
            (node / "cpulist").write_text(",".join(map(str, numbers)) + "\n")
            for number in numbers:
                topology = cpus / f"cpu{number}" / "topology"
                topology.mkdir(parents=True)
                (topology / "core_id").write_text(f"{number % (threads // 2)}\n")
                (topology / "physical_package_id").write_text(f"{socket}\n")
                # Relative: it lies over the host's folder of the same depth.
                (node / f"cpu{number}").symlink_to(f"../../cpu/cpu{number}")
        return {f"{SYSTEM}/cpu": cpus, f"{SYSTEM}/node": nodes}

    def _threads(self, socket: int) -> list[int]:
        """First every core's first thread, socket by socket, then the second ones."""
        first = range(socket * self.cores, (socket + 1) * self.cores)
        return [*first, *(n + self.sockets * self.cores for n in first)]
