"""A described machine as a node's programs see it: NVML, and what the kernel shows as files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tests.e2e.processors import Processors
from tests.fakes.nvml.machine import FakeNvml, address
from tests.fakes.nvml.testing import fake_nvml
from tests.fakes.procfs import write_capabilities
from tests.fakes.sysfs import write_gpus, write_sysfs
from tests.nvidiamock import NvidiaMock
from topology.core.graph import NodeTopology
from topology.machines import Machine

PCI = "bus/pci/devices"


class PlayedMachine:
    """One machine behind the fake NVML, with the sysfs and procfs files that go with it.

    ``machine`` is the catalogue's entry, whose whole PCI tree is laid out then; without it there
    are the GPUs alone. Without ``processors`` programs see those of the host. Methods of ``nvml``
    break the machine.
    """

    def __init__(
        self,
        folder: Path,
        topology: NodeTopology,
        machine: Machine | None = None,
        processors: Processors | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        gpus = tuple(replace(gpu, pci_bus_id=address(gpu)) for gpu in topology.gpus)
        self.topology = replace(topology, gpus=gpus)
        self.nvml: FakeNvml = fake_nvml(folder, self.topology)
        self.mock: NvidiaMock | None = None  # the driver that plays in place of the fake, if any
        self._folder = folder
        self.sysfs = folder / "sys"
        self._driver = folder / "driver"
        if machine is None:
            write_gpus(self.sysfs, self.topology)
        else:
            write_sysfs(self.sysfs, self.topology, machine)
        write_capabilities(self._driver, (gpu.index for gpu in self.topology.gpus))
        system = self.sysfs / "devices/system"
        self._processors = processors.write(system) if processors else {}

    def play_mock(self, profile: str) -> NvidiaMock:
        """Have NVIDIA's own mock of the driver play GPUs of a profile, in place of the fake."""
        self.mock = NvidiaMock(self._folder / "mock", profile, self.topology)
        return self.mock

    @property
    def environment(self) -> Mapping[str, str]:
        """What a program needs to see the machine's driver."""
        return (self.mock or self.nvml).environment

    def mounts(self) -> Mapping[str, Path]:
        """Mounts over the machine's own files, for programs whose paths are constants."""
        mine = {f"/sys/{PCI}": self.sysfs / PCI, "/proc/driver": self._driver}
        return {**mine, **self._processors}
