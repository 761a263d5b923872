"""Who may be evicted on a node, and whether a place appears there without them.

kube-scheduler's dry run counts devices and knows no links. If the pod would get no promise once its
victims are gone, others are looked for whose GPUs complete the set (:func:`replaced`): as few as
possible, of those the ones of the lowest priority, and none that violates a budget if others do.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice
from math import inf

from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.groupreference import Group
from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.node.nodeinfo import NodeInfo, Offer
from scheduler_extender.state.pods.attributes import Amounts
from scheduler_extender.state.pods.budgets import Budgets, Violations
from scheduler_extender.state.pods.record import PodRecord, resource_of
from topology.core.devices import PodUid
from topology.core.devicesets import gpus
from topology.core.placement import Rejection, Verdict
from topology.core.placement.constraints import compiled
from topology.core.requests import GpuRequest, Policy, gpu_request

# Controllers that bring a pod back on the node on which it was.
TIED = ("Node", "DaemonSet")
NOBODY = PodUid("")


def importance(pod: PodRecord) -> tuple[float, float, PodUid]:
    """Sorts the more important pod first, as kube-scheduler does: by priority, then by who has run
    for longer."""
    return (-pod.attributes.priority, pod.started if pod.started is not None else inf, pod.uid)


def candidates(info: NodeInfo, resource: str) -> list[PodRecord]:
    """The pods with devices of ``resource`` here that an eviction would end, by importance.

    Pods that are ending already are none: they let go by themselves. Nor are static pods, which
    the kubelet starts again. One that has GPUs by claims of its own beside its number is as one
    that has them by claims alone. One whose successor would have its GPUs again is none.
    """
    found = [
        replace(pod, request=gpu_request(0, resource=resource))
        if len(info.claimed(pod.uid)) > devices_of(info, pod)
        else pod
        for pod in info.pods.bound.alive.values()
        if not pod.terminating
        and resource_of(pod) == resource
        and devices_of(info, pod)
        and pod.attributes.controller != "Node"
        and pod.uid not in info.pods.assumed
        and not (pod.attributes.controller and info.claimed(NOBODY, pod.namespace, pod.lasting))
    ]
    return sorted(found, key=importance)


def after(info: NodeInfo, victims: Iterable[PodRecord], asking: PodUid) -> NodeInfo:
    """The facts once the victims, and whoever is ending, have let go of their devices.

    ``asking`` is the pod for which that is done: nothing here counts against itself.
    """
    return info.without(info.pods.terminating | {pod.uid for pod in victims} | {asking})


def guarantees(decision: Decision, request: GpuRequest) -> bool:
    """Whether a node that answers so has a guaranteed place: a promise for a pod with required
    constraints, a sure admission for a plain one. A preferred one is content with GPUs."""
    if decision.rejection is not None or decision.assessment is None:
        return False
    if not request.plain and request.policy is Policy.PREFERRED:
        return True
    return decision.assessment.verdict is Verdict.GUARANTEED


class VictimPrecheck:
    """What has to be true of victims before it is worth working a verdict out, for one node.

    Enough devices come free, and on small machines some set that satisfies the constraints.
    """

    def __init__(
        self, info: NodeInfo, request: GpuRequest, asking: PodUid, pods: Collection[PodRecord]
    ) -> None:
        base = after(info, (), asking)
        offer = base.last_offer(request.resource)
        self.usable = isinstance(offer, Offer)
        self.devices_left = 0
        self._good: tuple[int, ...] | None = None
        self._free = 0
        self._masks: dict[PodUid, int] = {}
        self._held = {pod.uid: devices_of(info, pod) for pod in pods}
        self._count = request.effective_count
        if isinstance(offer, Rejection):
            return
        now, kubelet, shown = offer.availability, offer.kubelet, offer.ledger.shown
        self.devices_left = now.devices_left
        for pod in pods:
            self._masks[pod.uid] = gpus(shown.get(pod.uid, 0), now.width)
        hidden = any(pod.uid not in shown for pod in pods) or now.hidden or now.unacknowledged
        constraints = compiled(kubelet.shape, request.constraints, now.sick, kubelet.replicas)
        one_container = request.count == request.effective_count > 0
        if request.required and constraints.known is not None and one_container and not hidden:
            self._good = tuple(constraints.good_sets(request.count))
            self._free = gpus(now.free, now.width) | gpus(now.widest(), now.width)

    def devices_after(self, victims: Iterable[PodRecord]) -> int:
        """How many devices are left at most once these have let go."""
        return self.devices_left + sum(self._held[pod.uid] for pod in victims)

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


def devices_of(info: NodeInfo, pod: PodRecord) -> int:
    """How many devices a pod holds on its node; none where its request cannot be read. Those of a
    claim that it shares count, too."""
    if not isinstance(pod.request, GpuRequest):
        return 0
    return pod.request.effective_count or len(info.claimed(pod.uid))


def freed(victims: Iterable[PodRecord]) -> dict[str, int]:
    """What else comes free, as CPU and memory, in thousandths."""
    found: dict[str, int] = {}
    for pod in victims:
        for name, amount in pod.attributes.requests:
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


# Sets of so many victims that are looked at on one node, the least important first; of 8 pods there
# are 70 at most.
MAX_SETS = 5_000


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The pod that asks for evictions.

    ``asks`` is what it asks for besides devices, ``particular`` that it minds other pods of the
    node (anti-affinity, host ports, spread): then all of kube-scheduler's victims have to go.
    ``group`` is its group, whose members are no victims: the group would lack them. ``gang`` is the
    same where it is a gang.
    """

    uid: PodUid
    request: GpuRequest
    priority: int
    asks: Amounts = ()
    particular: bool = False
    group: Group | None = None
    gang: Group | None = None

    def may_evict(self, pod: PodRecord) -> bool:
        """Whether a pod may be evicted for it."""
        return pod.attributes.priority < self.priority and not self.shares_group(pod)

    def shares_group(self, pod: PodRecord) -> bool:
        """Whether a pod is in the same group."""
        theirs = pod.group_ref
        return self.group is not None and theirs is not None and theirs.group == self.group


