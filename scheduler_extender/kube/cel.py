"""Selectors of DeviceClasses and ResourceClaims: the part of CEL that is followed.

CEL (Common Expression Language) is what the API server reads conditions in. Followed are
comparisons of a device's driver, attributes and capacity with literals, ``in``, ``has``, some
functions of texts and quantities, and ``!``, ``&&``, ``||`` and parentheses. None of these repeats
anything, so that an expression costs no more than its length.

Source: the language definition of cel-spec, and k8s.io/dynamic-resource-allocation/cel 0.36.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from scheduler_extender.quantities import BadValueError, cut, quantity
from topology.core.remembering import remembered

MOST_DEEP = 50  # parentheses and the like, one in the other
MOST_LONG = 10 * 1024  # characters; the API server takes no more
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"[^"\\\n]*"|'[^'\\\n]*')|(?P<number>[0-9]{1,18})(?![\w.])"""
    r"""|(?P<word>[A-Za-z_]\w*)|(?P<sign>&&|\|\||[=!<>]=|[-!<>.,()\[\]]))"""
)
Value = Any  # bool, int, str, Decimal (a quantity), a list, or a mapping


class CelError(Exception):
    """An expression is not followed, or has no value for this device. The message says why."""


class _MissingError(CelError):
    """A key is not there."""


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version. It is compared with versions alone, and no function of it is followed."""

    text: str


class Domains(dict[str, Mapping[str, Value]]):
    """Attributes or capacity by domain and name; a domain that nobody named is empty."""

    def __missing__(self, domain: str) -> Mapping[str, Value]:
        return {}


@dataclass(frozen=True, slots=True)
class Known:
    """What expressions see of a device."""

    driver: str
    attributes: Domains
    capacity: Domains


Expression = Callable[[Known], Value]


def matches(text: str, device: Known) -> bool:
    """Whether a device meets an expression. Raises :class:`CelError`."""
    try:
        return _flag(_compiled(text).value(device))
    except RecursionError as error:
        raise CelError("too deep") from error


def words_of(text: str) -> frozenset[str]:
    """All words and texts in an expression. An attribute that is not among them makes no
    difference."""
    try:
        return _compiled(text).words
    except RecursionError:
        return frozenset()


@dataclass(frozen=True, slots=True)
class _Compiled:
    """An expression that was read."""

    value: Expression
    words: frozenset[str]
    characters: int

    @property
    def shared_bytes(self) -> int:
        """About how many bytes its functions take."""
        return 1000 + 100 * self.characters


@remembered
def _compiled(text: str) -> _Compiled:
    try:
        if len(text) > MOST_LONG:
            _fail(f"{len(text)} characters; at most {MOST_LONG} are read")
        reading = _Reading(text)
        return _Compiled(reading.whole(), reading.words, len(text))
    except CelError as error:
        problem = str(error)
        return _Compiled(lambda _: _fail(problem), frozenset(), len(text))


class _Reading:
    """Reads one expression, from the loosest operator to the tightest."""

    def __init__(self, text: str) -> None:
        self._tokens, self._at, self._depth = list(_tokens(text)), 0, 0

    @property
    def words(self) -> frozenset[str]:
        """The words and texts in it."""
        return frozenset(t.strip("\"'") for kind, t in self._tokens if kind in ("word", "text"))

    def whole(self) -> Expression:
        """The expression."""
        found = self._either()
        if self._at < len(self._tokens):
            raise self._error()
        return found

    def _either(self) -> Expression:
        self._depth += 1
        if self._depth > MOST_DEEP:
            raise CelError(f"more than {MOST_DEEP} parentheses, one in the other")
        terms = [self._both()]
        while self._take("||"):
            terms.append(self._both())
        self._depth -= 1
        return _joined(terms, decides=True)

    def _both(self) -> Expression:
        terms = [self._compared()]
        while self._take("&&"):
            terms.append(self._compared())
        return _joined(terms, decides=False)

    def _compared(self) -> Expression:
        left = self._negated()
        for sign, compare in _COMPARISONS.items():
            if self._take(sign):
                return _applied(compare, left, self._negated())
        return left

    def _negated(self) -> Expression:
        if self._take("!"):
            return _applied(lambda value: not _flag(value), self._negated())
        return self._member()

    def _member(self) -> Expression:
        found = self._primary()
        for _ in range(MOST_DEEP):
            if self._take("["):
                found = _applied(_looked_up, found, self._until("]"))
            elif self._take("."):
                name = self._next("word")
                if self._take("("):
                    found = _applied(_function(name), found, self._until(")"))
                else:
                    found = _applied(_looked_up, found, _constant(name))
            else:
                return found
        raise self._error()

    def _primary(self) -> Expression:
        if self._take("("):
            return self._until(")")
        if self._take("["):
            return self._listed()
        negative = self._take("-")
        kind, word = self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")
        self._at += 1
        if kind == "number":
            return _constant(-int(word) if negative else int(word))
        if kind == "text" and not negative:
            return _constant(word[1:-1])
        if kind == "word" and not negative:
            if word in ("true", "false"):
                return _constant(word == "true")
            if word == "device":
                return lambda device: device
            if word in ("quantity", "has") and self._take("("):
                inside = self._until(")")
                return _has(inside) if word == "has" else _applied(_quantity, inside)
        self._at -= 1
        raise self._error()

    def _listed(self) -> Expression:
        if self._take("]"):
            return lambda _: []
        items = [self._either()]
        while self._take(","):
            items.append(self._either())
        self._next("]")
        return lambda device: [item(device) for item in items]

    def _until(self, sign: str) -> Expression:
        found = self._either()
        self._next(sign)
        return found

    def _take(self, sign: str) -> bool:
        here = self._at < len(self._tokens) and self._tokens[self._at][1] == sign
        self._at += here
        return here

    def _next(self, wanted: str) -> str:
        if self._at == len(self._tokens) or wanted not in self._tokens[self._at]:
            raise self._error()
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _error(self) -> CelError:
        rest = " ".join(token for _, token in self._tokens[self._at : self._at + 8])
        return CelError(f"not followed from here on: {cut(rest, 60)}" if rest else "it has no end")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """The words of an expression, each with its kind."""
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise CelError(f"not followed from here on: {cut(text[at : at + 60], 60)}")
        at = found.end()
        yield found.lastgroup or "", found[found.lastgroup or 0]


def _constant(value: Value) -> Expression:
    return lambda _: value


def _fail(problem: str) -> Value:
    raise CelError(problem)


def _flag(value: Value) -> bool:
    if not isinstance(value, bool):
        raise CelError("a condition is neither true nor false")
    return value


def _applied(function: Callable[..., Value], *operands: Expression) -> Expression:
    return lambda device: function(*(operand(device) for operand in operands))


def _joined(terms: Sequence[Expression], *, decides: bool) -> Expression:
    """Terms that ``||`` joins, or ``&&``: the first that ``decides`` does, whatever else fails."""
    if len(terms) == 1:
        return terms[0]

    def value(device: Known) -> bool:
        failed = None
        for term in terms:
            try:
                if _flag(term(device)) is decides:
                    return decides
            except CelError as error:
                failed = error
        if failed is not None:
            raise failed
        return not decides

    return value


def _looked_up(holder: Value, key: Value) -> Value:
    if isinstance(holder, Known) and key in ("driver", "attributes", "capacity"):
        return getattr(holder, key)
    if not isinstance(holder, Mapping) or not isinstance(key, str):
        return _fail("only attributes and capacity of a device are looked up")
    if key not in holder and not isinstance(holder, Domains):
        raise _MissingError(f"the device has no {cut(key, 60)}")
    found = holder[key]
    return _fail(f"the value of {cut(key, 60)} is not read") if found is None else found


def _has(inside: Expression) -> Expression:
    def value(device: Known) -> bool:
        try:
            inside(device)
        except _MissingError:
            return False
        return True

    return value


def _quantity(text: Value) -> Decimal:
    try:
        return quantity(text) if isinstance(text, str) else _fail("a quantity is a text")
    except BadValueError as error:
        raise CelError(str(error)) from error


def _equal(left: Value, right: Value) -> bool:
    for value in (left, right):
        if not isinstance(value, bool | int | str | Decimal | Version):
            raise CelError("only single values are compared")
    if type(left) is type(right):
        return bool(left == right)
    if isinstance(left, Version | Decimal) or isinstance(right, Version | Decimal):
        raise CelError("a version or a quantity is compared with its own kind alone")
    return False


def _in(left: Value, right: Value) -> bool:
    if isinstance(right, list) and not isinstance(left, Version):
        return any(_equal(left, each) for each in right)
    if not isinstance(left, str) or not isinstance(right, Mapping) or isinstance(right, Domains):
        raise CelError("in needs a list, and no version, or the attributes of a domain and a name")
    return left in right


def _ordered(compare: Callable[[Value, Value], bool]) -> Callable[[Value, Value], bool]:
    def both(left: Value, right: Value) -> bool:
        if type(left) is not type(right) or not isinstance(left, int | str):
            raise CelError("two values of different kinds have no order")
        return compare(left, right)

    return both


_COMPARISONS: dict[str, Callable[[Value, Value], bool]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "in": _in,
    "<=": _ordered(operator.le),
    ">=": _ordered(operator.ge),
    "<": _ordered(operator.lt),
    ">": _ordered(operator.gt),
}
_FUNCTIONS: dict[str, tuple[type, Callable[[Value, Value], Value]]] = {
    "startsWith": (str, str.startswith),
    "endsWith": (str, str.endswith),
    "contains": (str, str.__contains__),
    "compareTo": (Decimal, lambda left, right: (left > right) - (left < right)),
    "isGreaterThan": (Decimal, operator.gt),
    "isLessThan": (Decimal, operator.lt),
}


def _function(name: str) -> Callable[[Value, Value], Value]:
    if name not in _FUNCTIONS:
        raise CelError(f"the function {cut(name, 60)} is not followed")
    kind, function = _FUNCTIONS[name]

    def value(left: Value, right: Value) -> Value:
        if isinstance(left, kind) and isinstance(right, kind):
            return function(left, right)
        return _fail(f"{name} is not for this value")

    return value
