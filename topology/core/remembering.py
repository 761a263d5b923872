"""What the core remembers, within one bound in bytes.

Answers are remembered by their arguments, so that nodes in one state are worked out once. All
memories together hold at most :data:`BYTES`, by estimate: each time that half of it has been newly
remembered, what nobody asked for in the meantime is forgotten. An answer never depends on what is
remembered. Several threads may ask at once; at worst an answer is worked out twice.

Whoever asks may stop a long answer half-way (:func:`interrupted_by`): what was worked out for it
stays remembered, so that asking again goes on from there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

BYTES = 64 * 1024 * 1024
"""The bound on all memories of the core together."""

P = ParamSpec("P")
R = TypeVar("R")
_ABSENT: Any = object()


class _Generation:
    """What has been remembered since the last time that something was forgotten."""

    def __init__(self) -> None:
        self.bytes = 0
        self.counted: set[int] = set()


_memories: list[Remembered[Any, Any]] = []
_now = _Generation()


class Remembered(Generic[P, R]):
    """A pure function that remembers its answers. All its arguments are hashable."""

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function
        self._weight = self._unweighed = 0
        self.young: dict[Any, R] = {}
        self.old: dict[Any, R] = {}
        update_wrapper(self, function)
        _memories.append(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The answer, remembered or worked out now."""
        key: Any = (args, *kwargs.items()) if kwargs else args
        found = self.young.get(key, _ABSENT)
        if found is not _ABSENT:
            return found  # type: ignore[no-any-return]
        found = self.old.get(key, _ABSENT)
        if found is _ABSENT:
            interruptible()
            found = self._function(*args, **kwargs)
        self.young[key] = found
        self._weigh(key, found)
        return found  # type: ignore[no-any-return]

    def _weigh(self, key: Any, found: R) -> None:
        """Count what has just been remembered; weighing each would cost as much as the answer."""
        if _listed(found) > MANY:
            _now.bytes += _ENTRY + bytes_of(key) + bytes_of(found)
        else:
            if self._unweighed <= 0:
                self._weight, self._unweighed = _ENTRY + bytes_of(key) + bytes_of(found), SAMPLED
            self._unweighed -= 1
            _now.bytes += self._weight
        if _now.bytes > BYTES // 2:
            _age()

    def cache_clear(self) -> None:
        """Forget every answer."""
        self.young, self.old = {}, {}


def remembered(function: Callable[P, R]) -> Remembered[P, R]:
    """Remember a pure function's answers, within the bound of all memories.

    >>> @remembered
    ... def double(n: int) -> int:
    ...     return 2 * n
    >>> double(2), bytes_remembered() > 0
    (4, True)
    """
    return Remembered(function)


class _Thread(threading.local):
    """What may interrupt the answers of one thread."""

    check: Callable[[], None] | None = None


_thread = _Thread()


class Interruption(BaseException):
    """What a check raises to interrupt an answer.

    It is no :class:`Exception`: whoever catches the faults of one node must not take it for one.
    """


@contextmanager
def interrupted_by(check: Callable[[], None]) -> Iterator[None]:
    """Call ``check`` before each part of what this thread works out inside.

    It interrupts by raising an :class:`Interruption`, which reaches whoever asked. Nothing that is
    half done is remembered.
    """
    before, _thread.check = _thread.check, check
    try:
        yield
    finally:
        _thread.check = before


def interruptible() -> None:
    """A place between two parts of a long answer, where it may be interrupted."""
    if _thread.check is not None:
        _thread.check()


def bytes_remembered() -> int:
    """About how many bytes were newly remembered since something was last forgotten."""
    return _now.bytes


def memories() -> list[Remembered[Any, Any]]:
    """Every function that remembers."""
    return list(_memories)


def forget() -> None:
    """Forget everything."""
    _now.bytes = 0
    _now.counted = set()
    for memory in _memories:
        memory.cache_clear()


def _age() -> None:
    """Forget what was not asked for lately."""
    _now.bytes = 0
    _now.counted = set()
    for memory in _memories:
        memory.old, memory.young = memory.young, {}


def _listed(value: object) -> int:
    """How many sets or ways an answer lists."""
    listed = value if isinstance(value, tuple) else getattr(value, "sets", None)
    if listed is None:
        listed = getattr(value, "ways", None)
    return len(listed) if isinstance(listed, tuple) else 0


SAMPLED = 32
"""Of so many answers of one function one is weighed, and the others are taken to be like it."""
MANY = 64
"""An answer that lists more is always weighed."""
_ENTRY = 200
"""A dictionary's own bytes for an entry, and a little."""
_LISTED = 4
"""Of longer tuples so many members are weighed, and the others taken to be like them."""


def bytes_of(value: object) -> int:
    """About how many bytes a value takes; one that says its ``shared_bytes`` counts only once."""
    kind = type(value)
    if kind is int or kind is float:
        return 32
    if kind is tuple or kind is frozenset or kind is set:
        return _bytes_of_all(value)  # type: ignore[arg-type]
    if value is None or kind is bool or isinstance(value, Enum):
        return 0
    if isinstance(value, str):
        return 50 + len(value)
    if isinstance(value, tuple):
        return _bytes_of_all(value)
    content = getattr(value, "nbytes", None)  # an array of numpy, which not everybody installs
    if isinstance(content, int):
        return 120 + content
    shared = getattr(value, "shared_bytes", None)
    if shared is not None:
        if id(value) in _now.counted:
            return 0
        _now.counted.add(id(value))
        return int(shared)
    slots = getattr(value, "__slots__", None)
    return _bytes_of_all(
        [getattr(value, s, None) for s in slots] if slots else vars(value).values()
    )


def _bytes_of_all(values: Collection[object]) -> int:
    n = len(values)
    if n <= _LISTED or not isinstance(values, tuple):
        return 56 + 8 * n + sum(map(bytes_of, values))
    some = values[:: -(-n // _LISTED)]
    return 56 + 8 * n + n * sum(map(bytes_of, some)) // len(some)
