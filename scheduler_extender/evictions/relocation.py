"""Where evicted pods would go: a simulation over the facts of nodes.

The pod that waits is placed first, then the victims one after the other, the most important first.
Each is placed on the facts that those before it leave: they count as bound and not yet reported, so
a place is guaranteed whichever GPUs they get. Nobody else is evicted to make room.

A guaranteed place is one of GPUs. kube-scheduler sends nobody to a node whose allocatable less the
requests of its pods is too little of CPU, memory or another resource: no pod is relocated there
(:class:`SpareResources`). Pods with devices are among a node's facts. What the others ask for is
asked of somebody else, node by node, and only of nodes that matter.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from scheduler_extender.annotations import OfClaims
from scheduler_extender.deadline import OutOfTimeError
from scheduler_extender.evictions.victims import TIED, guarantees
from scheduler_extender.framework.evaluator import may_go
from scheduler_extender.framework.outcomes import sick_among
from scheduler_extender.framework.trials import Trials, devices_for
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.domains import domain_of
from scheduler_extender.state.node.nodeinfo import Devices, NodeInfo
from scheduler_extender.state.node.transitions import with_assumed_pod
from scheduler_extender.state.pods.attributes import Amounts, Others
from scheduler_extender.state.pods.record import PodRecord, resource_of
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Reason, Rejection, Verdict
from topology.core.report import Allocation
from topology.core.requests import NO_CONSTRAINTS, GpuRequest, Policy, gpu_request

# Nodes of which one search asks what their other pods ask for.
MAX_NODES = 200


class SpareResources:
    """The room on all nodes. ``unknown`` are those of which it was not known when it was asked for:
    they count as having room."""

    def __init__(self, others: Others) -> None:
        self._others = others
        self._known: dict[NodeName, Amounts | None] = {}
        self.unknown: set[NodeName] = set()

    def takes(self, info: NodeInfo, pod: PodRecord) -> bool:
        """Whether a pod fits on a node beside the pods of these facts.

        Raises :class:`.OutOfTimeError` for one node more than :data:`MAX_NODES`.
        """
        asks = wanted(pod)
        if info.node_object.allocatable is None:
            return True  # as in a cluster file: no limit is known
        if info.name not in self._known:
            if len(self._known) >= MAX_NODES:
                raise OutOfTimeError
            self._known[info.name] = self._others(info.name)
        others = self._known[info.name]
        if others is None:
            self.unknown.add(info.name)
        free = dict(info.node_object.allocatable)
        _subtract(free, others or ())
        coming = info.reserved_for
        nominated = coming is not None and coming.reservation and coming.reservation.by_nomination
        waiting = (coming,) if coming is not None and nominated else ()
        for each in (*info.pods.living, *waiting):
            if not each.ended and each.uid != pod.uid:
                _subtract(free, wanted(each))
        partial, named = info.node_object.partial, dict(info.node_object.allocatable)
        return all(
            free.get(name, 0) >= amount for name, amount in asks if not partial or name in named
        )


def wanted(pod: PodRecord) -> Amounts:
    """What a pod with devices needs besides them: what it asks for, and its own place."""
    asks = [item for item in pod.attributes.requests if item[0] != resource_of(pod)]
    return (*asks, ("pods", 1000))


def _subtract(free: dict[str, int], amounts: Iterable[tuple[str, int]]) -> None:
    for name, amount in amounts:
        free[name] = free.get(name, 0) - amount


# Places that one simulation tries.
MAX_VISITS = 2_000

Relocation = NodeName | None


def recreated(pod: PodRecord) -> bool:
    """Whether a controller makes the pod anew, on whichever node has room. Of a pod with claims of
    its own nobody can say which GPUs the next ones get."""
    controller, request = pod.attributes.controller, pod.request
    readable = isinstance(request, GpuRequest) and request.effective_count > 0
    return bool(controller) and controller not in TIED and readable


def domain_that_binds(pod: PodRecord) -> str | None:
    """The kind of domain that the pod's group must share; None where it may go anywhere."""
    if pod.group_ref is None or not isinstance(pod.request, GpuRequest):
        return None
    return None if pod.request.policy is Policy.PREFERRED else pod.group_ref.domain


