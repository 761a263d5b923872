"""Figures into files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

STDOUT = Path("-")


def write_json(path: Path | None, figures: object) -> None:
    """Write figures as JSON, unless there is no path."""
    write_text(path, json.dumps(figures, indent=2, allow_nan=False) + "\n")


def write_text(path: Path | None, text: str) -> None:
    """Write a text, unless there is no path; folders are made, and ``-`` is standard output."""
    if path == STDOUT:
        sys.stdout.write(text)
    elif path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
