"""How every GPU of a node stands, as people see it: free, held and by whom, or sick."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from scheduler_extender.state.answers.capacity import stranded
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import GpuResource, PodUid
from topology.core.graph import NodeTopology
from topology.core.mig import ServedDevices, served_devices
from topology.core.placement import Rejection
from topology.core.placement.constraints import satisfies
from topology.core.pools import count, gpus
from topology.core.report import Health
from topology.core.requests import GpuRequest


class Use(Enum):
    """How a GPU stands; the value is the word for it in pages, filters and style sheets."""

    FREE = "free"
    """Nobody holds it, or nobody holds a share of it."""
    STRANDED = "stranded"
    """Free on a node with NVLinks, and no other free GPU has an NVLink to it."""
    KEPT = "kept"
    """Held by a pod that has what it asks for."""
    PLAIN = "plain"
    """Held by a pod to which any GPU will do, or of which nothing is known."""
    BROKEN = "broken"
    """Held by a pod that requires other GPUs."""
    ENDING = "ending"
    """Held by a pod that is on its way out."""
    SICK = "sick"
    """Called unhealthy, or it does not answer; whoever holds it."""


MEANINGS = {
    Use.FREE: "nobody holds it",
    Use.STRANDED: "free, but no other free GPU has an NVLink to it",
    Use.KEPT: "held by a pod that has the GPUs it asks for",
    Use.PLAIN: "held by a pod for which any GPU will do",
    Use.BROKEN: "held by a pod that requires other GPUs",
    Use.ENDING: "held by a pod that is ending",
    Use.SICK: "unhealthy, or it does not answer; whoever holds it",
}


class Flag(Enum):
    """What is particular about a node; the value is the word for it in pages and filters."""

    UNUSABLE = "no usable record"
    STALE = "stale"
    NOT_READY = "not ready"
    CORDONED = "cordoned"
    PAUSED = "paused after refusals"
    SICK = "sick GPU"
    KEPT_PLACE = "place kept"
    COMING = "pods not shown yet"
    SHARED = "shared or split GPUs"


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A pod on a GPU, and how many of the GPU's devices it holds.

    ``name`` is the pod's, with its namespace; its UID where the pod is not known. ``since`` is when
    its kubelet took it, in seconds since 1970; None where nobody says.
    """

    name: str
    use: Use
    devices: int
    asks: str = ""
    since: float | None = None


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU: how it stands, and ``held`` of its ``devices`` (1 for a whole GPU).

    ``trouble`` is what its agent says of its health, ``since`` when it said so first (RFC 3339).
    """

    use: Use
    held: int
    devices: int
    holders: tuple[GpuHolder, ...] = ()
    trouble: str = ""
    since: str = ""

    @property
    def partly(self) -> bool:
        """Whether some of its devices are held, and some are not."""
        return 0 < self.held < self.devices

    @property
    def key(self) -> tuple[Use, int, int]:
        """All of it that a drawing shows."""
        return self.use, self.held, self.devices


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as the map shows it: its GPUs by position, and what else is to be said.

    ``coming`` counts devices of pods that are bound and that no report shows yet: they look free,
    and which ones they are, the kubelet decides or has decided. ``place_for`` is the waiting pod
    for which a place is kept. ``trouble`` says what is wrong, in words.
    """

    facts: NodeFacts
    kind: str
    gpus: tuple[GpuState, ...] = ()
    flags: frozenset[Flag] = frozenset()
    coming: int = 0
    place_for: str = ""
    trouble: tuple[str, ...] = ()
    uses: Counter[Use] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """The node's name."""
        return self.facts.name

    @property
    def topology(self) -> NodeTopology | None:
        """The node's hardware, where its record can be used."""
        return self.facts.topology

    @property
    def free(self) -> int:
        """GPUs that nobody holds, stranded ones included."""
        return self.uses[Use.FREE] + self.uses[Use.STRANDED]


NO_RECORD = "no usable record"
"""In place of a machine's kind, where nothing is known of the machine."""


def node_state(facts: NodeFacts) -> NodeState:
    """How a node stands. Raises whatever a fault of ours in its ledger raises."""
    flags, trouble = set(_flags(facts)), []
    topology, report = facts.topology, facts.report
    if topology is None:
        trouble.append(facts.record.problem or "its agent has written no record yet")
        return NodeState(
            facts, NO_RECORD, flags=frozenset({*flags, Flag.UNUSABLE}), trouble=(*trouble,)
        )
    if report is not None and report.not_ready:
        trouble.append(report.not_ready)
    entries = [_Devices(facts, served, topology) for served in topology.resources]
    for each in entries:
        why = facts.record.contradiction(each.served.name)
        if why is not None:
            flags.add(Flag.UNUSABLE)
            trouble.append(why)
    if report is None:
        flags.add(Flag.UNUSABLE)
        trouble.append("its agent has written no report yet")
    states = _gpu_states(facts, topology, entries)
    if any(state.use is Use.SICK for state in states):
        flags.add(Flag.SICK)
    for gone in facts.record.missing:
        trouble.append(f"{gone.name} does not answer its driver")
        flags.add(Flag.SICK)
    coming = sum(each.coming for each in entries)
    if coming:
        flags.add(Flag.COMING)
    if any(state.devices != 1 for state in states):
        flags.add(Flag.SHARED)
    place = facts.kept_for if facts.kept is not None else None
    if place is not None:
        flags.add(Flag.KEPT_PLACE)
    return NodeState(
        facts,
        _kind(topology),
        states,
        frozenset(flags),
        coming,
        f"{place.namespace}/{place.name}" if place is not None else "",
        tuple(trouble),
        Counter(state.use for state in states),
    )


