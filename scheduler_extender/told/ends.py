"""What nodes would take if certain pods had ended: tried out, each case once.

The same ends are tried for one waiting request after the other, on nodes many of which are in the
same state. Two things cost time: to count anew what is left on a node (its ledger), and to decide.
Of the first the key is kept, by node and pods: all that answers depend on
(:meth:`.NodeFacts.key`). The answers are kept by request and key.
All of it goes with the enquiry that it is made for.
"""

from collections.abc import Hashable, Sequence

from scheduler_extender.deadline import Deadline
from scheduler_extender.state.asking.enquiry import answer
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.facts import NodeFacts
from topology.core.devices import PodUid
from topology.core.requests import GpuRequest


class Ends:
    """Tries the ends of pods, on facts of one moment, until the deadline."""

    def __init__(self, snapshot: Snapshot, deadline: Deadline) -> None:
        self._snapshot = snapshot
        self._deadline = deadline
        self._numbers: dict[Hashable, int] = {}
        self._answers: dict[tuple[GpuRequest, int], bool] = {}
        self._states: dict[tuple[NodeFacts, frozenset[PodUid], str], int] = {}

    def lets_in(self, facts: NodeFacts, request: GpuRequest, gone: frozenset[PodUid]) -> bool:
        """Whether the node would take a pod with this request if these pods had ended.

        Raises :class:`.OutOfTimeError`.
        """
        self._deadline.check()
        about = (request, self._state_of(facts, gone, request.resource))
        found = self._answers.get(about)
        if found is None:
            decision = answer(self._snapshot, facts.without(gone), request)
            found = self._answers[about] = decision.rejection is None
        return found

    def fewest(
        self, facts: NodeFacts, request: GpuRequest, uids: Sequence[PodUid]
    ) -> frozenset[PodUid] | None:
        """Pods without whom the node takes the pod, none of whom could stay; None where all
        together do not help. Raises :class:`.OutOfTimeError`."""
        gone = frozenset(uids)
        if not self.lets_in(facts, request, gone):
            return None
        for uid in uids:
            if self.lets_in(facts, request, gone - {uid}):
                gone -= {uid}
        return gone

    def _state_of(self, facts: NodeFacts, gone: frozenset[PodUid], resource: str) -> int:
        """A number for the node without these pods, equal if every answer is equal."""
        about = (facts, gone, resource)
        found = self._states.get(about)
        if found is None:
            key = facts.without(gone).key(resource)
            found = self._states[about] = self._numbers.setdefault(key, len(self._numbers))
        return found
