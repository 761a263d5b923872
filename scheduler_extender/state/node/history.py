"""How a node's kubelet has answered pods: its refusals that count, and what it has admitted.

A kind of pods is *proven* if the kubelet has admitted one of them since the node last changed. The
kubelet answers the next pod of the kind in the same way, unless a policy of the Topology Manager or
a static manager treats it differently. More pods of a proven kind may then be bound before the
kubelet answers (:mod:`scheduler_extender.verbs.bindlimiter`). Each of these events ends the proof:

- a change of the node's hardware or policies
- a change of the GPUs that it calls allocatable, sick or missing
- a change of what kube-scheduler gives out there
- a boot
- a time in which the agent was silent or could not vouch for the node
- a refusal of any kind

**Back-offs.** A kubelet that refuses one pod after the other also gets every replacement that a
controller creates: the node is free, so kube-scheduler chooses it again. So after each refusal the
node takes no pod of that kind for some seconds. The pause is :data:`FIRST_PAUSE` after the first
refusal, twice as long after each further one, and at most :data:`LONGEST_PAUSE`, like client-go's
item back-off. Pods whose containers have the same requests are of one kind (:func:`kind_of`). When
the kubelet admits a pod of the kind, its back-off begins anew.

If two kinds were refused and no pod was admitted in between, the cause is the node and not the
pods. The node then has a back-off of its own, which keeps every kind away until a pod of any kind
is admitted.

Between two pauses one pod of a kind may try at a time. If many tried, all of them would be lost
when the kubelet refuses them.

Two times are kept of each refusal. ``at`` is on the cluster's clock and starts the pauses.
``started`` is what the kubelet wrote. It gives the order of the pods that an extender finds when it
starts.
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
# The number of refusals of one kind that are kept. This is more than it takes to reach the longest
# pause.
MOST_REFUSALS = 32
# The number of kinds whose refusals are kept. The kinds that were refused last stay.
MOST_KINDS = 64
# The kubelet writes times in whole seconds. So a refusal that seems to come up to this long before
# the end of a pause counts as after it.
WHOLE_SECONDS = 2.0
MOST_PROVEN = 32  # proven kinds that are kept for each node; one more clears the others
MOST_ADMITTED = 32  # admitted kinds that are kept for each node and resource


def kind_of(request: GpuRequest) -> GpuRequest:
    """Return the part of a request that a kubelet sees, without our constraints."""
    return replace(request, constraints=NO_CONSTRAINTS, policy=Policy.REQUIRED)


@dataclass(frozen=True, slots=True)
class Refused:
    """One refusal."""

    at: float  # in seconds of the cluster's clock
    started: float | None  # the pod's start time since 1970; None if its status had none
    reason: str  # the kubelet's reason
    kind: GpuRequest
    counts_for_node: bool = True  # whether no pod of another kind has been admitted since


@dataclass(frozen=True, slots=True)
class Backoff:
    """The refusals since the last admission, and the pause that the latest of them has begun."""

    refusals: tuple[Refused, ...]  # the oldest first
    of_one_kind: bool  # whether this is a kind's back-off; False for the node's own
    until: float  # the end of the latest pause on the cluster's clock
    paused: bool  # whether that pause still lasts

    @property
    def reason(self) -> str:
        """The kubelet's reason for the latest refusal."""
        return self.refusals[-1].reason

    def at(self, now: float) -> Backoff:
        """Return the back-off at a later time, when its pause may have ended."""
        return replace(self, paused=False) if self.paused and self.until <= now else self


@dataclass(frozen=True, slots=True)
class Backoffs:
    """The back-offs of one node over one resource; there is at least one.

    ``beside`` are the pods that were on the node at the latest refusal. If one of them is admitted,
    that says nothing about what the kubelet has done since.
    """

    of_kind: Mapping[GpuRequest, Backoff]
    of_node: Backoff | None  # None until a second kind is refused
    beside: frozenset[PodUid] = frozenset()  # on the node at the latest refusal, and not ended

    @property
    def pauses(self) -> tuple[float, ...]:
        """The ends of the pauses that last now."""
        every = (*self.of_kind.values(), self.of_node)
        return tuple(each.until for each in every if each is not None and each.paused)

    def at(self, now: float) -> Backoffs:
        """Return the back-offs at a later time, when pauses may have ended."""
        if all(until > now for until in self.pauses):
            return self
        return replace(
            self,
            of_kind={kind: backoff.at(now) for kind, backoff in self.of_kind.items()},
            of_node=self.of_node.at(now) if self.of_node is not None else None,
        )

    @property
    def key(self) -> Hashable:
        """Everything that :meth:`keeps_away` depends on."""
        of_node = None if self.of_node is None else (self.of_node.reason, self.of_node.paused)
        return of_node, frozenset((k, b.reason, b.paused) for k, b in self.of_kind.items())

    def keeps_away(self, kind: GpuRequest, trying: Collection[GpuRequest]) -> Backoff | None:
        """Return the back-off that keeps pods of a kind away now; None if one may try.

        ``trying`` are the kinds of the pods that the kubelet has not answered yet. They do not
        change which back-off is returned, so the reason stays the same in a pause and while a pod
        tries.
        """
        own = self.of_kind.get(kind) or self.of_node
        shut = any(each is not None and each.paused for each in (own, self.of_node))
        return own if shut or kind in trying else None


