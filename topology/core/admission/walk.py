"""What a kubelet may do with a pod: every way its containers can get their devices, or a refusal.

The kubelet hands out devices container by container, init containers first, and asks the device
plugin's allocator for its preference. Its own stages come before the plugin's, as read from
``devicemanager/manager.go`` and ``topologymanager`` of Kubernetes 1.36 and seen on a running one:

1. What an ordinary init container got is *reusable* by the pod's later containers, and is taken
   first. If it covers the container's count, an arbitrary part of it is taken and the plugin is not
   asked; otherwise all of it is, and the plugin is asked with it as required.
2. Under a Topology Manager policy the container has a *hint*, a set of NUMA nodes. If the free
   devices there are more than needed, the plugin is asked over them alone; otherwise all of them
   are taken and the plugin is asked over everything for the rest.
3. What is left of the reusable devices shows in no report and stays held until the pod ends.

The hint is merged from the hints of all providers. Ours is known; those of the CPU Manager, the
Memory Manager and other device plugins are not, so unless they are known to give none, every hint
that the merge could end with counts, and so does its refusal under ``restricted`` and
``single-numa-node``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from topology.core.allocators import Allocator, Call, allocator
from topology.core.allocators.best_effort import BEST_EFFORT, MAX_GPUS
from topology.core.allocators.outcomes import every_set
from topology.core.budget import ADMISSION_STEPS, SPENT, most_sets
from topology.core.devices import Mask
from topology.core.graph import UNKNOWN, AllocatorFacts, Shape, plugin_version
from topology.core.pools import Pool, choices, choices_count, common, gpus, only, total, width_for
from topology.core.remembering import remembered
from topology.core.requests import Counts, Role, device_count

AFFINITY = "topology-affinity"
"""The Topology Manager may refuse the pod (TopologyAffinityError)."""
TOO_FEW = "too-few-devices"
"""The kubelet may find too few healthy devices (UnexpectedAdmissionError)."""

TOO_MANY_NODES = "too-many-numa-nodes"
"""More NUMA nodes have GPUs than hints are followed for."""

UNKNOWN_FACTS = AllocatorFacts()

Hint = Mask | None
"""GPUs on the hinted NUMA nodes; None where there is no hint."""


@dataclass(frozen=True)
class Kubelet:
    """How one node hands out one resource: equal nodes are equal keys.

    ``replicas`` is how many devices the plugin advertises for one GPU.
    """

    shape: Shape
    facts: AllocatorFacts = UNKNOWN_FACTS
    replicas: int = 1
    width: int = field(init=False, compare=False, repr=False, default=1)
    """Bits per GPU in this node's pools."""
    aligns: bool = field(init=False, compare=False, repr=False, default=False)
    """Whether the Topology Manager has a say: it has a policy, and GPUs have NUMA nodes."""
    monotone: bool = field(init=False, compare=False, repr=False, default=False)
    """Whether a larger pool never loses an outcome, so that the largest speaks for all."""
    whole_best_effort: bool = field(init=False, compare=False, repr=False, default=False)
    """Whether NVIDIA's plugin picks whole GPUs, as modelled, and nobody else has a say."""
    _hash: int = field(init=False, compare=False, repr=False, default=0)

    def __post_init__(self) -> None:
        known = any(node is not None for node in self.shape.numa)
        aligns = known and self.facts.topology_manager_policy != "none"
        derived = {
            "width": width_for(self.replicas),
            "aligns": aligns,
            "monotone": self.allocator.monotone and not aligns,
            "whole_best_effort": self.allocator is BEST_EFFORT
            and not aligns
            and self.replicas == 1
            and self.shape.size <= MAX_GPUS,
            "_hash": hash((self.shape, self.facts, self.replicas)),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        return self._hash

    @property
    def may_refuse(self) -> bool:
        """Whether a container may be refused, by whomever, though there are devices enough."""
        strict = self.aligns and self.facts.topology_manager_policy != "best-effort"
        return strict or self.allocator is BEST_EFFORT

    @property
    def shared_bytes(self) -> int:
        """About how many bytes it takes with its shape; memories share it."""
        return 500 + self.shape.shared_bytes

    @property
    def allocator(self) -> Allocator:
        """The model of its device plugin."""
        return allocator(self.facts.policy)


class Admission(NamedTuple):
    """One way in which a pod may be admitted.

    ``shown`` are the devices of its app and sidecar containers, ``taken`` all that it holds: more
    than ``shown`` where an init container's devices stay unused. ``released`` marks, as bits, which
    of the pods that were ending released their devices between two of its containers.
    """

    shown: Pool
    taken: Pool
    released: int = 0


@dataclass(frozen=True)
class Admissions:
    """Everything that may come of admitting a pod.

    ``ways`` is None where they are too many to list: any devices may come. ``sets`` are the
    possible devices of the running pod, ascending. ``exact`` is false where some way may be
    impossible. ``hazards`` names possible refusals. ``steps`` is what the answer cost
    (:mod:`topology.core.budget`).
    """

    sets: tuple[Pool, ...] | None
    exact: bool = True
    hazards: tuple[str, ...] = ()
    steps: int = 1
    several: tuple[Admission, ...] | None = None
    """The ways of a pod that may hold more than it shows, or something released meanwhile."""

    @cached_property
    def ways(self) -> tuple[Admission, ...] | None:
        """Every way, ascending."""
        if self.several is not None or self.sets is None:
            return self.several
        return tuple(Admission(found, found) for found in self.sets)


class _Stage(NamedTuple):
    """The pod between two containers: what is free, what can be reused, what it shows so far."""

    free: Pool
    reusable: Pool = 0
    shown: Pool = 0
    released: int = 0


@remembered
def admissions(
    kubelet: Kubelet,
    free: Pool,
    counts: Counts,
    *,
    only_gpu_plugin: bool = True,
    releasing: tuple[Pool, ...] = (),
) -> Admissions:
    """Every way in which a pod with these containers may be admitted when ``free`` is free.

    ``counts`` are the containers in the kubelet's order, init containers first;
    ``only_gpu_plugin`` says that the pod asks for no other device plugin's resources, which could
    give hints of their own. Each of ``releasing`` may become free between two containers. An answer
    without ways and hazards cannot be: devices that do not suffice are a hazard too.
    """
    if kubelet.monotone:
        return _any_devices(kubelet, free + sum(releasing), counts)
    if kubelet.aligns and len(numa_nodes(kubelet.shape)) > MAX_NUMA_NODES:
        return Admissions(None, exact=False, hazards=(TOO_MANY_NODES,))
    if len(counts) == 1 and counts[0][0] is not Role.INIT and not kubelet.aligns:
        return _one_container(kubelet, free, counts[0][1])
    walk = _Walk(kubelet, only_gpu_plugin, releasing)
    stages: set[_Stage] = set()
    counts = _without_repeats(counts)
    for hint in walk.pins(free, counts):
        found = walk.through({_Stage(free)}, counts, hint)
        if found is None:
            if kubelet.may_refuse and (len(counts) > 1 or kubelet.aligns):
                walk.note(SPENT)  # what was not followed may be refused
            return Admissions(None, exact=False, hazards=walk.hazards, steps=walk.steps)
        stages |= found
    ways = {
        Admission(stage.shown, free + walk.pool_of(stage.released) - stage.free, stage.released)
        for stage in stages
    }
    sets = tuple(sorted({way.shown for way in ways}))
    return Admissions(sets, walk.exact, walk.hazards, walk.steps, tuple(sorted(ways)))


def _one_container(kubelet: Kubelet, free: Pool, count: int) -> Admissions:
    """What most pods ask: one container, and nobody but the plugin has a say."""
    if count > total(free, kubelet.width):
        return Admissions((), hazards=(TOO_FEW,))
    version = plugin_version(kubelet.facts.plugin_version)
    call = Call(kubelet.shape, free, count, 0, kubelet.width, version)
    found = kubelet.allocator.outcomes(call)
    if found.sets is None:
        return Admissions(None, exact=False, hazards=found.hazards, steps=_ASKED)
    steps = _ASKED + len(found.sets) // 16
    return Admissions(found.sets, found.exact, found.hazards, steps)


_ASKED = 20
"""Steps for a question to the allocator."""


def _without_repeats(counts: Counts) -> Counts:
    """The containers without init containers that change nothing.

    An init container that asks for no more than what those before it left for use again takes a
    part of that, and leaves it. The second of two equal ones in a row is kept, for the Topology
    Manager may see it otherwise than the first; a third it sees as the second.
    """
    return tuple(
        c for i, c in enumerate(counts) if c[0] is not Role.INIT or counts[i - 2 : i] != (c, c)
    )


@remembered
def container_sets(
    kubelet: Kubelet, free: Pool, counts: Counts, *, only_gpu_plugin: bool = True
) -> tuple[tuple[Pool, ...] | None, ...]:
    """For each container, every set that it may get; None where they are too many to list."""
    if kubelet.aligns and len(numa_nodes(kubelet.shape)) > MAX_NUMA_NODES:
        return (None,) * len(counts)
    found: list[tuple[Pool, ...] | None] = [()] * len(counts)
    walk = _Walk(kubelet, only_gpu_plugin)
    for hint in walk.pins(free, counts):
        stages: set[_Stage] | None = {_Stage(free)}
        for i, (role, count) in enumerate(counts):
            sets = None if stages is None else walk.given_in(stages, count, hint)
            stages = None if stages is None else walk.through(stages, ((role, count),), hint)
            old = found[i]
            found[i] = None if old is None or sets is None else tuple(sorted(sets.union(old)))
    return tuple(found)


_Pinned = tuple[Hint] | None
"""The pod's one hint under scope ``pod``; None where every container has its own."""


class _Walk:
    """Goes through a pod's containers, and notes on the way what makes the answer unsure."""

    def __init__(
        self, kubelet: Kubelet, only_gpu_plugin: bool, releasing: tuple[Pool, ...] = ()
    ) -> None:
        self._kubelet = kubelet
        self._only_gpu_plugin = only_gpu_plugin
        self._releasing = releasing
        self._width = kubelet.width
        self._hazards: set[str] = set()
        self._hinted: dict[tuple[Pool, Pool, int], list[Hint]] = {}
        self._most = most_sets(kubelet.shape.size, kubelet.width)
        self.exact = True
        self.steps = 0

    @property
    def spent(self) -> bool:
        """Whether the budget is spent; notes it as a hazard."""
        if self.steps <= ADMISSION_STEPS:
            return False
        self._hazards.add(SPENT)
        return True

    @property
    def hazards(self) -> tuple[str, ...]:
        return tuple(sorted(self._hazards))

    def note(self, hazard: str) -> None:
        """Remember a way in which the pod may be refused."""
        self._hazards.add(hazard)

    def pins(self, free: Pool, counts: Counts) -> list[_Pinned]:
        """The hints to go through the pod with, one after the other."""
        facts = self._kubelet.facts
        if (
            self._kubelet.aligns
            and facts.topology_manager_scope == "pod"
            and facts.topology_manager_policy != UNKNOWN  # each container may have any hint then
        ):
            return [(hint,) for hint in self._hints(free, 0, device_count(counts))]
        return [None]

    def pool_of(self, released: int) -> Pool:
        """The devices that came free on the way."""
        return sum(pool for i, pool in enumerate(self._releasing) if released >> i & 1)

    def through(self, stages: set[_Stage], counts: Counts, pinned: _Pinned) -> set[_Stage] | None:
        """The stages after all of ``counts``; None where there are too many."""
        for i, (role, count) in enumerate(counts):
            after: set[_Stage] = set()
            if i and self._too_many_releases(stages):
                return None
            for stage in self._with_releases(stages) if i else stages:
                if role is Role.INIT and count <= total(stage.reusable, self._width):
                    # It takes a part of what it leaves for use again, if it may have a hint.
                    self.steps += 1
                    if pinned or not self._kubelet.aligns or self._hints(*stage[:2], count):
                        after.add(stage)
                    continue
                sets = self.given(stage, count, pinned)
                if sets is None or self.spent:
                    return None
                self.steps += len(sets)
                after.update(self._next(stage, given, role) for given in sets)
            if len(after) > self._most:
                return None
            stages = after
        return stages

    def _too_many_releases(self, stages: set[_Stage]) -> bool:
        """Whether the ways in which pods may let go between two containers are over budget."""
        pods = len(self._releasing)
        self.steps += sum(1 << pods - stage.released.bit_count() for stage in stages) if pods else 0
        return self.spent

    def _with_releases(self, stages: set[_Stage]) -> set[_Stage]:
        """The stages once any of the ending pods have let go; each does so once."""
        for i, pool in enumerate(self._releasing):
            stages = stages | {
                stage._replace(free=stage.free + pool, released=stage.released | 1 << i)
                for stage in stages
                if not stage.released >> i & 1
            }
        return stages

    def _next(self, stage: _Stage, given: Pool, role: Role) -> _Stage:
        reused = common(given, stage.reusable, self._width)
        free = stage.free - (given - reused)
        if role is Role.INIT:
            reusable = stage.reusable + (given - reused)
            return stage._replace(free=free, reusable=reusable)
        left = stage.reusable - reused
        return _Stage(free, left, stage.shown + given, stage.released)

    def given_in(self, stages: set[_Stage], count: int, pinned: _Pinned) -> set[Pool] | None:
        """What one container may get in any of the stages; None where there is too much."""
        found: set[Pool] = set()
        for stage in stages:
            sets = self.given(stage, count, pinned)
            if sets is None:
                return None
            self.steps += len(sets)
            if self.spent:
                return None
            found |= sets
        return found

    def given(self, stage: _Stage, count: int, pinned: _Pinned) -> set[Pool] | None:
        """What one container may get, reused devices included."""
        width, reusable = self._width, stage.reusable
        self.steps += 1
        hints: list[Hint] = [None] if pinned is None else [pinned[0]]
        if self._kubelet.aligns and pinned is None:
            hints = self._hints(stage.free, reusable, count)
        missing = count - total(reusable, width)
        if missing > total(stage.free, width):
            self._hazards.add(TOO_FEW)
            return set()
        if missing <= 0:
            if choices_count(reusable, count, width, self._most) > self._most:
                return None
            return set(choices(reusable, count, width)) if hints else set()
        found: set[Pool] = set()
        for hint in hints:
            sets = self._ask(stage, count, hint)
            if sets is None:
                return None
            found.update(sets)
            self.steps += len(sets)
            if self.spent:
                return None
        return found

    def _ask(self, stage: _Stage, count: int, hint: Hint) -> tuple[Pool, ...] | None:
        """The plugin's answers under one hint."""
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
        facts = self._kubelet.facts
        self.steps += _ASKED
        call = Call(
            self._kubelet.shape,
            available + required,
            count,
            required,
            width,
            plugin_version(facts.plugin_version),
        )
        outcomes = self._kubelet.allocator.outcomes(call)
        self.exact &= outcomes.exact
        self._hazards.update(outcomes.hazards)
        return outcomes.sets

    def _hints(self, free: Pool, reusable: Pool, count: int) -> list[Hint]:
        """Every hint that the merge may end with; notes where it may refuse the container."""
        asked = (free, reusable, count)
        if asked not in self._hinted:
            self.steps += 1 << len(numa_nodes(self._kubelet.shape))
            self._hinted[asked] = self._merged(free, reusable, count)
        return self._hinted[asked]

    def _merged(self, free: Pool, reusable: Pool, count: int) -> list[Hint]:
        policy = self._kubelet.facts.topology_manager_policy
        if policy == UNKNOWN:
            self._hazards.add(AFFINITY)
            return self._any_hint()
        strict = policy in ("restricted", "single-numa-node")
        ours = _device_hints(self._kubelet, free, reusable, count)
        if strict:
            single = policy == "single-numa-node"
            ours = [h for h in ours if h.preferred and (h.nodes == 1 or not single)]
        if self._knows_all_hints():
            if strict and not ours:
                self._hazards.add(AFFINITY)
                return []
            if not ours:
                return [None]
            best = min(ours, key=lambda h: (not h.preferred, h.nodes, h.order))
            return [best.gpus]
        if strict:
            # All providers have to agree, so the hint is one of ours; or they do not.
            self._hazards.add(AFFINITY)
            return [h.gpus for h in ours]
        return self._any_hint()

    def _knows_all_hints(self) -> bool:
        facts = self._kubelet.facts
        silent = facts.cpu_manager_policy == "none" and facts.memory_manager_policy == "None"
        return silent and self._only_gpu_plugin

    def _any_hint(self) -> list[Hint]:
        """The merge can leave any NUMA nodes: every union of them, none included."""
        nodes = numa_nodes(self._kubelet.shape)
        found: list[Hint] = [None]
        for n in range(1, len(nodes) + 1):
            found += [sum(chosen) for chosen in combinations(nodes, n)]
        return found


MAX_NUMA_NODES = 8
"""The kubelet's own limit for the Topology Manager, unless it is raised."""


@dataclass(frozen=True, slots=True)
class _DeviceHint:
    """A NUMA affinity that the device manager offers; ``order`` breaks ties as the kubelet does."""

    gpus: Mask
    nodes: int
    order: int
    preferred: bool


def _device_hints(kubelet: Kubelet, free: Pool, reusable: Pool, count: int) -> list[_DeviceHint]:
    """The device manager's hints: NUMA nodes whose free devices suffice, the fewest preferred."""
    width = kubelet.width
    nodes = numa_nodes(kubelet.shape)
    here = [total(only(free, node, width), width) for node in nodes]
    reused, kept = gpus(reusable, width), total(reusable, width)
    found: list[tuple[Mask, int, int]] = []
    fewest = len(nodes)
    for n in range(1, len(nodes) + 1):
        for chosen in combinations(range(len(nodes)), n):
            mask = sum(nodes[i] for i in chosen)
            if mask.bit_count() * kubelet.replicas >= count:
                fewest = min(fewest, n)
            if not reused & ~mask and sum(here[i] for i in chosen) + kept >= count:
                found.append((mask, n, sum(1 << i for i in chosen)))
    return [_DeviceHint(mask, n, order, n == fewest) for mask, n, order in found]


@remembered
def numa_nodes(shape: Shape) -> tuple[Mask, ...]:
    """The GPUs of each NUMA node that has some, by ascending node."""
    nodes = sorted({n for n in shape.numa if n is not None})
    return tuple(sum(1 << p for p, at in enumerate(shape.numa) if at == n) for n in nodes)


def _any_devices(kubelet: Kubelet, free: Pool, counts: Counts) -> Admissions:
    """Under ``any`` the stages change nothing: whatever is shown and held may be any devices."""
    width = kubelet.width
    most = most_sets(kubelet.shape.size, width)
    shown = sum(n for role, n in counts if role is not Role.INIT)
    held = device_count(counts)
    if held > total(free, width):
        return Admissions((), hazards=(TOO_FEW,))
    if choices_count(free, shown, width, most) > most:
        return Admissions(None)
    sets = every_set(0, free, shown, width)
    steps = _ASKED + len(sets) // 16
    if held == shown:
        return Admissions(sets, steps=steps)
    more = held - shown
    if len(sets) * choices_count(free, more, width, most) > most:
        return Admissions(None)
    ways = [Admission(s, s + m) for s in sets for m in choices(free - s, more, width)]
    return Admissions(sets, steps=steps + len(ways), several=tuple(sorted(ways)))
