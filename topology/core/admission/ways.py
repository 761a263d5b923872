"""The answers: every way in which a pod may be admitted, and what each of its containers may get.

:func:`admissions` takes the shortest of three roads. Under a monotone allocator (``any``) whatever
is shown and held may be any devices. One container on a node without a Topology Manager is one
question to the allocator. Everything else is walked through container by container
(:mod:`topology.core.admission.walk`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from topology.core.admission.kubelet import Kubelet
from topology.core.admission.others import SILENT, Others
from topology.core.admission.topologymanager import TOO_MANY_NODES, too_many_nodes
from topology.core.admission.walk import TOO_FEW, Asked, Stage, Walk, asked_by
from topology.core.allocators import every_set
from topology.core.budget import ASKED_STEPS, MAX_SETS_OF_MIG, SPENT, most_sets
from topology.core.pools import Pool, choices, choices_count, marked, total
from topology.core.remembering import remembered
from topology.core.requests import Counts, Role, device_count

SEVERAL = "more-than-one-share"
"""The plugin may refuse a container more than one shared device (UnexpectedAdmissionError)."""


class Admission(NamedTuple):
    """One way in which a pod may be admitted."""

    shown: Pool  # the devices of its app and sidecar containers
    taken: Pool  # all that it holds: more where an init container's devices stay unused
    released: int = 0  # bit *n*: the pod in place *n* of `releasing` released its own meanwhile


@dataclass(frozen=True)
class Admissions:
    """Everything that may come of admitting a pod."""

    sets: tuple[Pool, ...] | None  # of the running pod, ascending; None: too many, any may come
    exact: bool = True  # false where some way may be impossible
    hazards: tuple[str, ...] = ()  # refusals that may come
    steps: int = 1  # what the answer cost (see budget)
    # The ways of a pod that may hold more than it shows, or something released meanwhile.
    several: tuple[Admission, ...] | None = None

    @cached_property
    def ways(self) -> tuple[Admission, ...] | None:
        """Every way, ascending; None where they are too many to list."""
        if self.several is not None or self.sets is None:
            return self.several
        return tuple(Admission(shown, shown) for shown in self.sets)


@remembered
def admissions(
    kubelet: Kubelet,
    free: Pool,
    counts: Counts,
    others: Others = SILENT,
    releasing: tuple[Pool, ...] = (),
) -> Admissions:
    """Every way in which a pod with these containers may be admitted when ``free`` is free.

    ``counts`` are the containers in the kubelet's order, init containers first; ``others`` is what
    the kubelet's other managers say to the pod. Each of ``releasing`` may become free between two
    containers. An answer without ways and hazards cannot be: devices that do not suffice are a
    hazard too.
    """
    several = kubelet.refuses_several is not False and any(n > 1 for _, n in counts)
    if several and kubelet.refuses_several:
        return Admissions((), hazards=(SEVERAL,))
    if others.refused:
        return Admissions((), hazards=others.hazards)
    found = _admissions(kubelet, free, counts, others, releasing)
    more = (SEVERAL,) * several + others.hazards
    return replace(found, hazards=tuple(sorted({*found.hazards, *more}))) if more else found


def _admissions(
    kubelet: Kubelet,
    free: Pool,
    counts: Counts,
    others: Others,
    releasing: tuple[Pool, ...],
) -> Admissions:
    """The same, whatever the plugin says to a container's count and the managers to the pod."""
    if kubelet.monotone:
        widest = free + sum(releasing)
        anything, plugin = _any_devices(kubelet, widest, counts), kubelet.allocator
        if not plugin.hazards:
            return anything
        refusals = {h for _, n in counts for h in plugin.refusals(kubelet.shape, widest, n)}
        return replace(anything, hazards=tuple(sorted({*anything.hazards, *refusals})))
    if kubelet.aligns and too_many_nodes(kubelet.shape):
        return Admissions(None, exact=False, hazards=(TOO_MANY_NODES,))
    if len(counts) == 1 and counts[0][0] is not Role.INIT and not kubelet.aligns:
        return _one_container(kubelet, free, counts[0][1])
    walk = Walk(kubelet, others, releasing)
    return _walked(walk, kubelet, free, asked_by(counts, others), releasing)


