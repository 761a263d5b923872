"""Refusals of one node in a row, and the pauses in which the node takes no pods.

A kubelet that refuses pod after pod is met by every pod that a controller makes anew: the node is
free, so kube-scheduler chooses it again. So refusals are counted, in three kinds of *streak*:

*of one kind*    pods whose containers ask the same are of one kind (:func:`kind_of`). Its streak is
                 all refusals since a pod of the kind was admitted. Pods whose exclusive CPUs cannot
                 be aligned close the node to their kind, and to nobody else.
*of the node*    all refusals since a pod of any kind was admitted. With two kinds among them, the
                 node is at fault, not the pods, and it is closed to everybody. (A kind that was
                 refused before, while others were admitted, does not count for that.)
*of new kinds*   a kind is new while no pod of it has been refused or admitted here, as far as is
                 remembered. Each first refusal of a new kind counts, until a pod of a new kind is
                 admitted. So many kinds that never fit, more than are remembered, are let in one
                 now and then.

From the first refusal on, one pod may try at a time. From the second on (of new kinds: the fourth)
the node *pauses*: when the pause ends, one pod may try; if it is refused, too, the next pause
begins, twice as long; if it is admitted, the streak is over.

Only a kind's first refusal makes the pause of the node longer: the next ones prove nothing that the
first did not, and each kind has pauses of its own. So kinds that never fit, and come again and
again, keep nobody else away for long.

Two times are kept of each refusal: ``at`` on the cluster's clock, by which pauses are counted, and
``started`` as the kubelet wrote it, by which the order is known of pods that an extender meets when
it starts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from topology.core.devices import PodUid
from topology.core.requests import NO_CONSTRAINTS, GpuRequest, Policy

PAUSES_AFTER = 2  # refusals of a kind in a row, or kinds of which none was admitted since
# New kinds in a row: few nodes meet so many that never fit, and those that fit wait, too.
NEW_PAUSE_AFTER = 4
FIRST_PAUSE = 30.0  # seconds; each pause is twice as long as the one before
LONGEST_PAUSE = 1800.0  # seconds, for a kind
LONGEST_FOR_ALL = 120.0  # seconds, for the node: it keeps away pods that were never refused here
# Seconds of every pause of new kinds: longer than the node's, so that when the node opens, kinds
# that have run here come before those that nobody has tried.
NEW_PAUSE = 240.0
# Refusals of a streak that are remembered; more than it takes to reach the longest pause.
MOST_REFUSALS = 32
# Kinds of pods of which refusals are remembered, those that were refused last. The others are new
# again, and the streak of new kinds bounds how many of their pods are lost.
MOST_KINDS = 64
# The kubelet writes times in whole seconds: a refusal that seems to come so many seconds before the
# end of a pause has come after it.
WHOLE_SECONDS = 2.0


def kind_of(request: GpuRequest) -> GpuRequest:
    """What a kubelet sees of a request: not our constraints."""
    return replace(request, constraints=NO_CONSTRAINTS, policy=Policy.REQUIRED)


@dataclass(frozen=True, slots=True)
class Refused:
    """One refusal."""

    at: float  # in seconds of the cluster's clock
    started: float | None  # the pod's start time since 1970; None if its status had none
    reason: str  # the kubelet's
    kind: GpuRequest
    alone: bool = False  # a pod of another kind has been admitted since

    def until(self, started: float) -> bool:
        """Whether it came no later than this time of the kubelet's clock; infinite is now."""
        return started == inf or (self.started is not None and self.started <= started)


