"""Reading a file of figures.

It may be a stranger's: it is checked here, once, and the rest of the package relies on it.
"""

import json
from pathlib import Path

from pydantic import ValidationError

from benchmarks.simulation.figures import Simulated
from topology.codec import first_error

ALLOWED = "allowed are files that simulate --json writes"


class ReportError(ValueError):
    """There is no report of this file; the message says why."""


def read(path: Path) -> Simulated:
    """A file's figures. Raises :class:`ReportError`; the message does not name the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{error.strerror}; {ALLOWED}") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"not UTF-8 text; {ALLOWED}") from error
    return parse(text)


def parse(text: str) -> Simulated:
    """The figures that a text says in JSON. Raises :class:`ReportError`."""
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()  # no half of a character alone
    except (ValueError, RecursionError) as error:
        raise ReportError(f"not JSON: {error}; {ALLOWED}") from error
    if not isinstance(found, dict) or found.get("benchmark") != "simulate":
        raise ReportError(f"not figures of simulate; {ALLOWED}")
    try:
        return Simulated.model_validate(found)
    except ValidationError as error:
        raise ReportError(f"{first_error(error)}; {ALLOWED}") from error
