"""The policies by name, side by side under one interface (:mod:`benchmarks.shipped.policy`).

To add one, write in a file of your own a :class:`~benchmarks.shipped.policy.ByState` with a
``score``, or a function like those of :mod:`benchmarks.protocol.policies`, and name it:
``--policy path/to/file.py:NAME``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

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


class UnknownPolicyError(ValueError):
    """There is no such policy; the message says which there are."""


def label(name: str) -> str:
    """What a policy is called in tables: of ``path/to/file.py:NAME`` the last word."""
    return name.rpartition(".py:")[2]


def policy(name: str) -> Policy:
    """A new policy by name, or ``path/to/file.py:NAME``. Raises :class:`UnknownPolicyError`."""
    if name in POLICIES:
        return POLICIES[name]()
    path, _, attribute = name.rpartition(":")
    if not path.endswith(".py"):
        raise UnknownPolicyError(
            f"{name!r}: allowed are {', '.join(POLICIES)} and path/to/file.py:NAME"
        )
    if not Path(path).is_file():
        raise UnknownPolicyError(f"{name!r}: there is no file {path}")
    found = getattr(_module(path), attribute, None)
    if found is None:
        raise UnknownPolicyError(f"{name!r}: {path} has no {attribute}")
    return found() if isinstance(found, type) else Published(found)


@cache
def _module(path: str) -> object:
    spec = spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise UnknownPolicyError(f"{path}: not a Python file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