@dataclass(frozen=True, slots=True)
class Streak:
    """Refusals in a row."""

    refusals: tuple[Refused, ...]  # the oldest first
    alike: bool  # it is the streak of one kind
    until: float = -inf  # the end of the latest pause on the cluster's clock
    paused: bool = False  # that pause lasts

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

    If a pod that was on the node at the latest refusal (``beside``) is admitted, that says nothing
    about what the kubelet does since.
    """

    of_kind: Mapping[GpuRequest, Streak]
    of_node: Streak | None  # the refusals after which no pod has been admitted
    at_fault: bool = False  # the node is to blame for these
    of_new: Streak | None = None  # the first refusals of kinds that were new
    beside: frozenset[PodUid] = frozenset()  # on the node at the latest refusal, and not ended

    @property
    def refusals(self) -> tuple[Refused, ...]:
        """Every refusal, kind by kind."""
        return tuple(refused for streak in self.of_kind.values() for refused in streak.refusals)

    @property
    def closing(self) -> Streak | None:
        """The node's streak, if it closes the node to pods of every kind.

        Kinds that were refused before while others were admitted are no proof against the node.
        """
        return self.of_node if self.at_fault else None

    @property
    def closing_to_new(self) -> Streak | None:
        """The streak of new kinds, if it closes the node to them."""
        new = self.of_new
        return new if new is not None and len(new.refusals) >= NEW_PAUSE_AFTER else None

    @property
    def pauses(self) -> tuple[float, ...]:
        """When the pauses end that last now."""
        streaks = (*self.of_kind.values(), self.closing, self.closing_to_new)
        return tuple(streak.until for streak in streaks if streak is not None and streak.paused)

    def ends(self, now: float) -> Streaks:
        """The same streaks at a later time: pauses may have ended."""
        if all(until > now for until in self.pauses):
            return self
        return replace(
            self,
            of_kind={kind: streak.ends(now) for kind, streak in self.of_kind.items()},
            of_node=self.of_node.ends(now) if self.of_node is not None else None,
            of_new=self.of_new.ends(now) if self.of_new is not None else None,
        )

    @property
    def key(self) -> Hashable:
        """All that :meth:`keeps_away` depends on, but for who was admitted."""
        node, closing, new = self.of_node, self.closing, self.closing_to_new
        of_node = None if node is None else (node.reason, closing is not None and closing.paused)
        of_new = None if new is None else (new.reason, new.paused)
        return of_node, of_new, frozenset((k, s.reason, s.paused) for k, s in self.of_kind.items())

    def keeps_away(
        self,
        kind: GpuRequest,
        trying: Collection[GpuRequest],
        admitted: Collection[GpuRequest] = (),
    ) -> Streak | None:
        """The streak that keeps pods of a kind away from the node now; None if they may try.

        ``trying`` are the kinds of the pods that the kubelet has not answered yet: one pod may try
        at a time. ``admitted`` are kinds of which the kubelet has admitted a pod: they are not new.
        The choice of the streak does not depend on ``trying``: the reason stays the same in a pause
        and while a pod tries.
        """
        own, every = self.of_kind.get(kind), self.of_node
        new = self.closing_to_new if self._is_new(kind, admitted) else None
        shut = any(s is not None and s.paused for s in (own, self.closing, new))
        if every is not None:
            tried = bool(trying)
        elif new is not None:
            tried = any(self._is_new(other, admitted) for other in trying)
        else:
            tried = own is not None and kind in trying
        return (own or every or new) if shut or tried else None

    def _is_new(self, kind: GpuRequest, admitted: Collection[GpuRequest]) -> bool:
        return kind not in self.of_kind and kind not in admitted


def with_refusal(
    streaks: Streaks | None,
    refused: Refused,
    beside: frozenset[PodUid],
    now: float,
    *,
    is_new: bool,
) -> Streaks:
    """The streaks with one refusal more.

    ``beside`` are the pods on the node now that have not ended; ``is_new`` is whether no pod of the
    kind has been admitted here.
    """
    of_kind = dict(streaks.of_kind) if streaks is not None else {}
    of_new = streaks.of_new if streaks is not None else None
    own = of_kind.pop(refused.kind, None)
    if own is None and is_new:
        of_new = _new((*of_new.refusals, refused) if of_new is not None else (refused,), now)
    of_kind[refused.kind] = _own((*own.refusals, refused) if own is not None else (refused,), now)
    if len(of_kind) > MOST_KINDS:
        del of_kind[min(of_kind, key=lambda kind: of_kind[kind].refusals[-1].at)]
    return _streaks(of_kind, of_new, beside, now)


def with_admission(
    streaks: Streaks, kind: GpuRequest, now: float, *, is_new: bool, started: float = inf
) -> Streaks | None:
    """The streaks that are left after a pod of a kind has been admitted; None for none.

    ``is_new`` says that no pod of the kind was admitted before. ``started`` is when the pod was
    admitted, by the kubelet's clock; infinite is now. If the node was at fault until then, it has
    healed: each kind that was refused meanwhile may try soon, as after a first refusal.
    """
    if streaks.at_fault and all(refused.until(started) for refused in streaks.refusals):
        of_kind = {
            other: streak
            if any(r.alone for r in streak.refusals)
            else _own(streak.refusals[-1:], now)
            for other, streak in streaks.of_kind.items()
        }
        streaks = replace(streaks, of_kind=of_kind)
    return _without(streaks, started, kind, now, is_new=is_new)


def since(streaks: Streaks, started: float, now: float) -> Streaks | None:
    """The refusals after the time ``started``, by the kubelet's clock; None if there are none."""
    return _without(streaks, started, None, now, is_new=True)


