"""Judges pods that do not exist yet beside one another: each member of a group, and the group.

A node answers each pod by itself. So all members of a group may pass although they do not all fit
at once. A group is *whole* if they do. To find out, its members are placed on the nodes one after
the other. Each is decided about with the earlier ones bound and unacknowledged. Members that are
counted in this way surely fit, whichever GPUs each of them gets.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.explain import Struct
from scheduler_extender.explain.answers import Answer, answers_to
from scheduler_extender.explain.wording import asked_text
from scheduler_extender.framework.packing import packed
from scheduler_extender.groupreference import NODE, Group, GroupReference
from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.domains import domain_of
from scheduler_extender.state.groups.groups import MOST_REQUESTS, lives
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.attributes import BARE, SchedulingAttributes
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Reason, Rejection, Verdict
from topology.core.requests import GpuRequest, Policy


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pod that does not exist yet, as a file describes it."""

    name: str
    request: GpuRequest
    notes: tuple[str, ...] = ()  # annotations that do not count
    group_ref: GroupReference | None = None
    attributes: SchedulingAttributes = BARE
    copies: int = 1  # that its object creates at one time
    file: str = ""  # the file that contains it
    maker: str = ""  # its object, if that also creates pods with other requests

    @property
    def text(self) -> str:
        """The request and the group in a few words."""
        return asked_text(self.record(PodUid("")))

    @property
    def alike(self) -> Hashable:
        """A key that is equal for pods to which all nodes answer alike."""
        return self.request, self.group_ref, self.attributes

    def on(self, info: NodeInfo) -> NodeInfo:
        """Return a node as the pod sees it, without a reservation that yields to the pod."""
        gang = None if self.group_ref is None else self.group_ref.as_gang
        return info.yielding_to(self.attributes.priority, gang)

    def record(self, uid: PodUid) -> PodRecord:
        """Return the pod as a waiting pod."""
        namespace = self.group_ref.group.namespace if self.group_ref is not None else ""
        return PodRecord(
            uid=uid,
            namespace=namespace,
            name=self.name,
            node=None,
            request=self.request,
            group_ref=self.group_ref,
            attributes=self.attributes,
        )

    def and_as_many_as(self, other: "Wanted") -> "Wanted":
        """Return the pod with the copies of another one of its object that has the same request."""
        notes = tuple(dict.fromkeys((*self.notes, *other.notes)))
        return replace(self, copies=self.copies + other.copies, notes=notes)


@dataclass(frozen=True, slots=True)
class Judged:
    """Pods to which all nodes answer alike, and the answers.

    ``room`` is the number of pods without a group that surely fit at once, up to the most copies of
    one pod.
    """

    pods: tuple[Wanted, ...]
    answers: Sequence[Answer]
    room: int = 1

    def fit(self, pod: Wanted) -> int | None:
        """Return how many of a pod's copies fit at once; None if there is one copy, or a group."""
        return None if pod.copies == 1 or pod.group_ref else min(self.room, pod.copies)


class GroupFit(Struct, frozen=True):
    """A group: how many of its members without a node fit at once."""

    group: str
    namespace: str
    pods: list[str]
    members: Annotated[int, Meta(description="the number of members without a node")]
    fit: Annotated[int, Meta(description="the number of these members that fit at once")]

    @property
    def rejected(self) -> bool:
        """Whether not all of them fit."""
        return self.fit < self.members

    @property
    def text(self) -> str:
        """The same as text.

        >>> GroupFit("podgroup/gang", "team", ["a", "b"], 4, 3).text
        'group podgroup/gang: only 3 of its 4 members fit at once, so the group waits'
        >>> GroupFit("train", "team", ["a"], 4, 4).text
        'group train: all of its 4 members fit at once'
        """
        room = f"group {self.group}:"
        if self.rejected:
            return (
                f"{room} only {self.fit:,} of its {self.members:,} members fit at once, so the "
                "group waits"
            )
        return f"{room} all of its {self.members:,} members fit at once"


