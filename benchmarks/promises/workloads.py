"""Jobs of closed loops. A seed draws the pods, which have manifests as in a cluster."""

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from scheduler_extender.annotations import PREFIX
from scheduler_extender.groupreference import DOMAIN, GROUP, NODE, NVLINK_DOMAIN, SIZE, SOURCES
from scheduler_extender.simulator.pods import GroupOf, Job, Manifest


@dataclass(frozen=True, slots=True)
class GpuContainer:
    """A container of a pod, with its role and the number of GPUs that it requests."""

    role: Literal["app", "sidecar", "init"]
    gpus: int


app = partial(GpuContainer, "app")
sidecar = partial(GpuContainer, "sidecar")  # an init container that runs on beside the apps
init = partial(GpuContainer, "init")  # it ends before the apps start


def manifest(
    name: str,
    number: int,
    annotations: dict[str, str],
    *containers: GpuContainer,
    whole_cpus: bool = False,
    resource: str = "nvidia.com/gpu",
) -> Manifest:
    """Return a Pod with these containers, each of which requests devices of a GPU resource.

    ``annotations`` have keys without our prefix. With ``whole_cpus`` the pod is of the class
    Guaranteed, and each container requests one CPU.
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


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A kind of pod of a workload."""

    weight: float  # how often it comes, relative to the others
    name: str
    annotations: dict[str, str]  # without our prefix
    containers: tuple[GpuContainer, ...]


NVLINK = {"link": "nvlink"}
# Every kind of request and container.
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

# Pods with three, four and five GPU containers of every role, among pods with one.
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

SAME, SPREAD = {"same-gpu": "true"}, {"spread-gpus": "true"}
# Pods that want MIG instances or shares of a GPU, some all on one GPU, some all on different GPUs.
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

EXCLUSIVE = {"sharing": "exclusive"}
# Pods that share GPUs. Most say how much memory they use, and some want all shares of a GPU.
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

FOREIGN = PodTemplate(1, "foreign", {}, (app(1),))


@dataclass(frozen=True, slots=True)
class Habits:
    """How pods arrive and run, and which shares of them are special."""

    rate: float  # pods that arrive in a second, on average
    runs: float  # seconds that a pod runs, on average
    foreign: float  # the fraction of pods that are bound without the extender
    whole_cpus: float  # the fraction of pods that request whole CPUs


def jobs(
    count: int, seed: int, habits: Habits, templates: tuple[PodTemplate, ...], resource: str
) -> list[Job]:
    """Draw ``count`` pods, of which three in ten are deleted before they end."""
    rng = random.Random(seed)
    now, found = 0.0, []
    for number in range(count):
        now += rng.expovariate(habits.rate)
        template = rng.choices(templates, [one.weight for one in templates])[0]
        stranger = rng.random() < habits.foreign
        if stranger:
            template = FOREIGN
        cpus = bool(habits.whole_cpus) and rng.random() < habits.whole_cpus
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
                1 + rng.expovariate(1 / habits.runs),
                written,
                deleted=rng.random() < 0.3,
                foreign=stranger,
            )
        )
    return found


COSCHEDULING = SOURCES[0].label


@dataclass(frozen=True, slots=True)
class GroupTemplate:
    """A kind of group."""

    weight: float  # how often it comes, relative to the others
    name: str
    sizes: tuple[int, ...]  # the numbers of members that it may have
    gpus: int  # GPUs that each member requests
    annotations: dict[str, str] = field(default_factory=lambda: NVLINK)
    domain: str = ""  # the domain that its members share
    gang: bool = False
    says_size: bool = True  # whether the members have the annotation for the group's size


GROUPS = (
    GroupTemplate(14, "gang-pairs", (2, 3, 4), 2, gang=True),
    GroupTemplate(8, "gang-pairs-of-any-number", (2, 3), 2, gang=True, says_size=False),
    GroupTemplate(8, "gang-triples", (2, 3), 3, gang=True),
    GroupTemplate(6, "gang-quads", (2, 3), 4, gang=True),
    GroupTemplate(4, "gang-numa", (2, 3), 2, {"same-numa": "true"}, gang=True),
    GroupTemplate(6, "gang-plain", (2, 4), 1, {}, gang=True),
    GroupTemplate(8, "gang-rack", (2, 3, 5), 4, domain=NVLINK_DOMAIN, gang=True),
    GroupTemplate(6, "gang-rack-small", (4, 6), 1, domain=NVLINK_DOMAIN, gang=True),
    GroupTemplate(8, "rack", (2, 3, 5), 4, domain=NVLINK_DOMAIN),
    GroupTemplate(6, "rack-plain", (3, 6), 2, {}, domain=NVLINK_DOMAIN),
    GroupTemplate(8, "node", (2, 3), 2, domain=NODE),
    GroupTemplate(
        4, "rack-preferred", (3,), 4, {"link": "nvlink", "policy": "preferred"}, NVLINK_DOMAIN
    ),
)
# Pods without a group that arrive between the groups.
BETWEEN: tuple[tuple[str, dict[str, str], int], ...] = (
    ("single", {}, 1),
    ("pair", NVLINK, 2),
    ("quad", NVLINK, 4),
)


def group_jobs(count: int, seed: int, *, rate: float, runs: float = 60.0) -> list[Job]:
    """Draw at least ``count`` pods: groups whose members arrive together, and pods in between.

    ``rate`` is in pods a second. A group runs ``runs`` seconds on average, and its members end
    within two seconds of each other.
    """
    rng = random.Random(seed)
    now, number, found = 0.0, 0, []
    while number < count:
        if rng.random() < 0.5:
            kind, annotations, gpus = rng.choice(BETWEEN)
            now += rng.expovariate(rate)
            written = manifest(kind, number, annotations, app(gpus))
            found.append(Job(now, 1 + rng.expovariate(1 / runs), written, patience=30.0))
            number += 1
            continue
        template = rng.choices(GROUPS, [one.weight for one in GROUPS])[0]
        size = rng.choice(template.sizes)
        now += rng.expovariate(rate / size)
        lasts = 5 + rng.expovariate(1 / runs)
        group = GroupOf(f"group-{number}", size, template.domain, template.gang)
        for i in range(size):
            written = _member(template, group, number + i)
            job = Job(
                now + rng.uniform(0, 0.2),
                lasts + rng.uniform(0, 2),
                written,
                deleted=rng.random() < 0.05,
                group=group,
            )
            found.append(job)
        number += size
    return sorted(found, key=lambda job: job.arrives)


def _member(template: GroupTemplate, group: GroupOf, number: int) -> dict[str, object]:
    written = manifest(template.name, number, template.annotations, app(template.gpus))
    metadata = written["metadata"]
    annotations = metadata["annotations"]
    if template.gang:
        metadata["labels"] = {COSCHEDULING: group.name}
    else:
        annotations[GROUP] = group.name
    if template.says_size:
        annotations[SIZE] = str(group.size)
    if template.domain:
        annotations[DOMAIN] = template.domain
    return written
