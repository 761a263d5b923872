"""The state of every GPU of a node: free, assumed, reserved, in use and by which pods, or sick.

The commands, the map, the metrics and their JSON all count GPUs by :attr:`NodeState.uses`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from scheduler_extender.explain.wording import GONE_POD, asks_text, pod_names, withheld
from scheduler_extender.framework.capacity import Capacities, Capacity, stranded
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo, Offer
from scheduler_extender.state.node.transitions import without_record
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import GpuUuid, NodeName, PodUid
from topology.core.devicesets import count, gpus, total
from topology.core.graph import NodeTopology
from topology.core.links import Link
from topology.core.mig import MIG
from topology.core.placement import OWN_CLAIMS_ONLY, Reason, Rejection, device_unit, used_memory
from topology.core.placement.constraints import satisfies
from topology.core.report import Health
from topology.core.requests import GpuRequest
from topology.times import age, seconds_of


class Use(Enum):
    """The state of a GPU; the value is its name in filters, style sheets and metrics."""

    FREE = "free"
    STRANDED = "stranded"
    ASSUMED = "assumed"
    RESERVED = "reserved"
    AS_ASKED = "in-use-as-asked"
    IN_USE = "in-use"
    MISMATCHED = "in-use-mismatched"
    TERMINATING = "terminating"
    SICK = "sick"

    @property
    def word(self) -> str:
        """The name for people."""
        return use_text(self.value)


def use_text(value: str) -> str:
    """Return the name for people of a state's value.

    >>> use_text("free"), use_text("in-use"), use_text("in-use-as-asked")
    ('free', 'in use', 'in use (as requested)')
    """
    kind = value.removeprefix("in-use-")
    words = "as requested" if value == Use.AS_ASKED.value else kind.replace("-", " ")
    return words if kind == value else f"in use ({words})"


MEANINGS = {
    Use.FREE: "no pod has it",
    Use.STRANDED: "free, but no other free GPU has an NVLink to it",
    Use.ASSUMED: "looks free, but an assumed or unacknowledged pod will get it",
    Use.RESERVED: "looks free, but it is reserved for a waiting pod",
    Use.AS_ASKED: "its pod has the GPUs that it requests",
    Use.IN_USE: "its pod accepts any GPU",
    Use.MISMATCHED: "its pod requires other GPUs",
    Use.TERMINATING: "its pod is terminating",
    Use.SICK: "unhealthy, or it does not answer; in use or not",
}
# The states that are in use by pods. If a GPU has several pods, the first of these counts.
USED = (Use.MISMATCHED, Use.AS_ASKED, Use.IN_USE, Use.TERMINATING)


class Flag(Enum):
    """A particular condition of a node; the value is its name in pages and filters."""

    UNUSABLE = "no usable record"
    MAINTENANCE = "under maintenance"
    STALE = "stale"
    NOT_READY = "not ready"
    CORDONED = "cordoned"
    PAUSED = "paused after refusals"
    SICK = "sick GPU"
    FABRIC = "fabric not ready"
    RESERVED = "reserved"
    COMING = "pods not shown yet"
    SHARED = "shared or split GPUs"


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A pod on a GPU."""

    uid: PodUid
    name: str
    use: Use
    devices: int  # the number of the GPU's devices that it holds
    request: str = ""
    since: float | None = None  # when its kubelet admitted it, in seconds since 1970