class ObjectFit(Struct, frozen=True):
    """An object that creates several kinds of ungrouped pods: how many of all fit at once."""

    object: str
    file: str
    copies: Annotated[int, Meta(description="the number of pods that the object runs at one time")]
    fit: Annotated[int, Meta(description="the number of these pods that certainly fit at once")]

    @property
    def text(self) -> str:
        """The same as text."""
        return f"{self.object}: {self.fit:,} of its {self.copies:,} pods fit at once"


@dataclass(frozen=True, slots=True)
class Together:
    """The answers about several pods.

    They include the groups among these pods, and the objects that create several kinds of them.
    """

    judged: list[Judged]
    groups: list[GroupFit]
    objects: list[ObjectFit]

    @property
    def all_may_come(self) -> bool:
        """Whether some node takes each pod, and each group fits."""
        return all(any(answer.may_come for answer in each.answers) for each in self.judged)

    @property
    def all_fit(self) -> bool:
        """Whether all pods without a group fit at once, for each object."""
        return all(each.fit == each.copies for each in self.objects) and all(
            fit is None or fit == pod.copies
            for each in self.judged
            for pod in each.pods
            for fit in [each.fit(pod)]
        )


def judge(cluster: Cache, wanted: Sequence[Wanted]) -> Together:
    """Return what every node would answer to each of these pods.

    Members of a group are judged as peers that wait together. Pods without a group are judged each
    by itself, as if the others did not exist. The members are added to ``cluster``.
    """
    uids: dict[int, PodUid] = {}
    members: dict[Group, list[Wanted]] = {}
    there, come = {(pod.namespace, pod.name): pod for pod in cluster.snapshot().pods}, set[int]()
    for number, pod in enumerate(wanted):
        uids[id(pod)] = PodUid(f"wanted {number}")
        if pod.group_ref is None:
            continue
        members.setdefault(pod.group_ref.group, []).append(pod)
        # It is a pod of the file; others of this name are further pods of the same template.
        known = there.pop((pod.group_ref.group.namespace, pod.name), None)
        if known is None:
            cluster.put_pod(pod.record(uids[id(pod)]))
        else:  # the file describes a pod that exists already
            uids[id(pod)] = known.uid
            if lives(known):
                come.add(id(pod))
    snapshot = cluster.snapshot()
    alike: dict[Hashable, list[Wanted]] = {}
    for pod in wanted:
        alike.setdefault(pod.alike, []).append(pod)
    judged: list[Judged] = []
    of_group: dict[Group, list[Judged]] = {}
    for pods in alike.values():
        first = pods[0]
        answers = answers_to(snapshot, first.record(uids[id(first)]))
        most = 1 if first.group_ref else max(pod.copies for pod in pods)
        room = room_for(snapshot, first, answers, most, NO_DEADLINE) if most > 1 else 1
        each = Judged(tuple(pods), answers, room)
        judged.append(each)
        if first.group_ref is not None:
            of_group.setdefault(first.group_ref.group, []).append(each)
    fits = {
        group: _fit(
            snapshot,
            group,
            pods,
            [*of_group[group], *_others(snapshot, group, {*uids.values()})],
            come,
        )
        for group, pods in members.items()
    }
    objects = list(_objects(snapshot, judged))
    return Together([_rejected(each, fits) for each in judged], list(fits.values()), objects)


def _objects(snapshot: Snapshot, judged: Iterable[Judged]) -> Iterator[ObjectFit]:
    """Yield how many pods fit at once of each object that creates several kinds of pods."""
    made: dict[tuple[str, str], dict[Wanted, set[NodeName]]] = {}
    for each in judged:
        names = {answer.node for answer in each.answers if answer.may_come}
        for pod in each.pods:
            if pod.maker and pod.group_ref is None:
                made.setdefault((pod.file, pod.maker), {})[pod] = names
    for (file, maker), eligible in made.items():
        wants = {pod: pod.copies for pod in eligible}
        if len(wants) > 1:
            fit = packed(snapshot.settings, snapshot.nodes, wants, eligible)
            yield ObjectFit(maker, file, sum(wants.values()), fit)


