"""The answers of nodes as they would be, for example after some pods have gone.

Thousands of such cases are tried for one pod, on nodes many of which would be in the same
equivalence class. Two steps take time: to count again what is left on a node (its ledger), and to
decide. So the class of a node without some pods is cached (:meth:`.NodeInfo.key`), and each class
answers once. The cache is dropped with the question that it was made for.
"""

from collections.abc import Hashable

from scheduler_extender.framework.claims import devices_for
from scheduler_extender.framework.equivalence import answer
from scheduler_extender.framework.nodedecision import undecided
from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.devices import PodUid
from topology.core.requests import GpuRequest

__all__ = [
    "Trials",
    "devices_for",
]

NO_POD: frozenset[PodUid] = frozenset()


class Trials:
    """The nodes of one snapshot, asked as they would be."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._numbers: dict[Hashable, int] = {}
        self._states: dict[tuple[NodeInfo, frozenset[PodUid], str], int] = {}
        self._known: dict[tuple[GpuRequest, int], Decision] = {}

    def answer(
        self, info: NodeInfo, request: GpuRequest, gone: frozenset[PodUid] = NO_POD
    ) -> Decision:
        """Return the own answer of a node with this info if some pods had gone.

        Raises :class:`.OutOfTimeError` if an outer deadline has passed.
        """
        about = (request, self._class_of(info, gone, request.resource))
        found = self._known.get(about)
        if found is None:
            then = info.without(gone) if gone else info
            found = self._known[about] = answer(self._snapshot, then, request)
        return found

    def takes_unseen(self, info: NodeInfo, request: GpuRequest) -> bool:
        """Check whether a node takes the pod although deciding about it failed."""
        return undecided(info, request).rejection is None

    def _class_of(self, info: NodeInfo, gone: frozenset[PodUid], resource: str) -> int:
        """Return a number for the node without these pods. It is equal if every answer is equal."""
        about = (info, gone, resource)
        found = self._states.get(about)
        if found is None:
            key = (info.without(gone) if gone else info).key(resource)
            found = self._states[about] = self._numbers.setdefault(key, len(self._numbers))
        return found
