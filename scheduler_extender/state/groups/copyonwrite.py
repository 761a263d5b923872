"""A dict whose readers keep what they were handed, while its writer goes on."""

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class CopyOnWrite(dict[K, V]):
    """A dict that hands out copies; one is made only if something was written since the last.

    It is written by :meth:`put` and :meth:`drop` alone.
    """

    _copy: Mapping[K, V] | None = None

    def put(self, key: K, value: V) -> None:
        """Write a value."""
        self[key] = value
        self._copy = None

    def drop(self, key: K) -> V | None:
        """Remove a key, if it is there."""
        if key in self:
            self._copy = None
        return self.pop(key, None)

    def copied(self) -> Mapping[K, V]:
        """What is written up to now; O(keys) if something has changed."""
        if self._copy is None:
            self._copy = dict(self)
        return self._copy
