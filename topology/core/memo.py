"""Memos: caches of pure functions that share one bound in bytes.

A memo caches results by their arguments, so nodes of one equivalence class are worked out once. All
memos of the process together hold at most :data:`BYTES`, by estimate. Each time that half of this
has been newly cached, the memos drop the entries that were not used in the meantime. A result never
depends on what is cached. Several threads may use a memo at once; at worst a result is worked out
twice. Values that untrusted input chooses are cached only in memos. A cache bounded by count
(``lru_cache``) is only for other values.

A caller may interrupt a long evaluation (:func:`interrupted_at`). Its finished parts stay cached,
so the next attempt continues from there.

A request over thousands of nodes looks up the same few shapes, kubelets and requests thousands of
times. A plain dataclass would hash all its fields each time; a shape has some hundred links. So
:func:`hashed_once` stores the first hash in the object.
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
    """The sizes of entries that were cached since unused entries were last dropped."""

    def __init__(self) -> None:
        self.bytes = 0
        self.counted: dict[int, object] = {}  # values that entries share, by their id


_memos: WeakSet[Memo[Any, Any]] = WeakSet()
_now = _Generation()
_unweighed: list[tuple[Any, Any]] = []  # entries of unknown size; a few are weighed together


class Memo(Generic[K, V]):
    """A cache of values by key. Values that are not used are dropped in time."""

    def __init__(self) -> None:
        self.young: dict[K, V] = {}
        self.old: dict[K, V] = {}
        _memos.add(self)

    def get(self, key: K) -> V | None:
        """Return the value of a key; None if it is not cached."""
        value = self.young.get(key)
        if value is None and (value := self.old.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Cache a value."""
        self.young[key] = value
        _unweighed.append((key, value))
        if len(_unweighed) >= TOGETHER:
            _weigh()

    def clear(self) -> None:
        """Drop every value."""
        self.young, self.old = {}, {}


class Memoized(Memo[Any, R], Generic[P, R]):
    """A pure function that caches its results. All its arguments are hashable."""

    def __init__(self, function: Callable[P, R]) -> None:
        super().__init__()
        self._function = function
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the cached result, or work it out and cache it."""
        key: Any = (args, _NAMED, tuple(kwargs.items())) if kwargs else args
        value = self.young.get(key, _ABSENT)
        if value is not _ABSENT:
            return value  # type: ignore[no-any-return]
        value = self.old.get(key, _ABSENT)
        if value is _ABSENT:
            if _thread.ends:
                interruptible()
            value = self._function(*args, **kwargs)
        # The same as `put`, inlined because one request caches thousands of results.
        self.young[key] = value
        _unweighed.append((key, value))
        if len(_unweighed) >= TOGETHER:
            _weigh()
        return value  # type: ignore[no-any-return]


def memoized(function: Callable[P, R]) -> Memoized[P, R]:
    """Cache the results of a pure function, within the bound of all memos.

    >>> @memoized
    ... def double(n: int) -> int:
    ...     return 2 * n
    >>> double(2), double(2)
    (4, 4)
    """
    return Memoized(function)


class OutOfTimeError(BaseException):
    """The end of the time for an evaluation.

    It is not an :class:`Exception`, so code that catches the faults of one node does not catch it.
    """


class _Thread(threading.local):
    """The times until which one thread may work, one for each clock."""

    ends: tuple[tuple[Callable[[], float], float], ...] = ()


_thread = _Thread()


@contextmanager
def interrupted_at(clock: Callable[[], float], until: float) -> Iterator[None]:
    """Limit the time of evaluations inside the block.

    Once the clock has come to ``until``, or to an earlier time that a caller has set, the next part
    of an evaluation raises :class:`OutOfTimeError` before it begins. No unfinished result is
    cached.
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
    """Raise :class:`OutOfTimeError` if this thread's time is over.

    Long evaluations call this between two parts.
    """
    for clock, until in _thread.ends:
        if clock() >= until:
            raise OutOfTimeError


def forget() -> None:
    """Drop every value of every memo."""
    _unweighed.clear()
    for _ in range(2):
        _age()


def _weigh() -> None:
    """Weigh the new entries, and drop the unused ones if the new ones exceed half the bound."""
    with suppress(IndexError):  # another thread may have taken the last one
        while _unweighed:
            _now.bytes += _ENTRY + bytes_of(_unweighed.pop())
    if _now.bytes > BYTES // 2:
        _age()


def _age() -> None:
    """Drop the entries that were not used since the last call."""
    _now.bytes, _now.counted = 0, {}
    for memo in list(_memos):
        memo.old, memo.young = memo.young, {}


TOGETHER = 8  # entries weighed at a time; one call for each would cost as much as weighing it
_ENTRY = 200  # bytes that a dictionary takes for an entry, with a margin
_LISTED = 4  # in a longer tuple this many members are weighed; the others count as their mean
# The bytes of a value of some types. A member of an Enum counts 0, because it exists anyway.
_alike: dict[type, int] = {int: 32, float: 32, bool: 0, type(None): 0}


def bytes_of(value: object) -> int:
    """Return the approximate bytes of a value.

    A part that has ``shared_bytes`` counts only once until unused entries are dropped again.
    """
    size, parts, counted = 0, [value], _now.counted
    for part in parts:
        kind = type(part)
        if kind in _alike:
            size += _alike[kind]
        elif id(part) in counted:
            continue
        elif (shared := getattr(part, "shared_bytes", None)) is not None:
            counted[id(part)] = part
            size += int(shared)
        elif isinstance(part, (tuple, frozenset, set)):
            n = len(part)
            size += 56 + 8 * n
            if n <= _LISTED or not isinstance(part, tuple):
                parts.extend(part)
            else:
                some = part[:: -(-n // _LISTED)]
                size += n * sum(map(bytes_of, some)) // len(some)
        elif isinstance(part, dict):  # cached properties of a node, such as positions by UUID
            parts.append(tuple(part.items()))
        elif isinstance(part, (str, bytes)):
            size += 50 + len(part)
        elif isinstance(part, (Enum, Number)):
            _alike[kind] = 0 if isinstance(part, Enum) else 104
            size += _alike[kind]
        elif isinstance(content := getattr(part, "nbytes", None), int):
            size += 120 + content  # an array of numpy, which may not be installed
        elif slots := getattr(part, "__slots__", None):
            parts.extend([getattr(part, slot, None) for slot in slots])
        else:
            parts.extend(vars(part).values())
    return size


def hashed_once(cls: type[T]) -> type[T]:
    """Decorate a frozen dataclass without slots, so that each object is hashed at most once.

    Put it above ``@dataclass(frozen=True)``. It uses the hash of the dataclass, so fields with
    ``compare=False`` do not count.

    >>> from dataclasses import dataclass
    >>> @hashed_once
    ... @dataclass(frozen=True)
    ... class Pair:
    ...     a: int
    ...     b: int
    >>> hash(Pair(1, 2)) == hash(Pair(1, 2)) == hash((1, 2))
    True
    """
    # CPython caches attribute look-ups per code object, so each class gets a code object of its
    # own.
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
