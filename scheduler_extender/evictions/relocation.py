"""Simulates where evicted pods would go, over the infos of nodes.

The waiting pod is placed first. The victims follow one after the other, the most important first.
Each is placed on the infos that the earlier pods leave. The earlier pods count as bound and
unacknowledged, so a placement is guaranteed whichever GPUs they get. No other pod is evicted to
make room.

A guaranteed placement is about GPUs. kube-scheduler sends no pod to a node whose allocatable
resources, less the requests of its pods, are too small in CPU, memory or another resource. So no
pod is relocated there (:class:`SpareResources`). Pods with devices are part of a node's info. The
requests of the other pods are looked up with a function of the snapshot, node by node, and only for
nodes that matter.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from scheduler_extender.annotations import ClaimConstraints
from scheduler_extender.deadline import OutOfTimeError
from scheduler_extender.evictions.victims import TIED, guarantees
from scheduler_extender.framework.evaluator import may_go
from scheduler_extender.framework.outcomes import sick_among
from scheduler_extender.framework.trials import Trials, devices_for
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.domains import domain_of
from scheduler_extender.state.node.nodeinfo import Devices, NodeInfo
from scheduler_extender.state.pods.attributes import Amounts, Others
from scheduler_extender.state.pods.record import PodRecord, resource_of
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Reason, Rejection
from topology.core.report import Allocation
from topology.core.requests import NO_CONSTRAINTS, GpuRequest, Policy, gpu_request

# The largest number of nodes for which one search looks up the requests of their other pods.
MAX_NODES = 200


class SpareResources:
    """The spare CPU, memory and other resources of all nodes.

    ``unknown`` are the nodes whose spare resources were unknown when they were needed. They count
    as having enough.
    """

    def __init__(self, others: Others) -> None:
        self._others = others
        self._known: dict[NodeName, Amounts | None] = {}
        self.unknown: set[NodeName] = set()

    def takes(self, info: NodeInfo, pod: PodRecord) -> bool:
        """Check whether a pod fits on a node beside the pods of this info.

        Raises :class:`.OutOfTimeError` for one node more than :data:`MAX_NODES`.
        """
        asks = wanted(pod)
        if info.node_object.allocatable is None:
            return True  # a cluster file: no limit is known
        if info.name not in self._known:
            if len(self._known) >= MAX_NODES:
                raise OutOfTimeError
            self._known[info.name] = self._others(info.name)
        others = self._known[info.name]
        if others is None:
            self.unknown.add(info.name)
        free = dict(info.node_object.allocatable)
        _subtract(free, others or ())
        waiting = [
            each
            for each in info.reservations
            if each.reservation is not None and each.reservation.by_nomination
        ]
        for each in (*info.pods.living, *waiting):
            if not each.ended and each.uid != pod.uid:
                _subtract(free, wanted(each))
        partial, named = info.node_object.partial, dict(info.node_object.allocatable)
        return all(
            free.get(name, 0) >= amount for name, amount in asks if not partial or name in named
        )


def wanted(pod: PodRecord) -> Amounts:
    """Return what a pod with devices needs besides them: its other requests, and one pod slot."""
    asks = [item for item in pod.attributes.requests if item[0] != resource_of(pod)]
    return (*asks, ("pods", 1000))


def _subtract(free: dict[str, int], amounts: Iterable[tuple[str, int]]) -> None:
    for name, amount in amounts:
        free[name] = free.get(name, 0) - amount


# The largest number of placements that one simulation tries.
MAX_VISITS = 2_000

Relocation = NodeName | None


def recreated(pod: PodRecord) -> bool:
    """Check whether a controller creates a replacement of the pod, on any node with room.

    For a pod with claims of its own, the GPUs of the replacement's claims are unknown.
    """
    controller, request = pod.attributes.controller, pod.request
    readable = isinstance(request, GpuRequest) and request.effective_count > 0
    return bool(controller) and controller not in TIED and readable


def domain_that_binds(pod: PodRecord) -> str | None:
    """Return the kind of domain that the pod's group must share; None if there is none."""
    if pod.group_ref is None or not isinstance(pod.request, GpuRequest):
        return None
    return None if pod.request.policy is Policy.PREFERRED else pod.group_ref.domain


