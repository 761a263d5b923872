"""A machine's CPUs from sysfs: on which NUMA node, socket and core each one is.

A core is what the kubelet takes for one: the CPUs of one NUMA node whose ``core_id`` and
``physical_package_id`` are the same (cadvisor, from which it has its machine, reads these files).
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from topology.agent.decides.observed import Processors, Unseen
from topology.core.devices import positions
from topology.core.numa import CpuSet, cpu_set

FACT = "CPUs by NUMA node"


def read(sys: Path) -> Processors | Unseen:
    """The CPUs of a sysfs mount that are online. Never raises."""
    try:
        return _read(sys / "devices/system")
    except OSError as error:
        return Unseen(FACT, f"{error.filename}: {error.strerror}")
    except ValueError as error:
        return Unseen(FACT, str(error))


def _read(system: Path) -> Processors:
    names = [path.name.removeprefix("node") for path in system.glob("node/node*")]
    numbers = sorted(int(name) for name in names if name.isdecimal())
    if not numbers or numbers != list(range(len(numbers))):
        raise ValueError("NUMA nodes are not numbered from 0 on without gaps")
    nodes: list[CpuSet] = []
    sockets: list[int | None] = []
    cores: list[CpuSet] = []
    for number in numbers:
        cpus = cpu_set((system / f"node/node{number}/cpulist").read_text())
        by_core: defaultdict[tuple[int, int], int] = defaultdict(int)
        for cpu in positions(cpus):
            topology = system / f"cpu/cpu{cpu}/topology"
            package = int((topology / "physical_package_id").read_text())
            by_core[package, int((topology / "core_id").read_text())] |= 1 << cpu
        packages = {package for package, _ in by_core}
        nodes.append(cpus)
        # The kernel writes -1 where the platform does not say.
        sockets.append(packages.pop() if len(packages) == 1 and min(packages) >= 0 else None)
        cores += map(CpuSet, by_core.values())
    return Processors(tuple(nodes), tuple(sockets), tuple(cores))