class Places:
    """The guaranteed places of all nodes as they are; nodes that answer alike are asked once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot.requiring(Verdict.GUARANTEED)
        self.spare_resources = SpareResources(snapshot.others)
        self._trials = Trials(self._snapshot)
        self._kinds: dict[str, dict[Hashable, list[NodeInfo]]] = {}
        self._open: dict[Hashable, tuple[tuple[NodeInfo, ...], ...]] = {}
        self._to_come: dict[OfClaims, Callable[[NodeInfo], Devices | Rejection]] = {}

    def gets(self, info: NodeInfo, pod: PodRecord) -> Devices | Rejection:
        """The GPUs that the pod's own claims get on a node of these facts; none if it has none."""
        wanted = pod.of_claims
        if wanted is None:
            return ()
        if wanted not in self._to_come:
            to_come = self._snapshot.foresees(wanted.namespace, wanted.names)
            self._to_come[wanted] = to_come
        return devices_for(info, pod.uid, wanted, self._to_come[wanted])

    def takes(self, info: NodeInfo, pod: PodRecord, request: GpuRequest) -> bool:
        """Whether a node of these facts has a guaranteed place for a pod, by itself or, with this
        ``request``, among its siblings."""
        devices = self.gets(info, pod)
        if isinstance(devices, Rejection):
            return False
        if devices:
            info = info.as_claimed(pod.uid, devices)
            request = gpu_request(len(devices), request.constraints)
        return self.guaranteed(info, request)

    def unsaid(self, info: NodeInfo, pod: PodRecord) -> str:
        """Why nobody can say which GPUs the pod's own claims get; empty where that is said."""
        devices = self.gets(info, pod)
        if isinstance(devices, Rejection) and devices.kind is Reason.UNDECIDED:
            return devices.reason
        return ""

    def may_take(self, info: NodeInfo, pod: PodRecord, request: GpuRequest) -> bool:
        """Whether a node of these facts has a place for a pod, or may have one once others end."""
        devices = self.gets(info, pod)
        why = devices if isinstance(devices, Rejection) else None
        if not devices:
            why = self._trials.answer(info, request).rejection
        return why is None or why.resolvable

    def guaranteed(self, info: NodeInfo, request: GpuRequest) -> bool:
        """Whether a node of these facts has a guaranteed place."""
        if info.topology is None or info.record.problem is not None:
            return False
        return guarantees(self._trials.answer(info, request), request)

    def sick(self, info: NodeInfo, request: GpuRequest) -> str:
        """That a node of these facts takes a pod and may hand out sick GPUs; empty for none."""
        offer = info.last_offer(request.resource)
        if isinstance(offer, Rejection) or not offer.availability.sick:
            return ""
        found = self._trials.answer(info, request)
        return "" if found.rejection else sick_among(info, request, found.assessment)

    def may_go(self, pod: PodRecord) -> Callable[[NodeInfo], bool]:
        """Whether kube-scheduler may send a pod to a node (:func:`.evaluator.may_go`)."""
        return may_go(self._snapshot, pod)

    def keeps_group(self, info: NodeInfo, pod: PodRecord) -> bool:
        """Whether a pod that moves to a node stays in its group's domain: where it is now. A group
        that may go anywhere, or only prefers one domain, has none."""
        kind = domain_that_binds(pod)
        if kind is None:
            return True
        now = self._snapshot.by_name.get(pod.node) if pod.node is not None else None
        domain = None if now is None else domain_of(now, kind)
        return domain is not None and domain_of(info, kind) == domain

    def open(self, pod: PodRecord, request: GpuRequest) -> tuple[tuple[NodeInfo, ...], ...]:
        """The nodes that have a guaranteed place for a pod as they are, in groups that answer
        alike; ``request`` is the pod's."""
        key = (request, pod.attributes.eligible_nodes, pod.attributes.requests)
        if key not in self._open:
            goes = self.may_go(pod)
            groups = (
                tuple(info for info in nodes if goes(info))
                for nodes in self._kinds_over(request.resource)
                if self.guaranteed(nodes[0], request)
            )
            self._open[key] = tuple(group for group in groups if group)
        return self._open[key]

    def settled(
        self, target: NodeInfo, victims: Sequence[PodRecord], relocations: Sequence[Relocation]
    ) -> dict[NodeName, NodeInfo]:
        """The ``target`` and the relocations as they are once the victims have gone there."""
        world = {target.name: target}
        for pod, relocation in zip(victims, relocations, strict=True):
            if relocation is not None:
                world[relocation] = placed(
                    world.get(relocation) or self._snapshot.node_info(relocation), pod
                )
        return world

    def _kinds_over(self, resource: str) -> Iterable[list[NodeInfo]]:
        if resource not in self._kinds:
            kinds: dict[Hashable, list[NodeInfo]] = {}
            for info in self._snapshot.nodes:
                if info.topology is not None and info.record.problem is None:
                    kinds.setdefault(info.key(resource), []).append(info)
            self._kinds[resource] = kinds
        return self._kinds[resource].values()