def with_refusal(
    backoffs: Backoffs | None, refused: Refused, beside: frozenset[PodUid], now: float
) -> Backoffs:
    """Return the back-offs after one more refusal.

    ``beside`` are the pods on the node that have not ended.
    """
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
    """Return the back-offs after a pod of a kind was admitted; None if none is left.

    None for ``kind`` says that an operator has cleared all refusals. ``started`` is the time of the
    admission or of the clearing by the kubelet's clock; infinity stands for the current time.
    """
    left: defaultdict[GpuRequest, list[Refused]] = defaultdict(list)
    for other, backoff in backoffs.of_kind.items():
        for refused in backoff.refusals:
            if started != inf and (refused.started is None or refused.started > started):
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
    """Return the refusals to keep: those that began a pause, then the latest of the others."""
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
    """Return the end of the latest pause; the first refusal begins the first pause."""
    return max((end for _, end in _pauses(refusals)), default=-inf)


def _pauses(refusals: Iterable[Refused]) -> Iterator[tuple[Refused, float]]:
    """Yield each refusal that begins a pause, and the end of that pause."""
    until, pause = -inf, FIRST_PAUSE
    for refused in refusals:
        # A pod that was bound before the pause began, and is refused in it, does not extend it.
        if refused.at >= until - WHOLE_SECONDS:
            until = refused.at + pause
            pause = min(2 * pause, LONGEST_PAUSE)
            yield refused, until


@dataclass(frozen=True, slots=True, eq=False)
class KubeletHistory:
    """The answers of one node's kubelet."""

    backoffs: Mapping[str, Backoffs] = field(default_factory=dict)  # by resource
    # By resource, the kinds of which a pod was admitted, with the latest start time by the
    # kubelet's clock; minus infinity if no status had a start time.
    admitted: Mapping[str, Mapping[GpuRequest, float]] = field(default_factory=dict)
    proven: frozenset[GpuRequest] = frozenset()
    # The pods that were on the node when it last changed. The kubelet may have admitted them before
    # the change, even if we hear of it later, so they prove nothing.
    beside: frozenset[PodUid] = frozenset()
    resumed: float = 0.0  # up to when an operator has cleared all refusals, in seconds since 1970

    def key(self, resource: str, trying: Collection[GpuRequest]) -> tuple[Hashable, ...]:
        """Return everything that :meth:`.Backoffs.keeps_away` depends on."""
        backoffs = self.backoffs.get(resource)
        return () if backoffs is None else (backoffs.key, frozenset(trying))

    def admitted_over(self, resource: str) -> Mapping[GpuRequest, float]:
        """Return the admitted kinds over a resource, each with its latest start time."""
        return self.admitted.get(resource, {})

    def surely_admits(self, request: GpuRequest, allocator: AllocatorConfig) -> bool:
        """Check whether the kubelet admits a pod with this request like the last one of its kind.

        This assumes that there are enough devices and that the model knows of no hazard. Two pods
        of a kind then differ for the kubelet only by the number of free devices. That is not so
        with a policy of the Topology Manager or a static manager, which look at which devices, CPUs
        and memory are left. Nor is it so with other device plugins, which look at their own
        devices.
        """
        kind = kind_of(request)
        cpus = kind.exclusive.cpus and allocator.cpu_manager_policy != "none"
        memory = kind.exclusive.memory and allocator.memory_manager_policy != "None"
        policy = allocator.topology_manager_policy != "none"
        return kind in self.proven and kind.only_gpu_plugin and not (policy or cpus or memory)

    def unproven(self, here: frozenset[PodUid]) -> KubeletHistory:
        """Return the history after a change of the node, with these pods on it."""
        return replace(self, proven=frozenset(), beside=here)

    def with_proven(self, uid: PodUid, kind: GpuRequest) -> KubeletHistory:
        """Return the history after a pod of a kind has been admitted."""
        if uid in self.beside or kind in self.proven:
            return self
        others = self.proven if len(self.proven) < MOST_PROVEN else frozenset()
        return replace(self, proven=others | {kind})

    def with_backoffs(self, resource: str, backoffs: Backoffs | None) -> KubeletHistory:
        """Return the history with these back-offs over a resource; None for none."""
        if backoffs == self.backoffs.get(resource):
            return self
        others = {name: theirs for name, theirs in self.backoffs.items() if name != resource}
        return replace(
            self, backoffs=others if backoffs is None else {**others, resource: backoffs}
        )

    def with_admitted(
        self, resource: str, kind: GpuRequest, started: float | None
    ) -> KubeletHistory:
        """Return the history with one more admitted kind, of too many without the oldest."""
        known = self.admitted_over(resource)
        at = max(known.get(kind, -inf), -inf if started is None else started)
        if known.get(kind) == at:
            return self
        kinds = {**known, kind: at}
        if len(kinds) > MOST_ADMITTED:
            del kinds[min(kinds, key=kinds.__getitem__)]
        return replace(self, admitted={**self.admitted, resource: kinds})
