"""The question put to a device plugin, and everything it may answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from topology.core.budget import most_sets
from topology.core.patterns import subset_masks
from topology.core.pools import Pool, choices, choices_count, total
from topology.core.shape import Shape


@dataclass(frozen=True, slots=True)
class Call:
    """One ``GetPreferredAllocation``: ``size`` devices of ``available`` that include ``required``.

    ``available`` and ``required`` are pools of ``width`` bits per GPU, ``required`` a part of
    ``available``. ``version`` is the plugin's, None where unknown.
    """

    shape: Shape
    available: Pool
    size: int
    required: Pool = 0
    width: int = 1
    version: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Everything that may be handed out.

    ``sets`` lists the possible pools of devices, ascending; ``None`` means that they are too many
    to list: anything the call allows. ``exact`` is false where some listed set may be impossible.
    ``hazards`` names ways in which the node may refuse although devices are free.
    """

    sets: tuple[Pool, ...] | None
    exact: bool = True
    hazards: tuple[str, ...] = ()


class Allocator(Protocol):
    """One device plugin's way to choose.

    ``monotone`` promises that a larger pool never loses an outcome: then the largest pool of a
    belief speaks for all, and a pod that comes first can only narrow what a later one gets.
    """

    @property
    def name(self) -> str:
        """The policy's name in a node's record."""
        ...

    @property
    def monotone(self) -> bool:
        """Whether a larger pool never loses an outcome."""
        ...

    def outcomes(self, call: Call) -> Outcomes:
        """Every set that may come. The caller sees to it that enough devices are available."""
        ...


def every_choice(call: Call, *, exact: bool, hazards: tuple[str, ...] = ()) -> Outcomes:
    """Everything that a call allows: its required devices, and any others to make up the size."""
    rest = call.available - call.required
    missing = call.size - total(call.required, call.width)
    most = most_sets(call.shape.size, call.width)
    if choices_count(rest, missing, call.width, most) > most:
        return Outcomes(None, exact=exact, hazards=hazards)
    return Outcomes(
        every_set(call.required, rest, missing, call.width), exact=exact, hazards=hazards
    )


def every_set(required: Pool, rest: Pool, missing: int, width: int) -> tuple[Pool, ...]:
    """The required devices with every choice of so many others, ascending."""
    if width == 1:
        found = subset_masks(rest, missing) | np.uint64(required)
        return tuple(np.sort(found).tolist())
    return tuple(sorted(required + more for more in choices(rest, missing, width)))
