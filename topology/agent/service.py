"""The agent as it runs on a node: its threads, and the loop that syncs and writes.

Four threads read or serve (NVML, pods, Node, metrics) and only take notes. The thread of
:meth:`AgentService.run` runs the syncs of :class:`~topology.agent.loop.NodeAgent`, carries out
their results, and writes the record.
"""

import os
import random
import select
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog

from topology.agent.loop import Clock, NodeAgent, Probes, SyncResult
from topology.agent.metrics import Metrics, ReportLatency
from topology.agent.model.nodecontext import NodeContext
from topology.agent.model.record import Picture
from topology.agent.probes.node import NodeWatch
from topology.agent.probes.nvmlwatch import NvmlWatch
from topology.agent.probes.podresources import PodResources
from topology.agent.probes.pods import PODS_PATH, NodePods
from topology.agent.probes.sysfs import pci_tree, processors
from topology.agent.publisher import Publisher
from topology.agent.serving import MetricsServer
from topology.agent.settings import Settings
from topology.core.report import CLIENT, READY, Condition
from topology.kubeapi.apiserver import ApiFailure, ApiServer
from topology.kubeapi.reflector import Reflector, Timing, Watched
from topology.times import time_text

log = structlog.get_logger(__name__)

FIRST_LOOK = 5.0  # seconds after which a record is written even if a source has not answered
TAKE_OVER_PAUSE = 1.0
LAST_WRITE = 10.0  # seconds for which an agent that makes way tries to write that
LONGEST_PAUSE = 30.0
STUCK = 60.0  # seconds without a sync after which the agent reports that it is not alive
NOT_YET = "no record has been written yet"
# After an outage a cluster's agents spread their return over the seconds of the backoff. If a watch
# sends nothing, not even a bookmark, only a list shows up to which version the node's pods are
# known.
TIMING = Timing(backoff_cap_s=10.0, relist_after_s=80.0)


class Wakeup:
    """A signal for one waiting thread that there is news.

    Any thread and any signal handler may send it. It is an eventfd, so a handler that interrupts
    the waiting thread cannot deadlock it.
    """

    def __init__(self) -> None:
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def note(self) -> None:
        """Signal that there is news."""
        with suppress(BlockingIOError):  # the counter is full, so there is news already
            os.eventfd_write(self._file, 1)

    def wait(self, seconds: float) -> bool:
        """Wait for news, for at most ``seconds``. Returns whether there was some."""
        select.select([self._file], [], [], max(0.0, seconds))
        try:
            os.eventfd_read(self._file)
        except BlockingIOError:
            return False
        return True


class BootIdError(Exception):
    """The failure to read the node's boot id."""


