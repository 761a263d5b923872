"""Pods that do not exist yet, judged beside one another: each member of a group, and the group.

A node answers each pod by itself, so all members of a group may pass while there is no room for all
of them at once. The group is *whole* where there is: its members are put on the nodes one after the
other, each decided about with those before it bound and not reported. What is counted so surely
fits, whichever GPUs each of them gets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler_extender.membership import Group, Membership
from scheduler_extender.state.answers.decision import Decision, arrival, decide
from scheduler_extender.state.cluster.board import ClusterFacts
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.groups.groups import lives
from scheduler_extender.state.node.arrivals import with_arrivals
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.selecting import ANYWHERE, Destinations
from scheduler_extender.state.pods.standing import Standing
from scheduler_extender.told.answers import Answer, answers
from topology.core.devices import PodUid
from topology.core.placement import Reason, Rejection, Verdict
from topology.core.requests import GpuRequest, Policy


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pod that does not exist yet: what it asks for, its group, and where it may be sent."""

    name: str
    request: GpuRequest
    membership: Membership | None = None
    destinations: Destinations = ANYWHERE

    @property
    def text(self) -> str:
        """The request and the group in a few words."""
        group = self.membership.text if self.membership is not None else ""
        return f"{self.request.text} {group}".strip()


@dataclass(frozen=True, slots=True)
class Judged:
    """Pods to which all nodes answer alike, and the answers."""

    pods: tuple[Wanted, ...]
    answers: Sequence[Answer]


@dataclass(frozen=True, slots=True)
class Whole:
    """A group: of its ``wants`` members that have no place yet, how many fit at once."""

    group: Group
    names: tuple[str, ...]
    wants: int
    fits: int

    @property
    def text(self) -> str:
        """The same in words.

        >>> Whole(Group("team", "podgroup/gang"), ("a", "b"), 4, 3).text
        'group podgroup/gang: there is room for 3 of its 4 members at once, so it is refused'
        >>> Whole(Group("team", "train"), ("a",), 4, 4).text
        'group train: there is room for all of its 4 members at once'
        """
        if self.fits < self.wants:
            some = f"{self.fits:,} of its {self.wants:,} members"
            return f"group {self.group.name}: there is room for {some} at once, so it is refused"
        return (
            f"group {self.group.name}: there is room for all of its {self.wants:,} members at once"
        )


@dataclass(frozen=True, slots=True)
class Together:
    """The answers about several pods, and about the groups among them."""

    judged: list[Judged] = field(default_factory=list)
    groups: list[Whole] = field(default_factory=list)

    @property
    def all_may_come(self) -> bool:
        """Whether some node takes each pod, and there is room for each group."""
        return all(any(answer.may_come for answer in each.answers) for each in self.judged)


def judge(cluster: Cluster, wanted: Sequence[Wanted]) -> Together:
    """What every node would answer to each of these pods.

    Members of a group are judged as siblings that wait together. Pods without a group are judged
    each by itself, as if the others were not there. ``cluster`` is told of the members.
    """
    uids: dict[int, PodUid] = {}
    members: dict[Group, list[Wanted]] = {}
    there, come = cluster.pods_by_name(), set[int]()
    for number, pod in enumerate(wanted):
        uids[id(pod)] = PodUid(f"wanted {number}")
        if pod.membership is None:
            continue
        members.setdefault(pod.membership.group, []).append(pod)
        # It is one of the file's; others of this name are further pods of the same template.
        known = there.pop((pod.membership.group.namespace, pod.name), None)
        if known is None:
            cluster.put_pod(_record(pod, uids[id(pod)]))
        else:  # the file tells of a pod that is there already
            uids[id(pod)] = known.uid
            if lives(known):
                come.add(id(pod))
    seen = cluster.cluster_facts()
    alike: dict[object, list[Wanted]] = {}
    for pod in wanted:
        alike.setdefault((pod.request, pod.membership, pod.destinations), []).append(pod)
    found = Together()
    for pods in alike.values():
        first = pods[0]
        told = answers(
            cluster, seen, first.request, asking=uids[id(first)], membership=first.membership,
            destinations=first.destinations,
        )  # fmt: skip
        found.judged.append(Judged(tuple(pods), told))
    of_group: dict[Group, list[Judged]] = {}
    for each in found.judged:
        if (membership := each.pods[0].membership) is not None:
            of_group.setdefault(membership.group, []).append(each)
    for group, pods in members.items():
        found.groups.append(_whole(cluster, seen, group, pods, of_group[group], come))
    refused = {whole.group: whole for whole in found.groups if whole.fits < whole.wants}
    judged = [_refused(each, refused) for each in found.judged]
    return Together(judged, found.groups)