def _without(
    streaks: Streaks, started: float, kind: GpuRequest | None, now: float, *, is_new: bool
) -> Streaks | None:
    """Up to ``started`` all was well with a kind of pods, or with all of them (None)."""
    left: defaultdict[GpuRequest, list[Refused]] = defaultdict(list)
    for refused in streaks.refusals:
        if not refused.until(started):
            left[refused.kind].append(refused)
        elif kind is not None and refused.kind != kind:
            left[refused.kind].append(replace(refused, alone=True))
    if not left:
        return None
    of_new = streaks.of_new
    if of_new is not None:
        every = is_new and kind not in streaks.of_kind
        new = tuple(
            r for r in of_new.refusals if not (r.until(started) and (every or r.kind == kind))
        )
        # A pause that has begun ends when it would have: with fewer refusals it is no longer.
        of_new = replace(of_new, refusals=new) if new else None
    of_kind = {one: _own(refusals, now) for one, refusals in left.items()}
    return _streaks(of_kind, of_new, streaks.beside, now)


def _streaks(
    of_kind: Mapping[GpuRequest, Streak],
    of_new: Streak | None,
    beside: frozenset[PodUid],
    now: float,
) -> Streaks:
    row: list[Refused] = []
    proofs: list[Refused] = []
    for streak in of_kind.values():
        in_row = [refused for refused in streak.refusals if not refused.alone]
        row += in_row
        if len(in_row) == len(streak.refusals):
            proofs.append(in_row[0])
    until = _until(_ordered(proofs)[PAUSES_AFTER - 1 :], FIRST_PAUSE, LONGEST_FOR_ALL)
    of_node = Streak(_remembered(row), False, until, until > now) if row else None
    return Streaks(of_kind, of_node, len(proofs) >= PAUSES_AFTER, of_new, beside)


def _own(refusals: Iterable[Refused], now: float) -> Streak:
    in_order = _remembered(refusals)
    until = _until(in_order[PAUSES_AFTER - 1 :], FIRST_PAUSE, LONGEST_PAUSE)
    return Streak(in_order, True, until, until > now)


def _new(refusals: Iterable[Refused], now: float) -> Streak:
    in_order = _remembered(refusals)
    until = _until(in_order[NEW_PAUSE_AFTER - 1 :], NEW_PAUSE, NEW_PAUSE)
    return Streak(in_order, False, until, until > now)


def _remembered(refusals: Iterable[Refused]) -> tuple[Refused, ...]:
    """The first refusal and the latest: the first says how long ago it began."""
    in_order = _ordered(refusals)
    over = len(in_order) - MOST_REFUSALS
    return (in_order[0], *in_order[over + 1 :]) if over > 0 else tuple(in_order)


def _ordered(refusals: Iterable[Refused]) -> list[Refused]:
    return sorted(refusals, key=lambda refused: refused.at)


def _until(refusals: Iterable[Refused], pause: float, longest: float) -> float:
    """The end of the latest pause. ``refusals`` begin with the one that begins the first pause,
    which has ``pause`` seconds; each is twice as long as the one before."""
    until = -inf
    for refused in refusals:
        # Pods that were bound before a pause began, and are refused in it, make it no longer.
        if refused.at >= until - WHOLE_SECONDS:
            until = refused.at + pause
            pause = min(2 * pause, longest)
    return until