@dataclass(frozen=True, slots=True)
class GpuState:
    """The state of one GPU."""

    use: Use
    in_use: int  # the number of its devices in use
    devices: int  # 1 for a whole GPU
    holders: tuple[GpuHolder, ...] = ()
    problem: str = ""  # what its agent says of its health
    since: str = ""  # when the agent first said so (RFC 3339)
    memory_used: int | None = None  # bytes, by its pods; None for a GPU that is not shared
    unit: str = "GPU"  # the word for one of its devices, such as "GPU share" or "MIG instance"

    @property
    def partly(self) -> bool:
        """Whether only some of its devices are in use."""
        return 0 < self.in_use < self.devices

    @property
    def key(self) -> tuple[Use, int, int]:
        """Everything that a drawing shows of it."""
        return self.use, self.in_use, self.devices


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node: its GPUs by position, and further information."""

    info: NodeInfo
    kind: str  # the machine in one line
    gpus: tuple[GpuState, ...] = ()
    flags: frozenset[Flag] = frozenset()
    coming: int = 0  # devices of unacknowledged pods: the kubelet decides which ones
    reserved_for: tuple[str, ...] = ()  # the waiting pods that have a reservation
    problems: tuple[str, ...] = ()
    uses: Counter[Use] = field(default_factory=Counter)  # GPUs by state
    # For each pod that has several GPUs for itself, their positions.
    together: tuple[tuple[int, ...], ...] = ()
    capacity: Capacity = field(default_factory=Capacity)  # what it can still promise

    @property
    def name(self) -> NodeName:
        """The node's name."""
        return self.info.name

    @property
    def topology(self) -> NodeTopology | None:
        """The node's hardware, if its record can be used."""
        return self.info.topology

    @property
    def observed_at(self) -> str:
        """When the agent observed the node, by its own clock (RFC 3339); empty if unknown."""
        return self.info.report.observed_at if self.info.report is not None else ""

    @property
    def counts(self) -> dict[str, int]:
        """The :func:`tally` of its GPUs as data."""
        return {word.replace("in use", "inUse"): n for word, n in tally(self.uses).items()}

    def reported(self, today: float) -> float | None:
        """Return the seconds since the agent observed the node; None if that time is unknown."""
        return age(seconds_of(self.observed_at), today)

    def as_json(self, *, devices: bool) -> dict[str, Any]:
        """Return the node as data; with ``devices``, each of its GPUs."""
        data: dict[str, Any] = {
            "node": self.name,
            "machine": self.kind,
            "gpus": {"total": len(self.gpus), **self.counts},
            "canPromise": {
                "pairs": self.capacity.pairs,
                "quads": self.capacity.quads,
                "wholeNodes": self.capacity.nodes,
            },
            "flags": sorted(flag.value for flag in self.flags),
            "problems": list(self.problems),
            "unacknowledgedDevices": self.coming,
            "reservedFor": next(iter(self.reserved_for), None),
            "reservations": list(self.reserved_for),
            "observedAt": self.observed_at or None,
        }
        if devices and self.topology is not None:
            data["devices"] = [
                {
                    "gpu": gpu.index,
                    "uuid": gpu.uuid,
                    "product": gpu.product,
                    "numaNode": gpu.numa_node,
                    "state": state.use.value,
                    "inUse": state.in_use,
                    "of": state.devices,
                    "memoryUsed": state.memory_used,
                    "pods": [holder.name for holder in state.holders],
                    "problem": state.problem or None,
                }
                for gpu, state in zip(self.topology.gpus, self.gpus, strict=True)
            ]
        return data


def links_of(topology: NodeTopology) -> list[tuple[int, list[str]]]:
    """Return each GPU's index, and its link to every GPU and NIC, as ``nvidia-smi topo -m`` does.

    A link is NV and the number of NVLinks, or the PCIe class.
    """
    words = {}
    for link in topology.links:
        words[link.a, link.b] = words[link.b, link.a] = link_word(link)
    near = [dict(nic.distances) for nic in topology.nics]
    indices = [gpu.index for gpu in topology.gpus]
    return [
        (
            a,
            [
                *("–" if a == b else words.get((a, b), "?") for b in indices),
                *(kinds[a].label if a in kinds else "?" for kinds in near),
            ],
        )
        for a in indices
    ]


def link_word(link: Link) -> str:
    """Return a link in the words of ``nvidia-smi topo -m``."""
    return f"NV{link.nvlinks}" if link.nvlinks else link.pcie.label


