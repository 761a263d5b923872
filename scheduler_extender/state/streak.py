"""Refusals of one node in a row, and the pauses in which the node takes no pods.

A kubelet that refuses pod after pod is met by every pod that a controller makes anew: the node is
free, so kube-scheduler chooses it again. So refusals are counted, in two kinds of *streak*:

*of one kind*  pods whose containers ask the same are of one kind (:func:`kind_of`). Its streak is
               all refusals since a pod of the kind was admitted. Pods whose exclusive CPUs cannot
               be aligned close the node to their kind, and to nobody else.
*of the node*  all refusals since a pod of any kind was admitted. With two kinds among them, the
               node is at fault, not the pods, and it is closed to everybody. (A kind that was
               refused before, while others were admitted, does not count for that.)

From the first refusal on, one pod may try at a time. From the second on the node *pauses*: when the
pause ends, one pod may try; if it is refused, too, the next pause begins, twice as long; if it is
admitted, the streak is over.

Two times are kept of each refusal: ``at`` on the cluster's clock, by which pauses are counted, and
``started`` as the kubelet wrote it, by which the order is known of pods that an extender meets when
it starts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from topology.core.devices import PodUid
from topology.core.requests import NO_CONSTRAINTS, GpuRequest, Policy

PAUSES_AFTER = 2
"""Refusals in a row."""
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 1800.0
"""Seconds; each pause is twice as long as the one before."""
MOST_REFUSALS = 32
"""Refusals of a streak that are remembered; more than it takes to reach the longest pause."""
MOST_KINDS = 16
"""Kinds of pods of which refusals are remembered, those that were refused last; two are enough to
close a node to all."""
WHOLE_SECONDS = 2.0
"""The kubelet writes times in whole seconds: a refusal that seems to come so many seconds before
the end of a pause has come after it."""


def kind_of(request: GpuRequest) -> GpuRequest:
    """What a kubelet sees of a request: not our constraints."""
    return replace(request, constraints=NO_CONSTRAINTS, policy=Policy.REQUIRED)


@dataclass(frozen=True, slots=True)
class Refused:
    """One refusal.

    ``at`` is in seconds of the cluster's clock, ``started`` the pod's start time in seconds since
    1970 (None where its status had none), ``reason`` the kubelet's, ``kind`` the pod's. ``alone``
    says that a pod of another kind has been admitted since.
    """

    at: float
    started: float | None
    reason: str
    kind: GpuRequest
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Streak:
    """Refusals in a row, the oldest first.

    ``until`` is the end of the latest pause on the cluster's clock (minus infinity where there was
    none), ``paused`` whether it lasts. ``alike`` says that it is the streak of one kind.
    """

    refusals: tuple[Refused, ...]
    alike: bool
    until: float = -inf
    paused: bool = False

    @property
    def reason(self) -> str:
        """The kubelet's reason for the latest refusal."""
        return self.refusals[-1].reason

    def ends(self, now: float) -> Streak:
        """The same streak at a later time: its pause may have ended."""
        return replace(self, paused=False) if self.paused and self.until <= now else self


