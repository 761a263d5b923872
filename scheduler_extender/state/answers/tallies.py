"""Counts of what was answered so far: rejected nodes, binds, kept promises, and errors of ours.

An error on one node never loses the answer for the other nodes. Each different error is announced
once, and all are counted.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from topology.core.devices import NodeName
from topology.core.placement import Reason, Rejection


class Tallies:
    """Counts that only grow. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rejections: Counter[Reason] = Counter()
        self._placements: Counter[str] = Counter()
        self.kept = 0  # promises that reports have confirmed
        self.vetoes = 0  # binds that were rejected because of the devices of a claim

    def count_rejections(self, nodes: Mapping[Rejection, Sequence[str]]) -> None:
        """Count the nodes that filter has rejected to one pod."""
        with self._lock:
            for why, names in nodes.items():
                self._rejections[why.reason] += len(names)

    def count_bind(self, verdict: str) -> None:
        """Count a bind with this verdict, which is empty for a pod that requires nothing."""
        with self._lock:
            self._placements[verdict] += 1

    def count_veto(self) -> None:
        """Count a rejected bind: the devices of the pod's claim are not what the pod requires."""
        with self._lock:
            self.vetoes += 1

    def count_kept(self, promises: int) -> None:
        """Count promises that a report has shown to be kept."""
        with self._lock:
            self.kept += promises

    def read(self) -> tuple[Counter[Reason], Counter[str]]:
        """Return the rejected nodes by reason and the binds by verdict, up to now."""
        with self._lock:
            return Counter(self._rejections), Counter(self._placements)


KNOWN = 1000  # the number of different errors that are remembered, so that each is announced once


class Faults:
    """The errors of ours so far."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._known: set[tuple[NodeName, str]] = set()
        self._listeners: list[Callable[[NodeName, Exception], None]] = []

    def on_fault(self, listener: Callable[[NodeName, Exception], None]) -> None:
        """Call ``listener`` with the node and the error when the evaluation of a node fails.

        It is called once for each different error. It must not block.
        """
        self._listeners.append(listener)

    def note(self, name: NodeName, error: Exception) -> None:
        """Count an error about this node, and announce it if it is new."""
        fault = (name, repr(error)[:200])
        with self._lock:
            self.count += 1
            if fault in self._known:
                return
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known.add(fault)
        for listener in self._listeners:
            listener(name, error)
