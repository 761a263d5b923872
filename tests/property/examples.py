"""How many examples a law is tried with: a third in ``make test``, all in ``make test-long``."""

from __future__ import annotations

import os

EVERY = "GPU_TOPOLOGY_EVERY_EXAMPLE"


def examples(most: int) -> int:
    """``most`` where every example is asked for, else a third."""
    return most if EVERY in os.environ else most // 3
