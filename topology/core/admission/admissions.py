"""Every way in which a kubelet may admit a pod, and the devices that each container may get.

:func:`admissions` takes the shortest of three paths. Under a monotone allocator (``any``) a pod may
show and hold any devices. One container on a node without a Topology Manager needs one call of the
allocator. For every other pod the search goes through the containers, one after the other.

A :class:`Stage` is the state of the pod between two containers. The search begins with one stage
and processes the containers in order::

    {stage}  ──1. releases──▶  {stages}  ──2. container──▶  {stages}  ──…──▶  {last stages}

1. *Releases.* Between two containers the kubelet looks for pods that have ended. Each pod in
   ``releasing`` may have released its devices by then or not, and it does so once. So each of these
   pods turns one stage into up to two (:meth:`Allocations._with_releases`). Where there are hints,
   the kubelet also looks between computing a hint and allocating under it.
2. *Container.* In each stage the container gets devices:

   a. If the reusable devices cover an init container, the stage does not change: the container
      takes a part of them and leaves them for use again.
   b. Otherwise it may get one of several sets (:meth:`Allocations.given`). If the reusable devices
      cover the container, it gets a choice of them. If not, it gets all of them and, for each hint,
      the devices that the plugin may answer (:meth:`Allocations._asked`).
   c. Each set makes one next stage (:meth:`Allocations._next`). The devices of an init container
      become reusable, those of other containers are shown.

The search gives up and returns None if the stages or sets are too many to list, or if its budget of
steps is spent. It records the refusals that it meets on the way as hazards.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from topology.core.admission.devicemanager import DeviceManager
from topology.core.admission.hintproviders import (
    AFFINITY,
    MANAGERS,
    NO_ANSWERS,
    KnownHints,
    ProviderAnswers,
)
from topology.core.admission.topologyhints import NO_HINTS
from topology.core.admission.topologymanager import (
    TOO_MANY_NODES,
    Aligned,
    hints_whole_pods,
    merged_hints,
    too_many_nodes,
)
from topology.core.allocators import every_set
from topology.core.budget import ADMISSION_STEPS, ASKED_STEPS, MAX_SETS_OF_MIG, SPENT, most_sets
from topology.core.devicesets import DeviceSet, choices, choices_count, common, marked, only, total
from topology.core.memo import memoized
from topology.core.requests import Counts, Role, device_count
from topology.core.shape import hinted_nodes

# The kubelet may find too few healthy devices (UnexpectedAdmissionError).
TOO_FEW = "too-few-devices"


class Stage(NamedTuple):
    """The state of a pod's admission between two containers."""

    free: DeviceSet  # the devices that no pod holds
    reusable: DeviceSet = 0  # the devices that ordinary init containers left
    shown: DeviceSet = 0  # the devices of app and sidecar containers so far
    released: int = 0  # bit *n*: pod number *n* of `releasing` has released its devices


# The pod's only hint under scope ``pod``; None if each container has its own hint.
PodHint = tuple[Aligned] | None


class Asked(NamedTuple):
    """The request of one container."""

    role: Role
    devices: int
    answers: KnownHints = NO_HINTS  # the hints of providers other than the device manager


def asked_by(counts: Counts, answers: ProviderAnswers = NO_ANSWERS) -> tuple[Asked, ...]:
    """Return the request of each container of a pod, in the kubelet's order."""
    return tuple(Asked(role, n, answers.of(i)) for i, (role, n) in enumerate(counts))