@dataclass(slots=True)
class _Best:
    lost: int
    suits: Callable[[Sequence[Relocation]], bool]
    relocations: tuple[Relocation, ...] | None = None
    visits: int = 0


def simulate_relocations(
    places: Places,
    target: NodeInfo,
    waiting: PodRecord,
    victims: Sequence[PodRecord],
    most_lost: int,
    suits: Callable[[Sequence[Relocation]], bool] = lambda relocations: True,
) -> tuple[Relocation, ...] | None:
    """A relocation for each victim, None for a lost one; with as few lost as can be.

    ``target`` is the node without the victims; ``suits`` says whether the pod's group can come
    with these relocations of the victims. None where more than ``most_lost`` would be lost, or
    one that may not be (:func:`may_be_lost`). O(:data:`MAX_VISITS`) evaluations.
    """
    best = _Best(most_lost + 1, suits)
    devices = places.gets(target, waiting)
    given = () if isinstance(devices, Rejection) else devices
    world = {target.name: placed(target, waiting, given)}
    _try(places, world, waiting, tuple(victims), (), best)
    return best.relocations


def placed(info: NodeInfo, pod: PodRecord, devices: Devices = ()) -> NodeInfo:
    """The facts with a pod that is bound and not reported, or whose claims have these ``devices``.
    It is a new pod, whoever made it."""
    anew = replace(
        pod,
        uid=PodUid(f"{pod.uid}, anew"),
        node=info.name,
        phase="Pending",
        promised=NO_CONSTRAINTS,
        survives_endings=False,
        admitted=False,
        refusal=None,
        reservation=None,
    )
    report = info.report
    if devices and report is not None:
        whose = (anew.uid, pod.namespace, pod.name, "", resource_of(pod))
        allocations = (*report.allocations, Allocation(*whose, devices))
        record = replace(info.record, report=replace(report, allocations=allocations))
        info = replace(info, record=record)
    return with_assumed_pod(info, anew)


def may_be_lost(victim: PodRecord, waiting: PodRecord) -> bool:
    """Whether a pod may be evicted that would have no place then: one of lower priority."""
    return victim.attributes.priority < waiting.attributes.priority


def _try(
    places: Places,
    world: dict[NodeName, NodeInfo],
    waiting: PodRecord,
    left: tuple[PodRecord, ...],
    relocations: tuple[Relocation, ...],
    best: _Best,
) -> None:
    """Try every relocation of the first of those ``left``; ``world`` has the nodes that have
    changed."""
    lost = relocations.count(None)
    if lost >= best.lost or best.visits >= MAX_VISITS:
        return
    if not left:
        if best.suits(relocations):
            best.lost, best.relocations = lost, relocations
        return
    pod, rest = left[0], left[1:]
    request = pod.request
    if recreated(pod) and isinstance(request, GpuRequest):
        for info in _offers(places, world, pod, request):
            best.visits += 1
            beside = {**world, info.name: placed(info, pod)}
            _try(places, beside, waiting, rest, (*relocations, info.name), best)
    if may_be_lost(pod, waiting):
        _try(places, world, waiting, rest, (*relocations, None), best)


def _offers(
    places: Places, world: dict[NodeName, NodeInfo], pod: PodRecord, request: GpuRequest
) -> Iterable[NodeInfo]:
    """The nodes that have a guaranteed place and room now; of those that answer alike the first."""
    for group in places.open(pod, request):
        others = (info for info in group if info.name not in world)
        first = next((info for info in others if _admits(places, info, pod)), None)
        if first is not None:
            yield first
    goes = places.may_go(pod)
    for info in list(world.values()):
        open_to_it = goes(info) and places.guaranteed(info, request)
        if open_to_it and _admits(places, info, pod):
            yield info


def _admits(places: Places, info: NodeInfo, pod: PodRecord) -> bool:
    """What else a relocation needs than GPUs."""
    return places.keeps_group(info, pod) and places.spare_resources.takes(info, pod)