def replaced(
    info: NodeInfo,
    pod: Preemptor,
    chosen: Sequence[PodRecord],
    budgets: Budgets,
    passes: Callable[[tuple[PodRecord, ...]], bool],
    deadline: Deadline = NO_DEADLINE,
) -> tuple[PodRecord, ...] | None:
    """The victims to evict in place of those ``chosen``, the most important first; None where none
    would do. ``passes`` says whether the pod passes once some have let go.

    Raises :class:`.OutOfTimeError` after the deadline.
    """
    able = list(filter(pod.may_evict, candidates(info, pod.request.resource)))
    needed = {each.uid for each in chosen} if pod.particular else set()
    if not needed <= {each.uid for each in able}:
        return None
    reckoning = VictimPrecheck(info, pod.request, pod.uid, able)
    if not reckoning.usable:
        return None
    forbidding = _forbidding(able, budgets, deadline)
    violations = Violations(_each_in_time(able, deadline), forbidding)

    def worth_trying(victims: tuple[PodRecord, ...], forbidden: bool) -> bool:
        deadline.check()
        return (
            needed <= {each.uid for each in victims}
            and (violations.count(victims) > 0) is forbidden
            and reckoning.worth_trying(victims)
            and frees_enough(victims, chosen, pod.asks)
        )

    for forbidden in (False, True) if forbidding else (False,):
        for size in range(1, len(able) + 1):
            sets = [found for found in _sets(able, size) if worth_trying(found, forbidden)]
            sets.sort(key=lambda found: _cost(found, violations))
            best = next((found for found in sets if passes(found)), None)
            if best is not None:
                return best
    return None


def _each_in_time(pods: Iterable[PodRecord], deadline: Deadline) -> Iterator[PodRecord]:
    for pod in pods:
        deadline.check()
        yield pod


def _forbidding(pods: Sequence[PodRecord], budgets: Budgets, deadline: Deadline) -> Budgets:
    """The budgets that some of the pods are in, of thousands maybe."""
    namespaces = {pod.namespace for pod in pods}
    found = []
    for budget in budgets:
        if budget.namespace in namespaces:
            deadline.check()
            if any(map(budget.selects, pods)):
                found.append(budget)
    return tuple(found)


def _sets(pods: Sequence[PodRecord], size: int) -> Iterator[tuple[PodRecord, ...]]:
    """Sets of so many pods, each by importance; the least important ones first."""
    upwards = list(reversed(pods))
    for found in islice(combinations(upwards, size), MAX_SETS):
        yield tuple(reversed(found))


def _cost(victims: tuple[PodRecord, ...], violations: Violations) -> tuple[object, ...]:
    """Sorts sets of one size: fewer violated budgets, a lower highest priority, a lower sum."""
    priorities = [pod.attributes.priority for pod in victims]
    order = chain.from_iterable(importance(pod) for pod in victims)
    # Who has run for the shortest time goes first: less work is lost.
    later_first = tuple(-part if isinstance(part, float) else part for part in order)
    return (violations.count(victims), max(priorities), sum(priorities), later_first)
