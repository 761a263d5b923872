"""``distributed`` and ``packed``: how NVIDIA's plugin hands out replicas.

Read from k8s-device-plugin ``internal/rm/allocate.go`` and seen in recorded answers of v0.20.
Devices come one at a time, each from the GPU with the fewest (``distributed``) or the most
(``packed``) members allocated. Allocated are those that are not candidates of this very call, so
unhealthy, required and withheld replicas count too. Since v0.20 a tie goes to the GPU picked least
in this round; what ties remain fall freely, and before v0.20 all of them do.
"""

from __future__ import annotations

from functools import lru_cache

from topology.allocators.outcomes import MAX_SETS, Call, Outcomes, every_choice
from topology.pools import Pool, count, members, total

ROUND_ROBIN_SINCE = (0, 20)


class Greedy:
    """One of the two greedy policies. With one replica per GPU any free device may come."""

    monotone = False

    def __init__(self, name: str, *, fewest_first: bool) -> None:
        self.name = name
        self._sign = 1 if fewest_first else -1

    def outcomes(self, call: Call) -> Outcomes:
        """Every way the ties may fall.

        >>> from topology.machines import machine
        >>> from topology.pools import pack
        >>> shape = machine("rtx4090-8").topology("n").shape
        >>> free = pack([2, 1, 2], 2)
        >>> found = DISTRIBUTED.outcomes(Call(shape, free, 2, width=2)).sets
        >>> found == (pack([1, 0, 1], 2),)
        True
        """
        fair = call.version is not None and call.version >= ROUND_ROBIN_SINCE
        found = _picks(call.available, call.required, call.size, call.width, self._sign, fair)
        return every_choice(call, exact=False) if found is None else Outcomes(found)


@lru_cache(maxsize=16384)
def _picks(
    available: Pool, required: Pool, size: int, width: int, sign: int, fair: bool
) -> tuple[Pool, ...] | None:
    candidates = available - required
    frontier = {0}
    for _ in range(size - total(required, width)):
        longer: set[Pool] = set()
        for taken in frontier:
            left = candidates - taken
            open_ = members(left, width)
            # Every GPU has as many replicas: the most left is the fewest allocated.
            best = max(sign * count(left, p, width) for p in open_)
            tied = [p for p in open_ if sign * count(left, p, width) == best]
            if fair:
                least = min(count(taken, p, width) for p in tied)
                tied = [p for p in tied if count(taken, p, width) == least]
            longer.update(taken + (1 << p * width) for p in tied)
        if len(longer) > MAX_SETS:
            return None
        frontier = longer
    return tuple(sorted(required + taken for taken in frontier))


DISTRIBUTED = Greedy("distributed", fewest_first=True)
PACKED = Greedy("packed", fewest_first=False)
