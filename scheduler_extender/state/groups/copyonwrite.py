"""A dict whose readers keep what they were handed, while its writer goes on."""

from collections.abc import Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class CopyOnWrite(Generic[K, V]):
    """A dict that hands out copies; one is made only if something was written since the last."""

    def __init__(self) -> None:
        self.now: dict[K, V] = {}
        self._copy: Mapping[K, V] | None = None

    def get(self, key: K) -> V | None:
        """The value of a key."""
        return self.now.get(key)

    def put(self, key: K, value: V) -> None:
        """Write a value."""
        self.now[key] = value
        self._copy = None

    def pop(self, key: K) -> V | None:
        """Remove a key, if it is there."""
        if key in self.now:
            self._copy = None
        return self.now.pop(key, None)

    def copy(self) -> Mapping[K, V]:
        """What is written up to now; O(keys) if something has changed."""
        if self._copy is None:
            self._copy = dict(self.now)
        return self._copy
