"""How a node's kubelet has answered pods: its refusals that count, and what it has admitted.

A kind of pods is *proven* if the kubelet has admitted one of them since the node last changed. It
answers the next one alike, unless a policy of the Topology Manager or a static manager treats it
differently. Then more of them may be bound before it answers
(:mod:`scheduler_extender.verbs.bindlimiter`). Any change of the node ends the proof: of its
hardware or policies, of the GPUs that it calls allocatable, sick or missing, of what kube-scheduler
gives out there. So do a boot, a time in which the agent could not vouch for the node or was silent,
and a refusal of any kind.

**Back-offs.** A kubelet that refuses pod after pod is met by every pod that a controller makes
anew: the node is free, so kube-scheduler chooses it again. So the node takes no pod of a kind for
some seconds after each refusal: :data:`FIRST_PAUSE` after the first, twice as long after each
further one, at most :data:`LONGEST_PAUSE`, as client-go's item back-off does it. Pods whose
containers ask the same are of one kind (:func:`kind_of`). When a pod of the kind is admitted its
back-off begins anew.

Once two kinds were refused and no pod was admitted in between, the node is at fault and not the
pods: it has a back-off of its own, which keeps every kind away, until a pod of any kind is
admitted.

Between two pauses one pod of a kind may try at a time: a crowd would be lost if the kubelet refuses
them all.

Two times are kept of each refusal: ``at`` on the cluster's clock, by which pauses are counted, and
``started`` as the kubelet wrote it, by which the order is known of pods that an extender meets when
it starts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from topology.core.devices import PodUid
from topology.core.graph import AllocatorConfig
from topology.core.requests import NO_CONSTRAINTS, GpuRequest, Policy

FIRST_PAUSE = 10.0  # seconds
LONGEST_PAUSE = 300.0
# Refusals of a kind that are remembered; more than it takes to reach the longest pause.
MOST_REFUSALS = 32
# Kinds of pods of which refusals are remembered, those that were refused last.
MOST_KINDS = 64
# The kubelet writes times in whole seconds: a refusal that seems to come so many seconds before the
# end of a pause has come after it.
WHOLE_SECONDS = 2.0
MOST_PROVEN = 32  # proven kinds that are remembered, for each node; with one more it begins anew
MOST_ADMITTED = 32  # kinds of pods that are remembered as admitted, for each node and resource


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
    counts_for_node: bool = True  # no pod of another kind has been admitted since

    def no_later_than(self, started: float) -> bool:
        """Whether it came no later than this time of the kubelet's clock; infinite is now."""
        return started == inf or (self.started is not None and self.started <= started)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Refusals since a pod was admitted, and the pause that the latest of them has begun."""

    refusals: tuple[Refused, ...]  # the oldest first
    of_one_kind: bool  # and not the node's
    until: float  # the end of the latest pause on the cluster's clock
    paused: bool  # that pause lasts

    @property
    def reason(self) -> str:
        """The kubelet's reason for the latest refusal."""
        return self.refusals[-1].reason

    def at(self, now: float) -> Backoff:
        """The same at a later time: its pause may have ended."""
        return replace(self, paused=False) if self.paused and self.until <= now else self


@dataclass(frozen=True, slots=True)
class Backoffs:
    """Those of one node over one resource; there is at least one.

    If a pod that was on the node at the latest refusal (``beside``) is admitted, that says nothing
    about what the kubelet does since.
    """

    of_kind: Mapping[GpuRequest, Backoff]
    of_node: Backoff | None  # None while no second kind was refused
    beside: frozenset[PodUid] = frozenset()  # on the node at the latest refusal, and not ended

    @property
    def pauses(self) -> tuple[float, ...]:
        """When the pauses end that last now."""
        every = (*self.of_kind.values(), self.of_node)
        return tuple(each.until for each in every if each is not None and each.paused)

    def at(self, now: float) -> Backoffs:
        """The same at a later time: pauses may have ended."""
        if all(until > now for until in self.pauses):
            return self
        return replace(
            self,
            of_kind={kind: backoff.at(now) for kind, backoff in self.of_kind.items()},
            of_node=self.of_node.at(now) if self.of_node is not None else None,
        )

    @property
    def key(self) -> Hashable:
        """All that :meth:`keeps_away` depends on."""
        of_node = None if self.of_node is None else (self.of_node.reason, self.of_node.paused)
        return of_node, frozenset((k, b.reason, b.paused) for k, b in self.of_kind.items())

    def keeps_away(self, kind: GpuRequest, trying: Collection[GpuRequest]) -> Backoff | None:
        """The back-off that keeps pods of a kind away from the node now; None if one may try.

        ``trying`` are the kinds of the pods that the kubelet has not answered yet. The choice does
        not depend on it: the reason stays the same in a pause and while a pod tries.
        """
        own = self.of_kind.get(kind) or self.of_node
        shut = any(each is not None and each.paused for each in (own, self.of_node))
        return own if shut or kind in trying else None


