"""Searches the whole cluster for the cheapest plan that makes a guaranteed placement possible.

Candidates are sets of pods of one node, and the placement is on that node. Smaller sets come first.
Within a size, every set that could do is examined on every node, in the order of the lowest
possible cost. A set is worked out only if it can still be cheaper than the best plan so far. Nodes
that differ only in their names count once.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import inf

from scheduler_extender.annotations import Malformed
from scheduler_extender.deadline import NO_DEADLINE, Deadline, OutOfTimeError
from scheduler_extender.evictions.plan import Advice, Cost, Plan, Step
from scheduler_extender.evictions.relocation import (
    GuaranteedPlacements,
    Relocation,
    domain_that_binds,
    may_be_lost,
    recreated,
    simulate_relocations,
)
from scheduler_extender.evictions.victims import (
    TIED,
    VictimPrecheck,
    after,
    candidates,
    devices_of,
)
from scheduler_extender.framework.afterwards import Joining
from scheduler_extender.framework.evaluator import may_go
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.domains import domain_of
from scheduler_extender.state.groups.groups import RESERVED_FOR_GROUP
from scheduler_extender.state.node.nodeinfo import NodeInfo, Offer
from scheduler_extender.state.pods.budgets import refused
from scheduler_extender.state.pods.record import PodRecord, resource_of
from topology.core.devices import PodUid
from topology.core.requests import GpuRequest

# The largest number of pods that one plan evicts.
MAX_VICTIMS = 8
# The largest number of sets of pods that are examined, over all nodes. A size that would exceed it
# is left out.
MAX_SETS = 200_000

# Above every priority that Kubernetes allows.
HIGHEST = 2**31
BARE = "no controller recreates it"
HOMELESS = "no node has a guaranteed placement for it"
OWN_CLAIMS = "it has its own ResourceClaims, and which GPUs the new claims get is unknown"


# Asks the rules of the set about the waiting pod's group: for a node as it would be, the pods that
# would be gone, and other nodes as they would be.
Group = Callable[[NodeInfo, frozenset[PodUid], Collection[NodeInfo]], Joining]


def search(
    snapshot: Snapshot,
    pod: PodRecord,
    deadline: Deadline = NO_DEADLINE,
    *,
    request: GpuRequest | None = None,
    group: Group = lambda info, gone, others: Joining(),
) -> Advice:
    """Return the cheapest plan for a waiting pod, or why there is none.

    A placement to which its ``group`` does not let it go does not count. ``request`` is the request
    of a gang's member with its peers; if left out, the pod's own. A node that lacks CPU or memory
    is neither a placement nor a relocation (:class:`.relocation.SpareResources`). As in filter, the
    waiting pod may use the reservation of a nominated pod of lower priority. No evicted pod is sent
    to such a reservation.

    A pod is moved only if its priority is not above the waiting pod's, and lost only if it is
    below. A pod is not evicted if a budget forbids its eviction now. After the deadline, the answer
    is the best plan so far.
    """
    if isinstance(pod.request, Malformed):
        return Advice(reason=pod.request.reason)
    found = _Search(snapshot, pod, request or pod.request, deadline, group)
    whole = True
    try:
        with deadline.enforced():
            whole = found.run()
    except OutOfTimeError:
        whole = False
    return found.advice(whole=whole)


@dataclass(frozen=True, slots=True)
class _Site:
    """A node on which a placement could become possible, with the pods that may be evicted there.

    ``alike`` are all nodes on which the same evictions cost the same, each with its pods in the
    same order; the first is this one. They differ in their spare resources.
    """

    info: NodeInfo
    pods: tuple[PodRecord, ...]
    precheck: VictimPrecheck
    alike: list[tuple[NodeInfo, tuple[PodRecord, ...]]]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A set of pods of one node, and the lowest possible cost of evicting them."""

    site: _Site
    victims: tuple[PodRecord, ...]
    least: Cost