class GuaranteedPlacements:
    """The guaranteed placements on all nodes as they are; equal nodes are asked once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot.requiring_guarantees()
        self.spare_resources = SpareResources(snapshot.others)
        self._trials = Trials(self._snapshot)
        self._kinds: dict[str, dict[Hashable, list[NodeInfo]]] = {}
        self._guaranteed_nodes: dict[Hashable, tuple[tuple[NodeInfo, ...], ...]] = {}
        self._to_come: dict[ClaimConstraints, Callable[[NodeInfo], Devices | Rejection]] = {}

    def gets(self, info: NodeInfo, pod: PodRecord) -> Devices | Rejection:
        """Return the GPUs that the pod's own claims get on a node with this info.

        Returns an empty tuple if it has no claims.
        """
        wanted = pod.claim_constraints
        if wanted is None:
            return ()
        if wanted not in self._to_come:
            to_come = self._snapshot.foresees(wanted.namespace, wanted.names)
            self._to_come[wanted] = to_come
        return devices_for(info, pod.uid, wanted, self._to_come[wanted])

    def takes(self, info: NodeInfo, pod: PodRecord, request: GpuRequest) -> bool:
        """Check whether a node with this info has a guaranteed placement for a pod.

        With the ``request`` of a gang's member, the placement holds among its peers.
        """
        devices = self.gets(info, pod)
        if isinstance(devices, Rejection):
            return False
        if devices:
            info = info.as_claimed(pod.uid, devices)
            request = gpu_request(len(devices), request.constraints)
        return self.guaranteed(info, request)

    def unsaid(self, info: NodeInfo, pod: PodRecord) -> str:
        """Return why the GPUs of the pod's own claims are unknown; empty if they are known."""
        devices = self.gets(info, pod)
        if isinstance(devices, Rejection) and devices.reason is Reason.UNDECIDED:
            return devices.message
        return ""

    def may_take(self, info: NodeInfo, pod: PodRecord, request: GpuRequest) -> bool:
        """Check whether a node with this info can take a pod, now or once other pods end."""
        devices = self.gets(info, pod)
        why = devices if isinstance(devices, Rejection) else None
        if not devices:
            why = self._trials.answer(info, request).rejection
        return why is None or why.resolvable

    def guaranteed(self, info: NodeInfo, request: GpuRequest) -> bool:
        """Check whether a node with this info has a guaranteed placement."""
        if info.topology is None or info.record.problem is not None:
            return False
        return guarantees(self._trials.answer(info, request), request)

    def sick(self, info: NodeInfo, request: GpuRequest) -> str:
        """Return a text if a node takes a pod and may hand out sick GPUs to it; else empty."""
        offer = info.last_offer(request.resource)
        if isinstance(offer, Rejection) or not offer.availability.sick:
            return ""
        found = self._trials.answer(info, request)
        return "" if found.rejection else sick_among(info, request, found.assessment)

    def may_go(self, pod: PodRecord) -> Callable[[NodeInfo], bool]:
        """Return a test of whether kube-scheduler may send a pod to a node.

        See :func:`.evaluator.may_go`.
        """
        return may_go(self._snapshot, pod)

    def keeps_group(self, info: NodeInfo, pod: PodRecord) -> bool:
        """Check whether a pod that moves to a node stays in its group's present domain.

        A group that may go to any node, or only prefers one domain, is not restricted.
        """
        kind = domain_that_binds(pod)
        if kind is None:
            return True
        now = self._snapshot.by_name.get(pod.node) if pod.node is not None else None
        domain = None if now is None else domain_of(now, kind)
        return domain is not None and domain_of(info, kind) == domain

    def guaranteed_nodes(
        self, pod: PodRecord, request: GpuRequest
    ) -> tuple[tuple[NodeInfo, ...], ...]:
        """Return the nodes that have a guaranteed placement for a pod, grouped by equal answers.

        ``request`` is the pod's.
        """
        key = (request, pod.attributes.eligible_nodes, pod.attributes.requests)
        if key not in self._guaranteed_nodes:
            goes = self.may_go(pod)
            groups = (
                tuple(info for info in nodes if goes(info))
                for nodes in self._kinds_over(request.resource)
                if self.guaranteed(nodes[0], request)
            )
            self._guaranteed_nodes[key] = tuple(group for group in groups if group)
        return self._guaranteed_nodes[key]

    def with_relocations(
        self, target: NodeInfo, victims: Sequence[PodRecord], relocations: Sequence[Relocation]
    ) -> dict[NodeName, NodeInfo]:
        """Return the ``target`` and the relocations as they are once the victims have moved."""
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
    placements: GuaranteedPlacements,
    target: NodeInfo,
    waiting: PodRecord,
    victims: Sequence[PodRecord],
    most_lost: int,
    suits: Callable[[Sequence[Relocation]], bool] = lambda relocations: True,
) -> tuple[Relocation, ...] | None:
    """Return a relocation for each victim, None for a lost one; as few as possible are lost.

    ``target`` is the node without the victims. ``suits`` checks whether the pod's group can come
    with these relocations of the victims. Returns None if more than ``most_lost`` pods would be
    lost, or one that may not be lost (:func:`may_be_lost`). O(:data:`MAX_VISITS`) evaluations.
    """
    best = _Best(most_lost + 1, suits)
    devices = placements.gets(target, waiting)
    given = () if isinstance(devices, Rejection) else devices
    world = {target.name: placed(target, waiting, given)}
    _try(placements, world, waiting, tuple(victims), (), best)
    return best.relocations


