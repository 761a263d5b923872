"""``make sizes``: how large the packages of each image are, the largest first.

It measures the files of the packages that an image's lock names, as they are installed in the
environment in which it runs. Compiled Python files (``__pycache__``) are not counted: an image that
is built with ``--no-compile`` has none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

LOCKS = [Path(__file__).with_name(f"{image}.txt") for image in ("agent", "extender")]
MB = 1_000_000


def locked_requirements(text: str) -> Iterator[Requirement]:
    """A lock's packages that belong on this machine."""
    for line in re.findall(r"^[A-Za-z0-9].*==.*$", text, re.MULTILINE):
        wanted = Requirement(line.rstrip("\\ "))
        if wanted.marker is None or wanted.marker.evaluate():
            yield wanted


def size(found: Distribution) -> int:
    """The bytes of a package's installed files."""
    paths = (Path(str(file.locate())) for file in found.files or () if file.suffix != ".pyc")
    return sum(path.stat().st_size for path in paths if path.exists())


def table(text: str) -> str:
    """The packages of a lock with their sizes, and the sum in the last line.

    Raises :class:`PackageNotFoundError` if one is not installed here.
    """
    sizes = {
        name: size(distribution(name))
        for name in (wanted.name for wanted in locked_requirements(text))
    }
    rows = sorted(sizes.items(), key=lambda row: (-row[1], row[0]))
    lines = [f"{count / MB:8.1f} MB  {name}" for name, count in rows]
    return "\n".join([*lines, f"{sum(sizes.values()) / MB:8.1f} MB  in all"])


def main() -> int:
    """Print the table of each image; 1 if a package is not installed."""
    try:
        for lock in LOCKS:
            sys.stdout.write(f"{lock.stem}\n{table(lock.read_text())}\n")
    except PackageNotFoundError as error:
        sys.stderr.write(f"{error.name} is not installed: run `make dev`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
