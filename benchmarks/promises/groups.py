"""Groups of pods in a closed loop: what comes, and whether its members share what they must."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass, field

from benchmarks.promises.pods import GroupOf, Job, PodEntry, app, manifest
from benchmarks.promises.scene import Scene
from scheduler_extender.membership import DOMAIN, GROUP, NODE, NVLINK_DOMAIN, SIZE, SOURCES
from topology.core.devices import NodeName

NVLINK = {"link": "nvlink"}
COSCHEDULING = SOURCES[0].label


@dataclass(frozen=True, slots=True)
class GroupTemplate:
    """A kind of group: how often it comes beside the others, how many members it may have, how many
    GPUs each of them asks for, and what they share. ``says_size`` is whether they say how many
    they are."""

    weight: float
    name: str
    sizes: tuple[int, ...]
    gpus: int
    annotations: dict[str, str] = field(default_factory=lambda: NVLINK)
    domain: str = ""
    gang: bool = False
    says_size: bool = True


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
SINGLES: tuple[tuple[str, dict[str, str], int], ...] = (
    ("single", {}, 1),
    ("pair", NVLINK, 2),
    ("quad", NVLINK, 4),
)
"""Pods without a group that come in between."""


def group_jobs(count: int, seed: int, *, rate: float, runs: float = 60.0) -> list[Job]:
    """``count`` pods and a few more: groups whose members come at once, and pods in between.

    ``rate`` is pods a second. A group runs ``runs`` seconds on average, and its members end within
    two seconds of each other.
    """
    rng = random.Random(seed)
    now, number, found = 0.0, 0, []
    while number < count:
        if rng.random() < 0.5:
            kind, annotations, gpus = rng.choice(SINGLES)
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


class GroupJudge:
    """Looks whether the members of a group that live share what they must, at each admission."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._living: dict[str, list[PodEntry]] = {}

    def bound(self, entry: PodEntry, node: NodeName) -> None:
        """A pod is bound."""
        group, tally = entry.job.group, self._scene.tally
        if group is None:
            return
        living = [e for e in self._living.get(group.name, []) if not (e.ended or e.gone)]
        living = [e for e in living if not e.record.deleting]
        self._living[group.name] = [*living, entry]
        tally.group_members += 1
        tally.whole_groups += len(living) + 1 == group.size
        if not group.domain or "preferred" in entry.job.manifest["metadata"]["name"]:
            return
        domains = {self._domain(group, e.record.node) for e in living if e.record.node}
        if domains - {self._domain(group, node)}:
            tally.split_groups += 1

    def _domain(self, group: GroupOf, node: NodeName) -> Hashable:
        if group.domain == NODE:
            return node
        return self._scene.nodes[node].fabric
