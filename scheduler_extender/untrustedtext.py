"""Remove from untrusted text the characters that control a terminal.

Annotations, names and messages are untrusted input. An escape sequence in them could move the
reader's cursor, rename the window, or overwrite earlier output.
"""

import unicodedata

# Characters that change the direction of the text around them.
_TURNS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Characters that some programs treat as the end of a line, and others do not.
_BREAKS = frozenset("\u2028\u2029")
BLANKS = {ord(c): " " for c in "\n\t"}


def sanitized(text: str) -> str:
    """Return the text without characters that control a terminal. Line feeds and tabs stay.

    >>> sanitized("a\\x1b[2Jb\\nc"), sanitized("\\u202egnp")
    ('a[2Jb\\nc', 'gnp')
    """
    if text.isprintable() and text.isascii():
        return text
    return "".join(c for c in text if c in "\n\t" or not _steers(c))


def one_line(text: str) -> str:
    """Return the text on one line, :func:`sanitized`, with a blank for each line feed and tab.

    >>> one_line("sick\\n  node-2: free\\x1b[2J")
    'sick   node-2: free[2J'
    """
    return sanitized(text.translate(BLANKS))


def _steers(c: str) -> bool:
    return unicodedata.category(c) == "Cc" or c in _TURNS or c in _BREAKS


def escaped(document: str) -> str:
    """Return an equivalent JSON document in which such characters are JSON escapes.

    They occur only inside strings. Line feeds stay, since between values they are part of the
    layout.

    >>> escaped('{"a": "x\x9b2J\u202e"}')
    '{"a": "x\\\\u009b2J\\\\u202e"}'
    """
    if document.isascii() and "\x7f" not in document:
        return document
    return "".join(f"\\u{ord(c):04x}" if _steers(c) and c not in "\n\t" else c for c in document)
