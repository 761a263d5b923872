"""Measurements of the service, and simulations of what it is worth.

A command that measures or plays something prints a table, and with ``--json FILE`` writes its
figures with every parameter.

``promises``
    A closed loop in virtual time, with every fault: are promises kept?
``speed``
    How long verbs and waiting pods take, also under DRA, and what the worst input costs.
``simulation``
    Weeks of jobs under several policies, with the shipping verbs.
``papers``
    The node model of published papers, to compare with their figures.
``report``
    A page of tables and drawings out of a file that ``simulate`` writes.
``commands``
    The command line.
"""

import sys
from importlib.util import find_spec

PACKAGES = ("typer", "rich", "numpy", "scipy", "jinja2")  # beside the extender's

if sys.argv[:1] == ["-m"]:  # so it is while Python looks for the module to run
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"error: the benchmarks need {', '.join(missing)}, which {sys.executable} does not "
            "have: run 'make dev', then .venv/bin/python -m benchmarks\n"
        )
        sys.exit(2)
