"""A real kubelet with a DRA driver in place of NVIDIA's device plugin, and its DeviceClass."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.e2e.controlplane import Process
from tests.e2e.kubelet import Kubelet
from tests.e2e.playedmachine import PCI, PlayedMachine
from topology.core.devices import Gpu

API = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.nvidia.com"
STANDARD = "resource.kubernetes.io"


def device_class() -> dict[str, Any]:
    """The DeviceClass of NVIDIA's driver for whole GPUs, asked for as ``nvidia.com/gpu``."""
    text = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
    spec = {"selectors": [{"cel": {"expression": text}}], "extendedResourceName": "nvidia.com/gpu"}
    return {"kind": "DeviceClass", "metadata": {"name": DRIVER}, "spec": spec}


def device(gpu: Gpu, pcie_root: str) -> dict[str, Any]:
    """A GPU as NVIDIA's driver publishes it."""
    attributes: dict[str, dict[str, Any]] = {
        "type": {"string": "gpu"},
        "uuid": {"string": gpu.uuid},
        "productName": {"string": gpu.product},
        f"{STANDARD}/pciBusID": {"string": gpu.pci_bus_id},
        f"{STANDARD}/pcieRoot": {"string": pcie_root},
    }
    if gpu.numa_node is not None:
        attributes[f"{STANDARD}/numaNode"] = {"int": gpu.numa_node}
    capacity = {"memory": {"value": str(gpu.memory)}}
    return {"name": f"gpu-{gpu.index}", "attributes": attributes, "capacity": capacity}


def _devices(silicon: PlayedMachine) -> Sequence[dict[str, Any]]:
    def root(gpu: Gpu) -> str:
        place = (silicon.sysfs / PCI / str(gpu.pci_bus_id)).resolve()
        return place.relative_to(silicon.sysfs.resolve() / "devices").parts[0]

    return [device(gpu, root(gpu)) for gpu in silicon.topology.gpus]


class DraKubelet(Kubelet):
    """A node whose GPUs come through claims; ``deviceplugin`` is the driver's process and log.

    ``seed`` is that of the order in which the driver publishes; None: another one at each start.
    A ``mover`` has NVIDIA's plugin until it is told to :meth:`move`.
    """

    def __init__(
        self, *arguments: Any, seed: int | None = None, mover: bool = False, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._seed = seed
        self._by_plugin = mover

    def start_plugin(self) -> None:
        """Start the driver; again after it died."""
        if self._by_plugin:
            super().start_plugin()
            return
        description = self._base / "devices.json"
        description.write_text(json.dumps(_devices(self.silicon)))
        command = self._mounts.command(
            str(self._bin / "dra-driver"),
            f"--node={self.name}",
            f"--kubeconfig={self.kubeconfig}",
            f"--devices={description}",
            *(() if self._seed is None else (f"--seed={self._seed}",)),
        )
        log = self._logs / "deviceplugin.log"
        self._processes["deviceplugin"] = Process("deviceplugin", command, log)

    def move(self) -> None:
        """Take the plugin away, start the driver, and wait for its devices."""
        self._by_plugin = False
        self.restart_plugin()

    def published(self) -> Sequence[str]:
        """The devices' names, in the order in which the API server has them."""
        fields = {"fieldSelector": f"spec.driver={DRIVER},spec.nodeName={self.name}"}
        with self._control_plane.client() as client:
            answer = client.get(f"{API}/resourceslices", params=fields)
        answer.raise_for_status()
        slices = answer.json()["items"]
        return [str(each["name"]) for found in slices for each in found["spec"]["devices"]]

    def prepared(self) -> Sequence[str]:
        """The UIDs of the claims that the driver has prepared and not unprepared."""
        folder = self.plugins.parent / "plugins" / DRIVER / "cdi"
        return sorted(path.stem for path in folder.glob("*.json"))

    def _serves(self) -> Mapping[str, int]:
        return super()._serves() if self._by_plugin else {}

    def _has_devices(self) -> bool:
        if self._by_plugin:
            return super()._has_devices()
        return len(self.published()) == len(self.topology.gpus)
