"""When to look and when to write: one thread that joins what the others see into one record.

Rules:

* Whoever is bound here and wants GPUs is news due: the kubelet is asked often until the pod is
  shown whole, then rarely again. So is a pod that ends until it is shown no more.
* After the kubelet's socket was away or has become another, living pods that held devices and show
  none go on holding them: a kubelet lists nobody for a moment after its start. If that lasts, the
  record says that it cannot be relied on.
* A list with devices of which nobody can tell whose they are is kept back for a moment: the API
  server's word may be on its way.
* What cannot be vouched for is not published as if it could: the record says that it is not Ready,
  and the extender promises nothing there.
* In one boot nothing is forgotten: health, lost GPUs and who held what come from the record itself
  when the agent starts anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from topology.agent.asks.podresources import KubeletBusyError, KubeletDownError
from topology.agent.decides import limits
from topology.agent.decides.allocation import (
    NOTHING_KNOWN,
    KubeletFacts,
    Plugin,
    allocator_of,
    resources_of,
)
from topology.agent.decides.hardware import keep_lost, plugins_doubt, topology_of
from topology.agent.decides.health import LOST, HealthBook
from topology.agent.decides.holdings import (
    Entry,
    Held,
    NodePod,
    allocations,
    join,
    unsettled,
    vanished,
)
from topology.agent.decides.limits import HOLDINGS_LEFT_OUT, LONGEST_MESSAGE, Problem
from topology.agent.decides.observed import NvmlState, Unseen, Xid
from topology.agent.decides.pcitree import PciTree
from topology.agent.publisher import Publisher
from topology.core.devices import MIB, DeviceId, GpuUuid, NodeName, PodUid, base_uuid
from topology.core.graph import NodeTopology, TopologyError
from topology.core.report import READY, UNACCOUNTED_USE, Condition, Report
from topology.kubeapi.apiserver import ApiFailure

log = structlog.get_logger(__name__)

COMPLETE = "Complete"


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two questions to the kubelet, and how long doubtful answers are kept back.

    While news is due: ``soon`` for the first ``hasty`` seconds, then ``later``, and ``seldom`` for
    who is still not shown after ``patient`` seconds. With none due: ``held`` while somebody holds
    devices, since a kubelet may let go seconds before the API server hears of it, else ``idle``.
    """

    soon: float = 0.1
    hasty: float = 5.0
    later: float = 0.3
    patient: float = 60.0
    seldom: float = 2.0
    held: float = 2.0
    idle: float = 10.0
    restless: float = 1.0
    restart: float = 10.0
    """How long after a kubelet's restart it is asked often (``restless``); who is alive and shown
    no more after that makes the record say that it cannot be relied on."""
    stranger: float = 1.0
    """How long a list is kept back for a pod whose UID is not known."""
    silence: float = 10.0
    """How long the kubelet may be silent before the record says so."""


NOBODYS_MEMORY = 256 * MIB
"""Memory in use on a GPU that nobody holds, above which somebody must be computing there."""
NOBODYS_ROUNDS = 3
"""For so many looks in a row: a process may take a moment to go after its pod has."""


class Kubelet(Protocol):
    """The part of :class:`~topology.agent.asks.podresources.PodResources` that is needed here."""

    restarts: int

    def entries(self) -> list[Entry]:
        """Every active pod. Raises :class:`KubeletDownError`."""

    def allocatable(self) -> dict[str, frozenset[DeviceId]]:
        """What the kubelet hands out from. Raises :class:`KubeletDownError`."""


