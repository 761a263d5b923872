"""A program in kubectl's place that says what kubectl says when it forwards a port; the port is one
of this machine already. ``tests/e2e/test_forwarding.py`` has the real kubectl."""

import os
import sys
from pathlib import Path

import pytest

PROGRAM = """#!{python}
import os, pathlib, sys, time
pathlib.Path({folder!r}, "words").write_text(" ".join(sys.argv[1:]))
pathlib.Path({folder!r}, "pid").write_text(str(os.getpid()))
{does}
"""
STAYS = "time.sleep(3600)"


class Kubectl:
    """The only kubectl on the PATH, in ``folder``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        self.folder = folder

    def does(self, *statements: str) -> None:
        """What it does once it is started."""
        program = self.folder / "kubectl"
        does = "\n".join(statements)
        text = PROGRAM.format(python=sys.executable, folder=str(self.folder), does=does)
        program.write_text(text)
        program.chmod(0o755)

    def forwards(self, port: int, *statements: str, then: str = "") -> None:
        """It says that it forwards to a port and ``then`` something more; and does something else
        than to stay."""
        message = f"Forwarding from 127.0.0.1:{port} -> 8889\n{then}\n"
        self.does(f"print({message!r}, flush=True)", *(statements or (STAYS,)))

    @property
    def words(self) -> str:
        """How it was started last."""
        return (self.folder / "words").read_text()

    @property
    def runs(self) -> bool:
        """Whether it still runs."""
        try:
            os.kill(int((self.folder / "pid").read_text()), 0)
        except ProcessLookupError:
            return False
        return True