def with_refusal(
    backoffs: Backoffs | None, refused: Refused, beside: frozenset[PodUid], now: float
) -> Backoffs:
    """The back-offs after one refusal more; ``beside`` are the pods on the node that have not
    ended."""
    of_kind = dict(backoffs.of_kind) if backoffs is not None else {}
    own = of_kind.pop(refused.kind, None)
    of_kind[refused.kind] = _of_kind(
        (*own.refusals, refused) if own is not None else (refused,), now
    )
    if len(of_kind) > MOST_KINDS:
        del of_kind[min(of_kind, key=lambda kind: of_kind[kind].refusals[-1].at)]
    return _backoffs(of_kind, beside, now)


def without(
    backoffs: Backoffs, kind: GpuRequest | None, now: float, started: float = inf
) -> Backoffs | None:
    """The back-offs that are left after a pod of a kind was admitted, or after all refusals were
    forgiven (``kind`` is None); None if none is left.

    ``started`` is when that was, by the kubelet's clock; infinite is now.
    """
    left: defaultdict[GpuRequest, list[Refused]] = defaultdict(list)
    for other, backoff in backoffs.of_kind.items():
        for refused in backoff.refusals:
            if not refused.no_later_than(started):
                left[other].append(refused)
            elif kind is not None and other != kind:
                left[other].append(replace(refused, counts_for_node=False))
    of_kind = {other: _of_kind(refusals, now) for other, refusals in left.items()}
    return _backoffs(of_kind, backoffs.beside, now) if of_kind else None


def _backoffs(
    of_kind: Mapping[GpuRequest, Backoff], beside: frozenset[PodUid], now: float
) -> Backoffs:
    every = _ordered(r for each in of_kind.values() for r in each.refusals if r.counts_for_node)
    second = next((i for i, r in enumerate(every) if r.kind != every[0].kind), None)
    of_node = None
    if second is not None:
        until = _until(every[second:])
        of_node = Backoff(_latest(every), False, until, until > now)
    return Backoffs(of_kind, of_node, beside)


def _of_kind(refusals: Iterable[Refused], now: float) -> Backoff:
    in_order = _latest(_ordered(refusals))
    until = _until(in_order)
    return Backoff(in_order, True, until, until > now)


def _latest(in_order: list[Refused]) -> tuple[Refused, ...]:
    """Of too many refusals those that have begun a pause, and the latest others."""
    if len(in_order) <= MOST_REFUSALS:
        return tuple(in_order)
    begun = [refused for refused, _ in _pauses(in_order)]
    kept = {id(each) for each in (begun[0], *begun[1:][-(MOST_REFUSALS - 1) :])}
    others = [each for each in in_order if id(each) not in kept]
    kept |= {id(each) for each in others[len(others) - (MOST_REFUSALS - len(kept)) :]}
    return tuple(each for each in in_order if id(each) in kept)


def _ordered(refusals: Iterable[Refused]) -> list[Refused]:
    return sorted(refusals, key=lambda refused: refused.at)


def _until(refusals: Iterable[Refused]) -> float:
    """The end of the latest pause; the first refusal begins the first."""
    return max((end for _, end in _pauses(refusals)), default=-inf)


