"""The label selector of ``-l``, in kubectl's syntax, applied to labels that a command has read."""

import re
from collections.abc import Iterable, Mapping

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.state.pods.selecting import Requirement, Selector

_TERM = re.compile(
    r"""\s* (?: !\s* (?P<lacks>KEY)
              | (?P<key>KEY) \s*
                (?: (?P<sign>==?|!=|>|<) \s* (?P<value>[\w.-]*)
                  | (?<=\s)(?P<set>in|notin) \s* \( (?P<values>[\w.,\s-]*) \) )? )
        \s* (?: ,(?=\s*\S) | $ )""".replace("KEY", r"(?:[\w.-]+/)?[\w.-]+"),
    re.VERBOSE | re.ASCII,
)
_OPERATORS = {"!=": "NotIn", "notin": "NotIn", ">": "Gt", "<": "Lt", None: "Exists"}


def selector_of(text: str | None) -> Selector:
    """Return the requirements of a selector. An empty tuple selects everything.

    Raises :class:`BadInputError`.
    """
    return tuple(_terms(text.strip())) if text else ()


def _terms(text: str) -> Iterable[Requirement]:
    at = 0
    while at < len(text):
        match = _TERM.match(text, at)
        if match is None:
            raise BadInputError(
                f"--selector: {text!r} cannot be read from {text[at:].strip()!r} on: allowed are "
                "key=value, key!=value, key in (a,b), key notin (a,b), key and !key, with commas "
                "between"
            )
        at = match.end()
        if match["lacks"]:
            yield Requirement(match["lacks"], "DoesNotExist")
            continue
        operator = _OPERATORS.get(match["sign"] or match["set"], "In")
        values = [match["value"] or ""] if match["set"] is None else match["values"].split(",")
        yield Requirement(match["key"], operator, tuple(value.strip() for value in values))


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Check whether labels meet all requirements of a selector."""
    return all(wanted.matches(labels) for wanted in selector)
