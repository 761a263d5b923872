"""Evaluate selectors of DeviceClasses and ResourceClaims, in a part of CEL.

CEL (Common Expression Language) is the language in which the API server reads conditions. This
module follows comparisons of a device's driver, attributes and capacity with literals, ``in``,
``has``, functions of texts, quantities and versions, ``+``, ``-``, ``?:``, ``!``, ``&&``, ``||``
and parentheses. None of these repeats anything, so an expression costs no more than its length.
Regular expressions are matched in linear time, and share a budget (docs/contribute/adr/0025).

Source: the language definition of cel-spec, and k8s.io/dynamic-resource-allocation/cel and
k8s.io/apiserver/pkg/cel/library 0.36.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from scheduler_extender.quantities import BadValueError, cut, quantity
from topology.core.allocators.claims import NotFollowedError
from topology.core.memo import interruptible, memoized

MOST_DEEP = 50  # nested parentheses, brackets and conditionals
MOST_LONG = 10 * 1024  # characters; the API server accepts no more
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"[^"\\\n]*"|'[^'\\\n]*')|(?P<number>[0-9]{1,18})(?![\w.])"""
    r"""|(?P<word>[A-Za-z_]\w*)|(?P<sign>&&|\|\||[=!<>]=|[-+?:!<>.,()\[\]]))"""
)
# The budget of regular expressions for one device, in instructions times characters; the
# instructions that each character of a pattern that is no literal costs; the most bytes of one
# compiled pattern.
MOST_MATCHED, TO_COMPILE, MOST_COMPILED = 50_000, 64, 64 << 10
Value = Any  # bool, int, str, Decimal (a quantity), Version, a list, or a mapping


class CelError(NotFollowedError):
    """The expression is not followed, or has no value for this device. The message says why."""


class _MissingError(CelError):
    """The device lacks a key."""


class _EndingError(CelError):
    """Ends the whole expression, whatever other terms say."""


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version. It is compared only with versions."""

    text: str

    @property
    def order(self) -> _Order:
        """The key by which versions are compared. Raises :class:`CelError`."""
        return _order(self.text) or _fail(f"{cut(self.text, 60)} is not a semantic version")

    @classmethod
    def shortened(cls, text: str) -> Version:
        """Return a version after dropping ``v`` and leading zeros and adding missing parts.

        The API server's library does the same. Raises :class:`CelError`.
        """
        parts = text.removeprefix("v").split(".", 2)
        for at, part in enumerate(parts):
            if len(part) > 1:
                left = part.lstrip("0")
                parts[at] = left if left[:1] in _DIGITS else f"0{left}"
        if len(parts) < 3 and ("+" in parts[-1] or "-" in parts[-1]):
            raise CelError("a short version has no further parts")
        return cls(".".join([*parts, "0", "0"][: max(3, len(parts))]))


_Order = tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]
_DIGITS = frozenset("0123456789")
_NUMBER, _PARTS = "(0|[1-9][0-9]{0,19})", r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_PARTS}))?(?:\+{_PARTS})?")


@memoized
def _order(version: str) -> _Order | None:
    found = _VERSION.fullmatch(version)
    if found is None:
        return None
    major, minor, patch, before = found.groups()
    parts = before.split(".") if before else ()
    numbers = [major, minor, patch, *filter(str.isdigit, parts)]
    if any(part != "0" and part[0] == "0" for part in numbers):
        return None
    if any(len(part) > 20 or int(part) >= 2**64 for part in numbers):
        return None
    each = tuple((False, int(part), "") if part.isdigit() else (True, 0, part) for part in parts)
    return int(major), int(minor), int(patch), not each, each


class Domains(dict[str, Mapping[str, Value]]):
    """Attributes or capacity by domain and name. An absent domain is empty."""

    def __missing__(self, domain: str) -> Mapping[str, Value]:
        return {}


@dataclass(slots=True)
class Known:
    """A device as expressions see it, and the remaining budget of its regular expressions."""

    driver: str
    attributes: Domains
    capacity: Domains
    shared: bool = False  # allowMultipleAllocations
    left: int = MOST_MATCHED


Expression = Callable[[Known], Value]


def matches(text: str, device: Known) -> bool:
    """Check whether a device meets an expression. Raises :class:`CelError`."""
    try:
        return _flag(_compiled(text).value(device))
    except RecursionError as error:
        raise CelError("the expression is nested too deeply") from error


def words_of(texts: Iterable[str]) -> set[str] | None:
    """Return all words and texts in the expressions.

    An attribute that is not among them makes no difference. Return None if a name is computed or
    looked up: then every attribute may make a difference.
    """
    found = set[str]()
    for text in texts:
        with suppress(RecursionError):
            compiled = _compiled(text)
            if compiled.words is None:
                return None
            found |= compiled.words
    return found


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A compiled expression."""

    value: Expression
    words: frozenset[str] | None  # None if any word may matter
    characters: int

    @property
    def shared_bytes(self) -> int:
        """The approximate number of bytes that its functions take."""
        return 1000 + 100 * self.characters


