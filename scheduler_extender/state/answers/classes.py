"""Equivalence classes of nodes: nodes of one class answer every request alike.

A *state* is the number of a class, for all that a node's answers over one resource depend on
(:meth:`.NodeFacts.key`). So a request over thousands of nodes costs one evaluation for each
distinct state and a look-up for each node. A state is forgotten when no node is in it any more.

Each question is about one *moment*, a number that grows with every change of a node.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Sequence
from itertools import islice

from scheduler_extender.state.node.facts import NodeFacts

State = int

MOST_RESOURCES = 48
"""Resources over which states are known: NVIDIA's names of MIG instances in one cluster."""
CHANGES_KEPT = 10_000
"""Changes of nodes that are remembered. A question about an older moment finds every state anew."""


class EquivalenceClasses:
    """The states of all nodes. Safe for many threads: ``lock`` is held for moments."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._of = dict[str, dict[str, State]]()  # by resource and node
        self._numbers = dict[Hashable, State]()
        self._keys = dict[State, Hashable]()
        self._nodes_in = Counter[State]()
        self._last = 0
        self._changes = deque[str](maxlen=CHANGES_KEPT)
        self._counted_anew = 0  # the last moment at which a node began to count in other sums
        self.moment = 0
        self.on_empty = list[Callable[[State], None]]()  # no node is in a state any more

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, state: State) -> bool:
        """Whether some node is in this state."""
        return state in self._keys

    # What has changed.

    def changed(self, name: str, *, answers: bool, counts_otherwise: bool) -> None:
        """A node has changed, or is gone. Its ``answers`` may be others now, or it
        ``counts_otherwise``: it is in other domains, or cordoned or not."""
        self.moment += 1
        if counts_otherwise:
            self._counted_anew = self.moment
        self._changes.append(name)
        for states in self._of.values() if answers else ():
            state = states.pop(name, None)
            if state is not None:
                self._leave(state)

    def unchanged(self, names: Collection[str], moment: int) -> bool:
        """Whether none of these nodes has changed since that moment."""
        with self._lock:
            since = self._changed_since(moment)
            return since is not None and since.isdisjoint(names)

    def counted_otherwise_since(self, moment: int) -> set[str] | None:
        """The nodes of which a sum may have changed since that moment. None where any may: that is
        too long ago, or a node has begun to count in other sums. The lock is held."""
        return self._changed_since(moment) if moment >= self._counted_anew else None

    def _changed_since(self, moment: int) -> set[str] | None:
        """The nodes that have changed since; None where that is too long ago to be told."""
        count = self.moment - moment
        if count > len(self._changes):
            return None
        return set(islice(reversed(self._changes), count)) if count else set()

    # The states of nodes.

    def states(
        self, resource: str, names: Sequence[str], moment: int, others: Collection[str]
    ) -> list[State | None]:
        """The states in which nodes were at a moment; None where that has to be found, as for the
        ``others``."""
        with self._lock:
            # What is done for each of thousands of nodes is done inside of map and its like.
            states: list[State | None] = list(map(self._over(resource).get, names))
            since = self._changed_since(moment)
        if since is None:
            return [None] * len(names)
        if since or others:
            since.update(others)
            states = [None if name in since else s for name, s in zip(names, states, strict=True)]
        return states

    def enter(self, facts: NodeFacts, resource: str, moment: int | None) -> State | None:
        """The state of a node with these facts, which were its own at a moment.

        None where no node is in it: the facts are former ones, or, without a moment, made up.
        Raises whatever a fault of ours about the node raises.
        """
        key = facts.key(resource)  # worked out with no lock held
        with self._lock:
            if moment is None or not self.unchanged((facts.name,), moment):
                return self._numbers.get(key)
            states = self._over(resource)
            if facts.name not in states:
                states[facts.name] = self._enter(key)
            return states[facts.name]

    def _over(self, resource: str) -> dict[str, State]:
        """The states of nodes over one resource; of too many the one asked about longest ago goes.

        Names of MIG instances are anybody's to choose.
        """
        known = self._of.pop(resource, None)
        if known is None:
            known = {}
            while len(self._of) >= MOST_RESOURCES:
                for state in self._of.pop(next(iter(self._of))).values():
                    self._leave(state)
        self._of[resource] = known
        return known

    def _enter(self, key: Hashable) -> State:
        """The number of a state that one more node is in."""
        state = self._numbers.get(key)
        if state is None:
            self._last += 1
            state = self._numbers[key] = self._last
            self._keys[state] = key
        self._nodes_in[state] += 1
        return state

    def _leave(self, state: State) -> None:
        """One node less is in this state."""
        self._nodes_in[state] -= 1
        if self._nodes_in[state]:
            return
        del self._nodes_in[state], self._numbers[self._keys.pop(state)]
        for forget in self.on_empty:
            forget(state)
