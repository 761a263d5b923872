"""Equivalence classes of nodes: nodes of one class answer every request alike.

A *class id* is the number of a class, for all that a node's answers over one resource depend on
(:meth:`.NodeInfo.key`). So a request over thousands of nodes costs one evaluation for each
class and a look-up for each node. A class is forgotten when no node is in it any more.

Each question is about one *generation*, a number that grows with every change of a node.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Sequence
from itertools import islice

from scheduler_extender.state.node.nodeinfo import NodeInfo

ClassId = int

MOST_RESOURCES = 48
"""Resources over which states are known: NVIDIA's names of MIG instances in one cluster."""
CHANGES_KEPT = 10_000
"""Changes of nodes that are remembered. A question about an older moment finds every state anew."""


class EquivalenceClasses:
    """The states of all nodes. Safe for many threads: ``lock`` is held for moments."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._of = dict[str, dict[str, ClassId]]()  # by resource and node
        self._numbers = dict[Hashable, ClassId]()
        self._keys = dict[ClassId, Hashable]()
        self._nodes_in = Counter[ClassId]()
        self._last = 0
        self._changes = deque[str](maxlen=CHANGES_KEPT)
        self._counted_anew = 0  # the last moment at which a node began to count in other sums
        self.generation = 0
        self.on_empty = list[Callable[[ClassId], None]]()  # no node is in a state any more

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, class_id: ClassId) -> bool:
        """Whether some node is in this state."""
        return class_id in self._keys

    # What has changed.

    def changed(self, name: str, *, answers: bool, counts_otherwise: bool) -> None:
        """A node has changed, or is gone. Its ``answers`` may be others now, or it
        ``counts_otherwise``: it is in other domains, or cordoned or not."""
        self.generation += 1
        if counts_otherwise:
            self._counted_anew = self.generation
        self._changes.append(name)
        for class_ids in self._of.values() if answers else ():
            class_id = class_ids.pop(name, None)
            if class_id is not None:
                self._leave(class_id)

    def unchanged(self, names: Collection[str], generation: int) -> bool:
        """Whether none of these nodes has changed since that moment."""
        with self._lock:
            since = self._changed_since(generation)
            return since is not None and since.isdisjoint(names)

    def counted_otherwise_since(self, generation: int) -> set[str] | None:
        """The nodes of which a sum may have changed since that moment. None where any may: that is
        too long ago, or a node has begun to count in other sums. The lock is held."""
        return self._changed_since(generation) if generation >= self._counted_anew else None

    def _changed_since(self, generation: int) -> set[str] | None:
        """The nodes that have changed since; None where that is too long ago to be told."""
        count = self.generation - generation
        if count > len(self._changes):
            return None
        return set(islice(reversed(self._changes), count)) if count else set()

    # The states of nodes.

    def class_ids(
        self, resource: str, names: Sequence[str], generation: int, others: Collection[str]
    ) -> list[ClassId | None]:
        """The states in which nodes were at a moment; None where that has to be found, as for the
        ``others``."""
        with self._lock:
            # What is done for each of thousands of nodes is done inside of map and its like.
            class_ids: list[ClassId | None] = list(map(self._over(resource).get, names))
            since = self._changed_since(generation)
        if since is None:
            return [None] * len(names)
        if since or others:
            since.update(others)
            class_ids = [
                None if name in since else s for name, s in zip(names, class_ids, strict=True)
            ]
        return class_ids

    def enter(self, info: NodeInfo, resource: str, generation: int | None) -> ClassId | None:
        """The state of a node with these facts, which were its own at a moment.

        None where no node is in it: the facts are former ones, or, without a moment, made up.
        Raises whatever a fault of ours about the node raises.
        """
        key = info.key(resource)  # worked out with no lock held
        with self._lock:
            if generation is None or not self.unchanged((info.name,), generation):
                return self._numbers.get(key)
            class_ids = self._over(resource)
            if info.name not in class_ids:
                class_ids[info.name] = self._enter(key)
            return class_ids[info.name]

    def _over(self, resource: str) -> dict[str, ClassId]:
        """The states of nodes over one resource; of too many the one asked about longest ago goes.

        Names of MIG instances are anybody's to choose.
        """
        known = self._of.pop(resource, None)
        if known is None:
            known = {}
            while len(self._of) >= MOST_RESOURCES:
                for class_id in self._of.pop(next(iter(self._of))).values():
                    self._leave(class_id)
        self._of[resource] = known
        return known

    def _enter(self, key: Hashable) -> ClassId:
        """The number of a state that one more node is in."""
        class_id = self._numbers.get(key)
        if class_id is None:
            self._last += 1
            class_id = self._numbers[key] = self._last
            self._keys[class_id] = key
        self._nodes_in[class_id] += 1
        return class_id

    def _leave(self, class_id: ClassId) -> None:
        """One node less is in this state."""
        self._nodes_in[class_id] -= 1
        if self._nodes_in[class_id]:
            return
        del self._nodes_in[class_id], self._numbers[self._keys.pop(class_id)]
        for forget in self.on_empty:
            forget(class_id)