def placed(info: NodeInfo, pod: PodRecord, devices: Devices = ()) -> NodeInfo:
    """Return the info with a pod added that is bound and unacknowledged.

    With ``devices``, the pod's claims have these devices. It is a new pod, whichever controller
    created it.
    """
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
    return replace(info, pods=info.pods.with_assumed(anew)).without_old_terminated()


def may_be_lost(victim: PodRecord, waiting: PodRecord) -> bool:
    """Check whether a pod may be evicted without a relocation: its priority must be lower."""
    return victim.attributes.priority < waiting.attributes.priority


def _try(
    placements: GuaranteedPlacements,
    world: dict[NodeName, NodeInfo],
    waiting: PodRecord,
    left: tuple[PodRecord, ...],
    relocations: tuple[Relocation, ...],
    best: _Best,
) -> None:
    """Try every relocation of the first of the pods ``left``.

    ``world`` holds the nodes that have changed.
    """
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
        for info in _offers(placements, world, pod, request):
            best.visits += 1
            beside = {**world, info.name: placed(info, pod)}
            _try(placements, beside, waiting, rest, (*relocations, info.name), best)
    if may_be_lost(pod, waiting):
        _try(placements, world, waiting, rest, (*relocations, None), best)


def _offers(
    placements: GuaranteedPlacements,
    world: dict[NodeName, NodeInfo],
    pod: PodRecord,
    request: GpuRequest,
) -> Iterable[NodeInfo]:
    """Yield the nodes with a guaranteed placement and room now; of equal nodes, the first."""
    for group in placements.guaranteed_nodes(pod, request):
        others = (info for info in group if info.name not in world)
        first = next((info for info in others if _admits(placements, info, pod)), None)
        if first is not None:
            yield first
    goes = placements.may_go(pod)
    for info in list(world.values()):
        eligible = goes(info) and placements.guaranteed(info, request)
        if eligible and _admits(placements, info, pod):
            yield info


def _admits(placements: GuaranteedPlacements, info: NodeInfo, pod: PodRecord) -> bool:
    """Check whether a relocation has everything that it needs besides GPUs."""
    return placements.keeps_group(info, pod) and placements.spare_resources.takes(info, pod)
