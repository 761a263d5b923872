"""Read untrusted values: Kubernetes quantities and annotations. Quote bad ones safely."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import TypeVar

from topology.core.memo import memoized

T = TypeVar("T")


class BadValueError(ValueError):
    """A value cannot be read. The message says what is allowed."""


_SUFFIXES: dict[str, int | Decimal] = {
    "": 1,
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("0.001"),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}
LEAST_MEMORY = 64 << 20  # bytes of a GPU's memory; with less the author has forgotten the unit
MEMORY = "allowed are quantities of bytes from 64Mi, such as 40Gi"
MAX_VALUE = 1024  # characters of one of our annotations
SHORT = 16  # longest quantity that is cached, in characters; thousands of pods have the same few
# A number, then an exponent or a suffix, never both.
_QUANTITY = re.compile(
    r"([+-]?\d{1,18}(?:\.\d{0,9})?)(?:([eE][+-]?\d{1,2})|([A-Za-z]{0,2}))", re.ASCII
)


def quantity(text: str) -> Decimal:
    """Return a Kubernetes quantity as a number.

    Raises :class:`BadValueError`, which says what is allowed.
    """
    return _cached(text) if len(text) <= SHORT else _read(text)


def memory(text: str) -> int:
    """Return a quantity of GPU memory in bytes.

    Raises :class:`BadValueError`, which says what is allowed. To Kubernetes a number without a unit
    is bytes. Its author meant another unit: the message proposes the unit in which the number is
    from 1Gi to 1Ti.
    """
    try:
        amount = quantity(text)
    except BadValueError:
        raise BadValueError(MEMORY) from None
    if amount >= LEAST_MEMORY and amount == int(amount):
        return int(amount)
    if amount > 0 and re.fullmatch(r"[0-9]{1,8}", text, re.ASCII):
        unit = "Gi" if amount < 2**10 else "Mi" if amount < 2**20 else "Ki"
        raise BadValueError(f"that is {amount} bytes; write {amount}{unit}")
    raise BadValueError(MEMORY)


def _read(text: str) -> Decimal:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or (match[3] or "") not in _SUFFIXES:
        raise BadValueError(f"{shortened(text)} is not a quantity such as 2 or 40Gi")
    try:
        return Decimal(match[1] + (match[2] or "")) * _SUFFIXES[match[3] or ""]
    except InvalidOperation as error:
        raise BadValueError(f"{shortened(text)} is not a quantity such as 2 or 40Gi") from error


_cached = memoized(_read)


def annotation(given: Mapping[str, str], key: str, read: Callable[[str], T]) -> T | None:
    """Return an annotation as ``read`` reads it, without surrounding blanks; None if it is absent.

    Raises :class:`BadValueError`, which names the key, the value and what is allowed.
    """
    if key not in given:
        return None
    text, said = given[key], f"annotation {cut(key)}={shortened(given[key])}"
    if len(text) > MAX_VALUE:
        raise BadValueError(f"{said}: {len(text)} characters; at most {MAX_VALUE} are allowed")
    try:
        return read(text.strip())
    except BadValueError as error:
        raise BadValueError(f"{said}: {error}") from error


def shortened(text: str) -> str:
    """Return a value as reasons quote it: on one line, in at most forty characters."""
    return f'"{cut(" ".join(text[:200].split()), 40)}"'


def cut(text: str, most: int = 90) -> str:
    """Return the text on one line, cut to ``most`` characters."""
    line = " ".join(text[:most].split())
    return line if len(text) <= most else line[: most - 3] + "..."