@dataclass(frozen=True, slots=True)
class Streaks:
    """The refusals of one node over one resource that still count; there is at least one.

    ``of_kind`` has the streak of each kind of pod. ``of_node`` has those refusals after which no
    pod has been admitted, None where there are none. ``beside`` are the pods that were on the node
    when the latest refusal was seen: that one of them is admitted says nothing about what the
    kubelet does since.
    """

    of_kind: Mapping[GpuRequest, Streak]
    of_node: Streak | None
    beside: frozenset[PodUid] = field(default_factory=frozenset)

    @property
    def refusals(self) -> tuple[Refused, ...]:
        """Every refusal, kind by kind."""
        return tuple(refused for streak in self.of_kind.values() for refused in streak.refusals)

    @property
    def closing(self) -> Streak | None:
        """The node's streak, if it closes the node to pods of every kind.

        Kinds that were refused before while others were admitted are no proof against the node.
        """
        row = self.of_node.refusals if self.of_node is not None else ()
        kinds = {refused.kind for refused in row}
        proof = [k for k in kinds if not any(r.alone for r in self.of_kind[k].refusals)]
        return self.of_node if len(proof) > 1 else None

    @property
    def pauses(self) -> tuple[float, ...]:
        """When the pauses end that last now."""
        found = (*self.of_kind.values(), self.closing)
        return tuple(streak.until for streak in found if streak is not None and streak.paused)

    def ends(self, now: float) -> Streaks:
        """The same streaks at a later time: pauses may have ended."""
        of_kind = {kind: streak.ends(now) for kind, streak in self.of_kind.items()}
        of_node = self.of_node.ends(now) if self.of_node is not None else None
        if of_kind == self.of_kind and of_node == self.of_node:
            return self
        return replace(self, of_kind=of_kind, of_node=of_node)

    @property
    def key(self) -> Hashable:
        """All that :meth:`keeps_away` depends on."""
        node, closing = self.of_node, self.closing
        of_node = None if node is None else (node.reason, closing is not None and closing.paused)
        return of_node, frozenset((k, s.reason, s.paused) for k, s in self.of_kind.items())

    def keeps_away(self, kind: GpuRequest, trying: Collection[GpuRequest]) -> Streak | None:
        """The streak that keeps pods of a kind away from the node now; None where they may try.

        ``trying`` are the kinds of the pods on the node whose kubelet has not answered yet: one may
        try at a time. Which streak it is does not depend on them: the reason stays the same in a
        pause and while a pod tries.
        """
        own, every = self.of_kind.get(kind), self.of_node
        closing = self.closing
        shut = (own is not None and own.paused) or (closing is not None and closing.paused)
        tried = bool(trying) if every is not None else own is not None and kind in trying
        return (own or every) if shut or tried else None


def with_refusal(
    streaks: Streaks | None, refused: Refused, beside: frozenset[PodUid], now: float
) -> Streaks:
    """The streaks with one refusal more; ``beside`` are the pods on the node now."""
    found = [*streaks.refusals, refused] if streaks is not None else [refused]
    return _streaks(found, beside, now)


def with_admission(streaks: Streaks, kind: GpuRequest, now: float) -> Streaks | None:
    """What is left of the streaks after a pod of a kind has been admitted; None for nothing."""
    return _without(streaks, inf, kind, now)


def with_admission_at(
    streaks: Streaks, kind: GpuRequest, started: float, now: float
) -> Streaks | None:
    """What is left if a pod was admitted at the time ``started``, by the kubelet's clock."""
    return _without(streaks, started, kind, now)


def since(streaks: Streaks, started: float, now: float) -> Streaks | None:
    """The refusals after the time ``started``, by the kubelet's clock; None where none are."""
    return _without(streaks, started, None, now)


def _without(
    streaks: Streaks, started: float, kind: GpuRequest | None, now: float
) -> Streaks | None:
    """Up to ``started`` all was well with a kind of pods, or with all of them (None)."""
    left = []
    for refused in streaks.refusals:
        before = started == inf or (refused.started is not None and refused.started <= started)
        if not before:
            left.append(refused)
        elif kind is not None and refused.kind != kind:
            left.append(replace(refused, alone=True))
    return _streaks(left, streaks.beside, now) if left else None


def _streaks(refusals: Iterable[Refused], beside: frozenset[PodUid], now: float) -> Streaks:
    by_kind: defaultdict[GpuRequest, list[Refused]] = defaultdict(list)
    for refused in sorted(refusals, key=lambda refused: refused.at):
        by_kind[refused.kind].append(refused)
    latest = sorted(by_kind.items(), key=lambda item: item[1][-1].at)[-MOST_KINDS:]
    of_kind = {kind: _streak(found, now, alike=True) for kind, found in latest}
    row = [r for streak in of_kind.values() for r in streak.refusals if not r.alone]
    return Streaks(of_kind, _streak(row, now, alike=False) if row else None, beside)


def _streak(refusals: Iterable[Refused], now: float, *, alike: bool) -> Streak:
    ordered = tuple(sorted(refusals, key=lambda refused: refused.at))[-MOST_REFUSALS:]
    until, pause = -inf, FIRST_PAUSE
    for refused in ordered[PAUSES_AFTER - 1 :]:
        # Pods that were bound before a pause began, and are refused in it, make it no longer.
        if refused.at >= until - WHOLE_SECONDS:
            until = refused.at + pause
            pause = min(2 * pause, LONGEST_PAUSE)
    return Streak(ordered, alike, until, until > now)
