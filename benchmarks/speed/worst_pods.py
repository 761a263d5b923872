"""The worst legal pods: what Kubernetes and our limits allow, and what is bad about each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler_extender.annotations import PREFIX

RESOURCE = "nvidia.com/gpu"
EVERYTHING = {
    "policy": "preferred",
    "link": "nvlink",
    "shape": "ring",
    "min-bandwidth": "50",
    "same-numa": "true",
    "nic": "pxb",
    "min-gpu-memory": "10Gi",
}
GLOBS = ",".join(f"{'*'.join('abcdefghij')}{i}*" for i in range(32))


@dataclass(frozen=True, slots=True)
class GpuContainer:
    """A container by its name, and how many devices it asks for."""

    name: str
    devices: int


@dataclass(frozen=True, slots=True)
class WorstPod:
    """A pod, and what is bad about it; ``annotations`` are without our prefix."""

    case: str
    containers: Sequence[GpuContainer]
    annotations: dict[str, str] = field(default_factory=dict)
    init: Sequence[GpuContainer] = ()

    def manifest(self) -> dict[str, Any]:
        """The Pod as JSON has it."""
        metadata = {
            "name": "worst",
            "namespace": "default",
            "uid": f"uid-{self.case}",
            "annotations": {PREFIX + k: v for k, v in self.annotations.items()},
        }
        spec = {"initContainers": _written(self.init), "containers": _written(self.containers)}
        return {"metadata": metadata, "spec": spec}


def _written(containers: Sequence[GpuContainer]) -> list[dict[str, Any]]:
    return [
        {"name": f"{one.name}-{i}", "resources": {"limits": {RESOURCE: str(one.devices)}}}
        for i, one in enumerate(containers)
    ]


def _app(devices: int) -> tuple[GpuContainer]:
    return (GpuContainer("app", devices),)


def _many(prefix: str, count: int, devices: int = 1) -> list[GpuContainer]:
    return [GpuContainer(f"{prefix}{n}", devices) for n in range(count)]


WORST = (
    WorstPod("4 GPUs, plain", _app(4)),
    WorstPod("8 GPUs, NVLinked", _app(8), {"link": "nvlink"}),
    WorstPod("64 GPUs, plain", _app(64)),
    WorstPod("1,024 devices", _app(1024)),
    WorstPod("ring over 12 GPUs", _app(12), {"link": "nvlink", "shape": "ring"}),
    WorstPod("ring over 24 GPUs", _app(24), {"link": "nvlink", "shape": "ring"}),
    WorstPod("ring over 64 GPUs", _app(64), {"link": "nvlink", "shape": "ring"}),
    WorstPod("ring of 30 GB/s over 8", _app(8), {"min-bandwidth": "30"}),
    WorstPod(
        "ring of 3 GB/s over 32",
        _app(32),
        {"min-bandwidth": "3", "link": "phb", "shape": "ring"},
    ),
    WorstPod(
        "connected 6, one NUMA node",
        _app(6),
        {"link": "nvlink", "shape": "connected", "same-numa": "true"},
    ),
    WorstPod("32 globs", _app(2), {"gpu-model": GLOBS}),
    WorstPod(
        "40 init containers",
        _app(1) * 2,
        {"link": "phb"},
        [GpuContainer(f"i{n}", n % 8 + 1) for n in range(40)],
    ),
    WorstPod("1,500 equal init containers", _app(1), init=_many("i", 1500, 2)),
    WorstPod("16 containers", _many("c", 16), {"link": "phb"}),
    WorstPod("60 containers, 60 init containers", _many("c", 60), init=_many("i", 60, 2)),
    WorstPod("300 containers", _many("c", 300)),
    WorstPod(
        "preferred, everything at once",
        (GpuContainer("a", 3), GpuContainer("b", 3)),
        EVERYTHING,
        (GpuContainer("i", 3),),
    ),
)
