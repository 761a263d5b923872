"""What filter would answer for a node after evictions, with the rules of the set.

A node that passes by its own answer is not enough, because the rules of the set may reject it
(:mod:`.setrules`). filter sends a gang that has not started to one domain only: the best of the
domains that can hold every member. An eviction in another domain would not help. filter also
reserves capacity for groups that have started. Once a member of such a group is evicted, the group
needs a reservation for its replacement, and that may be the very capacity that has become free.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from scheduler_extender.deadline import Deadline, OutOfTimeError
from scheduler_extender.framework.evaluator import evaluate, info_for
from scheduler_extender.framework.groupquestion import for_its_members
from scheduler_extender.framework.members import Member, member_of
from scheduler_extender.framework.nodedecision import pod_capacity
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
    """The answer of the set's rules about one node.

    ``domain`` is the domain of the pod's group in which the node is. ``rejection`` is the reason
    why the pod may not go there, or None if it may.
    """

    domain: str | None = None
    rejection: Rejection | None = None


class Afterwards:
    """The rules of the set, asked about one pod and about nodes as they would be after evictions.

    It changes nothing: filter may still send a gang elsewhere afterwards. ``of_set`` holds the
    checks of those rules that concern the pod.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        question: Question,
        deadline: Deadline,
    ) -> None:
        self._question, pod = question, question.pod
        assert isinstance(pod.request, GpuRequest)  # noqa: S101 (the caller looked)
        self._snapshot = snapshot.with_node_infos(info_for(snapshot, question))
        self._member = member_of(snapshot, pod, pod.request)
        self.request = pod.request if self._member is None else self._member.request
        self._deadline = deadline
        self.of_set = [found for rule in SET_RULES if (found := rule(question, self._member))]
        self._one_of_each: dict[str, str] | None = None
        self._rivals: dict[str | None, list[str]] = {}

    def on(
        self,
        info: NodeInfo,
        gone: frozenset[PodUid] = frozenset(),
        others: Collection[NodeInfo] = (),
    ) -> Joining:
        """Return the answer about a node with this info once the pods in ``gone`` are evicted.

        ``others`` are other nodes whose info differs from the snapshot, too.

        Raises :class:`.OutOfTimeError` if the answer is not worked out in time.
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
        """Return how many more waiting members of the group surely fit on this node beside the pod.

        Returns 0 if there is no time to count them.
        """
        member = self._member
        if member is None or member.group_ref.domain is None or not member.minds_groups:
            return 0
        size = member.group_ref.size or 1
        come = self._snapshot.group_status(member.group_ref, member.uid).have_come(size)
        # A reservation yields to the pod, but not to each of its peers.
        then = self._snapshot.with_node_infos([info])
        info = then.with_node_infos(for_its_members(then, member)).node_info(info.name)
        try:
            with self._deadline.enforced():
                fitting = pod_capacity(info, member.request, self._snapshot.settings, size - come)
        except OutOfTimeError:
            return 0
        return max(0, fitting - 1)

    def _sorted_out(self, snapshot: Snapshot, question: Question, names: list[str]) -> Results:
        """Return the results, given that these nodes take the pod by their own answers."""
        results = Results(question, self.request, snapshot, {None: names}, member=self._member)
        for sort_out in self.of_set:
            sort_out(results, results.by_reason, self._deadline)
        if results.late or (results.group is not None and results.group.late):
            raise OutOfTimeError
        return results

    def _rivals_of(self, member: Member, domain: str | None, all_of_them: bool) -> list[str]:
        """Return one node of the best other domain to which the gang may go as the cluster is now.

        With ``all_of_them``, return one node of each other domain, because a different one may then
        be the best.
        """
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
        """Return one node of each domain that takes the member by its own answer as it is now."""
        if self._one_of_each is None:
            # Like the waker's question: all nodes are asked, and nodes that are ineligible for it
            # do not pass.
            question = replace(self._question, purpose=Purpose.WAKE, ignores_group=True)
            results = evaluate(self._snapshot, question, None, self._deadline)
            if results.late:
                raise OutOfTimeError
            domains = self._snapshot.domains(member.group_ref.domain or NODE).of
            passed = [name for name in results.passed if name in domains]
            self._one_of_each = {domains[name]: name for name in reversed(passed)}
        return self._one_of_each
