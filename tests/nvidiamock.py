"""NVIDIA's own mock of ``libnvidia-ml.so``, a second driver beside our fake.

It is in the reference data (``nvml-mock``, whose README says what it can). Where that is absent,
tests skip with the reason.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests import recorded
from topology.core.graph import NodeTopology

PROFILE = "mock-nvml-config-{}.yaml"


class NvidiaMock:
    """One machine of the mock: a profile of NVIDIA's, by name, in ``folder``.

    With a ``topology`` its GPUs have that one's UUIDs and PCI addresses; there must be as many.
    """

    def __init__(self, folder: Path, profile: str, topology: NodeTopology | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        published = recorded.shared("nvml-mock", "configs", PROFILE.format(profile)).read_text()
        self.config: dict[str, Any] = yaml.safe_load(published)
        if topology is not None:
            self.config |= _as_in(topology, self.config["devices"])
        (folder / "config.yaml").write_text(yaml.safe_dump(self.config))

    @property
    def uuids(self) -> list[str]:
        """The GPUs' UUIDs."""
        return [str(each["uuid"]) for each in self.config["devices"]]

    @property
    def environment(self) -> dict[str, str]:
        """What a subprocess needs beside its own environment to see this machine."""
        return environment(self._folder / "config.yaml")

    def has(self, over: Mapping[int, Mapping[str, Any]]) -> None:
        """From now on these GPUs are like this, and the others well; seen within a second."""
        fresh = self._folder / "fresh.yaml"
        fresh.write_text(yaml.safe_dump({"devices": dict(over)}))
        fresh.replace(self._folder / "overrides.yaml")


def environment(config: Path) -> dict[str, str]:
    """What a subprocess needs to see the machine of this configuration."""
    library = str(recorded.shared("nvml-mock"))
    return {"LD_LIBRARY_PATH": library, "MOCK_NVML_CONFIG": str(config)}


def _as_in(topology: NodeTopology, devices: list[dict[str, Any]]) -> dict[str, Any]:
    """The parts of a configuration that say which GPUs there are, and where."""
    roots: defaultdict[int, list[str]] = defaultdict(list)
    named = []
    for gpu, device in zip(topology.gpus, devices, strict=True):
        bus = str(gpu.pci_bus_id).upper()
        roots[gpu.numa_node or 0].append(bus)
        named.append({**device, "uuid": str(gpu.uuid), "pci": {"bus_id": bus}})
    complexes = [
        {"id": f"pci0000:{node:02x}", "numa_node": node, "devices": there}
        for node, there in roots.items()
    ]
    return {"devices": named, "pcie_topology": {"root_complexes": complexes}}
