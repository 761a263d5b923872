"""What was answered so far, in counts: nodes refused by reason, binds by verdict, promises kept."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from topology.core.placement import Reason, Rejection


class Tallies:
    """Counts that only grow; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rejections: Counter[Reason] = Counter()
        self._placements: Counter[str] = Counter()
        self._kept = 0

    def reject(self, nodes: Mapping[Rejection, Sequence[str]]) -> None:
        """Filter has refused these nodes to one pod."""
        with self._lock:
            for why, names in nodes.items():
                self._rejections[why.kind] += len(names)

    def place(self, verdict: str) -> None:
        """A bind was written with this verdict; empty for a pod that requires nothing."""
        with self._lock:
            self._placements[verdict] += 1

    def keep(self, promises: int) -> None:
        """A report has shown that so many promises are kept."""
        with self._lock:
            self._kept += promises

    @property
    def kept(self) -> int:
        """Promises that reports have shown to be kept, up to now."""
        return self._kept

    def read(self) -> tuple[Counter[Reason], Counter[str]]:
        """Nodes refused by reason, and binds by verdict, up to now."""
        with self._lock:
            return Counter(self._rejections), Counter(self._placements)
