"""Events on pods whose GPUs were not what was foreseen."""

from __future__ import annotations

import queue
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
import structlog

from scheduler_extender.verification import Surprise
from topology.kubeapi.apiserver import ApiFailure

log = structlog.get_logger(__name__)

REASON = "GPUPlacementNotForeseen"
COMPONENT = "gpu-topology"
MOST_WAITING = 1000
WRITE_TIMEOUT = 2.0


class _EventApi(Protocol):
    def create(self, path: str, body: bytes, *, timeout: float) -> bytes: ...


class EventWriter:
    """Writes an Event for each surprise, in a thread of its own choosing: see :meth:`round`.

    What cannot be written is logged and dropped; the counter and the log line have it too.
    """

    def __init__(self, api: _EventApi, now: Callable[[], datetime] = lambda: datetime.now(UTC)):
        self._api = api
        self._now = now
        self._waiting: queue.Queue[Surprise] = queue.Queue(MOST_WAITING)

    def note(self, surprise: Surprise) -> None:
        """Take a surprise; never waits."""
        try:
            self._waiting.put_nowait(surprise)
        except queue.Full:
            log.warning("event dropped", pod=surprise.pod.name)

    def round(self) -> None:
        """Write what has been noted since."""
        while True:
            try:
                surprise = self._waiting.get_nowait()
            except queue.Empty:
                return
            pod = surprise.pod
            path = f"/api/v1/namespaces/{pod.namespace}/events"
            try:
                body = msgspec.json.encode(self._event(surprise))
                self._api.create(path, body, timeout=WRITE_TIMEOUT)
            except ApiFailure as error:
                log.warning("event not written", pod=pod.name, cause=str(error))

    def _event(self, surprise: Surprise) -> dict[str, Any]:
        pod, now = surprise.pod, self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{pod.name}.", "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            },
            "type": "Warning",
            "reason": REASON,
            "message": f"{surprise.message} ({surprise.kind})",
            "source": {"component": COMPONENT, "host": surprise.node},
            "reportingComponent": COMPONENT,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
