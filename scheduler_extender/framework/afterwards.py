"""What filter would say of a node once pods have gone from it, for a member of a group.

A node that would take the pod by itself is not enough. filter sends a gang that has not started to
one domain only, the best of those that have a place for every member: an eviction in another domain
would help nobody. And it keeps places for groups that have started: once a member of one of them is
evicted the group is owed a place, maybe the very one that has come free.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from scheduler_extender.deadline import Deadline, OutOfTimeError
from scheduler_extender.framework.decision import places
from scheduler_extender.framework.evaluator import evaluate, facts_for
from scheduler_extender.framework.groupquestion import GroupAnswer, ask_group
from scheduler_extender.framework.members import Member, member_of
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.membership import NODE
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.facts import NodeFacts
from topology.core.devices import PodUid
from topology.core.placement import Rejection
from topology.core.requests import GpuRequest


@dataclass(frozen=True, slots=True)
class Joining:
    """What the pod's group says about a node: the node's domain, and why the pod may not go there;
    None where it may."""

    domain: str | None = None
    rejection: Rejection | None = None


class Afterwards:
    """One member of a group, asked about nodes as they would be. Changes nothing: filter may send
    the gang elsewhere afterwards as if nobody had asked."""

    def __init__(
        self,
        snapshot: Snapshot,
        question: Question,
        deadline: Deadline,
    ) -> None:
        self._question, pod = question, question.pod
        assert isinstance(pod.request, GpuRequest)  # noqa: S101 (the caller looked)
        self._snapshot = snapshot.with_facts(facts_for(snapshot, question))
        self._member = member_of(snapshot, pod.uid, pod.membership, pod.request)
        self.request = pod.request if self._member is None else self._member.request
        self._deadline = deadline
        self._one_of_each: dict[str, str] | None = None
        self._rivals: dict[str | None, list[str]] = {}

    def on(
        self,
        facts: NodeFacts,
        gone: frozenset[PodUid] = frozenset(),
        others: Collection[NodeFacts] = (),
    ) -> Joining:
        """What the group says about a node with these facts, from which pods have ``gone``, beside
        ``others`` that have other facts, too.

        Raises :class:`.OutOfTimeError` where that is not worked out in time.
        """
        member = self._member
        if member is None or not member.minds_groups:
            return Joining()
        then = self._snapshot.with_facts([facts, *others])
        here = self._gathered(then, member, [facts.name], gone)
        if facts.name not in here.rejections:
            rivals = self._rivals_of(member, here.domains[0], here.keeps and bool(gone))
            if rivals:
                here = self._gathered(then, member, [facts.name, *rivals], gone)
        return Joining(here.domains[0], here.rejections.get(facts.name))

    def beside(self, facts: NodeFacts) -> int:
        """How many more members of its group that wait surely get a place on a node of these facts
        beside the pod; 0 where there is no time to count them."""
        member = self._member
        if member is None or member.membership.domain is None or not member.minds_groups:
            return 0
        size = member.membership.size or 1
        come = self._snapshot.standing(member.membership, member.uid).have_come(size)
        try:
            with self._deadline.enforced():
                fitting = places(facts, member.request, self._snapshot.settings, size - come)
        except OutOfTimeError:
            return 0
        return max(0, fitting - 1)

    def _gathered(
        self,
        snapshot: Snapshot,
        member: Member,
        names: list[str],
        gone: frozenset[PodUid] = frozenset(),
    ) -> GroupAnswer:
        direction = snapshot.direction_of(member.membership)
        answer = ask_group(snapshot, member, names, self._deadline, direction=direction, gone=gone)
        if answer.late:
            raise OutOfTimeError
        return answer

    def _rivals_of(self, member: Member, domain: str | None, all_of_them: bool) -> list[str]:
        """A node of the best other domain to which the gang may go as things are; or of all, where
        another one may be the best then."""
        started = self._snapshot.standing(member.membership, member.uid).living
        if not member.membership.gang or member.membership.domain is None or started:
            return []
        others = {d: name for d, name in self._passing(member).items() if d != domain}
        if all_of_them:
            return list(others.values())
        if domain not in self._rivals:
            answer = (
                self._gathered(self._snapshot, member, list(others.values())) if others else None
            )
            best = answer.best if answer is not None else None
            self._rivals[domain] = [others[best]] if best is not None else []
        return self._rivals[domain]

    def _passing(self, member: Member) -> Mapping[str, str]:
        """A node of each domain that takes the member by itself as it is."""
        if self._one_of_each is None:
            # As the waker asks: about all nodes, and those that are closed to the pod do not pass.
            question = replace(self._question, purpose=Purpose.WAKE, alone=True)
            results = evaluate(self._snapshot, question, None, self._deadline)
            if results.late:
                raise OutOfTimeError
            domains = self._snapshot.domains(member.membership.domain or NODE).of
            passed = [name for name in results.passed if name in domains]
            self._one_of_each = {domains[name]: name for name in reversed(passed)}
        return self._one_of_each
