"""Runs the statements of a page in one shell, as a reader types them in a checkout."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.documents import exceptions
from tests.documents.blocks import ROOT, Block, statements
from tests.waiting import FOREVER

MARK = "=== statement "
BINARIES = Path(sys.executable).parent
LINKED = ("benchmarks", "examples", "topology", "scheduler_extender", "requirements")
STOP = 'test -z "$(jobs -p)" || kill $(jobs -p)'


@dataclass(frozen=True, slots=True)
class Ran:
    """A statement of a page, how it ended and what it printed."""

    block: Block
    statement: str
    returncode: int
    stdout: str
    stderr: str

    def is_well(self) -> bool:
        """Whether it ended as the page lets its reader expect."""
        return self.returncode == exceptions.status(self.statement)

    def __str__(self) -> str:
        message = f"{self.stdout[-1500:]}\n{self.stderr[-1500:]}"
        return f"{self.block}: {self.statement}\nended with {self.returncode}:\n{message}"


def checkout(folder: Path) -> Path:
    """A checkout of the project that statements may write beside, and into.

    ``manifests`` is a copy, since kustomize follows no link out of its folder.
    """
    found = folder / "gpu-topology"
    found.mkdir()
    # Python writes there while another process of the tests copies.
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "manifests", found / "manifests", ignore=unwanted)
    for name in LINKED:
        (found / name).symlink_to(ROOT / name)
    (found / ".venv").symlink_to(BINARIES.parent)
    return found


def tools(folder: Path, **scripts: str) -> Path:
    """A folder of programs that stand in for those that a machine of tests does not have."""
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def run(
    blocks: list[Block], cwd: Path, path: list[Path], environment: Mapping[str, str]
) -> list[Ran]:
    """Run all that is run of these blocks in one shell; it goes on where a statement fails.

    Each statement may take :data:`~tests.waiting.FOREVER`.
    """
    every = [(b, s) for b in blocks for s in statements(b) if not exceptions.why_not_run(b, s)]
    script = [f"trap '{STOP}' EXIT"]
    for number, (block, statement) in enumerate(every):
        script += [
            f"echo '{MARK}{number}'; echo '{MARK}{number}' >&2",
            exceptions.as_run(block, statement),
            f'echo "{MARK}ended $?"',
        ]
    given = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": os.pathsep.join([*map(str, path), str(BINARIES), os.environ["PATH"]]),
        **environment,
    }
    done = subprocess.run(
        ["bash", "-u", "-o", "pipefail", "-c", "\n".join(script)],
        cwd=cwd,
        env=given,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=FOREVER * max(1, len(every)),
    )
    outs, errors = _parts(done.stdout), _parts(done.stderr)
    assert len(outs) == len(every), f"the shell has ended early: {done.stderr[-2000:]}"
    found = []
    for (block, statement), out, error in zip(every, outs, errors, strict=True):
        printed, _, code = out.rpartition(f"{MARK}ended ")
        found.append(Ran(block, statement, int(code), printed, error))
    return found


def _parts(text: str) -> list[str]:
    return re.split(rf"^{MARK}\d+\n", text, flags=re.MULTILINE)[1:]
