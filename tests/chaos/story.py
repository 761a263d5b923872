"""What became of each pod and node, put together from a history."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from tests.chaos.history import (
    Answered,
    Created,
    Entry,
    Fault,
    Given,
    Node,
    Refused,
    Released,
    Removed,
    Stored,
    Written,
)

OVER = frozenset({"Succeeded", "Failed"})
REPLICAS = "gpu-topology-system"  # the namespace of the replicas' own pods: only there marks count


@dataclass(frozen=True, slots=True)
class Bind:
    """The moment at which a pod was bound: when etcd stored it with a node for the first time."""

    revision: int
    uid: str
    name: str
    node: str


@dataclass(slots=True)
class PodStory:
    """One pod that we created, and all that became of it."""

    created: Created
    stored: list[Stored] = field(default_factory=list)
    given: Given | None = None
    refused: Refused | None = None
    removed: bool = False

    @property
    def last(self) -> Stored | None:
        """As etcd has it at the end; None where etcd never had it."""
        return self.stored[-1] if self.stored else None

    @property
    def over(self) -> bool:
        """Whether it has ended or is gone."""
        return self.last is not None and (self.last.gone or self.last.phase in OVER)

    @property
    def over_since(self) -> int | None:
        """The revision at which it had ended or was gone."""
        found = (v.revision for v in self.stored if v.gone or v.phase in OVER)
        return next(found, None)

    @property
    def bind(self) -> Bind | None:
        """When and where it was bound."""
        for version in self.stored:
            if version.node:
                return Bind(version.revision, version.uid, version.name, version.node)
        return None

    @property
    def verdict(self) -> str:
        """The verdict that stands in its placement annotation; empty where there is none."""
        for version in self.stored:
            if version.placement:
                return str(json.loads(version.placement).get("verdict", ""))
        return ""


@dataclass
class Story:
    """A whole run."""

    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, PodStory] = field(default_factory=dict)
    stored: list[Stored] = field(default_factory=list)
    kubelets: list[Given | Released] = field(default_factory=list)
    writes: list[Written] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @cached_property
    def binds(self) -> list[Bind]:
        """All binds in etcd's order."""
        found = (pod.bind for pod in self.pods.values())
        return sorted((b for b in found if b is not None), key=lambda bind: bind.revision)

    def by_name(self) -> dict[str, PodStory]:
        """Pods by name: a run gives each its own."""
        return {pod.created.name: pod for pod in self.pods.values()}


def story_of(entries: Iterable[Entry]) -> Story:  # noqa: C901 (a case for each entry)
    """Read a history; its entries may be in any order, but for those of one kubelet."""
    story, removed = Story(), set()
    versions: dict[str, list[Stored]] = defaultdict(list)
    answered: list[Given | Refused] = []
    for entry in entries:
        match entry:
            case Node():
                story.nodes[entry.name] = entry
            case Created():
                story.pods[entry.uid] = PodStory(entry)
            case Removed():
                removed.add(entry.name)
            case Stored():
                story.stored.append(entry)
                versions[entry.uid].append(entry)
            case Given():
                story.kubelets.append(entry)
                answered.append(entry)
            case Released():
                story.kubelets.append(entry)
            case Refused():
                answered.append(entry)
            case Written():
                story.writes.append(entry)
            case Answered():
                story.answers.append(entry)
            case Fault():
                story.faults.append(entry)
            case _:
                pass  # reports are for people who read the file
    story.stored.sort(key=lambda version: version.revision)
    for uid, pod in story.pods.items():
        pod.stored = sorted(versions[uid], key=lambda version: version.revision)
        pod.removed = pod.created.name in removed
    for answer in answered:
        found = story.pods.get(answer.uid)
        if isinstance(answer, Given) and found is not None:
            found.given = answer
        elif isinstance(answer, Refused) and found is not None:
            found.refused = answer
    return story
