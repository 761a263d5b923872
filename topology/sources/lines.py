"""The lines of a pasted text as the tool printed them, without what was put around them.

Terminals add colours, web pages entities and tags, programs quotes and escapes. The lines of a
matrix may have other prefixes, such as a comment sign, a line number, or a log's time and host.
They are recognised by the form that they share: the same words and signs, with any numbers. Line
numbers are those of the given text, even if one of its lines holds several printed lines.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from topology.sources.imported import Findings, SourceError

MAX_LINE = 16 * 1024  # characters of a line; 64 GPUs with 128 NICs print about 2,000
MAX_LINES = 50_000  # lines of a text that are not blank; a log of 1 MiB has about 10,000
MAX_PREFIX = 200  # characters before a line

_COLOUR = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-?]*[ -/]*[@-~]|(?:\^\[)?\[[0-9;]{1,8}m|\x1b"
)
_INVISIBLE = re.compile("[\ufeff\u200b-\u200d\u2060]")
_WIDE = re.compile("[\u00a0\u2007\u202f]")
_MARKUP = re.compile(r"[*`]|\\(?=[_*|<>#-])")
_BARS = re.compile("[|\u00a6\u2502\u2503\u2551]")
_QUOTE_AT_END = re.compile(r'"\s?[,+;)\]\\]{0,4}\s?$')
# The characters that the patterns above look for. Most lines have none of them.
_ODD = re.compile(
    "[\x1b^\\[\ufeff\u200b-\u200d\u2060\u00a0\u2007\u202f*`\\\\|\u00a6\u2502\u2503\u2551]"
)
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
_OPEN_LITERAL = re.compile(r"""\\t(["'])\s{0,9}[+\\]?\s{0,9}$""")
_GOES_ON = re.compile(r"""\s*(["'])(?=(?:CPU|NUMA|GPU NUMA|[0-9]|N/A))""")
_BREAK = re.compile(r"(?i)<br ?/?>|</tr>")
_TAG = re.compile(
    r"(?i)</?(?:pre|code|b|strong|em|span|td|th|tr|p|div|table|tbody|thead|details|summary)"
    r"(?:\s[^<>]{0,200})?>"
)

# The beginning of a line of the tool: a header, a row, a device of `-L`, or a legend.
_BEGINS = re.compile(
    r"(?<![A-Za-z_])(?:(?P<matrix>(?:GPU|NIC|mlx)[0-9]\w{0,60}?\s*(?:GPU[0-9]|NIC[0-9]|mlx[0-9]|CPU|NUMA"
    r"|\.\.\.|X|SYS|SOC|NODE|PHB|PXB|PIX|PSB|NV[1-9]|OK|[A-Z]?NS))"
    r"|GPU [0-9,]{1,40}: |NIC[0-9]{1,4}\s*:\s*\S|(?:X|PIX|NV#|OK)\s+=\s)"
)
_AFFINITY_FIRST = re.compile(r"\s*(?:(?:CPU|NUMA)\s(?:Affinity|Node)\s*)+", re.IGNORECASE)
_AFFINITY = re.compile(r"(?:[0-9,-]|N/A|\s)*")
_TOKEN = re.compile(r"[0-9][0-9:.,]*|[^\s0-9]")
_NAME = re.compile(r"(?<![\w.-])[A-Za-z_]|(?:[0-9]{1,3}\.){3}[0-9]")
_COUNT = re.compile(r"(?<=[:\[(])[0-9]+")


class Line(NamedTuple):
    """One line that the tool printed."""

    number: int  # of the line in the text, from 1
    text: str
    host: str = ""  # the names in its prefix


def clean(text: str, findings: Findings) -> list[Line]:
    """Return the lines without what was put around them.

    An endless line becomes a finding, or is refused if it begins a table. A text of too many lines
    is refused.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "^I" in text:  # cat -A
        text = text.replace("^I", "\t").replace("$\n", "\n").removesuffix("$")
    found: list[Line] = []
    left = MAX_LINES
    for number, line in _literals(text.split("\n")):
        for piece in _pieces(line):
            if len(piece) > MAX_LINE:
                what = f"{len(piece)} characters; at most {MAX_LINE} are allowed in a line"
                if _BEGINS.match(piece.lstrip()):
                    raise SourceError(number, None, what)
                findings.note(number, f"skipped: {what}")
            else:
                bare = _bare(piece)
                if bare or (found and found[-1].text):  # several blank lines count as one
                    found.append(Line(number, bare))
                left -= bool(bare)
                if left < 0:
                    raise SourceError(number, None, f"at most {MAX_LINES} lines are allowed")
    return _without_prefixes(_affinity_behind(found))


def _literals(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines by number, with split string literals of a program joined.

    Two literals on successive lines are one if the first ends within a row and the second continues
    the row with its affinity columns.
    """
    above, at = "", 0
    for number, line in enumerate(lines, 1):
        ends = _OPEN_LITERAL.search(above[-24:]) if len(above) <= MAX_LINE else None
        goes_on = _GOES_ON.match(line) if ends else None
        if ends and goes_on and ends[1] == goes_on[1]:
            above = above.rstrip()[: -len(ends[0].rstrip())] + "\\t" + line[goes_on.end() :]
            continue
        if at:
            yield at, above
        above, at = line, number
    yield at, above


def _pieces(line: str) -> Iterator[str]:
    """Yield the printed lines that a line holds, with entities and a program's escapes resolved."""
    if "&" in line:
        line = html.unescape(html.unescape(line))
    if "<" in line:
        line = "\n".join(_TAG.sub("\t", piece) for piece in _BREAK.split(line))
    if "GPU" in line or "NIC" in line or "NVIDIA" in line:
        if _ESCAPED.search(line):
            line = _ESCAPE.sub(lambda match: _ESCAPES[match[0]], line)
            line = line.replace('"', "\n").replace("'", "\n")
        elif '"' in line:
            line = _QUOTE_AT_END.sub("", line)
    yield from line.split("\n")


def _bare(line: str) -> str:
    if not line or line.isspace():
        return ""
    if not _ODD.search(line):
        return line
    line = _MARKUP.sub("", _WIDE.sub(" ", _INVISIBLE.sub("", _COLOUR.sub("", line))))
    return _BARS.sub("\t", line)


def _affinity_behind(lines: list[Line]) -> list[Line]:
    """Return the lines, with affinity columns moved from before the matrix to behind it."""
    moves = False
    for at, line in enumerate(lines):
        if not moves and not _AFFINITY_FIRST.match(line.text):
            continue
        begin = _begin(line.text)
        before = line.text[: begin.start()] if begin and begin["matrix"] else ""
        header = bool(before) and bool(_AFFINITY_FIRST.fullmatch(before))
        moves = header or moves
        if header or (moves and before and _AFFINITY.fullmatch(before)):
            lines[at] = line._replace(text=f"{line.text[len(before) :]}\t{before}")
    return lines


def _without_prefixes(lines: list[Line]) -> list[Line]:
    """Return the lines without prefixes of a form that several lines have.

    A line that does not look like the tool's loses only the prefix that most lines of the matrix
    have.
    """
    begins = [_begin(line.text) for line in lines]
    forms = [_form(m.string[: m.start()]) if m else () for m in begins]
    common = Counter(form for form, m in zip(forms, begins, strict=True) if m)
    matrix = Counter(form for form, m in zip(forms, begins, strict=True) if m and m["matrix"])
    ((usual, _),) = matrix.most_common(1) or [((), 0)]
    for i, (line, begin, form) in enumerate(zip(lines, begins, forms, strict=True)):
        at = 0
        if begin and (common[form] > 1 or not form):
            at = begin.start() if form else 0
        elif usual and line.text:
            at = _behind(line.text, usual)
        if at:
            lines[i] = Line(line.number, line.text[at:], _host(line.text[:at]))
    return lines


def _begin(text: str) -> re.Match[str] | None:
    return _BEGINS.search(text, 0, MAX_PREFIX) if text else None


def _form(prefix: str) -> tuple[str, ...]:
    """Return the parts of a prefix, with one word for all numbers."""
    return tuple("0" if word[0].isdigit() else word for word in _TOKEN.findall(prefix))


def _behind(text: str, form: tuple[str, ...]) -> int:
    """Return the end of a prefix of this form; 0 if the text has none."""
    at = 0
    for word, match in zip(form, _TOKEN.finditer(text), strict=False):
        if ("0" if match[0][0].isdigit() else match[0]) != word:
            return 0
        at = match.end()
    return at


def _host(prefix: str) -> str:
    """Return the words of a prefix that are names, without counts such as a line's number."""
    return " ".join(_COUNT.sub("", word) for word in prefix.split() if _NAME.search(word))