@memoized
def _compiled(text: str) -> _Compiled:
    try:
        if len(text) > MOST_LONG:
            _fail(f"{len(text)} characters; at most {MOST_LONG} are allowed")
        reading = _Reading(text)
        whole = reading.whole()
        return _Compiled(whole, None if reading.names else reading.words, len(text))
    except CelError as error:
        problem = str(error)
        return _Compiled(lambda _: _fail(problem), frozenset(), len(text))


class _Reading:
    """A parser of one expression, from the loosest operator to the tightest."""

    def __init__(self, text: str) -> None:
        self._tokens, self._at, self._depth = list(_tokens(text)), 0, 0
        # The words and texts of the expression, and whether it names an attribute by anything else.
        words = (token.strip("\"'") for kind, token in self._tokens if kind in ("word", "text"))
        self.words, self.names = frozenset(words), False

    def whole(self) -> Expression:
        """Return the whole text as an expression. Raises :class:`CelError`."""
        found = self._chosen()
        if self._at < len(self._tokens):
            raise self._error()
        return found

    def _chosen(self) -> Expression:
        self._depth += 1
        if self._depth > MOST_DEEP:
            raise CelError(f"more than {MOST_DEEP} nested parentheses")
        found = self._either()
        if self._take("?"):
            condition, one = found, self._either()
            self._next(":")
            other = self._chosen()
            found = lambda device: (one if _flag(condition(device)) else other)(device)  # noqa: E731
        self._depth -= 1
        return found

    def _either(self) -> Expression:
        terms = [self._both()]
        while self._take("||"):
            terms.append(self._both())
        return _joined(terms, decides=True)

    def _both(self) -> Expression:
        terms = [self._compared()]
        while self._take("&&"):
            terms.append(self._compared())
        return _joined(terms, decides=False)

    def _compared(self) -> Expression:
        expression = self._added()
        while sign := next(filter(self._take, _COMPARISONS), ""):
            right = self._added()
            if sign == "in" and not isinstance(right, _Constant):
                self._note(expression)
            if sign == "in" and right == _Constant([]):
                expression = _Constant(value=False)
                continue
            expression = _applied(_COMPARISONS[sign], expression, right)
        return expression

    def _note(self, name: Expression) -> None:
        """Note whether an attribute may be named by something outside the expression's words."""
        value = name.value if isinstance(name, _Constant) else None
        self.names |= value is None or (isinstance(value, str) and value not in self.words)

    def _added(self) -> Expression:
        first, others = self._negated(), list[tuple[Callable[..., Value], Expression]]()
        while sign := next(filter(self._take, _SUMS), ""):
            join, other = _SUMS[sign], self._negated()
            if not others and isinstance(first, _Constant) and isinstance(other, _Constant):
                first = _applied(join, first, other)
            else:
                others.append((join, other))

        def value(device: Known) -> Value:  # not nested, however many terms there are
            found = first(device)
            for join, other in others:
                found = join(found, other(device))
            return found

        return value if others else first

    def _negated(self) -> Expression:
        if self._take("!"):
            return _applied(lambda value: not _flag(value), self._negated())
        return self._member()

    def _member(self) -> Expression:
        path = list[str]() if self._take("device") else None  # constant keys after ``device``
        expression = self._primary() if path is None else _path(path)
        for _ in range(MOST_DEEP):
            if self._take("["):
                name = self._until("]")
                self._note(name)
            elif self._take("."):
                word = self._next("word")
                if self._take("("):
                    expression, path = self._called(word, expression), None
                    continue
                name = _Constant(word)
            else:
                return expression
            if path is not None and isinstance(name, _Constant) and isinstance(name.value, str):
                path.append(name.value)
                expression = _path(path)
            else:
                expression, path = _applied(_looked_up, expression, _key(name)), None
        raise self._error()

    def _called(self, name: str, on: Expression) -> Expression:
        if name != "matches" and name not in _FUNCTIONS:
            raise CelError(f"the function {cut(name, 60)} is not supported")
        arguments = self._listed(")")
        if name == "matches" and len(arguments) == 1:
            return _matching(on, arguments[0])
        return _applied(_function(name, 1 + len(arguments)), on, *arguments)

    def _primary(self) -> Expression:
        if self._take("("):
            return self._until(")")
        if self._take("["):
            return _applied(lambda *items: list(items), *self._listed("]"))
        negative = self._take("-")
        kind, word = self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")
        self._at += 1
        if kind == "number":
            return _Constant(-int(word) if negative else int(word))
        if kind == "text" and not negative:
            return _Constant(word[1:-1])
        if kind == "word" and not negative:
            if word in ("true", "false"):
                return _Constant(word == "true")
            if word == "has" and self._take("("):
                return _has(self._until(")"))
            if word in ("quantity", "semver", "isSemver", "size") and self._take("("):
                inside = self._listed(")")
                return _applied(_function(word, len(inside)), *inside)
        self._at -= 1
        raise self._error()

    def _listed(self, end: str) -> list[Expression]:
        if self._take(end):
            return []
        items = [self._chosen()]
        while self._take(","):
            items.append(self._chosen())
        self._next(end)
        return items

    def _until(self, sign: str) -> Expression:
        found = self._chosen()
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
        return CelError(
            f"not supported from here on: {cut(rest, 60)}"
            if rest
            else "the expression is incomplete"
        )


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield the tokens of an expression, each with its kind."""
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise CelError(f"not supported from here on: {cut(text[at : at + 60], 60)}")
        at = match.end()
        yield match.lastgroup or "", match[match.lastgroup or 0]


@dataclass(frozen=True, slots=True)
class _Constant:
    """An expression that has one value for all devices."""

    value: Value

    def __call__(self, _: Known) -> Value:
        return self.value


def _fail(problem: str) -> Value:
    raise CelError(problem)


def _flag(value: Value) -> bool:
    if not isinstance(value, bool):
        raise CelError("a condition is neither true nor false")
    return value


def _applied(function: Callable[..., Value], *operands: Expression) -> Expression:
    known = [each.value for each in operands if isinstance(each, _Constant)]
    if len(known) == len(operands):
        try:
            return _Constant(function(*known))
        except CelError as error:
            problem = str(error)
            return lambda _: _fail(problem)
    if len(operands) == 1:
        (only,) = operands
        return lambda device: function(only(device))
    first, *others = operands
    if len(known) == len(others) and not isinstance(first, _Constant):
        return lambda device: function(first(device), *known)
    return lambda device: function(*[operand(device) for operand in operands])


def _joined(terms: Sequence[Expression], *, decides: bool) -> Expression:
    """Join terms by ``||`` or ``&&``.

    The first term with the value ``decides`` decides, whatever other terms fail.
    """
    if len(terms) == 1:
        return terms[0]

    def value(device: Known) -> bool:
        failed = None
        for term in terms:
            try:
                if _flag(term(device)) is decides:
                    return decides
            except _EndingError:
                raise
            except CelError as error:
                failed = error
        if failed is not None:
            raise failed
        return not decides

    return value


def _looked_up(holder: Value, key: Value) -> Value:
    if isinstance(holder, Known) and key in ("driver", "attributes", "capacity"):
        return getattr(holder, key)
    if isinstance(holder, Known) and key == "allowMultipleAllocations":
        return holder.shared
    if not isinstance(holder, dict) or not isinstance(key, str):
        return _fail("only attributes and capacity of a device can be read")
    try:
        found = holder[key]
    except KeyError:
        raise _MissingError(f"the device has no {cut(key, 60)}") from None
    return _fail(f"the type of {cut(key, 60)} is not supported") if found is None else found


def _path(keys: Sequence[str]) -> Expression:
    """Return the value at a path of keys in a device.

    Three keys are a kind, a domain and a name.
    """
    if len(keys) == 3 and keys[0] in ("attributes", "capacity"):
        kind, domain, name = keys
        missing = f"the device has no {cut(name, 60)}"
        unread = f"the type of {cut(name, 60)} is not supported"

        def value(device: Known) -> Value:
            try:
                expression = getattr(device, kind)[domain][name]
            except KeyError:
                raise _MissingError(missing) from None
            return _fail(unread) if expression is None else expression

        return value
    expression: Expression = lambda device: device  # noqa: E731
    for key in keys:
        expression = _applied(_looked_up, expression, _Constant(key))
    return expression


def _key(name: Expression) -> Expression:
    """Return the expression of a key. If the key itself is missing, ``has`` has no answer."""
    if isinstance(name, _Constant):
        return name

    def value(device: Known) -> Value:
        try:
            return name(device)
        except _MissingError as error:
            raise CelError(str(error)) from None

    return value


def _has(inside: Expression) -> Expression:
    def value(device: Known) -> bool:
        try:
            inside(device)
        except _MissingError:
            return False
        return True

    return value


def _matching(text: Expression, pattern: Expression) -> Expression:
    is_literal = isinstance(pattern, _Constant)
    if isinstance(pattern, _Constant) and isinstance(pattern.value, str):
        _program(pattern.value)  # once, while the expression is read

    def value(device: Known) -> bool:
        of, wanted = text(device), pattern(device)
        if not isinstance(of, str) or not isinstance(wanted, str):
            raise CelError("matches does not accept this value")
        program = _program(wanted)
        if isinstance(program, str):
            raise CelError(program)
        device.left -= program.size * (len(of) + 1)
        device.left -= 0 if is_literal else TO_COMPILE * len(wanted)
        if device.left < 0 or not of.isascii():
            raise _EndingError("its regular expressions take too many steps")
        return program.found_in(of)

    return value


@dataclass(frozen=True, slots=True)
class _Program:
    """A compiled regular expression."""

    found_in: Callable[[str], bool]
    size: int

    @property
    def shared_bytes(self) -> int:
        """The approximate number of bytes that it takes."""
        return 2 * MOST_COMPILED


@memoized
def _program(pattern: str) -> _Program | str:
    """Compile a regular expression as Go's ``regexp`` does; return why if it is not followed."""
    import re2  # few selectors have a pattern, so commands do not load it

    interruptible()
    if len(pattern) > MOST_MATCHED // TO_COMPILE or not pattern.isascii() or r"\C" in pattern:
        return "the regular expression is not supported"
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = MOST_COMPILED, False, True
    try:
        read = re2.compile(pattern.encode(), options)
    except re2.error:
        return "the regular expression is not supported"
    return _Program(lambda text: read.search(text.encode()) is not None, read.programsize)


