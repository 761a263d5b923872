"""Untrusted text for a terminal, without the characters that control it.

Annotations, names and messages are untrusted input. An escape sequence in them would move the
cursor of who reads them, rename the window, or paint over what was said.
"""

import unicodedata

# Characters that turn the direction of what stands beside them.
_TURNS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Characters that end a line in some programs, and not in others.
_BREAKS = frozenset("\u2028\u2029")
BLANKS = {ord(c): " " for c in "\n\t"}


def sanitized(text: str) -> str:
    """The text without characters that steer a terminal; line feeds and tabs stay.

    >>> sanitized("a\\x1b[2Jb\\nc"), sanitized("\\u202egnp")
    ('a[2Jb\\nc', 'gnp')
    """
    if text.isprintable() and text.isascii():
        return text
    return "".join(c for c in text if c in "\n\t" or not _steers(c))


def one_line(text: str) -> str:
    """The text on one line, :func:`sanitized`: a blank for each line feed and tab.

    >>> one_line("sick\\n  node-2: free\\x1b[2J")
    'sick   node-2: free[2J'
    """
    return sanitized(text.translate(BLANKS))


def _steers(c: str) -> bool:
    return unicodedata.category(c) == "Cc" or c in _TURNS or c in _BREAKS


def escaped(document: str) -> str:
    """A JSON document that says the same, with such characters as JSON escapes.

    They stand inside strings only. Line feeds stay: between values they are part of the layout.

    >>> escaped('{"a": "x\x9b2J\u202e"}')
    '{"a": "x\\\\u009b2J\\\\u202e"}'
    """
    if document.isascii() and "\x7f" not in document:
        return document
    return "".join(f"\\u{ord(c):04x}" if _steers(c) and c not in "\n\t" else c for c in document)
