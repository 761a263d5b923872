"""A dict whose readers keep the copy that they were given, while its writer goes on."""

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class CopyOnWrite(dict[K, V]):
    """A dict that hands out copies, and copies again only after a write.

    Write it only by :meth:`put` and :meth:`drop`.
    """

    _copy: Mapping[K, V] | None = None

    def put(self, key: K, value: V) -> None:
        """Write a value."""
        self[key] = value
        self._copy = None

    def drop(self, key: K) -> V | None:
        """Remove a key if it is there, and return its value."""
        if key in self:
            self._copy = None
        return self.pop(key, None)

    def copied(self) -> Mapping[K, V]:
        """Return a copy of the current content; O(keys) if it has changed since the last copy."""
        if self._copy is None:
            self._copy = dict(self)
        return self._copy