class _Search:
    def __init__(
        self,
        snapshot: Snapshot,
        pod: PodRecord,
        request: GpuRequest,
        deadline: Deadline,
        group: Group,
    ) -> None:
        self._snapshot = snapshot.requiring_guarantees()
        self._nodes = [f.yielding_to(pod.attributes.priority, pod.gang) for f in snapshot.nodes]
        self._group = group
        self._deadline = deadline
        self._pod = pod
        self._request = request
        self._budgets = snapshot.budgets or ()
        self._goes = may_go(snapshot, pod)
        self._placements = GuaranteedPlacements(snapshot)
        self._spare_resources = self._placements.spare_resources
        self._takes: NodeInfo | None = None
        self._best: Plan | None = None
        self._could = False
        self._unsaid = ""  # why the GPUs of its claims are unknown
        self._sick = ""  # a node that would take it, and the sick GPUs that it may hand out
        self._looked_at = 0

    def run(self) -> bool:
        """Search for the cheapest plan. Return whether all sets were examined."""
        for info in self._nodes:
            self._deadline.check()
            without = self._without_asking(info)
            if not self._goes(info):
                continue
            if (
                self._placements.takes(without, self._pod, self._request)
                and self._group(without, frozenset(), ()).rejection is None
                and self._spare_resources.takes(without, self._pod)
            ):
                self._takes = info
                return True
            if not self._sick and (words := self._placements.sick(without, self._request)):
                self._sick = f"{info.name} would take it, but {words}"
        sites = list(self._sites())
        for size in range(MAX_VICTIMS + 1):
            if self._best is not None and self._best.cost < Cost(0, size):
                return True
            found = self._candidates(sites, size)
            if found is None:
                return False
            found.sort(key=lambda candidate: candidate.least)
            for candidate in found:
                if self._best is not None and candidate.least >= self._best.cost:
                    break
                self._deadline.check()
                self._work_out(candidate)
        return all(len(site.pods) <= MAX_VICTIMS for site in sites)

    def advice(self, *, whole: bool) -> Advice:
        """Return the result so far."""
        if self._takes is not None:
            return Advice(takes=self._takes.name)
        if self._best is not None:
            return Advice(self._best, whole=whole)
        if self._sick:
            why = self._sick
        elif not whole:
            why = (
                "no plan was found among the sets of pods that were examined, but there are "
                "more sets"
            )
        elif not self._could:
            never = "no eligible node has GPUs that can ever meet its constraints"
            why = self._unsaid or never
        else:
            why = (
                "no node gets a guaranteed placement for it, with the CPU and memory that "
                f"it requests, even if up to {MAX_VICTIMS} pods are evicted. A pod may be "
                "evicted if no PodDisruptionBudget forbids it, and if its priority is lower, or "
                "it has a controller and a guaranteed placement elsewhere"
            )
        return Advice(reason=why, whole=whole)

    def _sites(self) -> Iterator[_Site]:
        """Yield the nodes on which a placement could become possible; of equal nodes, the first."""
        of_kind: dict[Hashable, list[tuple[NodeInfo, tuple[PodRecord, ...]]]] = {}
        for info in self._nodes:
            if info.topology is None or info.record.problem is not None:
                continue
            self._deadline.check()
            if not self._goes(info):
                continue
            # Beside a nominated pod, a placement may be possible once other pods have gone.
            everything = self._without_asking(info).yielding_to(HIGHEST)
            if not self._placements.may_take(everything, self._pod, self._request):
                self._unsaid = self._unsaid or self._placements.unsaid(everything, self._pod)
                continue
            joining = self._group(self._without_asking(info), frozenset(), ())
            if joining.rejection is not None and not joining.rejection.resolvable:
                continue
            self._could = True
            pods = tuple(p for p in candidates(info, self._request.resource) if self._may(p))
            kind = (joining.domain, self._kind(info, pods))
            alike = of_kind.setdefault(kind, [])
            alike.append((info, pods))
            if len(alike) == 1:
                precheck = VictimPrecheck(info, self._request, self._pod.uid, pods)
                if precheck.usable:
                    yield _Site(info, pods, precheck, alike)

    def _without_asking(self, info: NodeInfo) -> NodeInfo:
        """Return the info without the waiting pod, if the pod counts in it."""
        asking = self._pod.uid
        counts = asking in info.pods.assumed or info.is_reserved_for(asking)
        return info.without(frozenset({asking})) if counts else info

    def _may(self, victim: PodRecord) -> bool:
        """Check whether a pod may be evicted now."""
        self._deadline.check()  # there may be thousands of budgets
        return _may_be_planned(victim, self._pod) and refused((victim,), self._budgets) is None

    def _kind(self, info: NodeInfo, pods: tuple[PodRecord, ...]) -> Hashable:
        """Return a key that is equal for nodes on which the same evictions cost the same."""
        resource = self._request.resource
        offer = info.last_offer(resource)
        shown = offer.ledger.shown if isinstance(offer, Offer) else {}
        each = [
            (
                pod.request,
                pod.attributes.priority,
                recreated(pod),
                self._goes(info),
                (kind := domain_that_binds(pod)) and (kind, domain_of(info, kind)),
                pod.group_ref if kind and self._pod.group_ref else None,
                shown.get(pod.uid),
                pod.phase,
                tuple(i for i, budget in enumerate(self._budgets) if budget.selects(pod)),
            )
            for pod in pods
        ]
        terminating = sorted(shown.get(uid, 0) for uid in info.pods.terminating)
        shared = info.report is not None and any(a.sharers for a in info.report.allocations)
        itself = info.name if shared or self._pod.claim_constraints else None
        return (info.key(resource), tuple(each), tuple(terminating), itself)

    def _candidates(self, sites: Sequence[_Site], size: int) -> list[_Candidate] | None:
        """Return the sets of ``size`` pods to work out; None if there are too many."""
        found = []
        for site in sites:
            self._deadline.check()
            for victims in combinations(site.pods, size):
                self._looked_at += 1
                if self._looked_at > MAX_SETS:
                    return None
                if site.precheck.worth_trying(victims):
                    least = self._least(site, victims)
                    if least is not None:
                        found.append(_Candidate(site, victims, least))
        return found

    def _least(self, site: _Site, victims: tuple[PodRecord, ...]) -> Cost | None:
        """Return the lowest possible cost of these evictions.

        Returns None if a pod would be lost that may not be lost. A pod without a placement on any
        node as it is can only return to this node, if there is room.
        """
        room = site.precheck.devices_after(victims) - self._request.effective_count
        lost = 0
        homeless = []
        for pod in victims:
            devices = devices_of(site.info, pod)
            no_room = devices > room and not self._elsewhere(pod)
            if no_room or not recreated(pod):
                if not may_be_lost(pod, self._pod):
                    return None
                lost += 1
            elif not self._elsewhere(pod):
                homeless.append(devices)
        for devices in sorted(homeless):
            room -= devices
            lost += room < 0
        return self._cost(site.info, victims, lost)

    def _elsewhere(self, pod: PodRecord) -> bool:
        return isinstance(pod.request, GpuRequest) and bool(
            self._placements.guaranteed_nodes(pod, pod.request)
        )

    def _cost(self, info: NodeInfo, victims: Sequence[PodRecord], lost: int) -> Cost:
        return Cost(
            lost,
            len(victims) - lost,
            sum(pod.attributes.priority for pod in victims),
            sum(devices_of(info, pod) for pod in victims),
        )

    def _work_out(self, candidate: _Candidate) -> None:
        """Record the plan of a candidate if it is valid, and cheaper than the best so far."""
        info, victims = candidate.site.info, candidate.victims
        if refused(victims, self._budgets) is not None:
            return
        without = after(info, victims, self._pod.uid)
        if not self._placements.takes(without, self._pod, self._request):
            return
        most = len(victims)
        if self._best is not None:
            best = self._best.cost
            while most >= 0 and self._cost(info, victims, most) >= best:
                most -= 1
        if most < 0:
            return
        position = {pod.uid: i for i, pod in enumerate(candidate.site.pods)}
        for info, pods in candidate.site.alike:
            victims = tuple(pods[position[pod.uid]] for pod in candidate.victims)
            without = after(info, victims, self._pod.uid)
            if self._spare_resources.takes(without, self._pod):
                gone = frozenset(pod.uid for pod in victims)
                why = self._group(without, gone, ()).rejection
                if why is RESERVED_FOR_GROUP:
                    continue  # reserved for others, on this node
                if why is not None:
                    return
                suits = partial(self._suits, without, gone, victims)
                relocations = simulate_relocations(
                    self._placements, without, self._pod, victims, most, suits
                )
                if relocations is not None:
                    self._best = self._plan(info, victims, relocations)
                return  # relocations are the same on the equal nodes

    def _suits(
        self,
        without: NodeInfo,
        gone: frozenset[PodUid],
        victims: Sequence[PodRecord],
        relocations: Sequence[Relocation],
    ) -> bool:
        """Check whether the pod's group can come with these relocations of the victims.

        The victims may take what other members of the group need.
        """
        world = self._placements.with_relocations(without, victims, relocations)
        here = world.pop(without.name)
        return self._group(here, gone, world.values()).rejection is None

    def _plan(
        self, info: NodeInfo, victims: Sequence[PodRecord], relocations: Sequence[Relocation]
    ) -> Plan:
        steps = []
        for pod, relocation in zip(victims, relocations, strict=True):
            why = HOMELESS if recreated(pod) else OWN_CLAIMS if pod.attributes.controller else BARE
            steps.append(Step(pod, relocation, "" if relocation is not None else why))
        terminating = [p for p in info.pods.every if p.uid in info.pods.terminating]
        cost = self._cost(info, victims, sum(relocation is None for relocation in relocations))
        unknown = sorted(self._spare_resources.unknown & {info.name, *relocations})
        return Plan(info.name, tuple(steps), cost, tuple(terminating), tuple(unknown))


