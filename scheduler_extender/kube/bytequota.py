"""Limit the bytes that objects take in memory, with a fair share for each of their owners.

When all bytes are taken, the owner that has most gives way. So an owner with less than an equal
share keeps its objects.
"""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most bytes of all objects, of those of one owner, and of one object."""

    all: int = 0
    owner: int = 0
    one: int = 0


NO_QUOTA = Bounds()


class ByteQuota:
    """A quota that counts sizes only. For one thread."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.taken = 0
        self.outside = 0  # objects that have no room
        self._of = defaultdict[str, int](int)  # bytes, by owner
        self._inside = defaultdict[str, dict[Hashable, int]](dict)
        self._outside = defaultdict[str, dict[Hashable, int]](dict)
        self._most: list[tuple[int, str]] = []  # a heap: owners by negated present or former bytes
        self._given_back = False  # whether bytes have been released since :meth:`settle`

    def put(self, owner: str, key: Hashable, size: int) -> list[Hashable]:
        """Add an object, and return the objects that have no room now.

        It is this object, or others of the owner that has most.
        """
        if not self._fits(owner, size):
            self._outside[owner][key] = size
            self.outside += 1
            return [key]
        self._inside[owner][key] = size
        self._count(owner, size)
        gone: list[Hashable] = []
        while self.taken > self._bounds.all:
            largest = self._most_of_all()
            gone.append(last := next(reversed(self._inside[largest])))
            self._outside[largest][last] = self._out(largest, last)
            self.outside += 1
        return gone

    def drop(self, owner: str, key: Hashable) -> None:
        """Remove an object."""
        if key in self._inside[owner]:
            self._out(owner, key)
        elif self._outside[owner].pop(key, None) is not None:
            self.outside -= 1
        for each in self._inside, self._outside:
            if not each[owner]:
                del each[owner]

    def settle(self) -> None:
        """Record that all objects have been put.

        If all were put anew now, each would find the room that it has.
        """
        self._given_back = False

    def is_there(self) -> bool:
        """Check whether an object without room would find room now."""
        return self._given_back and any(
            self._fits(owner, min(sizes.values()))
            for owner, sizes in self._outside.items()
            if sizes
        )

    def _fits(self, owner: str, size: int) -> bool:
        after = self._of.get(owner, 0) + size
        if size > self._bounds.one or after > self._bounds.owner:
            return False
        return self.taken + size <= self._bounds.all or after < self._of.get(self._most_of_all(), 0)

    def _most_of_all(self) -> str:
        while self._most and -self._most[0][0] != self._of.get(self._most[0][1]):
            heappop(self._most)
        return self._most[0][1] if self._most else ""

    def _out(self, owner: str, key: Hashable) -> int:
        size = self._inside[owner].pop(key)
        self._given_back = True
        self._count(owner, -size)
        return size

    def _count(self, owner: str, more: int) -> None:
        self.taken += more
        self._of[owner] += more
        if not self._of[owner]:
            del self._of[owner]
        else:
            heappush(self._most, (-self._of[owner], owner))
        if len(self._most) > 2 * len(self._of) + 100:
            self._most = [(-size, each) for each, size in self._of.items()]
            heapify(self._most)