def _any_devices(kubelet: Kubelet, free: Pool, counts: Counts) -> Admissions:
    """Under ``any`` the stages change nothing: whatever is shown and held may be any devices."""
    width = kubelet.width
    most = MAX_SETS_OF_MIG if kubelet.shape.of_mig else most_sets(kubelet.shape.size, width)
    shown = sum(n for role, n in counts if role is not Role.INIT)
    held = device_count(counts)
    if held > total(free, width):
        return Admissions((), hazards=(TOO_FEW,))
    if choices_count(free, shown, width, most) > most:
        return Admissions(None)
    sets = every_set(0, free, shown, width)
    steps = ASKED_STEPS + len(sets) // 16
    if held == shown:
        return Admissions(sets, steps=steps)
    more = held - shown
    if len(sets) * choices_count(free, more, width, most) > most:
        return Admissions(None)
    ways = [Admission(s, s + m) for s in sets for m in choices(free - s, more, width)]
    return Admissions(sets, steps=steps + len(ways), several=tuple(sorted(ways)))


def _one_container(kubelet: Kubelet, free: Pool, count: int) -> Admissions:
    """What most pods ask: one container, and nobody but the plugin has a say."""
    if count > total(free, kubelet.width):
        return Admissions((), hazards=(TOO_FEW,))
    outcomes = kubelet.outcomes(free, count)
    if outcomes.sets is None:
        return Admissions(None, exact=False, hazards=outcomes.hazards, steps=ASKED_STEPS)
    steps = ASKED_STEPS + len(outcomes.sets) // 16
    return Admissions(outcomes.sets, outcomes.exact, outcomes.hazards, steps)


def _walked(
    walk: Walk,
    kubelet: Kubelet,
    free: Pool,
    containers: tuple[Asked, ...],
    releasing: tuple[Pool, ...],
) -> Admissions:
    """Container by container, once for each hint that the whole pod may have."""
    stages: set[Stage] = set()
    containers = _without_repeats(containers)
    counts = tuple((c.role, c.devices) for c in containers)
    for hint in walk.pod_hints(free, counts):
        found = walk.through({Stage(free)}, containers, hint)
        if found is None:
            if kubelet.may_refuse and (len(containers) > 1 or kubelet.aligns):
                walk.note(SPENT)  # what was not followed may be refused
            if device_count(counts) > total(free, kubelet.width):
                walk.note(TOO_FEW)
            return Admissions(None, exact=False, hazards=walk.hazards, steps=walk.steps)
        stages |= found
    ways = {
        Admission(
            stage.shown, free + marked(releasing, stage.released) - stage.free, stage.released
        )
        for stage in stages
    }
    sets = tuple(sorted({way.shown for way in ways}))
    return Admissions(sets, walk.exact, walk.hazards, walk.steps, tuple(sorted(ways)))


def _without_repeats(containers: tuple[Asked, ...]) -> tuple[Asked, ...]:
    """The containers without init containers that change nothing.

    An init container that asks for no more than what those before it left for use again takes a
    part of that, and leaves it. The second of two equal ones in a row is kept, for the Topology
    Manager may see it otherwise than the first; a third it sees as the second.
    """
    return tuple(
        c
        for i, c in enumerate(containers)
        if c.role is not Role.INIT or containers[i - 2 : i] != (c, c)
    )


@remembered
def container_sets(
    kubelet: Kubelet,
    free: Pool,
    counts: Counts,
    others: Others = SILENT,
) -> tuple[tuple[Pool, ...] | None, ...]:
    """For each container, every set that it may get; None where they are too many to list."""
    if kubelet.aligns and too_many_nodes(kubelet.shape):
        return (None,) * len(counts)
    found: list[tuple[Pool, ...] | None] = [()] * len(counts)
    if others.refused:
        return ((),) * len(counts)
    walk = Walk(kubelet, others)
    containers = asked_by(counts, others)
    for hint in walk.pod_hints(free, counts):
        stages: set[Stage] | None = {Stage(free)}
        for i, asked in enumerate(containers):
            sets = None if stages is None else walk.given_in(stages, asked, hint)
            stages = None if stages is None else walk.through(stages, (asked,), hint)
            old = found[i]
            found[i] = None if old is None or sets is None else tuple(sorted(sets.union(old)))
    return tuple(found)
