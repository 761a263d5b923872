"""What a running process has used, as Linux counts it in ``/proc``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a process, in MiB: now, and the most that it ever was."""

    now: float
    peak: float


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> Memory:
    """The resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = {line.split()[0]: int(line.split()[1]) for line in lines if line.startswith("Vm")}
    return Memory(kib["VmRSS:"] / 1024, kib["VmHWM:"] / 1024)
