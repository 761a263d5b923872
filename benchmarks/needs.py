"""What the benchmarks need beside the extender, and how to come by it."""

import sys
from importlib.util import find_spec

PACKAGES = ("typer", "rich", "numpy", "scipy", "jinja2")


def require(packages: tuple[str, ...] = PACKAGES) -> None:
    """Exit with code 2 and one line where a package is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"error: the benchmarks need {', '.join(missing)}, which {sys.executable} does not "
            "have: run 'make dev', then .venv/bin/python -m benchmarks\n"
        )
        sys.exit(2)
