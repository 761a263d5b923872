"""What was answered so far, in counts: nodes refused, binds, promises kept; and faults of ours.

A fault on one node never takes the answer for the others with it. Each is told once, and all are
counted.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from topology.core.devices import NodeName
from topology.core.placement import Reason, Rejection


class Tallies:
    """Counts that only grow; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rejections: Counter[Reason] = Counter()
        self._placements: Counter[str] = Counter()
        self.kept = 0  # promises that reports have shown to be kept
        self.vetoes = 0  # binds that were refused over the devices of a claim

    def reject(self, nodes: Mapping[Rejection, Sequence[str]]) -> None:
        """Filter has refused these nodes to one pod."""
        with self._lock:
            for why, names in nodes.items():
                self._rejections[why.kind] += len(names)

    def place(self, verdict: str) -> None:
        """A bind was written with this verdict; empty for a pod that requires nothing."""
        with self._lock:
            self._placements[verdict] += 1

    def veto(self) -> None:
        """A bind is refused: the pod's claim has devices that are not what it requires."""
        with self._lock:
            self.vetoes += 1

    def keep(self, promises: int) -> None:
        """A report has shown that so many promises are kept."""
        with self._lock:
            self.kept += promises

    def read(self) -> tuple[Counter[Reason], Counter[str]]:
        """Nodes refused by reason, and binds by verdict, up to now."""
        with self._lock:
            return Counter(self._rejections), Counter(self._placements)


KNOWN = 1000
"""How many different faults are told apart, to tell each once."""


class Faults:
    """What has failed so far."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._known: set[tuple[NodeName, str]] = set()
        self._listeners: list[Callable[[NodeName, Exception], None]] = []

    def on_fault(self, listener: Callable[[NodeName, Exception], None]) -> None:
        """Call ``listener`` with the node and the error when evaluating a node fails, once for each
        different fault. It must not wait for anything."""
        self._listeners.append(listener)

    def note(self, name: NodeName, error: Exception) -> None:
        """Something has failed about this node."""
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
