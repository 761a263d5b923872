"""Events on pods (placed, waiting, refused, not as foreseen), and on nodes that refuse pods.

A user can cause some of them at will, and the API server may be slow: they are written in a thread
of their own, a few a second, and what happens to one pod or node again and again becomes one Event
with a count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
import structlog

from scheduler_extender.ratelimit import RateLimit
from scheduler_extender.state.answers.refusing import NodeRefusal
from scheduler_extender.state.node.verification import Surprise
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.told.placed import bound_text
from scheduler_extender.verbs import Binding, WouldRefuse
from topology.core.requests import GpuRequest
from topology.kubeapi.apiserver import ApiFailure, path

log = structlog.get_logger(__name__)

REASON = "GPUPlacementNotForeseen"
REFUSED = "GPUPodRefused"
PLACED = "GPUPlacement"
WAITS = "GPUPlacementWaits"
WOULD_REFUSE = "GPUPlacementWouldBeRefused"
# Where Events about objects without a namespace are written, as the kubelet does.
NODES_NAMESPACE = "default"
COMPONENT = "gpu-topology"
MOST_WAITING = 1000
WRITE_TIMEOUT = 2.0
# Seconds between two Events of one kind on one object; Events a second in all, and at once.
PAUSE, RATE, BURST = 60.0, 2.0, 20


class _EventApi(Protocol):
    def create(self, path: str, body: bytes, *, timeout: float) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Notice:
    """What one Event tells: about which object, on which node, why and in which words."""

    about: dict[str, str]
    namespace: str
    node: str
    reason: str
    message: str
    type: str = "Warning"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The latest notice about one object and kind, how many there were, and when the first came."""

    notice: _Notice
    count: int
    first: str
    last: str


class EventWriter:
    """Writes an Event for each pod and kind of surprise, for each node and reason of refusals, and
    for each pod that is placed, waits, or in shadow would not have been let everywhere, in a thread
    of its own.

    What cannot be written is counted in :attr:`dropped` and let go; the counters and the log have
    it too. ``now`` gives the time that Events bear, ``clock`` seconds for the rate.
    """

    ROUND = 0.25  # seconds between two looks at what waits

    def __init__(
        self,
        api: _EventApi,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        name: str = "events",
    ) -> None:
        self._api = api
        self._now = now
        self._clock = clock
        self._limit = RateLimit(PAUSE, RATE, BURST)
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.dropped = 0  # what no Event tells of all that was noted

    def note(self, surprise: Surprise) -> None:
        """Take a surprise; never waits."""
        self._take((surprise.pod.uid, surprise.kind), _of_surprise(surprise))

    def note_refusal(self, refusal: NodeRefusal) -> None:
        """Take a refusal; never waits."""
        on_node, on_pod = _of_refusal(refusal)
        self._take((refusal.node, refusal.refusal.reason), on_node)
        self._take((refusal.pod.uid, REFUSED), on_pod)

    def note_placed(self, binding: Binding) -> None:
        """Take a bind that was written; never waits."""
        pod = _about_pod(binding.namespace, binding.name, binding.uid)
        request = binding.request if isinstance(binding.request, GpuRequest) else None
        words = bound_text(binding.placement, request)
        notice = _Notice(pod, binding.namespace, binding.node, PLACED, words, "Normal")
        self._take((binding.uid, PLACED), notice)

    def note_waiting(self, pod: PodRecord, words: str) -> None:
        """Take why a pod waits; never waits itself."""
        about = _about_pod(pod.namespace, pod.name, pod.uid)
        self._take((pod.uid, WAITS), _Notice(about, pod.namespace, "", WAITS, words))

    def note_would_refuse(self, would: WouldRefuse) -> None:
        """Take what would have been refused, were it not for the shadow; never waits."""
        self._take((would.uid, WOULD_REFUSE), _of_shadow(would))

    def _take(self, key: tuple[str, str], notice: _Notice) -> None:
        now = self._stamp()
        with self._lock:
            known = self._waiting.get(key)
            if known is not None:
                self._waiting[key] = replace(known, notice=notice, count=known.count + 1, last=now)
            elif len(self._waiting) < MOST_WAITING:
                self._waiting[key] = _Waiting(notice, 1, now, now)
            else:
                self.dropped += 1

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; what waits is let go."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        while not self._stopping.wait(self.ROUND):
            try:
                self.round()
            except Exception:
                # One bad round must not end all later ones.
                log.exception("events: round failed")

    def round(self) -> None:
        """Write what waits, as far as the rate allows."""
        now = self._clock()
        with self._lock:
            due = [key for key in self._waiting if self._limit.allows(key, now)]
            ready = [self._waiting.pop(key) for key in due]
        for waiting in ready:
            if self._stopping.is_set():
                return
            notice = waiting.notice
            try:
                where = path("/api/v1/namespaces", notice.namespace, "events")
                body = msgspec.json.encode(_event(waiting))
                self._api.create(where, body, timeout=WRITE_TIMEOUT)
            except ApiFailure as error:
                with self._lock:
                    self.dropped += waiting.count
                log.warning("event not written", about=notice.about["name"], cause=str(error))

    def _stamp(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")


def _of_surprise(surprise: Surprise) -> _Notice:
    pod = surprise.pod
    about = _about_pod(pod.namespace, pod.name, pod.uid)
    words = f"{surprise.message} ({surprise.kind})"
    return _Notice(about, pod.namespace, surprise.node, REASON, words)


def _about_pod(namespace: str, name: str, uid: str) -> dict[str, str]:
    """A pod as Events name it."""
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace}
    return {**about, "name": name, "uid": uid}


def _of_shadow(would: WouldRefuse) -> _Notice:
    about = _about_pod(would.namespace, would.pod, would.uid)
    return _Notice(about, would.namespace, "", WOULD_REFUSE, would.words, "Normal")


def _of_refusal(refusal: NodeRefusal) -> tuple[_Notice, _Notice]:
    """One on the Node, which everybody may read who may read its namespace: no names of pods, and
    not the kubelet's words, which may name some. One on the pod, in its own namespace."""
    pod, reason = refusal.pod, refusal.refusal.reason
    # kubectl describe looks for a node's Events by its name in place of the UID, as kubelets write.
    node = {"apiVersion": "v1", "kind": "Node", "name": refusal.node, "uid": refusal.node}
    told = f"refused a pod that asks for GPUs ({reason}){refusal.follows}"
    said = f": {refusal.refusal.message}" if refusal.refusal.message else ""
    about = _about_pod(pod.namespace, pod.name, pod.uid)
    return (
        _Notice(node, NODES_NAMESPACE, refusal.node, REFUSED, told),
        _Notice(about, pod.namespace, refusal.node, REFUSED, f"{refusal.words}{said}"),
    )


def _event(waiting: _Waiting) -> dict[str, Any]:
    notice = waiting.notice
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "generateName": f"{notice.about['name']}.",
            "namespace": notice.namespace,
        },
        "involvedObject": notice.about,
        "type": notice.type,
        "reason": notice.reason,
        "message": notice.message,
        "source": {"component": COMPONENT} | ({"host": notice.node} if notice.node else {}),
        "reportingComponent": COMPONENT,
        "firstTimestamp": waiting.first,
        "lastTimestamp": waiting.last,
        "count": waiting.count,
    }
