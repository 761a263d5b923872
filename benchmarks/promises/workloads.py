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
            template.name, number, template.annotations, *template.containers, whole_cpus=cpus
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
