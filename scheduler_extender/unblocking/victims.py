"""Who may be evicted on a node, and whether a place appears there without them."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.node.facts import NodeFacts, Offer
from scheduler_extender.state.pods.record import PodRecord, resource_of
from scheduler_extender.state.pods.standing import Amounts
from topology.core.devices import PodUid
from topology.core.placement import Rejection, Verdict
from topology.core.placement.constraints import compiled
from topology.core.pools import gpus
from topology.core.requests import GpuRequest, Policy

TIED = ("Node", "DaemonSet")
"""Controllers that bring a pod back on the node on which it was."""


def importance(pod: PodRecord) -> tuple[float, float, PodUid]:
    """Sorts the more important pod first, as kube-scheduler does: by priority, then by who has run
    for longer."""
    return (-pod.standing.priority, pod.started if pod.started is not None else inf, pod.uid)


def candidates(facts: NodeFacts, resource: str) -> list[PodRecord]:
    """The pods with devices of ``resource`` here that an eviction would end, by importance.

    Pods that are ending already are none: they let go by themselves. Nor are static pods, which
    the kubelet starts again.
    """
    found = [
        pod
        for pod in facts.pods.bound.alive.values()
        if not pod.deleting
        and resource_of(pod) == resource
        and pod.standing.controller != "Node"
        and pod.uid not in facts.pods.in_flight
    ]
    return sorted(found, key=importance)


def after(facts: NodeFacts, victims: Iterable[PodRecord], asking: PodUid) -> NodeFacts:
    """The facts once the victims, and whoever is ending, have let go of their devices.

    ``asking`` is the pod for which that is done: nothing here counts against itself.
    """
    return facts.without(facts.pods.ending | {pod.uid for pod in victims} | {asking})


def guarantees(decision: Decision, request: GpuRequest) -> bool:
    """Whether a node that answers so has a guaranteed place: a promise for a pod with required
    constraints, a sure admission for a plain one. A preferred one is content with GPUs."""
    if decision.rejection is not None or decision.assessment is None:
        return False
    if not request.plain and request.policy is Policy.PREFERRED:
        return True
    return decision.assessment.verdict is Verdict.GUARANTEED


class Reckoning:
    """What has to be true of victims before it is worth working a verdict out, for one node.

    Enough devices come free, and on small machines some set that satisfies the constraints.
    """

    def __init__(
        self, facts: NodeFacts, request: GpuRequest, asking: PodUid, pods: Iterable[PodRecord]
    ) -> None:
        base = after(facts, (), asking)
        offer = base.last_offer(request.resource)
        self.usable = isinstance(offer, Offer)
        self.devices_left = 0
        self._good: tuple[int, ...] | None = None
        self._free = 0
        self._masks: dict[PodUid, int] = {}
        self._count = request.effective_count
        if isinstance(offer, Rejection):
            return
        now, kubelet, shown = offer.availability, offer.kubelet, offer.ledger.shown
        self.devices_left = now.devices_left
        for pod in pods:
            self._masks[pod.uid] = gpus(shown.get(pod.uid, 0), now.width)
        hidden = any(pod.uid not in shown for pod in pods) or now.hidden or now.unreported
        constraints = compiled(kubelet.shape, request.constraints, now.sick, kubelet.replicas)
        one_container = request.count == request.effective_count
        if request.required and constraints.known is not None and one_container and not hidden:
            self._good = tuple(constraints.good_sets(request.count))
            self._free = gpus(now.free, now.width) | gpus(now.widest(), now.width)

    def devices_after(self, victims: Iterable[PodRecord]) -> int:
        """How many devices are left at most once these have let go."""
        return self.devices_left + sum(devices_of(pod) for pod in victims)

    def worth_trying(self, victims: tuple[PodRecord, ...]) -> bool:
        """Whether a place may appear without these."""
        if self.devices_after(victims) < self._count:
            return False
        if self._good is None:
            return True
        free = self._free
        for pod in victims:
            free |= self._masks[pod.uid]
        return any(good & ~free == 0 for good in self._good)


def devices_of(pod: PodRecord) -> int:
    """How many devices a pod holds; none where its request cannot be read."""
    return pod.request.effective_count if isinstance(pod.request, GpuRequest) else 0


def freed(victims: Iterable[PodRecord]) -> dict[str, int]:
    """What else comes free, as CPU and memory, in thousandths."""
    found: dict[str, int] = {}
    for pod in victims:
        for name, amount in pod.standing.asks:
            found[name] = found.get(name, 0) + amount
    return found


def frees_enough(
    victims: Iterable[PodRecord], instead_of: Iterable[PodRecord], asks: Amounts
) -> bool:
    """Whether a pod that ``asks`` for this fits beside the others once the victims are gone, given
    that it fits without those ``instead_of`` whom they are.

    Of each resource as much comes free as before, or as much as the pod asks for.
    """
    ours, theirs = freed(victims), freed(instead_of)
    return all(ours.get(name, 0) >= min(amount, theirs.get(name, 0)) for name, amount in asks)
