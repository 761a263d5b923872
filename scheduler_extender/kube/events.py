"""Write Events on pods (placed, waiting, refused, mispredicted), and on nodes that refuse pods.

A user can cause some of them at will, and the API server may be slow. So Events are written in a
thread of their own, a few a second. What happens to one pod or node again and again becomes one
Event with a count.
"""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from scheduler_extender.explain.placedpod import bound_text
from scheduler_extender.ratelimit import RateLimit
from scheduler_extender.state.answers.refusing import NodeRefusal
from scheduler_extender.state.node.verification import Misprediction
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs import Binding, WouldReject
from topology.core.requests import GpuRequest
from topology.kubeapi.apiserver import ApiFailure, ApiServer, path

log = structlog.get_logger(__name__)

REASON = "GPUPlacementMispredicted"
REFUSED = "GPUPodRefused"
PLACED = "GPUPlacement"
WAITS = "GPUPlacementWaits"
WOULD_REJECT = "GPUPlacementWouldBeRejected"
# Events about objects without a namespace are written here, as the kubelet does.
NODES_NAMESPACE = "default"
COMPONENT = "gpu-topology"
MOST_WAITING = 1000
WRITE_TIMEOUT = 2.0
# Seconds between two Events of one kind on one object; Events a second in all; Events at once.
PAUSE, RATE, BURST = 60.0, 2.0, 20


class EventWriter:
    """A writer of Events, with one Event for each object and kind.

    A pod gets an Event for each kind of misprediction, and when it is placed, waits, is refused, or
    would be rejected outside shadow mode. A node gets an Event for each reason for which it refuses
    pods. The owner calls :meth:`round` in a thread of its own.

    An Event that cannot be written is given up and counted in :attr:`dropped`; the metrics and the
    log have its content, too. ``now`` returns the time that Events bear, ``clock`` seconds for the
    rate.
    """

    def __init__(
        self,
        api: ApiServer,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._now = now
        self._clock = clock
        self._limit = RateLimit(PAUSE, RATE, BURST)
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str], dict[str, Any]] = {}  # Events
        self.dropped = 0  # occurrences that no written Event shows

    def note(self, misprediction: Misprediction) -> None:
        """Take in a misprediction. Never blocks."""
        pod, words = misprediction.pod, f"{misprediction.message} ({misprediction.kind})"
        about = _pod(pod.namespace, pod.name, pod.uid)
        self._take(misprediction.kind, about, REASON, words, misprediction.node)

    def note_refusal(self, refusal: NodeRefusal) -> None:
        """Take in a refusal. Never blocks.

        One Event is on the Node. All users with access to the Event's namespace may read it, so it
        has no names of pods, and not the kubelet's words, which may contain some. The other Event
        is on the pod, in the pod's own namespace.
        """
        pod, reason = refusal.pod, refusal.refusal.reason
        # kubectl describe looks for a node's Events by its name in place of the UID, since kubelets
        # write them so.
        node = {"apiVersion": "v1", "kind": "Node", "name": refusal.node, "uid": refusal.node}
        told = f"the kubelet refused a pod with GPUs ({reason}){refusal.follows}"
        self._take(reason, node, REFUSED, told, refusal.node)
        said = f": {refusal.refusal.message}" if refusal.refusal.message else ""
        about = _pod(pod.namespace, pod.name, pod.uid)
        self._take(REFUSED, about, REFUSED, f"{refusal.words}{said}", refusal.node)

    def note_placed(self, binding: Binding) -> None:
        """Take in a bind that was written. Never blocks."""
        about = _pod(binding.namespace, binding.name, binding.uid)
        request = binding.request if isinstance(binding.request, GpuRequest) else None
        words = bound_text(binding.placement, request)
        self._take(PLACED, about, PLACED, words, binding.node, normal=True)

    def note_waiting(self, pod: PodRecord, words: str) -> None:
        """Take in why a pod waits. Never blocks."""
        self._take(WAITS, _pod(pod.namespace, pod.name, pod.uid), WAITS, words)

    def note_would_reject(self, would: WouldReject) -> None:
        """Take in what would have been refused without shadow mode. Never blocks."""
        about = _pod(would.namespace, would.pod, would.uid)
        self._take(WOULD_REJECT, about, WOULD_REJECT, would.words, normal=True)

    def _take(
        self,
        kind: str,
        about: dict[str, str],
        reason: str,
        message: str,
        node: str = "",
        *,
        normal: bool = False,
    ) -> None:
        """Queue an Event of a ``kind`` about an object, which is given as Events name it."""
        now, key = self._now().strftime("%Y-%m-%dT%H:%M:%SZ"), (about["uid"], kind)
        with self._lock:
            if key not in self._waiting and len(self._waiting) >= MOST_WAITING:
                self.dropped += 1
                return
            before = self._waiting.get(key, {"count": 0, "firstTimestamp": now})
            self._waiting[key] = {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {
                    "generateName": f"{about['name']}.",
                    "namespace": about.get("namespace", NODES_NAMESPACE),
                },
                "involvedObject": about,
                "type": "Normal" if normal else "Warning",
                "reason": reason,
                "message": message,
                "source": {"component": COMPONENT} | ({"host": node} if node else {}),
                "reportingComponent": COMPONENT,
                "firstTimestamp": before["firstTimestamp"],
                "lastTimestamp": now,
                "count": before["count"] + 1,
            }

    def round(self) -> None:
        """Write the queued Events, as far as the rate allows."""
        now = self._clock()
        with self._lock:
            due = [key for key in self._waiting if self._limit.allows(key, now)]
            ready = [self._waiting.pop(key) for key in due]
        for event in ready:
            try:
                where = path("/api/v1/namespaces", event["metadata"]["namespace"], "events")
                self._api.create(where, msgspec.json.encode(event), timeout=WRITE_TIMEOUT)
            except ApiFailure as error:
                with self._lock:
                    self.dropped += event["count"]
                name = event["involvedObject"]["name"]
                log.warning("event not written", about=name, cause=str(error))


def _pod(namespace: str, name: str, uid: str) -> dict[str, str]:
    """Return a pod as Events name it."""
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace}
    return {**about, "name": name, "uid": uid}
