"""Measurements of the service, and simulations of its benefit.

A command that measures or simulates something prints a table. With ``--json FILE`` it also writes
its figures with every parameter.

``promises``
    A closed loop in virtual time, with every fault. It counts kept and broken promises.
``speed``
    The duration of verbs, also under DRA, the throughput of pods, and the cost of the worst input.
``simulation``
    Weeks of jobs under several policies, with the shipping verbs.
``papers``
    The node model of published papers, for comparison with their figures.
``report``
    A page of tables and drawings from a file that ``simulate`` writes.
``commands``
    The command line.
"""

import sys
from importlib.util import find_spec

PACKAGES = ("typer", "rich", "numpy", "scipy", "jinja2")  # beside the extender's

if sys.argv[:1] == ["-m"]:  # true while Python looks for the module to run
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"error: the benchmarks need {', '.join(missing)}, which {sys.executable} does not "
            "have: run 'make dev', then .venv/bin/python -m benchmarks\n"
        )
        sys.exit(2)
