"""Writes the generated parts of the reference, or with ``--check`` compares them with the code."""

import argparse
import sys
from collections.abc import Mapping, Sequence

from manifests.reference import annotations, commands, metrics, reasons, settings
from manifests.reference.pages import FOLDER, Parts, made

PAGES: Mapping[str, Parts] = {
    "annotations": annotations.PARTS,
    "commands": commands.PARTS,
    "metrics": metrics.PARTS,
    "reasons": reasons.PARTS,
    "settings": settings.PARTS,
}
"""The pages of ``docs/reference`` with generated parts."""


def main(words: Sequence[str] | None = None) -> int:
    """Write the pages. With ``--check`` write nothing; return 1 if a page is old."""
    parser = argparse.ArgumentParser(
        prog="python -m manifests.reference",
        description="Write the generated parts of docs/reference from the code.",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page is old")
    check = parser.parse_args(words).check
    code = 0
    for name, parts in PAGES.items():
        path = FOLDER / f"{name}.md"
        old = path.read_text()
        new = made(old, parts)
        if new == old:
            continue
        if check:
            print(f"{path.name} is old: run make reference")  # noqa: T201
            code = 1
        else:
            path.write_text(new)
    return code


if __name__ == "__main__":
    sys.exit(main())
