"""Jobs of closed loops: which pods come, drawn by a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.promises.pods import GpuContainer, Job, app, init, manifest, sidecar


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A kind of pod of a workload: how often it comes beside the others, and what it asks.

    ``annotations`` are without our prefix.
    """

    weight: float
    name: str
    annotations: dict[str, str]
    containers: tuple[GpuContainer, ...]


NVLINK = {"link": "nvlink"}
EVERYTHING: tuple[PodTemplate, ...] = (
    PodTemplate(30, "single", {}, (app(1),)),
    PodTemplate(6, "double", {}, (app(2),)),
    PodTemplate(20, "pair", NVLINK, (app(2),)),
    PodTemplate(8, "triple", NVLINK, (app(3),)),
    PodTemplate(10, "quad", NVLINK, (app(4),)),
    PodTemplate(3, "octet", {"link": "nvlink", "shape": "connected"}, (app(8),)),
    PodTemplate(4, "two-containers", NVLINK, (app(1), app(1))),
    PodTemplate(3, "init", NVLINK, (init(1), app(2))),
    PodTemplate(2, "init-more", {}, (init(3), app(1))),
    PodTemplate(3, "sidecar", NVLINK, (sidecar(1), app(1))),
    PodTemplate(4, "preferred", {"link": "nvlink", "policy": "preferred"}, (app(2),)),
    PodTemplate(4, "numa", {"same-numa": "true"}, (app(2),)),
)
"""Every kind of request and container there is."""

CONTAINERS: tuple[PodTemplate, ...] = (
    PodTemplate(24, "single", {}, (app(1),)),
    PodTemplate(10, "pair", NVLINK, (app(2),)),
    PodTemplate(6, "quad", NVLINK, (app(4),)),
    PodTemplate(10, "three", NVLINK, (app(1), app(1), app(1))),
    PodTemplate(6, "three-plain", {}, (app(1), app(1), app(1))),
    PodTemplate(6, "one-two-one", NVLINK, (app(1), app(2), app(1))),
    PodTemplate(6, "four", NVLINK, (app(1), app(1), app(1), app(1))),
    PodTemplate(3, "four-plain", {}, (app(1), app(1), app(1), app(1))),
    PodTemplate(2, "five", {}, (app(1),) * 5),
    PodTemplate(5, "sidecar-init-app", NVLINK, (sidecar(1), init(1), app(1))),
    PodTemplate(5, "init-two-apps", NVLINK, (init(2), app(1), app(1))),
    PodTemplate(3, "two-inits", NVLINK, (init(1), init(2), app(2))),
    PodTemplate(3, "init-more", {}, (init(3), app(1), app(1))),
    PodTemplate(4, "sidecars", NVLINK, (sidecar(1), sidecar(1), app(1))),
    PodTemplate(3, "all-roles", {}, (init(1), sidecar(1), app(1), app(1))),
    PodTemplate(4, "numa-three", {"same-numa": "true"}, (app(1), app(1), app(1))),
)
"""Pods with three, four and five GPU containers of every role, among pods with one."""

SINGLES: tuple[PodTemplate, ...] = (
    PodTemplate(60, "single", {}, (app(1),)),
    PodTemplate(25, "pair", NVLINK, (app(2),)),
    PodTemplate(15, "quad", NVLINK, (app(4),)),
)
"""Single-GPU pods among pairs and quads that need their links."""

