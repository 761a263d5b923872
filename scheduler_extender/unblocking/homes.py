"""Where evicted pods would go: a rehearsal over the facts of nodes.

The pod that waits is placed first, then the victims one after the other, the most important first.
Each is placed on the facts that those before it leave: they count as bound and not yet reported, so
a place is guaranteed whichever GPUs they get. Nobody else is evicted to make room.

A guaranteed place is one of GPUs. kube-scheduler sends nobody to a node whose allocatable less the
requests of its pods is too little of CPU, memory or another resource: that is no home
(:class:`Spare`). Pods with devices are among a node's facts. What the others ask for is asked of
somebody else, node by node, and only of nodes that matter.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from scheduler_extender.annotations import OfClaims
from scheduler_extender.deadline import OutOfTimeError
from scheduler_extender.framework.evaluator import may_go
from scheduler_extender.framework.outcomes import sick_among
from scheduler_extender.framework.trials import Trials, devices_for
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.domains import domain_of
from scheduler_extender.state.node.facts import Devices, NodeFacts
from scheduler_extender.state.node.transitions import with_bind_in_flight
from scheduler_extender.state.pods.record import PodRecord, resource_of
from scheduler_extender.state.pods.selecting import Destinations
from scheduler_extender.state.pods.standing import Amounts, Others
from scheduler_extender.unblocking.victims import TIED, guarantees
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Reason, Rejection, Verdict
from topology.core.report import Allocation
from topology.core.requests import NO_CONSTRAINTS, GpuRequest, Policy, gpu_request

# Nodes of which one search asks what their other pods ask for.
MAX_NODES = 200


class Spare:
    """The room on all nodes. ``unknown`` are those of which it was not known when it was asked for:
    they count as having room."""

    def __init__(self, others: Others) -> None:
        self._others = others
        self._known: dict[NodeName, Amounts | None] = {}
        self.unknown: set[NodeName] = set()

    def takes(self, facts: NodeFacts, pod: PodRecord) -> bool:
        """Whether a pod fits on a node beside the pods of these facts.

        Raises :class:`.OutOfTimeError` for one node more than :data:`MAX_NODES`.
        """
        asks = wanted(pod)
        if facts.node_object.allocatable is None:
            return True  # as in a cluster file: no limit is known
        if facts.name not in self._known:
            if len(self._known) >= MAX_NODES:
                raise OutOfTimeError
            self._known[facts.name] = self._others(facts.name)
        others = self._known[facts.name]
        if others is None:
            self.unknown.add(facts.name)
        free = dict(facts.node_object.allocatable)
        _subtract(free, others or ())
        coming = facts.reserved_for
        nominated = coming is not None and coming.reservation and coming.reservation.by_nomination
        waiting = (coming,) if coming is not None and nominated else ()
        for each in (*facts.pods.living, *waiting):
            if not each.ended and each.uid != pod.uid:
                _subtract(free, wanted(each))
        partial, named = facts.node_object.partial, dict(facts.node_object.allocatable)
        return all(
            free.get(name, 0) >= amount for name, amount in asks if not partial or name in named
        )


def wanted(pod: PodRecord) -> Amounts:
    """What a pod with devices needs besides them: what it asks for, and its own place."""
    asks = [item for item in pod.standing.asks if item[0] != resource_of(pod)]
    return (*asks, ("pods", 1000))


def _subtract(free: dict[str, int], amounts: Iterable[tuple[str, int]]) -> None:
    for name, amount in amounts:
        free[name] = free.get(name, 0) - amount


# Places that one rehearsal tries.
MAX_VISITS = 2_000

Home = NodeName | None


def recreated(pod: PodRecord) -> bool:
    """Whether a controller makes the pod anew, on whichever node has room. Of a pod with claims of
    its own nobody can say which GPUs the next ones get."""
    controller, request = pod.standing.controller, pod.request
    readable = isinstance(request, GpuRequest) and request.effective_count > 0
    return bool(controller) and controller not in TIED and readable


def domain_that_binds(pod: PodRecord) -> str | None:
    """The kind of domain that the pod's group must share; None where it may go anywhere."""
    if pod.membership is None or not isinstance(pod.request, GpuRequest):
        return None
    return None if pod.request.policy is Policy.PREFERRED else pod.membership.domain


