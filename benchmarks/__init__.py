"""Measurements: how fast the service answers, beside a route that does nothing.

Each command prints a table and, with ``--json FILE``, writes its figures with every parameter.
"""

import sys

from benchmarks import needs

if sys.argv[:1] == ["-m"]:  # so it is while Python looks for the module to run
    needs.require()