SAME, SPREAD = {"same-gpu": "true"}, {"spread-gpus": "true"}
SLICES: tuple[PodTemplate, ...] = (
    PodTemplate(26, "single", {}, (app(1),)),
    PodTemplate(8, "double", {}, (app(2),)),
    PodTemplate(14, "memory", {"min-gpu-memory": "9Gi"}, (app(1),)),
    PodTemplate(8, "two-memory", {"min-gpu-memory": "4Gi", "gpu-model": "a100*,h100*"}, (app(2),)),
    PodTemplate(10, "same", SAME, (app(2),)),
    PodTemplate(4, "four-same", SAME, (app(4),)),
    PodTemplate(6, "spread", SPREAD, (app(2),)),
    PodTemplate(6, "numa", {"same-numa": "true"}, (app(2),)),
    PodTemplate(3, "linked", NVLINK, (app(2),)),
    PodTemplate(4, "two-containers", SAME, (app(1), app(1))),
    PodTemplate(3, "init", SAME, (init(1), app(2))),
    PodTemplate(2, "init-more", {}, (init(3), app(1))),
    PodTemplate(3, "sidecar", {"same-numa": "true"}, (sidecar(1), app(1))),
    PodTemplate(3, "preferred", {"same-gpu": "true", "policy": "preferred"}, (app(3),)),
)
"""Pods that want MIG instances, or shares of a GPU: several of one GPU, or none of one."""

EXCLUSIVE = {"sharing": "exclusive"}
SHARES: tuple[PodTemplate, ...] = (
    PodTemplate(22, "single", {}, (app(1),)),
    PodTemplate(4, "double", {}, (app(2),)),
    PodTemplate(10, "little", {"gpu-memory": "4Gi"}, (app(1),)),
    PodTemplate(12, "some", {"gpu-memory": "10Gi"}, (app(1),)),
    PodTemplate(10, "more", {"gpu-memory": "18Gi"}, (app(1),)),
    PodTemplate(6, "most", {"gpu-memory": "36Gi"}, (app(1),)),
    PodTemplate(5, "two-some", {"gpu-memory": "10Gi"}, (app(2),)),
    PodTemplate(4, "some-apart", {"gpu-memory": "12Gi", "spread-gpus": "true"}, (app(2),)),
    PodTemplate(4, "two-containers", {"gpu-memory": "9Gi"}, (app(1), app(1))),
    PodTemplate(2, "init", {"gpu-memory": "9Gi"}, (init(1), app(1))),
    PodTemplate(2, "init-more", {"gpu-memory": "6Gi"}, (init(2), app(1))),
    PodTemplate(2, "sidecar", {"gpu-memory": "9Gi"}, (sidecar(1), app(1))),
    PodTemplate(4, "wish", {"gpu-memory": "14Gi", "policy": "preferred"}, (app(1),)),
    PodTemplate(3, "alone", EXCLUSIVE, (app(2),)),
    PodTemplate(2, "alone-three", EXCLUSIVE, (app(3),)),
    PodTemplate(2, "alone-four", EXCLUSIVE, (app(4),)),
    PodTemplate(3, "linked", NVLINK, (app(2),)),
)
"""Pods that share GPUs: most say how much memory they use, some want all of a GPU's shares."""

FOREIGN = PodTemplate(1, "foreign", {}, (app(1),))


def jobs(
    count: int,
    seed: int,
    *,
    rate: float,
    templates: tuple[PodTemplate, ...] = EVERYTHING,
    runs: float = 60.0,
    foreign: float = 0.0,
    patience: float = 60.0,
    whole_cpus: float = 0.0,
    resource: str = "nvidia.com/gpu",
) -> list[Job]:
    """``count`` pods that come at ``rate`` a second and run ``runs`` seconds, both on average.

    A share ``foreign`` of them is bound by others, a share ``whole_cpus`` asks for whole CPUs, and
    three in ten are deleted before they end.
    """
    rng = random.Random(seed)
    now, found = 0.0, []
    for number in range(count):
        now += rng.expovariate(rate)
        template = rng.choices(templates, [one.weight for one in templates])[0]
        stranger = rng.random() < foreign
        if stranger:
            template = FOREIGN
        cpus = bool(whole_cpus) and rng.random() < whole_cpus
        written = manifest(
            template.name,
            number,
            template.annotations,
            *template.containers,
            whole_cpus=cpus,
            resource=resource,
        )
        found.append(
            Job(
                now,
                1 + rng.expovariate(1 / runs),
                written,
                patience=patience,
                deleted=rng.random() < 0.3,
                foreign=stranger,
            )
        )
    return found
