"""The policies by name, side by side under one interface (:mod:`benchmarks.simulation.policy`).

To add one, write in a file of your own a :class:`~benchmarks.simulation.policy.ByState` with a
``score``, or a function like those of :mod:`benchmarks.papers.policies`, and name it:
``--policy path/to/file.py:NAME``.
"""

from collections.abc import Callable, Mapping

from benchmarks.ownpolicy import UnknownPolicyError, find_policy
from benchmarks.papers import policies as published
from benchmarks.simulation.baselines import Buddy, Preserve, Published, Stock
from benchmarks.simulation.extender import Extender, Unblocking
from benchmarks.simulation.policy import Base

# Moves running pods, which no other policy does: it is not among ``all``.
UNBLOCKING = "gpu-topology-unblock"

# By the names that ``--policy`` takes.
POLICIES: Mapping[str, Callable[[], Base]] = {
    "gpu-topology": Extender,
    UNBLOCKING: Unblocking,
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
ALL = tuple(name for name in POLICIES if name != UNBLOCKING)  # what `--policy all` means


def policy(name: str) -> Base:
    """A new policy by name, or ``path/to/file.py:NAME``.

    Raises :class:`~benchmarks.ownpolicy.UnknownPolicyError`.
    """
    found = find_policy(name, POLICIES)
    if name in POLICIES:
        known: Base = found()
        return known
    if not isinstance(found, type):
        return Published(found)
    if not issubclass(found, Base):
        raise UnknownPolicyError(f"{name!r}: a {Base.__name__} or a ByState is needed")
    try:
        return found()
    except Exception as error:
        raise UnknownPolicyError(f"{name!r}: {type(error).__name__}: {error}") from error
