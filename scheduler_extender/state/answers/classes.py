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

# The number of resources for which classes are known. This bounds NVIDIA's names of MIG instances
# in one cluster.
MOST_RESOURCES = 48
# The number of changes of nodes that are kept. For a generation before that, every class is looked
# up again.
CHANGES_KEPT = 10_000


class EquivalenceClasses:
    """The equivalence classes of all nodes.

    Safe for many threads: ``lock`` is held only briefly.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._of = dict[str, dict[str, ClassId]]()  # by resource and node
        self._numbers = dict[Hashable, ClassId]()
        self._keys = dict[ClassId, Hashable]()
        self._nodes_in = Counter[ClassId]()
        self._last = 0
        self._changes = deque[str](maxlen=CHANGES_KEPT)
        self._counted_anew = 0  # the last generation at which a node began to count in other sums
        self.generation = 0
        # called when a class has no nodes any more
        self.on_empty = list[Callable[[ClassId], None]]()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, class_id: ClassId) -> bool:
        """Check whether a node is in this class."""
        return class_id in self._keys

    # Changes of nodes.

    def changed(self, name: str, *, answers: bool, counts_otherwise: bool) -> None:
        """Note that a node has changed or is gone.

        ``answers`` says that its answers may have changed. ``counts_otherwise`` says that it is in
        other domains, or was cordoned or uncordoned.
        """
        self.generation += 1
        if counts_otherwise:
            self._counted_anew = self.generation
        self._changes.append(name)
        for class_ids in self._of.values() if answers else ():
            class_id = class_ids.pop(name, None)
            if class_id is not None:
                self._leave(class_id)

    def unchanged(self, names: Collection[str], generation: int) -> bool:
        """Check whether none of these nodes has changed since that generation."""
        with self._lock:
            since = self._changed_since(generation)
            return since is not None and since.isdisjoint(names)

    def counted_otherwise_since(self, generation: int) -> set[str] | None:
        """Return the nodes whose sums may have changed since a generation; None if any may have.

        Any may have if the generation is too old, or if a node has begun to count in other sums
        since. The caller holds the lock.
        """
        return self._changed_since(generation) if generation >= self._counted_anew else None

    def _changed_since(self, generation: int) -> set[str] | None:
        """Return the nodes that have changed since a generation; None if that is too old."""
        count = self.generation - generation
        if count > len(self._changes):
            return None
        return set(islice(reversed(self._changes), count)) if count else set()

    # The classes of nodes.

    def class_ids(
        self, resource: str, names: Sequence[str], generation: int, others: Collection[str]
    ) -> list[ClassId | None]:
        """Return the classes of nodes at a generation, in the order of ``names``.

        A class is None if it has to be looked up, as for each of the ``others``.
        """
        with self._lock:
            # There are thousands of nodes, so let map and comprehensions do the work for each of
            # them.
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
        """Return the class of a node with this NodeInfo, and put the node into it.

        The NodeInfo was the node's own at ``generation``.

        Return None if no node is in that class. That is possible if the NodeInfo is a former one,
        or, with None for ``generation``, a hypothetical one. An error of ours about the node is
        raised.
        """
        key = info.key(resource)  # compute it without the lock
        with self._lock:
            if generation is None or not self.unchanged((info.name,), generation):
                return self._numbers.get(key)
            class_ids = self._over(resource)
            if info.name not in class_ids:
                class_ids[info.name] = self._enter(key)
            return class_ids[info.name]

    def _over(self, resource: str) -> dict[str, ClassId]:
        """Return the classes of nodes over one resource.

        With too many resources, the one that was asked about longest ago is forgotten: any user can
        choose a name of MIG instances.
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
        """Return the id of a class that one more node is in."""
        class_id = self._numbers.get(key)
        if class_id is None:
            self._last += 1
            class_id = self._numbers[key] = self._last
            self._keys[class_id] = key
        self._nodes_in[class_id] += 1
        return class_id

    def _leave(self, class_id: ClassId) -> None:
        """Count one node less in this class, and forget a class without nodes."""
        self._nodes_in[class_id] -= 1
        if self._nodes_in[class_id]:
            return
        del self._nodes_in[class_id], self._numbers[self._keys.pop(class_id)]
        for forget in self.on_empty:
            forget(class_id)