def _quantity(text: Value) -> Decimal:
    try:
        return quantity(text) if isinstance(text, str) else _fail("a quantity must be a text")
    except BadValueError as error:
        raise CelError(str(error)) from error


_SINGLE = (bool, int, str, Decimal, Version)


def _equal(left: Value, right: Value) -> bool:
    if not isinstance(left, _SINGLE) or not isinstance(right, _SINGLE):
        raise CelError("only single values can be compared")
    if isinstance(left, Version) and isinstance(right, Version):
        return left.order == right.order
    if isinstance(left, Version | Decimal) and type(left) is not type(right):
        raise CelError("a version or a quantity can only be compared with its own kind")
    return type(left) is type(right) and bool(left == right)


def _differ(left: Value, right: Value) -> bool:
    single = isinstance(left, _SINGLE) and isinstance(right, _SINGLE)
    return (single and type(left) is not type(right)) or not _equal(left, right)


def _in(left: Value, right: Value) -> bool:
    if isinstance(right, list):
        if isinstance(left, Version) and not any(isinstance(each, Version) for each in right):
            raise _EndingError("a version can only be looked up among literals")
        same = (each for each in right if type(each) is type(left) or type(each) not in _SINGLE)
        return any(_equal(left, each) for each in same)
    if not isinstance(left, str) or not isinstance(right, Mapping) or isinstance(right, Domains):
        raise CelError("in needs a list, or the attributes of a domain and a name")
    return left in right


