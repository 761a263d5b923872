"""Belief: every free mask the kubelet may hold when it admits a pod.

What we see of a node is a moment old: pods that are bound but not yet reported may be admitted
before ours, in any order, and pods that end may have released their GPUs or not. A verdict holds
only if it holds under every mask of the belief.
"""

from __future__ import annotations

from dataclasses import dataclass

from topology.allocators import Allocator
from topology.devices import Mask
from topology.graph import Shape
from topology.requests import NO_CONSTRAINTS, Constraints

MAX_MASKS = 4096
"""A belief that would grow larger is given up: then nothing is promised."""


@dataclass(frozen=True, slots=True, order=True)
class Pending:
    """A pod that is bound here and not yet wholly reported.

    ``size`` devices are handed out to it, ``held`` stay taken while it runs (more than ``size``
    where an init container asked for more). ``promised`` is what it was promised, if anything.
    """

    size: int
    held: int
    promised: Constraints = NO_CONSTRAINTS


@dataclass(frozen=True, slots=True)
class Availability:
    """What is known of a node's GPUs at one moment; equal moments are equal keys.

    ``free`` is what nobody is seen to hold, ``releasing`` the sets of pods that are ending,
    ``running`` those of pods that are not; ``pending`` are unreported pods in a fixed order,
    ``unseen`` counts devices held by init containers that no report shows; ``sick`` GPUs stay
    free for the kubelet but break every promise. ``units`` counts free devices per position where
    GPUs are shared.
    """

    free: Mask
    releasing: tuple[Mask, ...] = ()
    running: tuple[Mask, ...] = ()
    pending: tuple[Pending, ...] = ()
    unseen: int = 0
    sick: Mask = 0
    units: tuple[int, ...] | None = None

    @property
    def devices_left(self) -> int:
        """Devices that are surely left once every pending pod is admitted; may be negative."""
        free = self.free.bit_count() if self.units is None else sum(self.units)
        return free - self.unseen - sum(p.held for p in self.pending)

    @property
    def widest(self) -> Mask:
        """The free mask if no pending pod comes first and every ending pod has released."""
        mask = self.free
        for released in self.releasing:
            mask |= released
        return mask

    @property
    def widest_after_endings(self) -> Mask:
        """:attr:`widest`, had every running pod ended too."""
        mask = self.widest
        for held in self.running:
            mask |= held
        return mask


def free_masks(
    allocator: Allocator, shape: Shape, now: Availability, *, endings: bool = False
) -> tuple[Mask, ...] | None:
    """Every mask of the belief, ascending, or None where there are more than :data:`MAX_MASKS`.

    With ``endings`` any running pod may have ended too. A monotone allocator needs only the
    widest mask: every outcome under a smaller one is an outcome under it.
    """
    if allocator.monotone:
        return (now.widest_after_endings if endings else now.widest,)
    released = [now.free]
    for mask in (*now.releasing, *(now.running if endings else ())):
        released += [m | mask for m in released]
        if len(released) > MAX_MASKS:
            return None
    seen = {(mask, now.pending) for mask in released}
    frontier = list(seen)
    while frontier:
        mask, waiting = frontier.pop()
        for i, pod in enumerate(waiting):
            rest = waiting[:i] + waiting[i + 1 :]
            if pod.size > mask.bit_count():
                continue
            sets = allocator.outcomes(shape, mask, pod.size).sets
            if sets is None:
                return None
            for taken in sets:
                state = (mask & ~taken, rest)
                if state not in seen:
                    if len(seen) >= MAX_MASKS:
                        return None
                    seen.add(state)
                    frontier.append(state)
    return tuple(sorted({mask for mask, _ in seen}))
