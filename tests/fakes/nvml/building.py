"""The shared library, compiled once for every content of its sources."""

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parent.parent.parent / ".cache" / "fake-nvml"
SONAME = "libnvidia-ml.so.1"
FLAGS = (
    *("-std=c11", "-O1", "-g", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{SONAME}"),
)


class CompilerMissing(Exception):  # noqa: N818 (it is not a fault)
    """There is no ``cc`` here, so the library cannot be had."""


class CompilationFailed(Exception):  # noqa: N818
    """The sources do not compile; the message is the compiler's."""


@functools.cache
def symbols() -> frozenset[str]:
    """Every function the library offers, by the name that NVML's users look up."""
    found: list[str] = []
    for source in HERE.glob("*.c"):
        found += re.findall(r"^API .*?(nvml\w+)\(", source.read_text(), re.MULTILINE)
    return frozenset(found)


def library(without: Collection[str] = ()) -> Path:
    """The folder with ``libnvidia-ml.so.1``, compiled if no earlier run has left it.

    ``without`` names symbols that it must not have, as an older driver's library lacks them. Safe
    for any number of builders at once: each builds beside, the first to rename wins.

    Raises :class:`CompilerMissing`, :class:`CompilationFailed`, or ``ValueError`` for a symbol that
    it never has.
    """
    if others := set(without) - symbols():
        raise ValueError(f"the fake has no {', '.join(sorted(others))} to leave out")
    script = _version_script(without)
    sources = sorted([*HERE.glob("*.c"), *HERE.glob("*.h")])
    parts = [*FLAGS, script, *(path.read_text() for path in sources)]
    folder = CACHE / hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    if not (folder / SONAME).exists():
        _build(folder, script)
    return folder


def _version_script(without: Collection[str]) -> str:
    """What tells the linker to keep symbols to itself; empty where it need not."""
    return f"{{ local: {' '.join(f'{name};' for name in sorted(without))} }};\n" if without else ""


def _build(folder: Path, script: str) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        raise CompilerMissing("there is no C compiler (cc) to build the fake NVML with")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        command = [compiler, *FLAGS, "-o", str(beside / SONAME), *map(str, HERE.glob("*.c"))]
        if script:
            (beside / "symbols").write_text(script)
            command.append(f"-Wl,--version-script,{beside / 'symbols'}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompilationFailed(done.stderr[-4000:])
        try:
            os.rename(beside, folder)  # noqa: PTH104 - fails where another builder was faster
        except OSError:
            if not (folder / SONAME).exists():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