class Places:
    """The guaranteed places of all nodes as they are; nodes that answer alike are asked once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot.requiring(Verdict.GUARANTEED)
        self.spare = Spare(snapshot.others)
        self._trials = Trials(self._snapshot)
        self._kinds: dict[str, dict[Hashable, list[NodeFacts]]] = {}
        self._open: dict[tuple[GpuRequest, Destinations], tuple[tuple[NodeFacts, ...], ...]] = {}
        self._to_come: dict[OfClaims, Callable[[NodeFacts], Devices | Rejection]] = {}

    def gets(self, facts: NodeFacts, pod: PodRecord) -> Devices | Rejection:
        """The GPUs that the pod's own claims get on a node of these facts; none if it has none."""
        wanted = pod.of_claims
        if wanted is None:
            return ()
        if wanted not in self._to_come:
            to_come = self._snapshot.foresees(wanted.namespace, wanted.names)
            self._to_come[wanted] = to_come
        return devices_for(facts, pod.uid, wanted, self._to_come[wanted])

    def takes(self, facts: NodeFacts, pod: PodRecord, request: GpuRequest) -> bool:
        """Whether a node of these facts has a guaranteed place for a pod, by itself or, with this
        ``request``, among its siblings."""
        devices = self.gets(facts, pod)
        if isinstance(devices, Rejection):
            return False
        if devices:
            facts = facts.as_claimed(pod.uid, devices)
            request = gpu_request(len(devices), request.constraints)
        return self.guaranteed(facts, request)

    def unsaid(self, facts: NodeFacts, pod: PodRecord) -> str:
        """Why nobody can say which GPUs the pod's own claims get; empty where that is said."""
        devices = self.gets(facts, pod)
        if isinstance(devices, Rejection) and devices.kind is Reason.UNDECIDED:
            return devices.reason
        return ""

    def may_take(self, facts: NodeFacts, pod: PodRecord, request: GpuRequest) -> bool:
        """Whether a node of these facts has a place for a pod, or may have one once others end."""
        devices = self.gets(facts, pod)
        why = devices if isinstance(devices, Rejection) else None
        if not devices:
            why = self._trials.answer(facts, request).rejection
        return why is None or why.resolvable

    def guaranteed(self, facts: NodeFacts, request: GpuRequest) -> bool:
        """Whether a node of these facts has a guaranteed place."""
        if facts.topology is None or facts.record.problem is not None:
            return False
        return guarantees(self._trials.answer(facts, request), request)

    def sick(self, facts: NodeFacts, request: GpuRequest) -> str:
        """That a node of these facts takes a pod and may hand out sick GPUs; empty for none."""
        offer = facts.last_offer(request.resource)
        if isinstance(offer, Rejection) or not offer.availability.sick:
            return ""
        found = self._trials.answer(facts, request)
        return "" if found.rejection else sick_among(facts, request, found.assessment)

    def may_go(self, pod: PodRecord) -> Callable[[NodeFacts], bool]:
        """Whether kube-scheduler may send a pod to a node (:func:`.evaluator.may_go`)."""
        return may_go(self._snapshot, pod)

    def keeps_group(self, facts: NodeFacts, pod: PodRecord) -> bool:
        """Whether a pod that moves to a node stays in its group's domain: where it is now. A group
        that may go anywhere, or only prefers one domain, has none."""
        kind = domain_that_binds(pod)
        if kind is None:
            return True
        now = self._snapshot.by_name.get(pod.node) if pod.node is not None else None
        domain = None if now is None else domain_of(now, kind)
        return domain is not None and domain_of(facts, kind) == domain

    def open(self, pod: PodRecord, request: GpuRequest) -> tuple[tuple[NodeFacts, ...], ...]:
        """The nodes that have a guaranteed place for a pod as they are, in groups that answer
        alike; ``request`` is the pod's."""
        key = (request, pod.standing.destinations)
        if key not in self._open:
            goes = self.may_go(pod)
            groups = (
                tuple(facts for facts in nodes if goes(facts))
                for nodes in self._kinds_over(request.resource)
                if self.guaranteed(nodes[0], request)
            )
            self._open[key] = tuple(group for group in groups if group)
        return self._open[key]

    def settled(
        self, target: NodeFacts, victims: Sequence[PodRecord], homes: Sequence[Home]
    ) -> dict[NodeName, NodeFacts]:
        """The ``target`` and the homes as they are once the victims have gone there."""
        world = {target.name: target}
        for pod, home in zip(victims, homes, strict=True):
            if home is not None:
                world[home] = placed(world.get(home) or self._snapshot.facts(home), pod)
        return world

    def _kinds_over(self, resource: str) -> Iterable[list[NodeFacts]]:
        if resource not in self._kinds:
            kinds: dict[Hashable, list[NodeFacts]] = {}
            for facts in self._snapshot.nodes:
                if facts.topology is not None and facts.record.problem is None:
                    kinds.setdefault(facts.key(resource), []).append(facts)
            self._kinds[resource] = kinds
        return self._kinds[resource].values()