def tally(uses: Counter[Use]) -> dict[str, int]:
    """Return the number of GPUs by state, with those in use as one number."""
    apart = {use.word: uses[use] for use in Use if use not in USED and use is not Use.SICK}
    return {**apart, "in use": sum(uses[use] for use in USED), "sick": uses[Use.SICK]}


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over several nodes."""

    nodes: int
    uses: Counter[Use]
    coming: int
    capacity: Capacity
    memory: int = 0  # bytes of the GPUs that pods share
    memory_used: int = 0  # bytes that the pods on them use

    @property
    def gpus(self) -> int:
        """The number of GPUs of these nodes."""
        return self.uses.total()


def totals(nodes: Iterable[NodeState]) -> Totals:
    """Return the sums over these nodes."""
    nodes = list(nodes)
    uses: Counter[Use] = Counter()
    for node in nodes:
        uses.update(node.uses)
    capacity = sum((node.capacity for node in nodes), Capacity())
    memory, memory_used = 0, 0
    for node in nodes:
        if Flag.SHARED in node.flags and node.topology is not None:
            for gpu, state in zip(node.topology.gpus, node.gpus, strict=True):
                if state.memory_used is not None:
                    memory, memory_used = memory + gpu.memory, memory_used + state.memory_used
    coming = sum(node.coming for node in nodes)
    return Totals(len(nodes), uses, coming, capacity, memory, memory_used)


NO_USABLE_RECORD = "no usable record"  # stands for a machine's kind if the machine is unknown


class Nodes:
    """The states of a cluster's nodes; those of unchanged nodes are cached.

    Any thread may use it.
    """

    def __init__(self, cluster: Cache) -> None:
        self._cluster = cluster
        self._capacities = Capacities(cluster.settings)
        self._known: dict[NodeName, NodeState] = {}

    def all(self) -> list[NodeState]:
        """Return the state of every node, by name."""
        return self.of_all(self._cluster.snapshot())

    def of_all(self, snapshot: Snapshot) -> list[NodeState]:
        """Return the state of every node in ``snapshot``, in its order."""
        states = [self.of(info) for info in snapshot.nodes]
        self._known = {state.name: state for state in states}
        return states

    def of(self, info: NodeInfo) -> NodeState:
        """Return the state of one node.

        A fault in our own code affects the state of this node only, not the whole answer. It is
        noted, and shown as a problem of the node.
        """
        known = self._known.get(info.name)
        if known is not None and known.info is info:
            return known
        try:
            state = node_state(info)
            return replace(state, capacity=self._capacities.of(info)) if state.gpus else state
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self._cluster.faults.note(info.name, error)
            problems = (f"internal error: {type(error).__name__}",)
            bare = without_record(info)
            return NodeState(
                bare, NO_USABLE_RECORD, flags=frozenset({Flag.UNUSABLE}), problems=problems
            )


def has_gpus(info: NodeInfo) -> bool:
    """Check whether there is anything to show of a node."""
    if info.topology is not None or info.record.problem is not None:
        return True
    return info.node_object.exists and not info.serves_nothing


def node_state(info: NodeInfo) -> NodeState:
    """Return the state of a node without its capacity.

    A fault in our own code is raised unchanged.
    """
    flags, problems = set(_flags(info)), []
    topology, report = info.topology, info.report
    if topology is None:
        flags.add(Flag.UNUSABLE)
        problems.append(info.record.problem or "its agent has written no record yet")
        return NodeState(info, NO_USABLE_RECORD, flags=frozenset(flags), problems=tuple(problems))
    if report is not None and report.not_ready:
        problems.append(report.not_ready)
    wrong = [info.record.contradiction(served.name) for served in topology.resources]
    if report is None:
        wrong.append("its agent has written no report yet")
    problems += filter(None, wrong)
    offer = info.offer("")
    if isinstance(offer, Rejection) and offer.reason is Reason.NO_ALLOCATOR:
        problems.append(offer.message)
    if not topology.allocator.serves_extended_resource:
        problems.append(OWN_CLAIMS_ONLY.message)
    problems += filter(None, [info.fabric_fault])
    problems += [f"{gone.name} does not answer the driver" for gone in info.record.missing]
    offers = [info.last_offer(served.name) for served in topology.resources]
    usable = [offer for offer in offers if not isinstance(offer, Rejection)]
    coming = 0  # devices that unacknowledged pods have or will get
    for now in (offer.availability for offer in usable):
        coming += now.hidden + sum(p.held for p in now.unacknowledged if not p.terminated)
    waiting = [pod for pod, _ in info.for_reservations]
    states = _gpu_states(info, topology, usable)
    shares = max((state.devices for state in states), default=1)
    kept = sum(pod.request.count for pod in waiting if isinstance(pod.request, GpuRequest))
    states, uses = _with_takers(states, -(-coming // shares), -(-(coming + kept) // shares))
    more = {
        Flag.UNUSABLE: any(wrong),
        Flag.SICK: bool(uses[Use.SICK] or info.record.missing),
        Flag.FABRIC: bool(info.fabric_fault),
        Flag.COMING: coming > 0,
        Flag.SHARED: any(state.devices != 1 for state in states),
        Flag.RESERVED: bool(waiting),
    }
    return NodeState(
        info,
        _kind(topology),
        states,
        frozenset({*flags, *(flag for flag, there in more.items() if there)}),
        coming,
        tuple(pod.full_name for pod in waiting),
        tuple(problems),
        uses,
        _together(states),
    )


def _together(states: tuple[GpuState, ...]) -> tuple[tuple[int, ...], ...]:
    """Return, for each pod that has several GPUs for itself, their positions."""
    found: dict[PodUid, list[int]] = {}
    for p, state in enumerate(states):
        if len(state.holders) == 1 and not state.partly:
            found.setdefault(state.holders[0].uid, []).append(p)
    return tuple(sorted(tuple(at) for at in found.values() if len(at) > 1))


def _flags(info: NodeInfo) -> Iterator[Flag]:
    if info.node_object.maintained:
        yield Flag.MAINTENANCE
    elif info.record.stale:
        yield Flag.STALE
    elif info.report is not None and info.report.not_ready:
        yield Flag.NOT_READY
    if info.node_object.cordoned:
        yield Flag.CORDONED
    if any(backoffs.pauses for backoffs in info.history.backoffs.values()):
        yield Flag.PAUSED


def _kind(topology: NodeTopology) -> str:
    """Return the machine in one line, and how its GPUs are shared."""
    replicas = max((served.replicas for served in topology.resources), default=1)
    summary = topology.summary() or "no GPU"
    return f"{summary}, {replicas} shares of each" if replicas > 1 else summary


def _with_takers(
    states: tuple[GpuState, ...], assumed: int, taken: int
) -> tuple[tuple[GpuState, ...], Counter[Use]]:
    """Return the GPUs and the number in each state, with unacknowledged pods counted.

    Unacknowledged pods take at least ``assumed`` of the free GPUs. Together with a reservation they
    take ``taken``. Which free GPUs they take is unknown, so a GPU gets such a state only if all
    free GPUs are taken. Stranded GPUs are counted as taken last.
    """
    uses = Counter(state.use for state in states)
    free = uses[Use.FREE] + uses[Use.STRANDED]
    taken = min(free, taken)
    uses[Use.ASSUMED] = min(assumed, taken)
    uses[Use.RESERVED] = taken - uses[Use.ASSUMED]
    uses[Use.STRANDED] = min(uses[Use.STRANDED], free - taken)
    uses[Use.FREE] = free - taken - uses[Use.STRANDED]
    if not 0 < taken == free:
        return states, uses
    takers = Counter({use: uses[use] for use in (Use.ASSUMED, Use.RESERVED)}).elements()
    looks_free = (Use.FREE, Use.STRANDED)
    return tuple(
        replace(state, use=next(takers)) if state.use in looks_free else state for state in states
    ), uses


def _gpu_states(
    info: NodeInfo, topology: NodeTopology, offers: list[Offer]
) -> tuple[GpuState, ...]:
    n = len(topology.gpus)
    devices, free, holders = [0] * n, [0] * n, [list[GpuHolder]() for _ in range(n)]
    memory: dict[int, int] = {}
    units = ["GPU"] * n
    # Where the plugin serves MIG instances, it does not serve their GPUs as whole GPUs.
    by_instance = any(served.strategy == MIG for served in topology.resources)
    for offer in offers:
        now = offer.availability
        for p, gpu in enumerate(offer.devices.gpu_of):
            if by_instance and offer.resource.strategy != MIG and topology.shape.mig[gpu]:
                continue
            devices[gpu] += offer.devices.counts[p]
            free[gpu] += count(now.free, p, now.width)
            units[gpu] = device_unit(offer.kubelet)
        for gpu, holder in _holders(info, offer):
            holders[gpu].append(holder)
        if offer.resource.replicas > 1:
            used = used_memory(offer.kubelet, now)
            for gpu, of_device in zip(offer.devices.gpu_of, used, strict=True):
                memory[gpu] = memory.get(gpu, 0) + of_device.used
    health_of = {health.uuid: health for health in (info.report.health if info.report else ())}
    health = [
        Health(GpuUuid(""), False, withheld(info))
        if devices[p] and not free[p] and not holders[p] and health_of.get(gpu.uuid, WELL).healthy
        else health_of.get(gpu.uuid, WELL)
        for p, gpu in enumerate(topology.gpus)
    ]
    whole = sum(1 << p for p in range(n) if not holders[p] and health[p].healthy)
    lonely = stranded(topology.shape, whole)
    return tuple(
        GpuState(
            _use_of(holders[p], health[p], lonely=bool(lonely >> p & 1)),
            held := sum(holder.devices for holder in holders[p]),
            max(devices[p], held, 1),
            tuple(holders[p]),
            health[p].reason,
            health[p].since,
            memory.get(p),
            units[p],
        )
        for p in range(n)
    )


WELL = Health(GpuUuid(""), True)


def _holders(info: NodeInfo, offer: Offer) -> Iterator[tuple[int, GpuHolder]]:
    """Yield, by the position of a GPU, each holder with the number of devices that it holds."""
    pods, width = {pod.uid: pod for pod in info.pods.every}, offer.availability.width
    names = pod_names(info)
    for uid, pool in offer.ledger.shown.items():
        pod, on = pods.get(uid), Counter[int]()
        for p, gpu in enumerate(offer.devices.gpu_of):
            on[gpu] += count(pool, p, width)
        name = names.get(uid, GONE_POD)
        use = _use(info, offer, uid, pod, pool)
        asks, since = (asks_text(pod.request), pod.started) if pod is not None else ("", None)
        if pod is None and uid in names and _would_know(info):
            name += " (gone)"
        for gpu, devices in on.items():
            if devices:
                yield gpu, GpuHolder(uid, name, use, devices, asks, since)


def _would_know(info: NodeInfo) -> bool:
    """Check whether every holder is a known pod as long as it exists.

    This does not hold for claims: a claim lasts, whichever pod has it.
    """
    return info.pods.complete and not info.serves_claims


def _use(info: NodeInfo, offer: Offer, uid: PodUid, pod: PodRecord | None, pool: int) -> Use:
    """Return the state of the devices that a pod holds."""
    if uid in info.pods.terminating or (pod is None and _would_know(info)):
        return Use.TERMINATING
    request = pod.request if pod is not None else None
    if not isinstance(request, GpuRequest) or request.plain:
        return Use.IN_USE
    width, replicas = offer.availability.width, offer.resource.replicas
    held = total(pool, width)
    if held < request.count:  # the rest is not shown yet, so no judgement is possible
        return Use.AS_ASKED
    shape, mask = offer.devices.shape, gpus(pool, width)
    if satisfies(shape, request.constraints, mask, count=held, replicas=replicas):
        return Use.AS_ASKED
    return Use.MISMATCHED if request.required else Use.IN_USE


def _use_of(holders: Sequence[GpuHolder], health: Health, *, lonely: bool) -> Use:
    """Return the state of a GPU with these holders.

    ``lonely`` is True if no free GPU has an NVLink to it.
    """
    if not health.healthy:
        return Use.SICK
    if not holders:
        return Use.STRANDED if lonely else Use.FREE
    uses = {holder.use for holder in holders}
    return next(use for use in USED if use in uses)
