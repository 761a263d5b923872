"""One sync of the agent, which reads what is due and returns the record as it should be now.

The loop reads from the kubelet, the driver and the API server. Modules of
:mod:`~topology.agent.model` decide:

====================  ============================================================================
source                modules that decide
====================  ============================================================================
the kubelet's list    ``polling``: when the list is requested; ``holders``: which entries count the
driver            ``unresponsive``: whose answers count, and which GPUs do not answer;
                      ``health``: which GPUs are sick; ``hardware``: what the node has;
                      ``utilization``: which GPUs are used without a pod, and which pods do not
                      use what they hold
everything together   ``devicepolicy``: whether a container gets several shares; ``record``: what
                      is published, and whether it can be relied on
====================  ============================================================================

A sync changes nothing outside the agent. Its :class:`SyncResult` says what has to be done, and the
service does it. Within one boot nothing is forgotten. A restarted agent takes over health, lost
GPUs and the holders of devices from the record itself.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from topology.agent.model import exclusive
from topology.agent.model.devicepolicy import SharesTracker
from topology.agent.model.exclusive import Allocatable
from topology.agent.model.hardware import HardwareTracker, wired
from topology.agent.model.health import HealthTracker
from topology.agent.model.holders import HoldersTracker
from topology.agent.model.nodecontext import NodeContext
from topology.agent.model.observations import NvmlState, PciTree, Processors, Unseen, Xid
from topology.agent.model.podentries import Entry, Held, awaited, whole
from topology.agent.model.polling import (
    AllocatablePolling,
    KubeletPolling,
    Rereading,
)
from topology.agent.model.record import (
    ConditionTracker,
    KubeletState,
    Observation,
    Picture,
    compose,
)
from topology.agent.model.recordlimits import HOLDINGS_LEFT_OUT
from topology.agent.model.refusals import RefusalTracker
from topology.agent.model.unresponsive import FlappingGpuTracker, MissingGpuTracker
from topology.agent.model.utilization import IdleTracker, UnaccountedUse
from topology.agent.probes.podresources import KubeletBusyError, KubeletDownError
from topology.agent.settings import Settings
from topology.core.devices import DeviceId, GpuUuid, PodUid, base_uuid
from topology.core.graph import NodeTopology
from topology.core.report import READY, Report

log = structlog.get_logger(__name__)


class Kubelet(Protocol):
    """The part of :class:`~topology.agent.probes.podresources.PodResources` that the loop uses."""

    restarts: int

    def entries(self) -> list[Entry]:
        """Return every active pod. Raises :class:`KubeletDownError`."""

    @property
    def topology_nodes(self) -> Mapping[DeviceId, tuple[int, ...]]:
        """The NUMA nodes of each device, from the last :meth:`allocatable`."""

    @property
    def exclusive(self) -> Allocatable:
        """The CPUs and memory that pods may have exclusively, from the last :meth:`allocatable`."""

    def allocatable(self) -> dict[str, frozenset[DeviceId]]:
        """Return the devices that the kubelet hands out from, by resource.

        Raises :class:`KubeletDownError`.
        """


@dataclass(frozen=True, slots=True)
class Probes:
    """The sources that the loop reads.

    Only a request to the kubelet uses a connection and can fail. Watchers have already stored the
    answers of the driver and of the API server. ``pci`` and ``processors`` read sysfs.
    """

    kubelet: Kubelet
    nvml: Callable[[], NvmlState]  # what NVML has shown last
    xids: Callable[[], list[Xid]]  # the driver's errors since the last call
    pci: Callable[[], PciTree]
    context: Callable[[], NodeContext]
    processors: Callable[[], Processors | Unseen]


@dataclass(frozen=True, slots=True)
class Clock:
    """The two clocks of the loop."""

    seconds: Callable[[], float]  # monotonic
    text: Callable[[], str]  # the time of day as RFC 3339


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The results of one sync, and what has to be done."""

    picture: Picture
    next_sync: float  # when the next sync is due if nothing happens before, by the clock's seconds
    heard: bool  # whether a list of the kubelet was accepted, or the kubelet failed to answer
    # How many GPUs the driver should show. If it shows fewer, NVML is opened again. None before the
    # first reading.
    expected_gpus: int | None
    # The number of NVLinks that should be up, by GPU.
    expected_links: Mapping[GpuUuid, int]
    # How often the kubelet has restarted. Each restart may change its configuration.
    kubelet_restarts: int
    kubelet_failures: int  # how many requests to the kubelet have failed
    refusals: Mapping[str, int]  # how many pods with GPUs the kubelet has refused, by reason


