"""How much of each package ran: ``python -m tests.covered``, after ``coverage run``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from coverage import Coverage
from rich.console import Console
from rich.table import Column, Table

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Print the table."""
    measured = Coverage()
    measured.load()
    lines: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    files = measured.get_data().measured_files()
    for path in (name for name in files if name.endswith(".py")):  # and no templates
        package = "/".join(Path(path).relative_to(ROOT).parts[:2]).removesuffix(".py")
        _, statements, _, missing, _ = measured.analysis2(path)
        lines[package] += len(statements)
        missed[package] += len(missing)
    shown = Table("package", Column("lines", justify="right"), Column("ran", justify="right"))
    for package, count in sorted(lines.items()):
        shown.add_row(package, f"{count:,}", f"{1 - missed[package] / max(1, count):.0%}")
    whole, left = lines.total(), missed.total()
    shown.add_row("all", f"{whole:,}", f"{1 - left / max(1, whole):.0%}")
    Console().print(shown)


if __name__ == "__main__":
    main()