def unplanned(
    placements: GuaranteedPlacements,
    info: NodeInfo,
    without: NodeInfo,
    waiting: PodRecord,
    victims: Sequence[PodRecord],
) -> str:
    """Return why no plan evicts these ``victims`` for the waiting pod; empty if one may.

    ``without`` is the node once the victims have released it. Budgets do not count, since they may
    allow the evictions later.
    """
    found = candidates(info, resource_of(waiting))
    able = {pod.uid: pod for pod in found if _may_be_planned(pod, waiting)}
    for pod in victims:
        if pod.uid not in able:
            return f"no plan may evict {pod.full_name} for it"
    if lost(placements, without, waiting, [able[pod.uid] for pod in victims]) == inf:
        return "a pod of the same or a higher priority would be lost"
    return ""


def lost(
    placements: GuaranteedPlacements,
    without: NodeInfo,
    waiting: PodRecord,
    victims: Sequence[PodRecord],
) -> float:
    """Return how many of the victims have no relocation; infinite if one may not be lost.

    ``without`` is their node once all of them have released it.
    """
    relocations = simulate_relocations(placements, without, waiting, victims, len(victims))
    return inf if relocations is None else relocations.count(None)


def _may_be_planned(victim: PodRecord, waiting: PodRecord) -> bool:
    """Check whether a plan may evict a pod at all, either moved or lost."""
    if victim.uid == waiting.uid or victim.attributes.controller in TIED:
        return False
    ours = waiting.group_ref
    if ours is not None and victim.group_ref and victim.group_ref.group == ours.group:
        return False  # the group would lack it
    moves = victim.attributes.priority <= waiting.attributes.priority and recreated(victim)
    return moves or may_be_lost(victim, waiting)
