"""What is remembered, within one bound in bytes: the one way to remember strangers' values.

Answers are remembered by their arguments, so that nodes in one state are worked out once. All
memos of the process together hold at most :data:`BYTES`, by estimate: each time that half of it
has been newly remembered, what nobody asked for in the meantime is forgotten. An answer never
depends on what is remembered. Several threads may ask at once; at worst an answer is worked out
twice. A cache that is bounded by count (``lru_cache``) is for values that nobody else chooses.

Whoever asks may stop a long answer half-way (:func:`interrupted_by`): what was worked out for it
stays remembered, so that asking again goes on from there.

A request over thousands of nodes looks up the same few shapes, kubelets and requests thousands of
times. A dataclass would hash all its fields anew each time, for a shape some hundred links:
:func:`hashed_once` keeps the first answer in the object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import update_wrapper
from numbers import Number
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakSet

BYTES = 64 * 1024 * 1024  # the bound on all memos of the process together

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")
_ABSENT: Any = object()


class _Generation:
    """What has been remembered since the last time that something was forgotten."""

    def __init__(self) -> None:
        self.bytes = 0
        self.counted: set[int] = set()


_memos: WeakSet[Memo[Any, Any]] = WeakSet()
_now = _Generation()


class Memo(Generic[K, V]):
    """Values by key. What is not asked for is forgotten in time."""

    def __init__(self) -> None:
        self._weight = self._unweighed = 0
        self.young: dict[K, V] = {}
        self.old: dict[K, V] = {}
        _memos.add(self)

    def get(self, key: K) -> V | None:
        """The value of a key; None where it is not remembered."""
        value = self.young.get(key)
        if value is None and (value := self.old.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Remember a value. Weighing each small one would cost as much as most answers."""
        self.young[key] = value
        if _large(key) or _large(value):
            _now.bytes += _ENTRY + bytes_of(key) + bytes_of(value)
        else:
            if self._unweighed <= 0:
                self._weight = _ENTRY + bytes_of(key) + bytes_of(value)
                self._unweighed = SAMPLED
            self._unweighed -= 1
            _now.bytes += self._weight
        if _now.bytes > BYTES // 2:
            _age()

    def clear(self) -> None:
        """Forget every value."""
        self.young, self.old = {}, {}


class Memoized(Memo[Any, R], Generic[P, R]):
    """A pure function that remembers its answers. All its arguments are hashable."""

    def __init__(self, function: Callable[P, R]) -> None:
        super().__init__()
        self._function = function
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The answer, remembered or worked out now."""
        key: Any = (args, *kwargs.items()) if kwargs else args
        value = self.young.get(key, _ABSENT)
        if value is not _ABSENT:
            return value  # type: ignore[no-any-return]
        value = self.old.get(key, _ABSENT)
        if value is _ABSENT:
            interruptible()
            value = self._function(*args, **kwargs)
        self.put(key, value)
        return value  # type: ignore[no-any-return]


def memoized(function: Callable[P, R]) -> Memoized[P, R]:
    """Remember a pure function's answers, within the bound of all memos.

    >>> @memoized
    ... def double(n: int) -> int:
    ...     return 2 * n
    >>> double(2), double(2)
    (4, 4)
    """
    return Memoized(function)


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
    """Call ``check`` before each part of what this thread works out inside, after the checks of its
    callers.

    It interrupts by raising an :class:`Interruption`, which reaches the caller. Nothing half done
    is remembered.
    """
    before = _thread.check

    def both() -> None:
        if before is not None:
            before()
        check()

    _thread.check = both
    try:
        yield
    finally:
        _thread.check = before


def interruptible() -> None:
    """A place between two parts of a long answer, where it may be interrupted."""
    if _thread.check is not None:
        _thread.check()


def forget() -> None:
    """Forget everything."""
    for _ in range(2):
        _age()


def _age() -> None:
    """Forget what was not asked for lately."""
    _now.bytes = 0
    _now.counted = set()
    for memo in list(_memos):
        memo.old, memo.young = memo.young, {}


def _large(value: object) -> bool:
    """Whether an entry has to be weighed by itself: a part of it is long, or is shared and not
    counted yet."""
    if isinstance(value, (tuple, frozenset)):
        return len(value) > MANY or any(map(_large, value))
    if isinstance(value, (str, bytes)):
        return len(value) > MANY
    if hasattr(type(value), "shared_bytes"):
        return id(value) not in _now.counted
    listed = getattr(value, "sets", None)
    if listed is None:
        listed = getattr(value, "ways", None)
    return isinstance(listed, tuple) and len(listed) > MANY


SAMPLED = 32
"""Of so many small values of one memo one is weighed, and the others are taken to be like it."""
MANY = 64  # what is longer is always weighed
_ENTRY = 200  # a dictionary's own bytes for an entry, and a little
_LISTED = 4  # of longer tuples so many members are weighed, and the others taken to be like them


def bytes_of(value: object) -> int:
    """About how many bytes a value takes; one that says its ``shared_bytes`` counts only once."""
    if isinstance(value, (tuple, frozenset, set)):
        return _bytes_of_all(value)
    if value is None or isinstance(value, (bool, Enum)):
        return 0
    if isinstance(value, (int, float)):
        return 32
    if isinstance(value, (str, bytes)):
        return 50 + len(value)
    if isinstance(value, Number):
        return 104
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


def hashed_once(cls: type[T]) -> type[T]:
    """A class decorator for frozen dataclasses without slots: hash each object at most once.

    It stands above ``@dataclass(frozen=True)``, whose hash it keeps; so fields with
    ``compare=False`` stay out of it.

    >>> from dataclasses import dataclass
    >>> @hashed_once
    ... @dataclass(frozen=True)
    ... class Pair:
    ...     a: int
    ...     b: int
    >>> hash(Pair(1, 2)) == hash(Pair(1, 2)) == hash((1, 2))
    True
    """
    # Python learns by code object what an attribute look-up finds, so each class gets its own.
    method = FunctionType(_kept_hash.__code__.replace(), globals(), "__hash__")
    given: Any = cls
    given._hash_of_fields, given.__hash__ = given.__hash__, method
    return cls


def _kept_hash(self: Any) -> int:
    try:
        return self._hash  # type: ignore[no-any-return]
    except AttributeError:
        hashed: int = self._hash_of_fields()
        object.__setattr__(self, "_hash", hashed)
        return hashed
