"""Follows kubelets and records side by side: are they shown as they are, and how soon?"""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Self

import grpc
import msgspec

from tests.e2e.controlplane import ControlPlane
from tests.e2e.kubelet import Kubelet
from tests.e2e.watchedobjects import WatchedObjects
from tests.waiting import PATIENCE
from topology import codec
from topology.core.report import Report

PERIOD = 0.2
RECORDS = "/apis/gpu-topology.io/v1alpha1/gputopologies"
# (pod, container, device ids) in order: who holds what on a node.
State = tuple[tuple[str, str, tuple[str, ...]], ...]


class RecordFollower(WatchedObjects):
    """Notes every state that a kubelet shows or a record has, and when it was first seen."""

    def __init__(self, control_plane: ControlPlane, kubelets: Mapping[str, Kubelet]) -> None:
        self._kubelets = dict(kubelets)
        self._lock = threading.Lock()
        # By node, what its kubelet showed and since when; changes only.
        self.shown: defaultdict[str, list[tuple[float, State]]] = defaultdict(list)
        # By node, what its record had and since when; changes only.
        self.published: defaultdict[str, list[tuple[float, State]]] = defaultdict(list)
        # By node, every version of its report.
        self.reports: defaultdict[str, list[Report]] = defaultdict(list)
        super().__init__(control_plane, RECORDS, "follower")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="follower", daemon=True)

    def __enter__(self) -> Self:
        super().__enter__()
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        super().__exit__(*raised)
        self._thread.join(PATIENCE)

    def held(self, node: str, pod: str) -> dict[str, tuple[str, ...]] | None:
        """What a pod held by the record, when it held most; None if it was never there."""
        with self._lock:
            found: dict[str, tuple[str, ...]] = {}
            for _, state in self.published[node]:
                for name, container, ids in state:
                    if name == pod and len(ids) >= len(found.get(container, ())):
                        found[container] = ids
        return found or None

    def followed(self, node: str) -> bool:
        """Whether a node's record has just what its kubelet shows now."""
        shown = self._holdings(node)
        with self._lock:
            return bool(self.published[node]) and self.published[node][-1][1] == shown

    def lags(self) -> list[float]:
        """Seconds from a kubelet's state to the record's, for the states that a record had in time.

        A state that was over before it could be published is left out, and so is one from before
        the node's first record.
        """
        seconds = []
        with self._lock:
            for node, states in self.shown.items():
                published = self.published[node]
                first = published[0][0] if published else float("inf")
                for i, (at, state) in enumerate(states):
                    if at < first:
                        continue
                    over = states[i + 1][0] if i + 1 < len(states) else float("inf")
                    # What the kubelet showed can have been there a period before we saw it.
                    match = next((t for t, s in published if s == state and t >= at - 1.0), None)
                    if match is not None and match <= over + 1.0:
                        seconds.append(max(0.0, match - at) + PERIOD / 2)
        return seconds

    def apply(self, obj: msgspec.Raw) -> None:
        """Note a version of a record."""
        record = codec.decode(msgspec.json.decode(obj))
        if record.report is None:
            return
        node = str(record.topology.name)
        state = _state((a.pod, a.container, a.device_ids) for a in record.report.allocations)
        with self._lock:
            self.reports[node].append(record.report)
            _note(self.published[node], state)

    def _poll(self) -> None:
        while not self._stop.wait(PERIOD):
            for name in self._kubelets:
                try:
                    state = self._holdings(name)
                except grpc.RpcError:
                    continue  # it restarts
                with self._lock:
                    _note(self.shown[name], state)

    def _holdings(self, node: str) -> State:
        """What a kubelet shows now. Raises :class:`grpc.RpcError`."""
        return _state(
            (pod, container, ids)
            for (_, pod), containers in self._kubelets[node].pod_resources.holdings().items()
            for container, ids in containers.items()
        )


def _state(held: Any) -> State:
    return tuple(sorted((pod, name, tuple(sorted(ids))) for pod, name, ids in held if ids))


def _note(states: list[tuple[float, State]], state: State) -> None:
    if not states or states[-1][1] != state:
        states.append((time.monotonic(), state))