def _rejected(judged: Judged, fits: Mapping[Group, GroupFit]) -> Judged:
    """Return the same answers, with every node rejected if the group of its pods is rejected."""
    group_ref = judged.pods[0].group_ref
    fit = fits[group_ref.group] if group_ref is not None else None
    if fit is None or not fit.rejected:
        return judged
    why = Rejection(
        f"only {fit.fit:,} of the group's {fit.members:,} members fit at once",
        True,
        Reason.GROUP,
    )
    answers = []
    for answer in judged.answers:
        if answer.passes:
            assessed = answer.decision.assessment
            if assessed is not None:
                assessed = replace(assessed, verdict=Verdict.NOT_NOW)
            no = Decision(why, assessed)
            answer = replace(answer, decision=no, score=None, doubt=None, outcomes=None)
        answers.append(answer)
    return replace(judged, answers=answers)


def _others(snapshot: Snapshot, group: Group, of_file: Collection[PodUid]) -> list[Judged]:
    """Return the waiting members that are not in the file, those for most devices first."""
    alike: dict[Hashable, list[tuple[Wanted, PodRecord]]] = {}
    for pod in snapshot.unbound:
        if pod.group_ref is None or pod.group_ref.group != group or pod.uid in of_file:
            continue
        if isinstance(pod.request, GpuRequest) and not (pod.ended or pod.terminating):
            attributes = replace(pod.attributes, nominated=None)
            member = Wanted(pod.name, pod.request, (), pod.group_ref, attributes)
            alike.setdefault(member.alike, []).append((member, pod))
    largest = sorted(alike.values(), key=lambda pods: -pods[0][0].request.effective_count)
    return [
        Judged(tuple(member for member, _ in pods), answers_to(snapshot, pods[0][1]))
        for pods in largest[:MOST_REQUESTS]
    ]


def _fit(
    snapshot: Snapshot,
    group: Group,
    pods: Sequence[Wanted],
    judged: Sequence[Judged],
    come: Collection[int],
) -> GroupFit:
    """Return how many members fit at once.

    Counted are the members in the file, those that wait, and those that are missing according to
    the group's size; the latter count as if their request was the first member's. ``judged`` are
    the first two, those of the file first. ``come`` are the ids of the members that have a node.
    """
    first = pods[0]
    assert first.group_ref is not None  # noqa: S101 (the caller looked)
    status = snapshot.group_status(first.group_ref)
    wants = Counter[Wanted]()
    size = first.group_ref.size
    left = max(size or 0, sum(pod.copies for pod in pods)) - status.have_come(size)
    for each in judged:
        waiting = [pod.copies for pod in each.pods if id(pod) not in come]
        least = len(waiting) if each.pods[0] in pods else 0
        wants[each.pods[0]] = max(least, min(sum(waiting), left))
        left -= wants[each.pods[0]]
    wants[first] += max(0, left)
    eligible = {each.pods[0]: {a.node for a in each.answers if a.may_come} for each in judged}
    somewhere = set().union(*eligible.values())
    nodes = [info for info in snapshot.nodes if info.name in somewhere]
    bound = first.group_ref.domain is not None and first.request.policy is Policy.REQUIRED
    domains: dict[str | None, list[NodeInfo]] = {}
    for info in nodes:
        domain = domain_of(info, first.group_ref.domain or NODE) if bound else None
        domains.setdefault(domain, []).append(info)
    fits = max(
        (packed(snapshot.settings, at, wants, eligible) for at in domains.values()), default=0
    )
    names = [pod.name for pod in pods]
    members = wants.total()
    return GroupFit(group.name, group.namespace, names, members, min(fits, members))


def room_for(
    snapshot: Snapshot, pod: Wanted, answers: Sequence[Answer], copies: int, deadline: Deadline
) -> int:
    """Return how many of these copies of a pod surely fit at once.

    They fit whichever GPUs each of them gets. The pods go to the nodes to which they may come;
    ``answers`` are the nodes' answers to the pod. Raises :class:`.OutOfTimeError`.
    """
    names = {answer.node for answer in answers if answer.may_come}
    with deadline.enforced():
        return packed(snapshot.settings, snapshot.nodes, {pod: copies}, {pod: names})
