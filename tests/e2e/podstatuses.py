"""Follows the pods of a cluster: every status that each of them has had."""

import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.e2e.controlplane import ControlPlane
from tests.e2e.pods import PODS
from tests.e2e.watchedobjects import WatchedObjects


@dataclass(frozen=True, slots=True)
class Seen:
    """A version of a pod, and when we saw it, in seconds of :func:`time.monotonic`."""

    at: float
    pod: dict[str, Any]

    @property
    def bound(self) -> bool:
        """Whether it has a node."""
        return bool(self.pod["spec"].get("nodeName"))

    @property
    def terminating(self) -> bool:
        """Whether it is being deleted."""
        return "deletionTimestamp" in self.pod["metadata"]

    @property
    def answered(self) -> bool:
        """Whether its kubelet has written a start time."""
        return "startTime" in self.pod["status"]


class PodStatuses(WatchedObjects):
    """Notes every version of every pod in the default namespace while the context is open."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._lock = threading.Lock()
        self._seen: defaultdict[str, list[Seen]] = defaultdict(list)
        super().__init__(control_plane, PODS, "pod-statuses")

    def versions(self) -> list[list[Seen]]:
        """The versions of each pod, the oldest first; pods in the order in which they came."""
        with self._lock:
            return [list(seen) for seen in self._seen.values()]

    def phases(self, phase: str, since: float = 0.0) -> list[dict[str, Any]]:
        """The pods whose latest version is in a phase, of those that came after ``since``."""
        return [
            seen[-1].pod
            for seen in self.versions()
            if seen[0].at >= since and seen[-1].pod["status"]["phase"] == phase
        ]

    def apply(self, obj: msgspec.Raw) -> None:
        """Note a version of a pod."""
        pod = msgspec.json.decode(obj)
        with self._lock:
            self._seen[pod["metadata"]["uid"]].append(Seen(time.monotonic(), pod))