def _ordered(compare: Callable[[Value, Value], bool]) -> Callable[[Value, Value], bool]:
    def both(left: Value, right: Value) -> bool:
        if type(left) is not type(right) or not isinstance(left, int | str):
            raise CelError("two values of different kinds have no order")
        return compare(left, right)

    return both


def _sum(join: Callable[[Value, Value], Value], *kinds: type) -> Callable[[Value, Value], Value]:
    def both(left: Value, right: Value) -> Value:
        if type(left) is not type(right) or type(left) not in kinds:
            raise CelError("two values of these kinds cannot be added")
        found = join(left, right)
        if isinstance(found, int) and not -(2**63) <= found < 2**63:
            raise CelError("a number is too large")
        return found

    return both


_COMPARISONS: dict[str, Callable[[Value, Value], bool]] = {
    "==": _equal,
    "!=": _differ,
    "in": _in,
    "<=": _ordered(operator.le),
    ">=": _ordered(operator.ge),
    "<": _ordered(operator.lt),
    ">": _ordered(operator.gt),
}
_SUMS = {"+": _sum(operator.add, int, str), "-": _sum(operator.sub, int)}


def _version(text: str, shortened: bool = False) -> Version:
    found = Version.shortened(text) if shortened else Version(text)
    _ = found.order  # fail now, not at the comparison
    return found


