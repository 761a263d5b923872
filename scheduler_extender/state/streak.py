"""Refusals of one node in a row, and the pauses in which the node takes no pods.

A kubelet that refuses pod after pod is met by every pod that a controller makes anew: the node is
free, so kube-scheduler chooses it again. After the second refusal without a success between, the
node *pauses*. When the pause ends, one pod may try. If it is refused, too, the next pause begins,
twice as long; if it is admitted the streak is over.

Two times are kept of each refusal: ``at`` on the cluster's clock, by which pauses are counted, and
``started`` as the kubelet wrote it, by which the order is known of pods that an extender meets when
it starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

from topology.core.devices import PodUid

PAUSES_AFTER = 2
"""Refusals in a row."""
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 1800.0
"""Seconds; each pause is twice as long as the one before."""
MOST_REFUSALS = 32
"""Refusals of a streak that are remembered; more than it takes to reach the longest pause."""
WHOLE_SECONDS = 2.0
"""The kubelet writes times in whole seconds: a refusal that seems to come so many seconds before
the end of a pause has come after it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """One refusal.

    ``at`` is in seconds of the cluster's clock, ``started`` the pod's start time in seconds since
    1970 (None where its status had none), ``reason`` the kubelet's.
    """

    at: float
    started: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Streak:
    """Refusals on one node over one resource without a success between, the oldest first.

    ``beside`` are the pods that were on the node when the latest refusal was seen: that one of them
    is admitted says nothing about what the kubelet does since. ``until`` is the end of the latest
    pause on the cluster's clock (minus infinity where there was none), ``paused`` whether it lasts.
    """

    refusals: tuple[Refused, ...]
    beside: frozenset[PodUid] = frozenset()
    until: float = -inf
    paused: bool = False

    @property
    def one_at_a_time(self) -> bool:
        """Whether the node takes one pod at most until a pod succeeds."""
        return len(self.refusals) >= PAUSES_AFTER

    @property
    def reason(self) -> str:
        """The kubelet's reason for the latest refusal."""
        return self.refusals[-1].reason

    def ends(self, now: float) -> Streak:
        """The same streak at a later time: its pause may have ended."""
        return replace(self, paused=False) if self.paused and self.until <= now else self


def with_refusal(
    streak: Streak | None, refused: Refused, beside: frozenset[PodUid], now: float
) -> Streak:
    """The streak with one refusal more; ``beside`` are the pods on the node now."""
    found = (*streak.refusals, refused) if streak is not None else (refused,)
    return _streak(found, beside, now)


def since(streak: Streak, started: float, now: float) -> Streak | None:
    """What is left of a streak if all was well at the time ``started``, by the kubelet's clock.

    None where no refusal is later.
    """
    left = [r for r in streak.refusals if r.started is None or r.started > started]
    if len(left) == len(streak.refusals):
        return streak
    return _streak(left, streak.beside, now) if left else None


def _streak(refusals: Iterable[Refused], beside: frozenset[PodUid], now: float) -> Streak:
    ordered = tuple(sorted(refusals, key=lambda refused: refused.at))[-MOST_REFUSALS:]
    until, pause = -inf, FIRST_PAUSE
    for refused in ordered[PAUSES_AFTER - 1 :]:
        # Pods that were bound before a pause began, and are refused in it, make it no longer.
        if refused.at >= until - WHOLE_SECONDS:
            until = refused.at + pause
            pause = min(2 * pause, LONGEST_PAUSE)
    return Streak(ordered, beside, until, until > now)
