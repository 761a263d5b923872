"""``make check``: format, lint and types of what has changed, and the tests beside it.

What has changed is what differs from the last commit, or, with ``--since COMMIT``, from another
one. The tests of ``topology/core/graph.py`` are ``tests/topology/core/test_graph.py``; a module
without such a file has the tests of its folder. ``make test`` runs everything.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Test files of a folder that are run where a module has none of its own; of more none are.
MOST_OF_A_FOLDER = 12


def changed(since: str) -> list[Path]:
    """The Python files that differ from a commit or are new, from the project's root."""
    differ = _git("diff", "--name-only", "--diff-filter=d", since)
    new = _git("ls-files", "--others", "--exclude-standard")
    return sorted(Path(name) for name in {*differ, *new} if name.endswith(".py"))


def _git(*words: str) -> list[str]:
    output = subprocess.run(
        ["git", *words], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE
    ).stdout
    return output.splitlines()


def guards_of(path: Path) -> list[Path]:
    """The test files that speak of a file, from the project's root."""
    if path.parts[0] == "tests":
        own = path.name.startswith("test_") and "e2e" not in path.parts
        return [path] if own else []
    own_tests = mirrors(path)
    if own_tests:
        return own_tests[:1]
    beside = sorted((ROOT / "tests" / path.parent).glob("test_*.py"))
    if len(beside) > MOST_OF_A_FOLDER:
        print(f"{path}: no test file of its own; make test runs the {len(beside)} of its folder")
        return []
    return [found.relative_to(ROOT) for found in beside]


def mirrors(module: Path) -> list[Path]:
    """The test file of a module's name, and that of its package's, as far as they are there.

    ``tests/…/test_admission.py`` is for all files of ``…/admission/``.
    """
    beside = Path("tests", module.parent)
    own = (beside / f"test_{module.name}", beside.with_name(f"test_{beside.name}.py"))
    return [path for path in own if (ROOT / path).is_file()]


def check(files: Iterable[Path]) -> int:
    """The exit status of the first step that fails; 0 where all pass."""
    names = [str(path) for path in files]
    if not names:
        print("no Python file has changed")
        return 0
    tests = sorted({str(test) for name in names for test in guards_of(Path(name))})
    steps = [["ruff", "format", *names], ["ruff", "check", *names], ["mypy"]]
    if tests:
        steps.append(
            ["pytest", "-q", "-x", "-n", "2", "--dist", "loadfile", "-m", "not long", *tests]
        )
    for step in steps:
        status = subprocess.run([sys.executable, "-m", *step], cwd=ROOT, check=False).returncode
        if status:
            return status
    return 0


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", default="HEAD", metavar="COMMIT")
    return check(changed(parser.parse_args().since))


if __name__ == "__main__":
    sys.exit(main())