@dataclass(slots=True)
class _Best:
    lost: int
    suits: Callable[[Sequence[Home]], bool]
    homes: tuple[Home, ...] | None = None
    visits: int = 0


def rehearse(
    places: Places,
    target: NodeFacts,
    waiting: PodRecord,
    victims: Sequence[PodRecord],
    most_lost: int,
    suits: Callable[[Sequence[Home]], bool] = lambda homes: True,
) -> tuple[Home, ...] | None:
    """A home for each victim, None for a lost one; with as few lost as can be.

    ``target`` is the node without the victims; ``suits`` says whether the pod's group can come
    where the victims have these homes. None where more than ``most_lost`` would be lost, or
    one that may not be (:func:`may_be_lost`). O(:data:`MAX_VISITS`) evaluations.
    """
    best = _Best(most_lost + 1, suits)
    devices = places.gets(target, waiting)
    given = () if isinstance(devices, Rejection) else devices
    world = {target.name: placed(target, waiting, given)}
    _try(places, world, waiting, tuple(victims), (), best)
    return best.homes


def placed(facts: NodeFacts, pod: PodRecord, devices: Devices = ()) -> NodeFacts:
    """The facts with a pod that is bound and not reported, or whose claims have these ``devices``.
    It is a new pod, whoever made it."""
    anew = replace(
        pod,
        uid=PodUid(f"{pod.uid}, anew"),
        node=facts.name,
        phase="Pending",
        promised=NO_CONSTRAINTS,
        survives_endings=False,
        admitted=False,
        refusal=None,
        reservation=None,
    )
    report = facts.report
    if devices and report is not None:
        whose = (anew.uid, pod.namespace, pod.name, "", resource_of(pod))
        allocations = (*report.allocations, Allocation(*whose, devices))
        record = replace(facts.record, report=replace(report, allocations=allocations))
        facts = replace(facts, record=record)
    return with_bind_in_flight(facts, anew)


def may_be_lost(victim: PodRecord, waiting: PodRecord) -> bool:
    """Whether a pod may be evicted that would have no place then: one of lower priority."""
    return victim.standing.priority < waiting.standing.priority


def _try(
    places: Places,
    world: dict[NodeName, NodeFacts],
    waiting: PodRecord,
    left: tuple[PodRecord, ...],
    homes: tuple[Home, ...],
    best: _Best,
) -> None:
    """Try every home of the first of those ``left``; ``world`` has the nodes that have changed."""
    lost = homes.count(None)
    if lost >= best.lost or best.visits >= MAX_VISITS:
        return
    if not left:
        if best.suits(homes):
            best.lost, best.homes = lost, homes
        return
    pod, rest = left[0], left[1:]
    request = pod.request
    if recreated(pod) and isinstance(request, GpuRequest):
        for facts in _offers(places, world, pod, request):
            best.visits += 1
            beside = {**world, facts.name: placed(facts, pod)}
            _try(places, beside, waiting, rest, (*homes, facts.name), best)
    if may_be_lost(pod, waiting):
        _try(places, world, waiting, rest, (*homes, None), best)


def _offers(
    places: Places, world: dict[NodeName, NodeFacts], pod: PodRecord, request: GpuRequest
) -> Iterable[NodeFacts]:
    """The nodes that have a guaranteed place and room now; of those that answer alike the first."""
    for group in places.open(pod, request):
        others = (facts for facts in group if facts.name not in world)
        first = next((facts for facts in others if _admits(places, facts, pod)), None)
        if first is not None:
            yield first
    goes = places.may_go(pod)
    for facts in list(world.values()):
        open_to_it = goes(facts) and places.guaranteed(facts, request)
        if open_to_it and _admits(places, facts, pod):
            yield facts


def _admits(places: Places, facts: NodeFacts, pod: PodRecord) -> bool:
    """What else a home has to have than GPUs."""
    return places.keeps_group(facts, pod) and places.spare.takes(facts, pod)
