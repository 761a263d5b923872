"""The options that an operator chooses for the agent of a node."""

from dataclasses import dataclass
from pathlib import Path

from topology.agent.model.polling import USUAL_INTERVALS, PollIntervals
from topology.agent.probes.node import KubeletSources
from topology.agent.probes.nvmlwatch import Cadence
from topology.core.devices import NodeName


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one node's agent."""

    node: NodeName
    socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")  # the kubelet's
    sys: Path = Path("/sys")  # where sysfs is mounted
    boot_id: Path = Path("/proc/sys/kernel/random/boot_id")  # the file with the boot's id
    kubelet: KubeletSources = KubeletSources()  # noqa: RUF009 (frozen)
    policy: str | None = None  # the device plugin's policy; with None the agent finds it out
    # Whether the plugin refuses a container several shares of GPUs; with None the agent learns it.
    refuses_several: bool | None = None
    heartbeat: float = 60.0  # seconds between two writes without a change
    cadence: Cadence = Cadence()  # noqa: RUF009 (frozen)
    intervals: PollIntervals = USUAL_INTERVALS
