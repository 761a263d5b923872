"""What filter would say of a node that takes the pod by itself once other pods have gone from it.

That such a node passes is not enough: the rules of the set may refuse it (:mod:`.setrules`). filter
sends a gang that has not started to one domain only, the best of those that have a place for every
member: an eviction in another domain would not help. And it keeps places for groups that have
started: once a member of one of them is evicted the group is owed a place, maybe the very one that
has come free.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from scheduler_extender.deadline import Deadline, OutOfTimeError
from scheduler_extender.framework.decision import pod_capacity
from scheduler_extender.framework.evaluator import evaluate, info_for
from scheduler_extender.framework.groupquestion import for_its_members
from scheduler_extender.framework.members import Member, member_of
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.framework.results import Results
from scheduler_extender.framework.setrules import SET_RULES
from scheduler_extender.groupreference import NODE
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.devices import PodUid
from topology.core.placement import Rejection
from topology.core.requests import GpuRequest


@dataclass(frozen=True, slots=True)
class Joining:
    """What the rules of the set say about a node: the domain of the pod's group in which it is, and
    why the pod may not go there; None where it may."""

    domain: str | None = None
    rejection: Rejection | None = None


class Afterwards:
    """The rules of the set, asked about one pod and nodes as they would be. Changes nothing: filter
    may send a gang elsewhere afterwards. ``of_set`` has what those rules say that concern the
    pod."""

    def __init__(
        self,
        snapshot: Snapshot,
        question: Question,
        deadline: Deadline,
    ) -> None:
        self._question, pod = question, question.pod
        assert isinstance(pod.request, GpuRequest)  # noqa: S101 (the caller looked)
        self._snapshot = snapshot.with_node_infos(info_for(snapshot, question))
        self._member = member_of(snapshot, pod.uid, pod.group_ref, pod.request)
        self.request = pod.request if self._member is None else self._member.request
        self._deadline = deadline
        self.of_set = [
            found for rule in SET_RULES if (found := rule.of_set(question, self._member))
        ]
        self._one_of_each: dict[str, str] | None = None
        self._rivals: dict[str | None, list[str]] = {}

    def on(
        self,
        info: NodeInfo,
        gone: frozenset[PodUid] = frozenset(),
        others: Collection[NodeInfo] = (),
    ) -> Joining:
        """What is said about a node with these facts, from which pods have ``gone``, beside
        ``others`` that have other facts, too.

        Raises :class:`.OutOfTimeError` where that is not worked out in time.
        """
        if not self.of_set:
            return Joining()
        name, then = info.name, self._snapshot.with_node_infos([info, *others])
        question = replace(self._question, gone={name: gone})
        here = self._sorted_out(then, question, [name])
        group = here.group
        domain = None if group is None else group.domains[0]
        if group is not None and self._member is not None and name in here.passed:
            rivals = self._rivals_of(self._member, domain, group.reserves and bool(gone))
            if rivals:
                here = self._sorted_out(then, question, [name, *rivals])
        why = next(why for why, names in here.by_reason.items() if name in names)
        return Joining(domain, why)

    def beside(self, info: NodeInfo) -> int:
        """How many more members of its group that wait surely get a place on a node of these facts
        beside the pod; 0 where there is no time to count them."""
        member = self._member
        if member is None or member.group_ref.domain is None or not member.minds_groups:
            return 0
        size = member.group_ref.size or 1
        come = self._snapshot.group_status(member.group_ref, member.uid).have_come(size)
        # A place yields to the pod, and not to each of its siblings.
        then = self._snapshot.with_node_infos([info])
        info = then.with_node_infos(for_its_members(then, member)).node_info(info.name)
        try:
            with self._deadline.enforced():
                fitting = pod_capacity(info, member.request, self._snapshot.settings, size - come)
        except OutOfTimeError:
            return 0
        return max(0, fitting - 1)

    def _sorted_out(self, snapshot: Snapshot, question: Question, names: list[str]) -> Results:
        """The results where these nodes take the pod by themselves."""
        results = Results(question, self.request, snapshot, {None: names}, member=self._member)
        for sort_out in self.of_set:
            sort_out(results, results.by_reason, self._deadline)
        if results.late or (results.group is not None and results.group.late):
            raise OutOfTimeError
        return results

    def _rivals_of(self, member: Member, domain: str | None, all_of_them: bool) -> list[str]:
        """A node of the best other domain to which the gang may go as things are; or of all, where
        another one may be the best then."""
        started = self._snapshot.group_status(member.group_ref, member.uid).living
        if not member.group_ref.gang or member.group_ref.domain is None or started:
            return []
        others = {d: name for d, name in self._passing(member).items() if d != domain}
        if all_of_them:
            return list(others.values())
        if domain not in self._rivals:
            group = None
            if others:
                names = list(others.values())
                group = self._sorted_out(self._snapshot, self._question, names).group
            best = None if group is None else group.best
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
            domains = self._snapshot.domains(member.group_ref.domain or NODE).of
            passed = [name for name in results.passed if name in domains]
            self._one_of_each = {domains[name]: name for name in reversed(passed)}
        return self._one_of_each