def _flags(facts: NodeFacts) -> Iterator[Flag]:
    if facts.record.stale:
        yield Flag.STALE
    if facts.report is not None and facts.report.not_ready:
        yield Flag.NOT_READY
    if facts.node_object.cordoned:
        yield Flag.CORDONED
    if any(streaks.pauses for streaks in facts.history.streaks.values()):
        yield Flag.PAUSED


def _kind(topology: NodeTopology) -> str:
    """The machine in one line, and how its GPUs are shared."""
    replicas = max((served.replicas for served in topology.resources), default=1)
    summary = topology.summary() or "no GPU"
    return f"{summary}, {replicas} shares of each" if replicas > 1 else summary


class _Devices:
    """The devices of one resource of a node, and who holds them."""

    def __init__(self, facts: NodeFacts, served: GpuResource, topology: NodeTopology) -> None:
        self.served = served
        self.devices: ServedDevices = served_devices(topology, served)
        self.offer = facts.last_offer(served.name)

    @property
    def coming(self) -> int:
        """Devices that pods have or will get, and that no report shows yet."""
        if isinstance(self.offer, Rejection):
            return 0
        now = self.offer.availability
        return now.hidden + sum(pod.held for pod in now.unreported if not pod.departed)

    def holders(
        self, facts: NodeFacts, pods: dict[PodUid, PodRecord]
    ) -> Iterator[tuple[int, GpuHolder]]:
        """By the position of a GPU: who holds how many of its devices."""
        if isinstance(self.offer, Rejection):
            return
        width = self.offer.availability.width
        for uid, pool in self.offer.ledger.shown.items():
            pod = pods.get(uid)
            use = (
                Use.ENDING
                if pod is None or uid in facts.pods.ending
                else self._use(pod, pool, width)
            )
            if pod is None and not facts.pods.complete:
                use = Use.PLAIN
            found: Counter[int] = Counter()
            for p, gpu in enumerate(self.devices.gpu_of):
                found[gpu] += count(pool, p, width)
            for gpu, devices in found.items():
                if devices:
                    yield gpu, _holder(uid, pod, use, devices)

    def _use(self, pod: PodRecord, pool: int, width: int) -> Use:
        """How a pod stands that holds these devices."""
        request = pod.request
        if not isinstance(request, GpuRequest) or request.plain:
            return Use.PLAIN
        shape, mask = self.devices.shape, gpus(pool, width)
        held = sum(count(pool, p, width) for p in range(len(self.devices.gpu_of)))
        if held < request.count:  # the rest is not shown yet: nobody can judge
            return Use.KEPT
        met = satisfies(shape, request.constraints, mask, count=held, replicas=self.served.replicas)
        if met:
            return Use.KEPT
        return Use.BROKEN if request.required else Use.PLAIN


def _holder(uid: PodUid, pod: PodRecord | None, use: Use, devices: int) -> GpuHolder:
    if pod is None:
        return GpuHolder(uid, use, devices)
    asks = pod.request.text if isinstance(pod.request, GpuRequest) else pod.request.reason
    return GpuHolder(f"{pod.namespace}/{pod.name}", use, devices, asks, pod.started)


def _gpu_states(
    facts: NodeFacts, topology: NodeTopology, entries: list[_Devices]
) -> tuple[GpuState, ...]:
    n = len(topology.gpus)
    totals, holders = [0] * n, [list[GpuHolder]() for _ in range(n)]
    pods = {pod.uid: pod for pod in facts.pods.every}
    for each in entries:
        for p, gpu in enumerate(each.devices.gpu_of):
            totals[gpu] += each.devices.counts[p]
        for gpu, holder in each.holders(facts, pods):
            holders[gpu].append(holder)
    health = {found.uuid: found for found in (facts.report.health if facts.report else ())}
    free = sum(
        1 << p for p in range(n) if not holders[p] and _healthy(health.get(topology.gpus[p].uuid))
    )
    lonely = stranded(topology.shape, free)
    return tuple(
        _gpu_state(
            totals[p], holders[p], health.get(topology.gpus[p].uuid), lonely=bool(lonely >> p & 1)
        )
        for p in range(n)
    )


def _healthy(found: Health | None) -> bool:
    return found is None or found.healthy


ORDER = (Use.BROKEN, Use.KEPT, Use.PLAIN, Use.ENDING)
"""Of several pods on a GPU the first of these says how the GPU stands."""


def _gpu_state(
    total: int, holders: list[GpuHolder], health: Health | None, *, lonely: bool
) -> GpuState:
    held = sum(holder.devices for holder in holders)
    uses = {holder.use for holder in holders}
    if health is not None and not health.healthy:
        use = Use.SICK
    elif uses:
        use = next(found for found in ORDER if found in uses)
    else:
        use = Use.STRANDED if lonely else Use.FREE
    trouble, since = (health.reason, health.since) if health is not None else ("", "")
    return GpuState(use, held, max(total, held, 1), tuple(holders), trouble, since)
