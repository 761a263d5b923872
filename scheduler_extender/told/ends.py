"""Which ends of pods would let a waiting pod onto a node."""

from collections.abc import Sequence

from scheduler_extender.deadline import Deadline
from scheduler_extender.framework.trials import Trials
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.facts import NodeFacts
from topology.core.devices import PodUid
from topology.core.requests import GpuRequest


class Ends:
    """Tries the ends of pods, on facts of one moment, until the deadline."""

    def __init__(self, snapshot: Snapshot, deadline: Deadline) -> None:
        self._trials = Trials(snapshot)
        self._deadline = deadline

    def lets_in(self, facts: NodeFacts, request: GpuRequest, gone: frozenset[PodUid]) -> bool:
        """Whether the node would take a pod with this request if these pods had ended.

        Raises :class:`.OutOfTimeError`.
        """
        self._deadline.check()
        return self._trials.answer(facts, request, gone).rejection is None

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