class Allocations:
    """The search through a pod's containers. It also records why its result may be inexact."""

    def __init__(
        self,
        kubelet: DeviceManager,
        answers: ProviderAnswers = NO_ANSWERS,
        releasing: tuple[DeviceSet, ...] = (),
    ) -> None:
        self._kubelet = kubelet
        self._answers = answers
        self._releasing = releasing
        self._width = kubelet.width
        self.hazards: set[str] = set()  # the refusals met so far
        self._hinted: dict[tuple[DeviceSet, DeviceSet, int, KnownHints], tuple[Aligned, ...]] = {}
        self._most = most_sets(kubelet.shape.size, kubelet.width)
        self.exact = True  # false once some set in the result may be impossible
        self.steps = 0  # the cost so far

    @property
    def spent(self) -> bool:
        """Whether the budget is spent. If so, the property also records the hazard."""
        if self.steps <= ADMISSION_STEPS:
            return False
        self.hazards.add(SPENT)
        return True

    def pod_hints(self, free: DeviceSet, counts: Counts) -> list[PodHint]:
        """Return the hints under which the whole pod is searched, once for each of them."""
        if hints_whole_pods(self._kubelet):
            return [
                (hint,) for hint in self._hints(free, 0, device_count(counts), self._answers.pod)
            ]
        return [None]

    def through(
        self, stages: set[Stage], containers: tuple[Asked, ...], pod_hint: PodHint
    ) -> set[Stage] | None:
        """Return the stages after all of ``containers``; None if there are too many."""
        for i, asked in enumerate(containers):
            if i or pod_hint is not None:  # pods may also end after a pod's hint was merged
                if self._too_many_releases(stages):
                    return None
                stages = self._with_releases(stages)
            after = self._after_container(stages, asked, pod_hint)
            if after is None or len(after) > self._most:
                return None
            stages = after
        return stages

    def given_in(
        self, stages: set[Stage], asked: Asked, pod_hint: PodHint
    ) -> set[DeviceSet] | None:
        """Return the sets that one container may get in any of the stages.

        None if they are too many, or the budget is spent.
        """
        pairs = self._given_by_stage(stages, asked, pod_hint)
        return None if pairs is None or self.spent else {given for _, given in pairs}

    def given(self, stage: Stage, count: int, hints: tuple[Aligned, ...]) -> set[DeviceSet] | None:
        """Return the sets that one container may get in one stage under these hints.

        The sets include reused devices. None if they are too many, or the budget is spent.
        """
        width, reusable = self._width, stage.reusable
        self.steps += 1
        if not hints:
            return set()
        missing = count - total(reusable, width)
        if missing > total(stage.free, width):
            self.hazards.add(TOO_FEW)
            return set()
        if missing <= 0:
            if choices_count(reusable, count, width, self._most) > self._most:
                return None
            return set(choices(reusable, count, width))
        given: set[DeviceSet] = set()
        for hint in hints:
            sets = self._asked(stage, count, hint)
            if sets is None:
                return None
            given.update(sets)
            self.steps += len(sets)
            if self.spent:
                return None
        return given

    # 1. Releases.

    def _too_many_releases(self, stages: set[Stage]) -> bool:
        """Check whether the budget is spent by the ways in which pods may release between
        containers."""
        pods = len(self._releasing)
        self.steps += sum(1 << pods - stage.released.bit_count() for stage in stages) if pods else 0
        return self.spent

    def _with_releases(self, stages: set[Stage]) -> set[Stage]:
        """Return the stages after any of the pods in ``releasing`` have released their devices.

        Each pod does so once.
        """
        for i, pool in enumerate(self._releasing):
            stages = stages | {
                stage._replace(free=stage.free + pool, released=stage.released | 1 << i)
                for stage in stages
                if not stage.released >> i & 1
            }
        return stages

    def _after_hint(self, stage: Stage, pod_hint: PodHint) -> set[Stage] | None:
        """Return the stages in which a container may get its devices after its hint was merged.

        The hint was merged in ``stage``. None if the stages are over budget.
        """
        if not self._kubelet.aligns or pod_hint is not None or not self._releasing:
            return {stage}
        return None if self._too_many_releases({stage}) else self._with_releases({stage})

    # 2. One container.

    def _after_container(
        self, stages: set[Stage], asked: Asked, pod_hint: PodHint
    ) -> set[Stage] | None:
        """Return the stages after one more container.

        None if there are too many, or the budget is spent.
        """
        unchanged: set[Stage] = set()
        if asked.role is Role.INIT:  # it leaves all that it takes for use again
            width, count = self._width, asked.devices
            unchanged = {stage for stage in stages if count <= total(stage.reusable, width)}
        self.steps += len(unchanged)
        pairs = self._given_by_stage(stages - unchanged, asked, pod_hint)
        if pairs is None:
            return None
        after = {stage for stage in unchanged if self._hints_for(stage, asked, pod_hint)}
        after.update(self._next(stage, given, asked.role) for stage, given in pairs)
        return after

    def _given_by_stage(
        self, stages: set[Stage], asked: Asked, pod_hint: PodHint
    ) -> list[tuple[Stage, DeviceSet]] | None:
        """Return each set that a container may get, with its stage; None if there are too many."""
        pairs: list[tuple[Stage, DeviceSet]] = []
        for stage in stages:
            hints = self._hints_for(stage, asked, pod_hint)
            laters = self._after_hint(stage, pod_hint)
            if laters is None:
                return None
            for later in laters:
                sets = self.given(later, asked.devices, hints)
                if sets is None or self.spent:
                    return None
                self.steps += len(sets)
                pairs += [(later, given) for given in sets]
        return pairs

    def _next(self, stage: Stage, given: DeviceSet, role: Role) -> Stage:
        """Return the stage after a container has got these devices."""
        reused = common(given, stage.reusable, self._width)
        free = stage.free - (given - reused)
        if role is Role.INIT:
            return stage._replace(free=free, reusable=stage.reusable + given - reused)
        return Stage(free, stage.reusable - reused, stage.shown + given, stage.released)

    def _asked(self, stage: Stage, count: int, hint: Aligned) -> tuple[DeviceSet, ...] | None:
        """Return the sets that a container may get under one hint; None if they are too many to
        list."""
        width, required = self._width, stage.reusable
        available = stage.free
        if hint is not None:
            aligned = only(stage.free, hint, width)
            missing = count - total(required, width)
            inside = total(aligned, width)
            if missing < inside:
                available = aligned
            elif missing == inside:
                return (required + aligned,)
            else:
                required += aligned
                available = stage.free - aligned
        self.steps += ASKED_STEPS
        outcomes = self._kubelet.outcomes(available + required, count, required)
        self.exact &= outcomes.exact
        self.hazards.update(outcomes.hazards)
        return outcomes.sets

    # The hints of step 2b.

    def _hints_for(self, stage: Stage, asked: Asked, pod_hint: PodHint) -> tuple[Aligned, ...]:
        """Return the hints that the container may have; none if it is surely refused."""
        if pod_hint is not None:
            return pod_hint
        if not self._kubelet.aligns:
            return (None,)
        return self._hints(stage.free, stage.reusable, asked.devices, asked.answers)

    def _hints(
        self, free: DeviceSet, reusable: DeviceSet, count: int, answers: KnownHints
    ) -> tuple[Aligned, ...]:
        """Return every hint that the merge may result in, and record the refusals that may come of
        it."""
        asked = (free, reusable, count, answers)
        if asked not in self._hinted:
            self.steps += 1 << len(hinted_nodes(self._kubelet.shape))
            merged = merged_hints(self._kubelet, free, reusable, count, answers)
            if merged.may_refuse:
                self.hazards.add(AFFINITY)
            if merged.short_of_memory:
                self.hazards.add(MANAGERS)
            self._hinted[asked] = merged.hints
        return self._hinted[asked]


