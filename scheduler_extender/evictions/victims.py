"""The pods that may be evicted on a node, and whether a placement is possible without them.

kube-scheduler's dry run counts devices and knows no links. If the pod would get no promise after
the eviction of its victims, the search looks for others whose GPUs complete the set
(:func:`replaced`). It takes as few as possible, and of these the ones with the lowest priority. It
violates no budget if other victims do.
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

# Controllers that bring a pod back on the same node.
TIED = ("Node", "DaemonSet")
NO_POD = PodUid("")


def importance(pod: PodRecord) -> tuple[float, float, PodUid]:
    """Return a sort key that puts the more important pod first, as kube-scheduler does.

    The order is by priority, then by the longer run time.
    """
    return (-pod.attributes.priority, pod.started if pod.started is not None else inf, pod.uid)


def candidates(info: NodeInfo, resource: str) -> list[PodRecord]:
    """Return the pods here with devices of ``resource`` that an eviction would end, by importance.

    Terminating pods are left out, because they release their devices by themselves. So are static
    pods, which the kubelet starts again, and a pod whose successor would get its GPUs again. A pod
    that has GPUs by its own claims as well as by number counts like one that has them by claims
    alone.
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
        and not (pod.attributes.controller and info.claimed(NO_POD, pod.namespace, pod.lasting))
    ]
    return sorted(found, key=importance)


def after(info: NodeInfo, victims: Iterable[PodRecord], asking: PodUid) -> NodeInfo:
    """Return the info once the victims and the terminating pods have released their devices.

    ``asking`` is the pod for which this is done; it never counts against itself.
    """
    return info.without(info.pods.terminating | {pod.uid for pod in victims} | {asking})


def guarantees(decision: Decision, request: GpuRequest) -> bool:
    """Check whether a decision is a guaranteed placement.

    This is a promise for a pod with required constraints, and a sure admission for a pod without
    constraints. A pod with preferred constraints needs only GPUs.
    """
    if decision.rejection is not None or decision.assessment is None:
        return False
    if not request.plain and request.policy is Policy.PREFERRED:
        return True
    return decision.assessment.verdict is Verdict.GUARANTEED


class VictimPrecheck:
    """Necessary conditions on victims, checked on one node before a verdict is worked out.

    Enough devices must become free and, on small machines, a set that meets the constraints.
    """

    def __init__(
        self, info: NodeInfo, request: GpuRequest, asking: PodUid, pods: Collection[PodRecord]
    ) -> None:
        offer = after(info, (), asking).last_offer(request.resource)
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
        """Return an upper bound on the devices left once these pods have released theirs."""
        return self.devices_left + sum(self._held[pod.uid] for pod in victims)

    def worth_trying(self, victims: tuple[PodRecord, ...]) -> bool:
        """Check whether a placement may be possible without these pods."""
        if self.devices_after(victims) < self._count:
            return False
        if self._good is None:
            return True
        free = self._free
        for pod in victims:
            free |= self._masks[pod.uid]
        return any(good & ~free == 0 for good in self._good)


def devices_of(info: NodeInfo, pod: PodRecord) -> int:
    """Return how many devices a pod holds on its node; 0 if its request cannot be read.

    Devices of a claim that it shares count, too.
    """
    if not isinstance(pod.request, GpuRequest):
        return 0
    return pod.request.effective_count or len(info.claimed(pod.uid))


def freed(victims: Iterable[PodRecord]) -> dict[str, int]:
    """Return the other resources that become free, such as CPU and memory, in thousandths."""
    found: dict[str, int] = {}
    for pod in victims:
        for name, amount in pod.attributes.requests:
            found[name] = found.get(name, 0) + amount
    return found


def frees_enough(
    victims: Iterable[PodRecord], instead_of: Iterable[PodRecord], asks: Amounts
) -> bool:
    """Check whether evicting ``victims`` frees enough for a pod that fits without ``instead_of``.

    For each resource, as much becomes free as with ``instead_of``, or as much as the pod ``asks``
    for.
    """
    ours, theirs = freed(victims), freed(instead_of)
    return all(ours.get(name, 0) >= min(amount, theirs.get(name, 0)) for name, amount in asks)


# The largest number of sets of one size that are examined on one node, the least important first;
# of 8 pods there are at most 70.
MAX_SETS = 5_000


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The pod for which others would be evicted.

    ``asks`` is what it requests besides devices. ``particular`` says that other pods of the node
    matter to it (anti-affinity, host ports, spread); then all of kube-scheduler's victims have to
    go. ``group`` is its group; members of the group are no victims, because the group would lack
    them. ``gang`` is the same group if it is a gang.
    """

    uid: PodUid
    request: GpuRequest
    priority: int
    asks: Amounts = ()
    particular: bool = False
    group: Group | None = None
    gang: Group | None = None

    def may_evict(self, pod: PodRecord) -> bool:
        """Check whether a pod may be evicted for this one."""
        return pod.attributes.priority < self.priority and not self.shares_group(pod)

    def shares_group(self, pod: PodRecord) -> bool:
        """Check whether a pod is in the same group."""
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
    """Return the victims to evict instead of those ``chosen``, the most important first.

    Returns None if no victims would do. ``passes`` checks whether the pod passes once some pods
    have released their devices.

    Raises :class:`.OutOfTimeError` after the deadline.
    """
    able = list(filter(pod.may_evict, candidates(info, pod.request.resource)))
    needed = {each.uid for each in chosen} if pod.particular else set()
    if not needed <= {each.uid for each in able}:
        return None
    precheck = VictimPrecheck(info, pod.request, pod.uid, able)
    if not precheck.usable:
        return None
    forbidding = _forbidding(able, budgets, deadline)
    violations = Violations(_each_in_time(able, deadline), forbidding)

    def worth_trying(victims: tuple[PodRecord, ...], forbidden: bool) -> bool:
        deadline.check()
        return (
            needed <= {each.uid for each in victims}
            and (violations.count(victims) > 0) is forbidden
            and precheck.worth_trying(victims)
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
    """Return the budgets that select some of the pods; there may be thousands of budgets."""
    namespaces = {pod.namespace for pod in pods}
    found = []
    for budget in budgets:
        if budget.namespace in namespaces:
            deadline.check()
            if any(map(budget.selects, pods)):
                found.append(budget)
    return tuple(found)


def _sets(pods: Sequence[PodRecord], size: int) -> Iterator[tuple[PodRecord, ...]]:
    """Yield sets of ``size`` pods, each by importance; the least important sets first."""
    upwards = list(reversed(pods))
    for found in islice(combinations(upwards, size), MAX_SETS):
        yield tuple(reversed(found))


def _cost(victims: tuple[PodRecord, ...], violations: Violations) -> tuple[object, ...]:
    """Return a sort key for sets of one size.

    It puts first fewer violated budgets, then a lower highest priority, then a lower sum.
    """
    priorities = [pod.attributes.priority for pod in victims]
    order = chain.from_iterable(importance(pod) for pod in victims)
    # The pod that has run for the shortest time goes first, so that less work is lost.
    later_first = tuple(-part if isinstance(part, float) else part for part in order)
    return (violations.count(victims), max(priorities), sum(priorities), later_first)