class Driver(Protocol):
    """The part of :class:`~topology.agent.asks.nvmlwatch.NvmlWatch` that is needed here."""

    def state(self) -> NvmlState:
        """What was seen last."""

    def xids(self) -> list[Xid]:
        """The errors since."""

    def expect(self, gpus: int) -> None:
        """How many GPUs there ought to be."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the API server and the kubelet's configuration say, at one moment.

    ``synced`` is whether the pods are all of the node's; ``alone`` that there is no API server to
    ask, so that nobody's UID will ever be known. ``pods_version`` is a resourceVersion up to which
    the pods are known at least, and ``departures`` counts those that have left.
    """

    pods: dict[PodUid, NodePod]
    plugin: Plugin | None = None
    labels: dict[str, str] = field(default_factory=dict)
    kubelet: KubeletFacts = NOTHING_KNOWN
    synced: bool = True
    alone: bool = False
    unseen: tuple[Unseen, ...] = ()
    pods_version: str = ""
    departures: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """The record as the agent would write it now; ``topology`` is None where nobody could look."""

    topology: NodeTopology | None
    report: Report
    unseen: tuple[Unseen, ...] = ()
    due: frozenset[PodUid] = frozenset()
    """Pods of which news from the kubelet is due."""
    shown: frozenset[PodUid] = frozenset()
    """Pods that the report shows."""
    departures: int = 0
    """How many pods had left when the kubelet was asked. The extender holds a pod's GPUs until a
    report says that its agent knew of the departure, so each one is worth a write."""
    unknown: int = 0
    """Device ids of which nobody can tell which GPU they are."""
    left_out: int = 0
    """Device ids that the report does not show."""