# The plugin may refuse a container more than one shared device (UnexpectedAdmissionError).
SEVERAL = "more-than-one-share"


class Admission(NamedTuple):
    """One way in which a pod may be admitted."""

    shown: DeviceSet  # the devices of its app and sidecar containers
    taken: DeviceSet  # all devices that it holds, also those of init containers that stay unused
    released: int = 0  # bit *n*: pod number *n* of `releasing` released its devices meanwhile


@dataclass(frozen=True)
class Admissions:
    """All possible results of admitting a pod."""

    # The devices of the running pod, ascending. None: too many sets to list, any may come.
    sets: tuple[DeviceSet, ...] | None
    exact: bool = True  # false if some way may be impossible
    hazards: tuple[str, ...] = ()  # refusals that may come
    steps: int = 1  # the cost of the answer (see budget)
    # The ways, if the pod may hold more devices than it shows, or if other pods may release
    # devices meanwhile.
    several: tuple[Admission, ...] | None = None

    @cached_property
    def ways(self) -> tuple[Admission, ...] | None:
        """Every way, ascending; None if they are too many to list."""
        if self.several is not None or self.sets is None:
            return self.several
        return tuple(Admission(shown, shown) for shown in self.sets)


@memoized
def admissions(
    kubelet: DeviceManager,
    free: DeviceSet,
    counts: Counts,
    answers: ProviderAnswers = NO_ANSWERS,
    releasing: tuple[DeviceSet, ...] = (),
) -> Admissions:
    """Return every way in which a pod with these containers may be admitted when ``free`` is free.

    ``counts`` are the containers in the kubelet's order, init containers first. ``answers`` are the
    answers of the kubelet's other managers to the pod. Each pod in ``releasing`` may release its
    devices between two containers. The result has ways or hazards; too few devices are also a
    hazard.
    """
    several = kubelet.refuses_several is not False and any(n > 1 for _, n in counts)
    if several and kubelet.refuses_several:
        return Admissions((), hazards=(SEVERAL,))
    if answers.refused:
        return Admissions((), hazards=answers.hazards)
    admitted = _admissions(kubelet, free, counts, answers, releasing)
    more = (SEVERAL,) * several + answers.hazards
    return (
        replace(admitted, hazards=tuple(sorted({*admitted.hazards, *more}))) if more else admitted
    )


