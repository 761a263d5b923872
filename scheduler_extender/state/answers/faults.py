"""Faults of ours about one node: each is told once and all are counted.

A fault on one node never takes the answer for the others with it.
"""

import threading
from collections.abc import Callable

from topology.core.devices import NodeName

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
