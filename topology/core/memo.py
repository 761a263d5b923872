"""What is remembered, within one bound in bytes: the one way to remember untrusted values.

Answers are remembered by their arguments, so that nodes in one state are worked out once. All
memos of the process together hold at most :data:`BYTES`, by estimate: each time that half of it
has been newly remembered, what nobody asked for in the meantime is forgotten. An answer never
depends on what is remembered. Several threads may ask at once; at worst an answer is worked out
twice. A cache that is bounded by count (``lru_cache``) is for values that nobody else chooses.

Whoever asks may stop a long answer half-way (:func:`interrupted_at`): what was worked out for it
stays remembered, so that asking again goes on from there.

A request over thousands of nodes looks up the same few shapes, kubelets and requests thousands of
times. A dataclass would hash all its fields anew each time, for a shape some hundred links:
:func:`hashed_once` keeps the first answer in the object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
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
_NAMED = None, "what follows are names, and their values"


class _Generation:
    """What has been remembered since the last time that something was forgotten."""

    def __init__(self) -> None:
        self.bytes = 0
        self.counted: dict[int, object] = {}  # what entries share, by its id


_memos: WeakSet[Memo[Any, Any]] = WeakSet()
_now = _Generation()
_unweighed: list[tuple[Any, Any]] = []  # entries; a few are weighed together


class Memo(Generic[K, V]):
    """Values by key. What is not asked for is forgotten in time."""

    def __init__(self) -> None:
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
        """Remember a value."""
        self.young[key] = value
        _unweighed.append((key, value))
        if len(_unweighed) >= TOGETHER:
            _weigh()

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
        key: Any = (args, _NAMED, tuple(kwargs.items())) if kwargs else args
        value = self.young.get(key, _ABSENT)
        if value is not _ABSENT:
            return value  # type: ignore[no-any-return]
        value = self.old.get(key, _ABSENT)
        if value is _ABSENT:
            if _thread.ends:
                interruptible()
            value = self._function(*args, **kwargs)
        # As in `put`, without a call: thousands are remembered for one question.
        self.young[key] = value
        _unweighed.append((key, value))
        if len(_unweighed) >= TOGETHER:
            _weigh()
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


class OutOfTimeError(BaseException):
    """There is no time left to work an answer out.

    It is no :class:`Exception`: whoever catches the faults of one node must not take it for one.
    """


class _Thread(threading.local):
    """Until when one thread may work, by each of the clocks that it is told of."""

    ends: tuple[tuple[Callable[[], float], float], ...] = ()


_thread = _Thread()


@contextmanager
def interrupted_at(clock: Callable[[], float], until: float) -> Iterator[None]:
    """Raise :class:`OutOfTimeError` before a part of what this thread works out inside, once the
    clock has come to ``until``, or to a moment that a caller has set.

    Nothing half done is remembered.
    """
    before = _thread.ends
    by_clock = dict(before)
    by_clock[clock] = min(until, by_clock.get(clock, until))
    _thread.ends = (*by_clock.items(),)
    try:
        yield
    finally:
        _thread.ends = before


def interruptible() -> None:
    """A place between two parts of a long answer, where it may be interrupted."""
    for clock, until in _thread.ends:
        if clock() >= until:
            raise OutOfTimeError


def forget() -> None:
    """Forget everything."""
    _unweighed.clear()
    for _ in range(2):
        _age()


def _weigh() -> None:
    """Weigh what is new, and forget what was not asked for lately where it is too much."""
    with suppress(IndexError):  # another thread may have taken the last one
        while _unweighed:
            _now.bytes += _ENTRY + bytes_of(_unweighed.pop())
    if _now.bytes > BYTES // 2:
        _age()


def _age() -> None:
    """Forget what was not asked for lately."""
    _now.bytes, _now.counted = 0, {}
    for memo in list(_memos):
        memo.old, memo.young = memo.young, {}


TOGETHER = 8  # entries; a call for each would cost as much as weighing it
_ENTRY = 200  # a dictionary's own bytes for an entry, and a little
_LISTED = 4  # of longer tuples so many members are weighed, and the others taken to be like them
_alike: dict[type, int] = {int: 32, float: 32, bool: 0, type(None): 0}
"""The bytes of each value of some types; those of a member of an Enum are there anyway."""


def bytes_of(value: object) -> int:
    """About how many bytes a value takes; one that says its ``shared_bytes`` counts only once."""
    found, parts, counted = 0, [value], _now.counted
    for part in parts:
        kind = type(part)
        if kind in _alike:
            found += _alike[kind]
        elif id(part) in counted:
            continue
        elif (shared := getattr(part, "shared_bytes", None)) is not None:
            counted[id(part)] = part
            found += int(shared)
        elif isinstance(part, (tuple, frozenset, set)):
            n = len(part)
            found += 56 + 8 * n
            if n <= _LISTED or not isinstance(part, tuple):
                parts.extend(part)
            else:
                some = part[:: -(-n // _LISTED)]
                found += n * sum(map(bytes_of, some)) // len(some)
        elif isinstance(part, dict):  # what a node keeps of itself, such as positions by UUID
            parts.append(tuple(part.items()))
        elif isinstance(part, (str, bytes)):
            found += 50 + len(part)
        elif isinstance(part, (Enum, Number)):
            _alike[kind] = 0 if isinstance(part, Enum) else 104
            found += _alike[kind]
        elif isinstance(content := getattr(part, "nbytes", None), int):
            found += 120 + content  # an array of numpy, which not everybody installs
        elif slots := getattr(part, "__slots__", None):
            parts.extend([getattr(part, slot, None) for slot in slots])
        else:
            parts.extend(vars(part).values())
    return found


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