def _is_version(text: str, shortened: bool = False) -> bool:
    try:
        _version(text, shortened)
    except CelError:
        return False
    return True


def _compared(left: Value, right: Value) -> int:
    """Compare two quantities, or two versions: 1 if the left one is larger, 0, or -1."""
    if isinstance(left, Version):
        left, right = left.order, right.order
    return int(left > right) - int(left < right)


_UPPER, _LOWER = (
    str.maketrans(ascii_lowercase, ascii_uppercase),
    str.maketrans(ascii_uppercase, ascii_lowercase),
)
_TWO_TEXTS, _COMPARABLE = ((str, str),), ((Decimal, Decimal), (Version, Version))
_OF_VERSIONS = ((str,), (str, bool))
_FUNCTIONS: dict[str, tuple[tuple[tuple[type, ...], ...], Callable[..., Value]]] = {
    "startsWith": (_TWO_TEXTS, str.startswith),
    "endsWith": (_TWO_TEXTS, str.endswith),
    "contains": (_TWO_TEXTS, str.__contains__),
    "lowerAscii": (((str,),), lambda text: text.translate(_LOWER)),
    "upperAscii": (((str,),), lambda text: text.translate(_UPPER)),
    "size": (((str,), (list,)), len),
    "quantity": (((str,),), _quantity),
    "semver": (_OF_VERSIONS, _version),
    "isSemver": (_OF_VERSIONS, _is_version),
    "compareTo": (_COMPARABLE, _compared),
    "isGreaterThan": (_COMPARABLE, lambda left, right: _compared(left, right) > 0),
    "isLessThan": (_COMPARABLE, lambda left, right: _compared(left, right) < 0),
    "major": (((Version,),), lambda version: version.order[0]),
    "minor": (((Version,),), lambda version: version.order[1]),
    "patch": (((Version,),), lambda version: version.order[2]),
}


def _function(name: str, arguments: int) -> Callable[..., Value]:
    known = _FUNCTIONS.get(name)
    if known is None or arguments not in map(len, known[0]):
        raise CelError(f"{cut(name, 60)} with {arguments} arguments is not supported")
    kinds, function = known

    def value(*given: Value) -> Value:
        if tuple(map(type, given)) in kinds:
            return function(*given)
        return _fail(f"{name} does not accept this value")

    return value
