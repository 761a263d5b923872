"""Hints: the NUMA nodes on which a provider could serve a container.

A provider is the device manager, the CPU Manager or the Memory Manager. What is left on a node is
known as two bounds (:mod:`topology.core.room`), so a hint is either sure, or one that may be given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from topology.core.devices import Mask
from topology.core.numa import NumaFacts


class Hint(NamedTuple):
    """NUMA nodes that a provider hints at, as a mask of their numbers.

    It is preferred if no fewer NUMA nodes could ever serve such a container, not even on an empty
    machine.
    """

    nodes: Mask
    preferred: bool
    sure: bool = True


Provider = tuple[Hint, ...]
"""Every hint that a provider gives, or may give. Empty: it has no possible hint."""


class Hints(NamedTuple):
    """What the providers beside the device manager hint at for one container.

    ``providers`` are those that care. ``accepted`` are the merged NUMA nodes with which the Memory
    Manager surely serves the container; None where it has nothing to do with it.
    """

    providers: tuple[Provider, ...] = ()
    accepted: frozenset[Mask] | None = None


NO_HINTS = Hints()


def all_nodes(facts: NumaFacts) -> Mask:
    """The mask of all NUMA nodes."""
    return (1 << len(facts.nodes)) - 1


def masks(every: Mask) -> Iterator[Mask]:
    """Every set of these NUMA nodes but the empty one, ascending."""
    found = 0
    while found != every:
        found = (found - every) & every
        yield found
