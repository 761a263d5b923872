"""One idiom for frozen values that are looked up often: their hash is worked out once.

Every answer of the core is remembered under its arguments (:mod:`topology.core.remembering`), so a
request over thousands of nodes hashes the same few shapes, kubelets and requests thousands of
times. A dataclass hashes all its fields anew each time; for a shape these are some hundred links.
:func:`hashed_once` keeps the first answer in the object. That is sound because the object is frozen
and its fields are hashable, so its hash cannot change.

Members of an enumeration need no such care: each is one object, and identity is its hash
(:class:`topology.core.requests.Role`).
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, TypeVar

T = TypeVar("T")


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
        found: int = self._hash_of_fields()
        object.__setattr__(self, "_hash", found)
        return found