class AgentService:
    """The agent of one node. Without ``api`` it reads and writes nothing."""

    def __init__(self, settings: Settings, api: ApiServer | None) -> None:
        self._settings = settings
        self._api = api
        self._metrics = Metrics()
        self._wakeup = Wakeup()
        self._pod_news = threading.Event()
        self._stopping = False
        self._pods = NodePods(self._note_pods, lambda: self._node.state.kubelet.static)
        self._reflector: Reflector | None = None
        self._publisher: Publisher | None = None
        if api is not None:
            query = (("fieldSelector", f"spec.nodeName={settings.node}"),)
            self._reflector = Reflector(api, Watched(PODS_PATH, query=query), self._pods, TIMING)
            spread = random.Random()  # noqa: S311 (spreads load, guards nothing)
            self._publisher = Publisher(
                api, settings.node, time.monotonic, spread, settings.heartbeat
            )
        self._node = NodeWatch(api, settings.node, settings.kubelet, self._wakeup.note)
        self._nvml = NvmlWatch(self._wakeup.note, time.monotonic, settings.cadence)
        self._kubelet = PodResources(settings.socket)
        self._agent = NodeAgent(
            settings,
            _boot_id(settings.boot_id),
            Probes(
                self._kubelet,
                self._nvml.state,
                self._nvml.xids,
                lambda: pci_tree(settings.sys),
                self._context,
                lambda: processors(settings.sys),
            ),
            Clock(time.monotonic, _now),
        )
        self._round_began = time.monotonic()
        self._kubelet_restarts = 0
        self._latency = ReportLatency()
        self._has_to_vouch = False
        self._unready: str | None = NOT_YET

    @property
    def looks(self) -> int:
        """The number of times that the driver has been read."""
        return self._nvml.state().rounds

    def unwell(self) -> str | None:
        """Return why the agent should be restarted; None while its loop runs."""
        stuck = time.monotonic() - self._round_began >= STUCK
        return "the agent's loop does not run" if stuck else None

    def unready(self) -> str | None:
        """Return why an update should stop at this node; None if it may go on.

        The result becomes None when the API server has accepted a record of this agent, and stays
        None whatever happens to the API server later. If the former agent's record was Ready, this
        agent's record must have been Ready once, too. If it was not (a broken driver, a node
        without GPUs), this version is not at fault.
        """
        return self._unready

    def serve(self, host: str, port: int) -> MetricsServer:
        """Return a server of the metrics, not started yet. Raises its ``PortError``."""
        return MetricsServer(self._metrics.registry, self.unwell, self.unready, host, port)

    def stop(self) -> None:
        """Make :meth:`run` end soon. Nothing here takes a lock, so a signal handler may call it."""
        self._stopping = True
        self._wakeup.note()

    def once(self, patience: float = 20.0, *, write: bool = False) -> Picture:
        """Sync until all sources have answered, and return the record.

        It waits for the sources for ``patience`` seconds at most. With ``write`` it also writes the
        record. Raises :class:`TimeoutError` if that did not work within twice ``patience``.
        """
        self._start()
        try:
            started = time.monotonic()
            taken_over = self._publisher is None
            while True:
                late = time.monotonic() - started > patience
                taken_over = taken_over or self._take_over() or not write
                if taken_over:
                    answered = self._sources_answered()
                    result = self._agent.sync()
                    self._carry_out(result)
                    done = (answered and result.heard) or late
                    if done and (not write or self._write(result.picture)):
                        return result.picture
                if late and time.monotonic() - started > 2 * patience:
                    problem = self._publisher.problem if self._publisher else ""
                    raise TimeoutError(problem or "the API server does not answer")
                self._wakeup.wait(0.1)
        finally:
            self._end()

    def run(self) -> None:
        """Sync and write until :meth:`stop`."""
        self._start()
        started = time.monotonic()
        taken_over = self._publisher is None
        try:
            while not self._stopping:
                self._round_began = time.monotonic()
                try:
                    # What the watchers see before is not lost, because they have noted it.
                    taken_over = taken_over or self._take_over()
                    pause = self._round(started) if taken_over else TAKE_OVER_PAUSE
                except Exception:
                    # One failed round must not end the loop.
                    log.exception("round failed")
                    pause = TAKE_OVER_PAUSE
                self._wakeup.wait(min(pause, LONGEST_PAUSE))
            if taken_over:
                self._make_way()
        finally:
            self._end()

    def _make_way(self) -> None:
        """Write in the record that the agent ends because the GPU operator needs the driver."""
        value = self._node.labels_now().get(CLIENT, "true")
        picture = self._metrics.picture
        if value == "true" or picture is None:
            return
        report = picture.report
        why = f"the GPU operator is stopping the driver's users: {CLIENT} is {value}"
        said = Condition(READY, False, "UnderMaintenance", why, _now())
        others = (c for c in report.conditions if c.type != READY)
        last = replace(picture, report=replace(report, conditions=(said, *others)))
        deadline = time.monotonic() + LAST_WRITE
        while not self._write(last) and time.monotonic() < deadline:
            self._wakeup.wait(0.1)  # the publisher may pause after a failure

    def _round(self, started: float) -> float:
        """Run one sync and carry out its results. Returns for how many seconds nothing is due."""
        news = self._pod_news.is_set()
        if news:
            self._pod_news.clear()
        answered = (
            self._sources_answered()
        )  # before the sync, because later answers are not in its picture
        result = self._agent.sync(news=news)
        self._carry_out(result)
        self._show(result)
        early = time.monotonic() - started < FIRST_LOOK
        due = result.next_sync
        if self._publisher is not None and ((answered and result.heard) or not early):
            written = self._write(result.picture)
            if written:  # the record shows pods whose change was due
                due_now, shown = result.picture.due, result.picture.shown
                for seconds in self._latency.written(due_now, shown, time.monotonic()):
                    self._metrics.latency.observe(seconds)
            if self._unready is not None:
                self._unready = self._why_unready(result.picture, written, self._publisher)
            due = min(due, self._publisher.next_write())
        return max(0.0, due - time.monotonic())

    def _carry_out(self, result: SyncResult) -> None:
        """Pass the results of a sync to the watchers."""
        if result.expected_gpus is not None:
            self._nvml.expected = result.expected_gpus
        self._node.look_often(result.picture.rests_on_count)
        if result.kubelet_restarts != self._kubelet_restarts:
            self._kubelet_restarts = result.kubelet_restarts
            self._node.ask_again()

    def _write(self, picture: Picture) -> bool:
        if self._publisher is None:
            return True
        uid = self._node.state.uid
        if uid:
            self._publisher.owner = {
                "apiVersion": "v1",
                "kind": "Node",
                "name": self._settings.node,
                "uid": uid,
            }
        return self._publisher.write(picture.topology, picture.report, picture.deletions)

    def _sources_answered(self) -> bool:
        """Check whether NVML and the API server have answered or failed."""
        known = self._api is None or bool(self._node.state.uid)
        return self._nvml.state().asked and known

    def _take_over(self) -> bool:
        """Start from the former agent's record. Returns whether the API server answered."""
        if self._publisher is None:
            return False
        try:
            former = self._publisher.former()
        except ApiFailure as error:
            log.warning("cannot read the previous agent's record", cause=str(error))
            return False
        if former is not None:
            self._agent.remember(former.topology, former.report)
            self._has_to_vouch = former.report is not None and not former.report.not_ready
        return True

    def _why_unready(self, picture: Picture, written: bool, publisher: Publisher) -> str | None:
        if not written or publisher.counts.report_at is None:
            return (
                "no record has been written yet: "
                f"{publisher.problem or 'waiting for the API server'}"
            )
        if self._has_to_vouch and (why := picture.report.not_ready):
            return f"the record is not Ready, but the previous agent's record was: {why}"
        return None

    def _context(self) -> NodeContext:
        # Read the version before the pods, so that the pods are at least as new as it says.
        version = self._reflector.state.resource_version if self._reflector else ""
        pods, plugin, deletions, gone_at = self._pods.snapshot()
        node = self._node.state
        return NodeContext(
            pods,
            plugin,
            dict(node.labels),
            node.kubelet,
            synced=self._reflector is None or self._reflector.state.synced,
            has_api_server=self._reflector is not None,
            unseen=node.unseen,
            # The reflector stores an event's version only after its sink has passed the event on.
            pods_version=_later(version, gone_at),
            deletions=deletions,
            counted=node.counted,
        )

    def _show(self, result: SyncResult) -> None:
        """Pass the results of this sync to the metrics."""
        metrics = self._metrics
        metrics.picture, metrics.nvml = result.picture, self._nvml.state()
        metrics.expected_links = result.expected_links
        metrics.kubelet_failures = result.kubelet_failures
        metrics.refusals = result.refusals
        if self._publisher is not None:
            metrics.writes = self._publisher.counts
        self._latency.waiting(result.picture.due, time.monotonic())

    def _note_pods(self) -> None:
        self._pod_news.set()
        self._wakeup.note()

    def _start(self) -> None:
        self._nvml.start()
        self._node.start()
        if self._reflector is not None:
            self._reflector.start()

    def _end(self) -> None:
        if self._api is not None:
            self._api.close()
        if self._reflector is not None:
            self._reflector.stop()
        self._node.stop()
        self._nvml.stop()
        self._kubelet.close()


def _boot_id(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise BootIdError(f"{path}: {error.strerror}") from error


def _later(version: str, other: str) -> str:
    """Return the later of two resourceVersions; the first if they cannot be compared."""
    comparable = version.isdecimal() and other.isdecimal()
    return other if comparable and int(other) > int(version) else version


def _now() -> str:
    return time_text(int(time.time()))