def _admissions(
    kubelet: DeviceManager,
    free: DeviceSet,
    counts: Counts,
    answers: ProviderAnswers,
    releasing: tuple[DeviceSet, ...],
) -> Admissions:
    """Return the admissions without the plugin's rule on shares and the managers' refusals."""
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
    return _walked(kubelet, free, counts, answers, releasing)


def _any_devices(kubelet: DeviceManager, free: DeviceSet, counts: Counts) -> Admissions:
    """Return the admissions under ``any``, where a pod may show and hold any devices.

    The stages make no difference then.
    """
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


def _one_container(kubelet: DeviceManager, free: DeviceSet, count: int) -> Admissions:
    """Return the admissions in the common case: one container, and only the plugin decides."""
    if count > total(free, kubelet.width):
        return Admissions((), hazards=(TOO_FEW,))
    outcomes = kubelet.outcomes(free, count)
    if outcomes.sets is None:
        return Admissions(None, exact=False, hazards=outcomes.hazards, steps=ASKED_STEPS)
    steps = ASKED_STEPS + len(outcomes.sets) // 16
    return Admissions(outcomes.sets, outcomes.exact, outcomes.hazards, steps)


def _walked(
    kubelet: DeviceManager,
    free: DeviceSet,
    counts: Counts,
    answers: ProviderAnswers,
    releasing: tuple[DeviceSet, ...],
) -> Admissions:
    """Return the admissions, searched container by container, once for each hint of the pod."""
    stages: set[Stage] = set()
    allocations, asked = Allocations(kubelet, answers, releasing), asked_by(counts, answers)
    # If an init container asks for no more devices than earlier ones left for use again, it takes a
    # part of these devices and leaves them. Of equal init containers in a row the second is also
    # kept, because the Topology Manager may treat it differently from the first. It treats a third
    # like the second.
    containers = tuple(
        c for i, c in enumerate(asked) if c.role is not Role.INIT or asked[i - 2 : i] != (c, c)
    )
    counts = tuple((c.role, c.devices) for c in containers)
    for hint in allocations.pod_hints(free, counts):
        last = allocations.through({Stage(free)}, containers, hint)
        if last is None:
            if kubelet.may_refuse and (len(containers) > 1 or kubelet.aligns):
                allocations.hazards.add(SPENT)  # the ways that were not followed may end in refusal
            if device_count(counts) > total(free, kubelet.width):
                allocations.hazards.add(TOO_FEW)
            return Admissions(
                None,
                exact=False,
                hazards=tuple(sorted(allocations.hazards)),
                steps=allocations.steps,
            )
        stages |= last
    ways = {
        Admission(
            stage.shown, free + marked(releasing, stage.released) - stage.free, stage.released
        )
        for stage in stages
    }
    sets = tuple(sorted({way.shown for way in ways}))
    return Admissions(
        sets,
        allocations.exact,
        tuple(sorted(allocations.hazards)),
        allocations.steps,
        tuple(sorted(ways)),
    )


@memoized
def container_sets(
    kubelet: DeviceManager,
    free: DeviceSet,
    counts: Counts,
    answers: ProviderAnswers = NO_ANSWERS,
) -> tuple[tuple[DeviceSet, ...] | None, ...]:
    """Return, for each container, every set that it may get; None if they are too many to list."""
    if kubelet.aligns and too_many_nodes(kubelet.shape):
        return (None,) * len(counts)
    known: list[tuple[DeviceSet, ...] | None] = [()] * len(counts)
    if answers.refused:
        return ((),) * len(counts)
    allocations = Allocations(kubelet, answers)
    containers = asked_by(counts, answers)
    for hint in allocations.pod_hints(free, counts):
        stages: set[Stage] | None = {Stage(free)}
        for i, asked in enumerate(containers):
            sets = None if stages is None else allocations.given_in(stages, asked, hint)
            stages = None if stages is None else allocations.through(stages, (asked,), hint)
            old = known[i]
            known[i] = None if old is None or sets is None else tuple(sorted(sets.union(old)))
    return tuple(known)
