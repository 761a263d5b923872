"""The question put to a device plugin, and everything it may answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from topology.graph import Shape
from topology.pools import Pool, choices, choices_count, total

MAX_SETS = 20_000
"""Above so many sets they are not listed: C(16, 8) = 12,870 is."""


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
    if choices_count(rest, missing, call.width, MAX_SETS) > MAX_SETS:
        return Outcomes(None, exact=exact, hazards=hazards)
    found = sorted(call.required + more for more in choices(rest, missing, call.width))
    return Outcomes(tuple(found), exact=exact, hazards=hazards)