def _pauses(refusals: Iterable[Refused]) -> Iterator[tuple[Refused, float]]:
    """Each refusal that begins a pause, and the end of that pause."""
    until, pause = -inf, FIRST_PAUSE
    for refused in refusals:
        # Pods that were bound before a pause began, and are refused in it, make it no longer.
        if refused.at >= until - WHOLE_SECONDS:
            until = refused.at + pause
            pause = min(2 * pause, LONGEST_PAUSE)
            yield refused, until


@dataclass(frozen=True, slots=True, eq=False)
class KubeletHistory:
    """The answers of one node's kubelet."""

    backoffs: Mapping[str, Backoffs] = field(default_factory=dict)  # by resource
    # By resource the kinds of pods of which one was admitted, with the latest start time by the
    # kubelet's clock; minus infinity if no status had one.
    admitted: Mapping[str, Mapping[GpuRequest, float]] = field(default_factory=dict)
    proven: frozenset[GpuRequest] = frozenset()
    # Pods that were on the node when it last changed: they may have been admitted before that,
    # whenever we hear of it, and prove nothing.
    beside: frozenset[PodUid] = frozenset()
    resumed: float = 0.0  # when an operator has forgiven all refusals, in seconds since 1970

    def refusing(self, request: GpuRequest, trying: Collection[GpuRequest]) -> Backoff | None:
        """The back-off for which the node takes no pod with this request now; None if it takes one.

        ``trying`` are the kinds of the pods that the kubelet has not answered.
        """
        backoffs = self.backoffs.get(request.resource)
        return None if backoffs is None else backoffs.keeps_away(kind_of(request), trying)

    def key(self, resource: str, trying: Collection[GpuRequest]) -> tuple[Hashable, ...]:
        """All that :meth:`refusing` depends on."""
        backoffs = self.backoffs.get(resource)
        return () if backoffs is None else (backoffs.key, frozenset(trying))

    def admitted_over(self, resource: str) -> Mapping[GpuRequest, float]:
        """The kinds over a resource of which one was admitted."""
        return self.admitted.get(resource, {})

    def surely_admits(self, request: GpuRequest, allocator: AllocatorConfig) -> bool:
        """Whether the kubelet admits a pod with this request like the last one of its kind, if it
        has devices enough and the model knows of no hazard."""
        kind = kind_of(request)
        return kind in self.proven and _one_like_the_other(kind, allocator)

    def unproven(self, here: frozenset[PodUid]) -> KubeletHistory:
        """The same after a change of the node, with these pods on it."""
        return replace(self, proven=frozenset(), beside=here)

    def with_proven(self, uid: PodUid, kind: GpuRequest) -> KubeletHistory:
        """The same after a pod of a kind has been admitted."""
        if uid in self.beside or kind in self.proven:
            return self
        others = self.proven if len(self.proven) < MOST_PROVEN else frozenset()
        return replace(self, proven=others | {kind})

    def with_backoffs(self, resource: str, backoffs: Backoffs | None) -> KubeletHistory:
        """The same with other back-offs over a resource; None for none."""
        if backoffs == self.backoffs.get(resource):
            return self
        others = {name: theirs for name, theirs in self.backoffs.items() if name != resource}
        return replace(
            self, backoffs=others if backoffs is None else {**others, resource: backoffs}
        )

    def with_admitted(
        self, resource: str, kind: GpuRequest, started: float | None
    ) -> KubeletHistory:
        """The same with an admitted kind; of too many the ones admitted last stay."""
        known = self.admitted_over(resource)
        at = max(known.get(kind, -inf), -inf if started is None else started)
        if known.get(kind) == at:
            return self
        kinds = {**known, kind: at}
        if len(kinds) > MOST_ADMITTED:
            del kinds[min(kinds, key=kinds.__getitem__)]
        return replace(self, admitted={**self.admitted, resource: kinds})


def _one_like_the_other(kind: GpuRequest, config: AllocatorConfig) -> bool:
    """Whether nothing but the number of free devices tells two pods of a kind apart.

    A policy of the Topology Manager and a static manager look at which devices, CPUs and memory are
    left, and other device plugins at what they have.
    """
    cpus = kind.exclusive.cpus and config.cpu_manager_policy != "none"
    memory = kind.exclusive.memory and config.memory_manager_policy != "None"
    policy = config.topology_manager_policy != "none"
    return kind.only_gpu_plugin and not (policy or cpus or memory)