def _record(pod: Wanted, uid: PodUid) -> PodRecord:
    assert pod.membership is not None  # noqa: S101 (the caller looked)
    return PodRecord(
        uid=uid,
        namespace=pod.membership.group.namespace,
        name=pod.name,
        node=None,
        request=pod.request,
        membership=pod.membership,
        standing=Standing(destinations=pod.destinations),
    )


def _refused(judged: Judged, refused: Mapping[Group, Whole]) -> Judged:
    """The same where the pods' group is refused as a whole: then no node takes them."""
    membership = judged.pods[0].membership
    whole = refused.get(membership.group) if membership is not None else None
    if whole is None:
        return judged
    why = Rejection(
        f"there is room for {whole.fits:,} of the group's {whole.wants:,} members at once",
        True,
        Reason.GROUP,
    )
    return replace(judged, answers=[_with(answer, why) for answer in judged.answers])


def _with(answer: Answer, why: Rejection) -> Answer:
    if not answer.passes:
        return answer
    assessed = answer.decision.assessment
    if assessed is not None:
        assessed = replace(assessed, verdict=Verdict.IMPOSSIBLE)
    return replace(answer, decision=Decision(why, assessed), score=None, doubt=None, outcomes=None)


def _whole(
    cluster: Cluster,
    seen: ClusterFacts,
    group: Group,
    pods: Sequence[Wanted],
    judged: Sequence[Judged],
    come: Collection[int],
) -> Whole:
    """How many members fit at once: those of the file, and those that its size says are missing,
    which count as if they asked what the first one asks. ``come`` are the ids of those that have
    their place."""
    first = pods[0]
    assert first.membership is not None  # noqa: S101 (the caller looked)
    look = cluster.look_at_group(first.membership)
    wants = Counter(each.pods[0] for each in judged for pod in each.pods if id(pod) not in come)
    size = first.membership.size
    missing = (size or 0) - look.standing.have_come(size) - wants.total()
    wants[first] += max(0, missing)
    open_to = {each.pods[0]: {a.node for a in each.answers if a.may_come} for each in judged}
    somewhere = set().union(*open_to.values())
    nodes = [facts for facts in seen.nodes if facts.name in somewhere]
    bound = first.membership.domain is not None and first.request.policy is Policy.REQUIRED
    domains: dict[str | None, list[NodeFacts]] = {}
    for facts in nodes:
        domains.setdefault(look.domain_of(facts.name) if bound else None, []).append(facts)
    fits = max((_placed(cluster, at, wants, open_to) for at in domains.values()), default=0)
    names = tuple(pod.name for pod in pods)
    return Whole(group, names, wants.total(), min(fits, wants.total()))


def _placed(
    cluster: Cluster,
    nodes: Iterable[NodeFacts],
    wants: Mapping[Wanted, int],
    open_to: Mapping[Wanted, Collection[str]],
) -> int:
    """How many of the members are placed on these nodes, those first that ask for most."""
    now = list(nodes)
    placed = 0
    full: set[object] = set()
    for pod in sorted(wants, key=lambda pod: -pod.request.effective_count):
        left, alone = wants[pod], pod.request.alone
        for place, facts in enumerate(now):
            if not left:
                break
            key = (alone, facts.key(alone.resource))
            if facts.name not in open_to.get(pod, ()) or key in full:
                continue
            taken = 0
            decision = decide(facts, alone, cluster.settings)
            while decision.rejection is None and left:
                taken, left = taken + 1, left - 1
                facts = with_arrivals(facts, (arrival(alone, decision),))
                decision = decide(facts, alone, cluster.settings) if left else decision
            if not taken:
                full.add(key)
            now[place] = facts
            placed += taken
    return placed
