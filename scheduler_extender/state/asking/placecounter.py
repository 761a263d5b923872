"""Counts places in domains and on nodes: how many members of a group surely fit there.

What has been counted is remembered by the cluster, by state and by domain; here is worked out what
is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from scheduler_extender.deadline import Deadline, OutOfTimeError
from scheduler_extender.membership import MAX_SIZE
from scheduler_extender.state.answers.decision import places as surely_taken
from scheduler_extender.state.answers.remembered import PlaceCount
from scheduler_extender.state.asking.enquiry import ROUNDS
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.groups.keeping import Alike, Keeping, keep, merged
from scheduler_extender.state.node.arrivals import with_arrivals
from scheduler_extender.state.node.facts import NodeFacts
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Rejection
from topology.core.placement.constraints import compiled
from topology.core.placement.rejections import hardware_rejection
from topology.core.requests import GpuRequest


class PlaceCounter:
    """Counts for one question until its deadline; ``late`` says from then on that something was not
    counted. For the event loop :class:`.NotAtOnceError` is raised where anything has to be worked
    out."""

    def __init__(self, cluster: Cluster, deadline: Deadline) -> None:
        self._cluster = cluster
        self._deadline = deadline
        self.late = False

    def totals(
        self, question: PlaceCount, kind: str, candidates: Collection[str]
    ) -> dict[str, int]:
        """The places in each domain by itself, worked out where they are not remembered."""
        cluster = self._cluster
        for attempt in range(ROUNDS):
            totals, missing = cluster.total_places(question, kind, candidates, self._deadline)
            if not missing or self.late or attempt == ROUNDS - 1:
                break
            self._deadline.need_quick(False)
            for state, facts in missing.items():
                count = self.places(facts, question)
                if not self.late:
                    cluster.remember_places(question, state, count)
        return totals

    def kept(self) -> Keeping:
        """The places that are kept for groups, worked out where they are not remembered.

        Anybody may start groups that never end, over all nodes: where each asks for something else
        that takes time.
        """
        look = self._cluster.look_at_waiting(self._deadline)
        if isinstance(look, Keeping):
            return look
        try:
            found = keep(look, self.count)
        except OutOfTimeError:
            self.late = True
            return Keeping(None)
        self._cluster.remember_keeping(found)
        return found

    def kept_if(self, gone: frozenset[PodUid], instead: Mapping[NodeName, NodeFacts]) -> Keeping:
        """The places that would be kept if these pods were gone, and these nodes as they are
        ``instead``: their groups wait for others in their place then."""
        look = self._cluster.look_at_waiting_if(gone, instead, deadline=self._deadline)
        if look is None:
            return self.kept()
        try:
            return keep(look, self.count)
        except OutOfTimeError:
            self.late = True
            return Keeping(None)

    def count(self, alike: Alike, request: GpuRequest) -> int:
        """The places on each of some nodes that are alike. Raises :class:`OutOfTimeError`."""
        state = alike.states[request.resource]
        question = PlaceCount(request, MAX_SIZE, merged(alike.kept))
        if state is None:
            return 0
        places = self._cluster.remembered_places(question, state)
        if places is None:
            self._deadline.need_quick(False)
            places = self.places(with_arrivals(alike.facts, question.kept), question)
            if self.late:
                raise OutOfTimeError
            self._cluster.remember_places(question, state, places)
        return places

    def could_hold(self, question: PlaceCount, nodes: Iterable[NodeFacts], members: int) -> bool:
        """Whether nodes may have places for so many members once some of their pods have gone.

        Yes where it is too late to count, and where a node with such devices has not reported.
        """
        request = question.request
        for facts in nodes:
            if self.late or self._deadline.passed():
                self.late = True
                return True
            members -= _most(facts, request)
            if members <= 0 or (
                facts.topology is None and facts.node_object.pieces(request.resource)
            ):
                return True
        return False

    def remembered(self, question: PlaceCount, names: Sequence[NodeName]) -> dict[NodeName, int]:
        """The places on each of some nodes, worked out where they are not remembered."""
        cluster = self._cluster
        look = cluster.look_at_places(question, names, self._deadline)
        self._deadline.need_quick(not look.missing)
        for state, facts in look.missing.items():
            count = self.places(with_arrivals(facts, question.kept), question)
            if not self.late:
                cluster.remember_places(question, state, count)
                look.known[state] = count
        known = look.known
        return {
            name: known.get(state, 0) if state is not None else 0
            for name, state in look.states.items()
        }

    def places(self, facts: NodeFacts, question: PlaceCount) -> int:
        """The places on one node; none once the time is up, and where counting fails."""
        if self.late or self._deadline.passed():
            self.late = True
            return 0
        try:
            with self._deadline.enforced():
                return surely_taken(facts, question.request, self._cluster.settings, question.most)
        except OutOfTimeError:
            self.late = True
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self._cluster.faults.note(facts.name, error)
        return 0


def _most(facts: NodeFacts, request: GpuRequest) -> int:
    """At most how many pods of this request a node could hold at once, whoever leaves it.

    What an empty node *surely* takes is no such bound. It may take more where some of its GPUs are
    held, since then the pod can only get those that are left. So the hardware is counted, for pods
    that are handed the best of it. None on a node without a usable record.
    """
    offer = facts.last_offer(request.resource)
    if isinstance(offer, Rejection):
        return 0
    kubelet = offer.kubelet
    most = kubelet.devices_served // max(1, request.effective_count)
    if not request.required:
        return most
    if hardware_rejection(kubelet, request) is not None:
        return 0
    fit = compiled(kubelet.shape, request.constraints, 0, kubelet.replicas).allowed
    return min(most, kubelet.devices_on(fit) // max(1, request.count))
