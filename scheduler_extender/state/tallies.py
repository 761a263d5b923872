"""What was answered so far: nodes refused by reason, and binds by verdict; for counting only."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from topology.core.placement import Reason, Rejection


class Tallies:
    """Two counts that only grow; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rejections: Counter[Reason] = Counter()
        self._placements: Counter[str] = Counter()

    def reject(self, nodes: Mapping[Rejection, Sequence[str]]) -> None:
        """Filter has refused these nodes to one pod."""
        with self._lock:
            for why, names in nodes.items():
                self._rejections[why.kind] += len(names)

    def place(self, verdict: str) -> None:
        """A bind was written with this verdict; empty for a pod that requires nothing."""
        with self._lock:
            self._placements[verdict] += 1

    def read(self) -> tuple[Counter[Reason], Counter[str]]:
        """Nodes refused by reason, and binds by verdict, up to now."""
        with self._lock:
            return Counter(self._rejections), Counter(self._placements)
