"""A pasted text as the lines that a tool printed: what was put around them is taken away.

Terminals add colours, mails quoting, web pages entities and tags, programs quotes and escapes;
others put a comment sign, a line number, a time or a host's name before each line. Line numbers
are those of the text as it was given, also where one of its lines holds several.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import NamedTuple

from topology.sources.imported import Finding, SourceError

MAX_LINE = 16 * 1024
"""Characters of a line; 64 GPUs with 128 NICs print some 2,000."""
MOST_PREFIXES = 6

_COLOUR = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-?]*[ -/]*[@-~]|(?:\^\[)?\[[0-9;]{1,8}m|\x1b"
)
_INVISIBLE = re.compile("[\ufeff\u200b-\u200d\u2060]")
_WIDE = re.compile("[\u00a0\u2007\u202f]")
_MARKUP = re.compile("[*`]")
_BARS = re.compile("[|\u00a6\u2502\u2503\u2551]")
_QUOTING = re.compile(r"(?:\s*>)+ ?")
_QUOTE_AT_END = re.compile(r'"\s?[,+;)\]\\]{0,4}\s?$')
_ESCAPES = {
    r"\t": "\t",
    r"\n": "\n",
    r"\r": "",
    r"\x1b": "\x1b",
    r"\033": "\x1b",
    r"\e": "\x1b",
    r"\u001b": "\x1b",
    r"\u001B": "\x1b",
    r"\"": '"',
}
_ESCAPE = re.compile("|".join(map(re.escape, _ESCAPES)))
_ESCAPED = re.compile(r"\\[tn]")
_BREAK = re.compile(r"(?i)<br ?/?>|</tr>")
_TAG = re.compile(
    r"(?i)</?(?:pre|code|b|strong|em|span|td|th|tr|p|div|table|tbody|thead|details|summary)"
    r"(?:\s[^<>]{0,200})?>"
)

_BEGINS = re.compile(
    r"\s*(?:(?:GPU|NIC|mlx)[0-9]\w{0,60}?\s*"
    r"(?:GPU[0-9]|NIC[0-9]|mlx[0-9]|CPU|NUMA|\.\.\.|X|SYS|SOC|NODE|PHB|PXB|PIX|PSB|NV[1-9]|OK|[A-Z]?NS)"
    r"|GPU [0-9]{1,4}: |NIC[0-9]{1,4}\s*:\s*\S|(?:X|PIX|NV#|OK)\s+=\s)"
)
"""Where a line of the tool's own begins: a header, a row, a device of ``-L``, or a legend."""
_PREFIX = re.compile(
    r"\s*(?:"
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]{5,18}(?:Z|[+-][0-9:]{4,6})?\s"
    r"|[A-Z][a-z]{2}\s{1,2}[0-9]{1,2}\s[0-9:]{8}\s(?P<logged>\S{1,100})\s"
    r"|\[[\s0-9TZ:.,+-]{1,40}\]"
    r"|(?P<host>(?:[0-9]{1,3}\.){3}[0-9]{1,3}:?|(?!(?:GPU|NIC|mlx)[0-9]|[0-9]+:)[^\s:\"'#/]{1,100}:)"
    r"|(?P<job>\[[^\[\]\s]{1,80}\])"
    r"|(?:stdout|stderr) [FP]\s"
    r"|[0-9]{1,6}(?:[:.)]|\s|(?=\D))"
    r"|[#/;%!+\"'-]+"
    r")"
)
"""One thing that others put before a line; ``host``, ``job`` and ``logged`` say whose it is."""


class Line(NamedTuple):
    """One line: its number in the text (from 1), and whose prefix stood before it ('' if none)."""

    number: int
    text: str
    host: str = ""


def clean(text: str, findings: list[Finding]) -> list[Line]:
    """The lines without what was put around them.

    An endless one is left out, and said; one that begins a table is refused.
    """
    found: list[Line] = []
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        for piece in _pieces(line):
            if len(piece) > MAX_LINE:
                what = f"{len(piece)} characters, at most {MAX_LINE} of a line are read"
                if _BEGINS.match(piece):
                    raise SourceError(number, None, what)
                findings.append(Finding(number, f"passed over: {what}"))
            else:
                found.append(_clean(number, piece))
    return found


def _pieces(line: str) -> Iterator[str]:
    """What a line says, entities and a program's escapes resolved; several where it holds them."""
    if "&" in line:
        line = html.unescape(html.unescape(line))
    if "<" in line:
        line = "\n".join(_TAG.sub("\t", piece) for piece in _BREAK.split(line))
    if "GPU" in line or "NIC" in line:
        if _ESCAPED.search(line):
            line = _ESCAPE.sub(lambda match: _ESCAPES[match[0]], line)
            line = line.replace('"', "\n").replace("'", "\n")
        elif '"' in line:
            line = _QUOTE_AT_END.sub("", line)
    yield from line.split("\n")


def _clean(number: int, line: str) -> Line:
    if not line or line.isspace():
        return Line(number, "")
    line = _MARKUP.sub("", _WIDE.sub(" ", _INVISIBLE.sub("", _COLOUR.sub("", line))))
    if quoting := _QUOTING.match(line):
        line = line[quoting.end() :]
    line = _BARS.sub("\t", line)
    at, host = 0, ""
    for _ in range(MOST_PREFIXES):
        if _BEGINS.match(line, at):
            return Line(number, line[at:], host)
        prefix = _PREFIX.match(line, at)
        if prefix is None:
            break
        at = prefix.end()
        host = prefix["host"] or prefix["job"] or prefix["logged"] or host
    return Line(number, line)