class NodeAgent:
    """The agent of one node. It is not thread-safe: one thread calls :meth:`sync` repeatedly."""

    def __init__(self, settings: Settings, boot_id: str, probes: Probes, clock: Clock) -> None:
        self._settings = settings
        self._boot = boot_id
        self._probes = probes
        self._clock = clock
        self._shares = SharesTracker()
        self._polling = KubeletPolling(settings.intervals, clock.seconds())
        self._allocatable = AllocatablePolling(settings.intervals)
        self._holders = HoldersTracker(settings.intervals)
        self._hardware = HardwareTracker(settings.node)
        self._health = HealthTracker()
        self._unaccounted = UnaccountedUse()
        self._idle = IdleTracker()
        self._refusals = RefusalTracker()
        self._conditions = ConditionTracker()
        self._topology_nodes: dict[GpuUuid, tuple[int, ...]] = {}
        self._exclusive: Allocatable | None = None
        self._processors: Processors | Unseen | None = None
        self._kubelets = 0
        self._processors_again = Rereading()
        self._pci_again = Rereading()
        self._missing = MissingGpuTracker()
        self._flapping = FlappingGpuTracker()
        self._rounds = -1
        self._unfit = ""

    def remember(self, topology: NodeTopology, report: Report | None) -> None:
        """Take over the former agent's refusals, and the rest if its record is of this boot."""
        if report is None:
            return
        self._refusals.remember(report.history)
        if report.boot_id != self._boot:
            return
        self._hardware.remember(topology)
        config = topology.allocator
        if config.topology_manager_policy != "none" and config.sees_topology:
            # The kubelet does not list a GPU that is sick now, so its NUMA nodes come from the
            # record.
            self._topology_nodes = {gpu.uuid: gpu.topology_nodes or () for gpu in topology.gpus}
        self._health = HealthTracker(report.health)
        self._missing = MissingGpuTracker(report.missing)
        self._conditions = ConditionTracker(report.conditions)
        self._shares = SharesTracker(report.several_shares)
        if any(c.type == READY and c.reason in HOLDINGS_LEFT_OUT for c in report.conditions):
            return  # the record lacks some holders, so the kubelet has to list all of them
        self._idle.remember(report, self._clock.seconds(), self._clock.text())
        held: defaultdict[PodUid, list[Held]] = defaultdict(list)
        names = {}
        for a in report.allocations:
            held[a.pod_uid].append(Held(a.container, a.resource, a.device_ids))
            names[a.pod_uid] = (a.namespace, a.pod)
        self._holders.remember(
            {uid: Entry(*names[uid], tuple(parts)) for uid, parts in held.items() if uid},
            report.holdings or (),
        )

    def sync(self, *, news: bool = False) -> SyncResult:
        """Read what is due, and return the results.

        ``news`` says that something has happened that the kubelet may know of.
        """
        if news:
            self._polling.news(self._clock.seconds())
        context = self._probes.context()
        if self._clock.seconds() >= self._next_question():
            self._ask_kubelet(context)
        nvml = self._probes.nvml()
        nvml = self._flapping.steady(nvml, self._hardware.gone(nvml), self._clock.seconds())
        sick = [self._health.xid(xid, self._clock.text()) for xid in self._probes.xids()]
        if any(sick):
            self._polling.fault(self._clock.seconds())
            self._allocatable.want()
        self._look_at_hardware(nvml)
        self._look_at_processors(context)
        self._polling.wait_for(self._awaited(context), self._clock.seconds())
        self._shares.look(context, self._holders.holders, self._clock.text())
        self._refusals.look(context.pods)
        picture = compose(self._observation(context, nvml), self._conditions, self._clock.text())
        if picture.unknown:
            self._unaccounted.forget()  # then it is also unknown which GPUs are used without a pod
        reason = picture.unfit.reason if picture.unfit else ""
        if picture.unfit and reason != self._unfit:  # log it once, when it begins
            log.warning("record not ready", reason=reason, cause=picture.unfit.message)
        self._unfit = reason
        return SyncResult(
            picture,
            self._next_question(),
            heard=self._holders.accepted or self._polling.silent,
            expected_gpus=self._hardware.hardware.expected_gpus,
            expected_links=self._health.expected(),
            kubelet_restarts=self._polling.restarts,
            kubelet_failures=self._polling.failures,
            refusals=self._refusals.counts,
        )

    # The kubelet.

    def _next_question(self) -> float:
        return self._polling.next_question(
            self._clock.seconds(),
            doubtful=self._holders.doubtful,
            holders=self._holders.holders.any_held,
        )

    def _ask_kubelet(self, context: NodeContext) -> None:
        kubelet, polling = self._probes.kubelet, self._polling
        now = self._clock.seconds()
        polling.ask(now)
        try:
            entries = kubelet.entries()
            if polling.restarted(kubelet.restarts):
                self._allocatable.begin_anew()
            waited_for = [context.pods[uid] for uid in polling.due if uid in context.pods]
            if self._allocatable.is_due(now, entries, waited_for, watchful=polling.watchful(now)):
                self._allocatable.answered(now, kubelet.allocatable())
                self._topology_nodes |= {
                    base_uuid(device): nodes for device, nodes in kubelet.topology_nodes.items()
                }
                self._exclusive = kubelet.exclusive.over(self._exclusive)
        except KubeletDownError as error:
            if polling.failed(str(error), busy=isinstance(error, KubeletBusyError)):
                log.warning("kubelet does not answer", cause=str(error))
            return
        polling.answered(kubelet.restarts)
        self._allocatable.listed(entries)
        watchful = polling.watchful(now)
        self._holders.take(entries, context, now, self._clock.text(), watchful=watchful)

    def _awaited(self, context: NodeContext) -> frozenset[PodUid]:
        """Return the pods whose change in devices, CPUs or memory the kubelet has yet to show."""
        allocatable = self._allocatable.allocatable
        served = None if allocatable is None else allocatable.keys()
        return awaited(
            self._holders.holders.by_uid,
            context.pods,
            lambda pod, entry: (
                whole(pod, entry, served) and exclusive.whole(pod, entry, context.kubelet)
            ),
        )

    # The hardware.

    def _look_at_hardware(self, nvml: NvmlState) -> None:
        if nvml.seen is None:
            return
        if nvml.rounds != self._rounds:
            self._rounds = nvml.rounds
            self._health.look(nvml.vitals, self._clock.text(), wired(nvml.seen))
            self._idle.look(nvml.vitals, self._holders.holders.by_uid, self._clock.seconds())
            held = set(map(base_uuid, self._holders.holders.device_ids))
            split = {seen.gpu.uuid for seen in nvml.seen.gpus if seen.gpu.mig_instances}
            self._unaccounted.look(nvml.vitals, held | split, news_due=bool(self._polling.due))
        faults = self._health.link_faults()
        now = self._clock.seconds()
        if self._hardware.is_news(nvml.seen, faults) or self._pci_again.is_due(now):
            pci = self._probes.pci()
            self._pci_again.was_read(now, complete=pci.complete)
            error = self._hardware.look(nvml.seen, faults, pci)
            if error is not None:
                log.error("the driver contradicts itself", exc_info=error)
            self._health.gone(self._hardware.gone(nvml), len(nvml.hung), self._clock.text())
        self._missing.look(nvml, self._hardware.gone(nvml), self._clock.text())

    def _look_at_processors(self, context: NodeContext) -> None:
        """Read the CPUs from sysfs if a manager is static, once after each start of the kubelet.

        The kubelet also reads them when it starts.
        """
        if not context.kubelet.static:
            return
        now, restarts = self._clock.seconds(), self._polling.restarts
        first = self._processors is None or restarts != self._kubelets
        if first or self._processors_again.is_due(now):
            self._kubelets = restarts
            self._processors = self._probes.processors()
            self._processors_again.was_read(now, complete=isinstance(self._processors, Processors))

    # The record.

    def _observation(self, context: NodeContext, nvml: NvmlState) -> Observation:
        now, polling = self._clock.seconds(), self._polling
        told = self._settings.refuses_several
        return Observation(
            boot_id=self._boot,
            hardware=self._hardware.hardware,
            context=context,
            kubelet=KubeletState(
                cause=polling.cause,
                silent=polling.silent,
                gone=polling.gone,
                too_long=polling.silent_too_long(now),
                accepted=self._holders.accepted,
                pods_missing=self._holders.pods_missing(now),
                devices_missing=self._allocatable.devices_missing(watchful=polling.watchful(now)),
            ),
            nvml_problem=nvml.problem,
            allocatable=self._allocatable.allocatable,
            holders=self._holders.holders,
            health=self._health.report(),
            fabric=self._health.fabric(),
            missing=self._missing.report(
                context.plugin.started if context.plugin else "",
                self._allocatable.allocatable or {},
                context.counted,
            ),
            unaccounted=self._unaccounted.gpus(),
            idle=self._idle.since(now, self._clock.text()),
            history=self._refusals.latest,
            due=polling.due,
            topology_nodes=self._topology_nodes,
            processors=self._processors,
            exclusive=self._exclusive,
            policy=self._settings.policy,
            refuses_several=self._shares.refuses_several if told is None else told,
            several_shares=self._shares.learnt,
        )
