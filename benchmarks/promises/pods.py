"""Pods that a workload asks for, as manifests."""

from dataclasses import dataclass
from typing import Any, Literal

from scheduler_extender.annotations import PREFIX
from scheduler_extender.simulator.pods import Manifest


@dataclass(frozen=True, slots=True)
class GpuContainer:
    """A container of a pod: its role, and how many GPUs it asks for."""

    role: Literal["app", "sidecar", "init"]
    gpus: int


def app(gpus: int) -> GpuContainer:
    """A container of the pod's own work."""
    return GpuContainer("app", gpus)


def sidecar(gpus: int) -> GpuContainer:
    """An init container that goes on running beside the app containers."""
    return GpuContainer("sidecar", gpus)


def init(gpus: int) -> GpuContainer:
    """An init container that ends before the app containers start."""
    return GpuContainer("init", gpus)


def manifest(
    name: str,
    number: int,
    annotations: dict[str, str],
    *containers: GpuContainer,
    whole_cpus: bool = False,
    resource: str = "nvidia.com/gpu",
) -> Manifest:
    """A Pod with these containers of a GPU resource; ``annotations`` are without our prefix.

    With ``whole_cpus`` it is of the class Guaranteed, and each container asks for one CPU.
    """
    beside = {"cpu": "1", "memory": "1Gi"} if whole_cpus else {}
    first: list[dict[str, Any]] = []
    apps: list[dict[str, Any]] = []
    for i, container in enumerate(containers):
        found: dict[str, Any] = {
            "name": f"c{i}",
            "resources": {"limits": {resource: str(container.gpus), **beside}},
        }
        if container.role == "sidecar":
            found["restartPolicy"] = "Always"
        (apps if container.role == "app" else first).append(found)
    spec: dict[str, Any] = {"containers": apps}
    if first:
        spec["initContainers"] = first
    return {
        "metadata": {
            "name": f"{name}-{number}",
            "namespace": "default",
            "uid": f"{number:032x}",
            "annotations": {PREFIX + key: value for key, value in annotations.items()},
        },
        "spec": spec,
        "status": {"phase": "Pending"},
    }
