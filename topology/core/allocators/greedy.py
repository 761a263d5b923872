"""``distributed`` and ``packed``: how NVIDIA's plugin hands out replicas.

The rules are read from k8s-device-plugin ``internal/rm/allocate.go`` and seen in recorded answers
of v0.20. The plugin picks devices one at a time, each from the GPU with the fewest
(``distributed``) or the most (``packed``) replicas allocated. Every replica that is not a candidate
of this call counts as allocated, so unhealthy, required and withheld replicas count too. Since
v0.20 a tie goes to the GPU that was picked least often in this round. A tie that remains may fall
either way. Before v0.20 every tie may.
"""

from itertools import combinations
from math import comb

from topology.core.allocators.nvidia import NvidiaPlugin
from topology.core.allocators.protocol import Call, Outcomes, every_choice
from topology.core.budget import LARGE, MAX_SETS, MAX_SETS_OF_LARGE
from topology.core.devicesets import DeviceSet, count, members, total
from topology.core.memo import memoized

ROUND_ROBIN_SINCE = (0, 20)


class Greedy(NvidiaPlugin):
    """One of the two greedy policies. With one replica per GPU any free device may come."""

    def __init__(self, name: str, *, fewest_first: bool) -> None:
        self.name = name
        self.spreads = fewest_first  # the GPU with the fewest allocated has the most left

    def outcomes(self, call: Call) -> Outcomes:
        """Return the sets of every way in which the ties may fall.

        >>> from topology.machines import machine
        >>> from topology.core.devicesets import pack
        >>> shape = machine("rtx4090-8").topology("n").shape
        >>> free = pack([2, 1, 2], 2)
        >>> found = DISTRIBUTED.outcomes(Call(shape, free, 2, width=2)).sets
        >>> found == (pack([1, 0, 1], 2),)
        True
        """
        fair = call.version is not None and call.version >= ROUND_ROBIN_SINCE
        sets = _picks(call.available, call.required, call.size, call.width, self.spreads, fair)
        missing = call.size - total(call.required, call.width)
        if sets is None:
            return every_choice(call, exact=False)
        # Without the round's rule the plugin's sort breaks the ties. It is stable on short lists,
        # so some of these ways may never occur.
        return Outcomes(sets, exact=fair or missing <= 1 or len(sets) == 1)


@memoized
def _picks(
    available: DeviceSet, required: DeviceSet, size: int, width: int, fewest_first: bool, fair: bool
) -> tuple[DeviceSet, ...] | None:
    """Return every set of devices that may come, ascending; None if there are too many.

    Every GPU has the same number of replicas, so the GPU with the fewest allocated has the most
    left. The plugin picks one device at a time. ``distributed`` brings all GPUs down to one level,
    and then picks once more from some of the GPUs on it. ``packed`` empties the GPUs with the least
    left, one after the other.
    """
    candidates = available - required
    missing = size - total(required, width)
    left = {p: count(candidates, p, width) for p in members(candidates, width)}
    if fewest_first:
        taken_sets = _levelled(left, missing, width, fair)
    else:
        taken_sets = _emptied(left, missing, width)
    return None if taken_sets is None else tuple(sorted(required + taken for taken in taken_sets))


def _levelled(left: dict[int, int], missing: int, width: int, fair: bool) -> set[DeviceSet] | None:
    level = max(left.values(), default=0)
    while sum(max(0, n - level + 1) for n in left.values()) <= missing and level:
        level -= 1
    taken = {p: n - level for p, n in left.items() if n > level}
    surely = sum(n << p * width for p, n in taken.items())
    missing -= sum(taken.values())
    tied = [p for p, n in left.items() if n >= level]
    if not fair:
        return _some_of(surely, tied, missing, width)
    # Of the GPUs on the level, those that were picked least often come first.
    for times in sorted({taken.get(p, 0) for p in tied}):
        group = [p for p in tied if taken.get(p, 0) == times]
        if missing <= len(group):
            return _some_of(surely, group, missing, width)
        surely += sum(1 << p * width for p in group)
        missing -= len(group)
    return {surely}


def _some_of(surely: DeviceSet, tied: list[int], missing: int, width: int) -> set[DeviceSet] | None:
    if comb(len(tied), missing) > (MAX_SETS if len(tied) <= LARGE else MAX_SETS_OF_LARGE):
        return None
    return {surely + sum(1 << p * width for p in chosen) for chosen in combinations(tied, missing)}


def _emptied(left: dict[int, int], missing: int, width: int) -> set[DeviceSet] | None:
    surely = 0
    for most in sorted(set(left.values())):
        tied = [p for p, n in left.items() if n == most]
        if missing >= most * len(tied):
            surely += sum(most << p * width for p in tied)
            missing -= most * len(tied)
            continue
        whole, part = divmod(missing, most)
        ways = comb(len(tied), whole) * (len(tied) - whole if part else 1)
        if ways > (MAX_SETS if len(left) <= LARGE else MAX_SETS_OF_LARGE):
            return None
        return {
            surely + sum(most << p * width for p in chosen) + (part << last * width)
            for chosen in combinations(tied, whole)
            for last in ([p for p in tied if p not in chosen] if part else tied[:1])
        }
    return {surely}


DISTRIBUTED = Greedy("distributed", fewest_first=True)
PACKED = Greedy("packed", fewest_first=False)
