"""The policies by name, side by side under one interface (:mod:`benchmarks.shipped.policy`).

To add one, write in a file of your own a :class:`~benchmarks.shipped.policy.ByState` with a
``score``, or a function like those of :mod:`benchmarks.protocol.policies`, and name it:
``--policy path/to/file.py:NAME``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.ownpolicy import find_policy
from benchmarks.protocol import policies as published
from benchmarks.shipped.baselines import Buddy, Preserve, Published, Stock
from benchmarks.shipped.extender import Extender
from benchmarks.shipped.policy import Policy

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "gpu-topology": Extender,
    "LeastAllocated": lambda: Stock(most=False),
    "MostAllocated": lambda: Stock(most=True),
    "Preserve": Preserve,
    "Buddy": Buddy,
    "Random": lambda: Published(published.random_),
    "DotProd": lambda: Published(published.dot_product),
    "GpuClustering": lambda: Published(published.clustering),
    "GpuPacking": lambda: Published(published.packing),
    "BestFit": lambda: Published(published.best_fit_node),
    "FGD": lambda: Published(published.fgd),
}
"""By the names that ``--policy`` takes."""


def policy(name: str) -> Policy:
    """A new policy by name, or ``path/to/file.py:NAME``.

    Raises :class:`~benchmarks.ownpolicy.UnknownPolicyError`.
    """
    found = find_policy(name, POLICIES)
    made: Policy = found() if name in POLICIES or isinstance(found, type) else Published(found)
    return made