class NodeAgent:
    """The agent of one node. Not safe for several threads: one calls :meth:`turn` again and again.

    ``clock`` gives seconds that only run forward, ``now`` the time of day as RFC 3339.
    """

    def __init__(
        self,
        node: NodeName,
        boot_id: str,
        kubelet: Kubelet,
        driver: Driver,
        pci: Callable[[], PciTree],
        surroundings: Callable[[], Surroundings],
        clock: Callable[[], float],
        now: Callable[[], str],
        *,
        policy: str | None = None,
        pace: Pace = Pace(),
        on_kubelet_restart: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node
        self._boot = boot_id
        self._kubelet = kubelet
        self._driver = driver
        self._pci = pci
        self._surroundings = surroundings
        self._clock = clock
        self._now = now
        self._policy = policy
        self._pace = pace
        self._on_kubelet_restart = on_kubelet_restart
        self._health = HealthBook()
        self._hardware: NodeTopology | None = None
        self._hardware_unseen: tuple[Unseen, ...] = ()
        self._looked_at: tuple[object, ...] = ()
        self._contradiction = ""
        self._doubt = ""
        self._rounds = -1
        self._joined: dict[PodUid, Entry] = {}
        self._before: dict[PodUid, Entry] | None = None
        self._strangers: list[Entry] = []
        self._somebody_holds = False
        self._observed_at = ""
        self._pods_version = ""
        self._departures = 0
        self._entries: list[Entry] = []
        self._allocatable: dict[str, frozenset[DeviceId]] | None = None
        self._allocatable_at = float("-inf")
        self._want_allocatable = False
        self._asked = float("-inf")
        self._silent_since: float | None = None
        self._silence = "the kubelet has not answered yet"
        self._was_down = False
        self._leave_alone_until = float("-inf")
        self._restarts = 0
        self._restless_until = clock() + pace.restart
        self._vanished: frozenset[PodUid] = frozenset()
        self._vanished_since: float | None = None
        self._nameless_since: dict[Entry, float] = {}
        self._hurry = False
        self._accepted = False
        self._due: frozenset[PodUid] = frozenset()
        self._due_since = clock()
        self._nobodys: defaultdict[GpuUuid, int] = defaultdict(int)
        self._conditions: dict[str, Condition] = {}
        self._unfit = ""
        self.kubelet_failures = 0

    def remember(self, topology: NodeTopology, report: Report | None) -> None:
        """Take over from the agent before us by its record; of another boot nothing counts."""
        if report is None or report.boot_id != self._boot:
            return
        self._hardware = topology
        self._health = HealthBook(report.health)
        self._conditions = {c.type: c for c in report.conditions}
        held: defaultdict[PodUid, list[Held]] = defaultdict(list)
        names = {}
        for a in report.allocations:
            held[a.pod_uid].append(Held(a.container, a.resource, a.device_ids))
            names[a.pod_uid] = (a.namespace, a.pod)
        if any(c.type == READY and c.reason in HOLDINGS_LEFT_OUT for c in report.conditions):
            return  # the kubelet tells again
        self._joined = {uid: Entry(*names[uid], tuple(parts)) for uid, parts in held.items() if uid}
        self._before = self._joined

    def turn(self) -> Picture:
        """Look at what is due and return the record as it should stand now."""
        around = self._surroundings()
        if self._clock() >= self._next_question():
            self._ask_kubelet(around)
        self._look_at_hardware(around)
        served = None if self._allocatable is None else self._allocatable.keys()
        self._due_changed(unsettled(self._joined, around.pods, served))
        return self._compose(around)

    def next_turn(self) -> float:
        """When the next turn is due with no news, by the clock."""
        return self._next_question()

    @property
    def heard(self) -> bool:
        """Whether the kubelet has been understood, or has failed to answer."""
        return self._accepted or self._silent_since is not None

    @property
    def expected_links(self) -> Mapping[GpuUuid, int]:
        """NVLinks that were up at some time since the boot, by GPU."""
        return self._health.expected()

    def news(self) -> None:
        """Something has happened that the kubelet may know of: ask it soon."""
        self._due_since = self._clock()
        self._hurry = True

    # The kubelet.

    def _next_question(self) -> float:
        return max(self._asked + self._pause(), self._leave_alone_until)

    def _pause(self) -> float:
        """How long after the last question the next one is due."""
        pace, now = self._pace, self._clock()
        if self._hurry:
            return pace.soon / 2
        if self._silent_since is not None:
            return pace.later
        if self._due or self._doubtful:
            waited = now - self._due_since
            if waited < pace.hasty:
                return pace.soon
            return pace.later if waited < pace.patient else pace.seldom
        calm = pace.held if self._somebody_holds else pace.idle
        return min(pace.restless, calm) if now < self._restless_until else calm

    @property
    def _doubtful(self) -> bool:
        """Whether part of the last list is not taken for true yet."""
        return bool(self._vanished or self._nameless_since)

    def _ask_kubelet(self, around: Surroundings) -> None:
        started = self._asked = self._clock()
        hurried, self._hurry = self._hurry, False
        try:
            entries = self._kubelet.entries()
            if entries != self._entries or self._allocatable_is_due(started, around):
                self._allocatable = self._kubelet.allocatable()
                self._allocatable_at, self._want_allocatable = started, False
        except KubeletBusyError as error:
            self._hurry = hurried
            self._leave_alone_until = started + self._pace.later
            self._fall_silent(started, str(error))
            return
        except KubeletDownError as error:
            self.kubelet_failures += 1
            self._was_down = True
            self._fall_silent(started, str(error))
            return
        if self._was_down or self._kubelet.restarts != self._restarts:
            self._was_down, self._restarts = False, self._kubelet.restarts
            self._restless_until = started + self._pace.restart
            self._on_kubelet_restart()
        self._silent_since, self._silence = None, ""
        self._entries = entries
        self._accept(entries, around, started)

    def _allocatable_is_due(self, now: float, around: Surroundings) -> bool:
        """Whether what may be handed out has to be asked for although nobody came or went."""
        since = now - self._allocatable_at
        if self._allocatable is None or self._want_allocatable or since >= self._pace.idle:
            return True
        unserved = any(
            resource not in self._allocatable
            for uid in self._due
            if uid in around.pods
            for _, resource in around.pods[uid].wants
        )
        return (unserved or now < self._restless_until) and since >= self._pace.restless

    def _fall_silent(self, now: float, cause: str) -> None:
        if self._silent_since is None:
            self._silent_since = now
            log.warning("kubelet does not answer", cause=cause)
        self._silence = cause

    def _accept(self, entries: Sequence[Entry], around: Surroundings, now: float) -> None:
        """Take the list for true, but for what it may be wrong about."""
        if not around.synced:
            return
        joined, strangers = join(entries, around.pods, self._before)
        gone: frozenset[PodUid] = frozenset()
        if now < self._restless_until or self._vanished:
            gone = vanished(joined, self._joined, around.pods)
        kept = {uid: self._joined[uid] for uid in gone}
        if not _ids(kept.values()).isdisjoint(_ids([*joined.values(), *strangers])):
            kept = {}  # somebody else has their devices: they are gone indeed
        self._vanished = frozenset(kept)
        if not kept:
            self._vanished_since = None
        elif self._vanished_since is None:
            self._vanished_since = now
        nameless = [] if around.alone else strangers
        since = self._nameless_since
        self._nameless_since = {e: since.get(e, now) for e in nameless}
        if any(now - at < self._pace.stranger for at in self._nameless_since.values()):
            return
        self._nameless_since = dict.fromkeys(nameless, float("-inf"))
        self._observed_at = self._now()
        self._pods_version, self._departures = around.pods_version, around.departures
        self._joined, self._strangers = {**joined, **kept}, strangers
        self._before = self._joined
        self._somebody_holds = bool(_ids([*self._joined.values(), *strangers]))
        self._accepted = True

    def _due_changed(self, due: frozenset[PodUid]) -> None:
        if due - self._due:
            self._due_since = self._clock()
        self._due = due

    # The hardware.

    def _look_at_hardware(self, around: Surroundings) -> None:
        state = self._driver.state()
        sick = [self._health.xid(xid, self._now()) for xid in self._driver.xids()]
        if any(sick):
            # The plugin hears of it, too, and the kubelet then hands out less.
            self._restless_until = max(self._restless_until, self._clock() + self._pace.restart)
            self._want_allocatable = True
            self.news()
        if state.seen is None:
            return
        if state.rounds != self._rounds:
            self._rounds = state.rounds
            self._health.look(state.vitals, self._now())
            self._watch_nobodys(state, around)
        looked_at = (state.seen, self._health.down())
        if looked_at == self._looked_at:
            return
        self._looked_at = looked_at
        self._contradiction, self._doubt = "", ""
        try:
            found, unseen = topology_of(self._node, state.seen, self._pci(), self._health.down())
            self._hardware, cut = limits.hardware(keep_lost(found, self._hardware))
            unseen = (*unseen, *cut)
            self._doubt = plugins_doubt(state.seen, self._hardware)
        except TopologyError as error:
            log.exception("the driver contradicts itself")
            self._contradiction = f"the driver contradicts itself: {error}"
            unseen = (Unseen("topology", self._contradiction),)
        self._hardware_unseen = unseen
        if self._hardware is not None:
            self._driver.expect(len(self._hardware.gpus))
            here = {gpu.uuid for gpu in state.seen.gpus} | {v.uuid for v in state.vitals}
            self._health.gone(
                (g.uuid for g in self._hardware.gpus if g.uuid not in here), self._now()
            )

    def _watch_nobodys(self, state: NvmlState, around: Surroundings) -> None:
        """Count the looks for which somebody has been computing where nobody should."""
        held = set(map(base_uuid, _ids([*self._joined.values(), *self._strangers])))
        split = {gpu.uuid for gpu in state.seen.gpus if gpu.mig_instances} if state.seen else set()
        for vital in state.vitals:
            busy = bool(vital.processes) or (vital.memory_used or 0) > NOBODYS_MEMORY
            if not busy or vital.uuid in held | split:
                self._nobodys.pop(vital.uuid, None)
            elif not self._due:  # else it may be of a pod that comes or goes
                self._nobodys[vital.uuid] += 1

    # The record.

    def _compose(self, around: Surroundings) -> Picture:
        state = self._driver.state()
        resources, cut, unfit = limits.resources(
            resources_of(self._allocatable or {}, around.labels)
        )
        lost = any(LOST in health.reason for health in self._health.report())
        doubt = "it fails over a GPU that is lost" if lost else self._doubt
        facts, unknown = allocator_of(resources, around.plugin, around.kubelet, self._policy, doubt)
        topology = None
        if self._hardware is not None and not (state.seen is None and not self._looked_at):
            topology = replace(self._hardware, resources=resources, allocator=facts)
        unseen = tuple(sorted({*self._hardware_unseen, *unknown, *around.unseen, *cut}))
        held = allocations(self._joined, self._strangers)
        looked = self._hardware is not None and state.seen is not None
        gpus = [gpu.uuid for gpu in self._hardware.gpus] if self._hardware and looked else None
        strange = limits.strangers(self._allocatable or {}, held, gpus)
        shown = limits.holdings(
            self._allocatable, held, strange, limits.room_beside(self._hardware)
        )
        unfit = shown.problem or unfit
        self._say(unfit)
        if strange:
            self._nobodys.clear()  # whose GPU is computed on cannot be told either
        blind = [Unseen("GPUs and links", f"NVML: {state.problem}")] if state.problem else []
        if self._silence:
            blind.append(Unseen("who holds what", self._silence))
        shared = any(r.strategy == "mps" for r in resources)
        report = Report(
            self._boot,
            0,
            shown.allocatable,
            shown.allocations,
            self._health.report(),
            (
                self._ready(
                    state, unfit, lost=lost and all(r.strategy == "none" for r in resources)
                ),
                self._unaccounted(shared),
                self._condition(
                    COMPLETE,
                    not unseen,
                    "AllSeen" if not unseen else "SomeUnseen",
                    "; ".join(map(str, unseen)),
                ),
            ),
            observed_at=self._observed_at,
            pods_version=self._pods_version,
        )
        return Picture(
            topology,
            report,
            (*blind, *unseen),
            self._due,
            frozenset(self._joined),
            self._departures,
            len(strange),
            shown.left_out,
        )

    def _say(self, unfit: Problem | None) -> None:
        """Log once, and not at each turn, that part of what is known cannot be published."""
        reason = unfit.reason if unfit else ""
        if unfit and reason != self._unfit:
            log.warning("record not ready", reason=reason, cause=unfit.message)
        self._unfit = reason

    def _ready(self, state: NvmlState, unfit: Problem | None, *, lost: bool) -> Condition:
        now, silent = self._clock(), self._silent_since
        problem: tuple[str, str] | None = None
        if state.problem:
            problem = "NvmlUnavailable", f"NVML: {state.problem}"
        elif self._contradiction:
            problem = "HardwareContradictory", self._contradiction
        elif silent is not None and (not self._accepted or now - silent > self._pace.silence):
            problem = "KubeletUnavailable", self._silence
        elif not self._accepted:
            problem = "Starting", "the node's pods are not known yet"
        elif unfit is not None:
            problem = unfit.reason, unfit.message
        elif self._vanished_since is not None and now - self._vanished_since > self._pace.restart:
            problem = "PodsMissing", "the kubelet does not show pods that are alive"
        elif lost:
            problem = "GpuLost", "a GPU is lost: the device plugin may refuse every pod"
        if problem is not None:
            return self._condition(READY, False, *problem)
        return self._condition(READY, True, "Watching", "")

    def _unaccounted(self, mps: bool) -> Condition:
        gpus = self._hardware.gpus if self._hardware else ()
        # Without process ids: they change at each look, and each change would be a write. The MPS
        # server computes on every GPU.
        found = [
            f"GPU {gpu.index}"
            for gpu in gpus
            if self._nobodys.get(gpu.uuid, 0) >= NOBODYS_ROUNDS and not mps
        ]
        reason = "HeldByNoPod" if found else "AllAccountedFor"
        return self._condition(UNACCOUNTED_USE, bool(found), reason, ", ".join(found))

    def _condition(self, kind: str, status: bool, reason: str, message: str) -> Condition:
        known = self._conditions.get(kind)
        since = known.since if known is not None and known.status == status else self._now()
        condition = Condition(kind, status, reason, message[:LONGEST_MESSAGE], since)
        self._conditions[kind] = condition
        return condition


def _ids(entries: Iterable[Entry]) -> set[DeviceId]:
    return {i for entry in entries for held in entry.held for i in held.device_ids}


def take_over(agent: NodeAgent, publisher: Publisher) -> bool:
    """Start from the record of the agent before us; whether the API server could be asked."""
    try:
        former = publisher.former()
    except ApiFailure as error:
        log.warning("cannot read the record of the agent before this one", cause=str(error))
        return False
    if former is not None:
        agent.remember(former.topology, former.report)
    return True
