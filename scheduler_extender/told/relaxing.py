"""What a pod could ask for instead: one constraint less strict each time, least change first."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from scheduler_extender.annotations import PREFIX, render
from scheduler_extender.quantities import LEAST_MEMORY
from topology.core.devices import Bytes
from topology.core.graph import NodeTopology
from topology.core.links import GBps, LinkKind
from topology.core.requests import Constraints, GpuRequest, Pattern, Policy, Role

LEVELS = (LinkKind.NVLINK, LinkKind.PIX, LinkKind.PXB, LinkKind.PHB, LinkKind.NODE)
"""What ``link`` and ``nic`` may say, the nearest first."""
MOST_VALUES = 8
"""Values of one key that are tried; fewer GPUs and less memory are values, too."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A request with one constraint less strict.

    ``key`` is the annotation without its prefix, ``value`` what it would say then: None where it
    would be left out. For fewer devices the key is "count". ``words`` says the change.
    """

    key: str
    value: str | None
    words: str
    request: GpuRequest


def relaxations(request: GpuRequest, nodes: Iterable[NodeTopology]) -> Iterator[Iterator[Relaxed]]:
    """For each key that the pod uses its looser values, the least change first. ``nodes`` say
    which memories and link counts there are."""
    wanted = request.constraints
    there = list({node.shape: node for node in nodes}.values())
    nvlinks = {link.nvlinks for node in there for link in node.shape.distinct_links} - {0}
    memories = {
        Bytes(memory // shares)
        for node in there
        for shares in {1, *(served.replicas for served in node.resources)}
        for memory in node.shape.memory
        if memory >= shares
    }
    tried: dict[str, Iterator[Constraints]] = {
        "link": _less(wanted, "link", LEVELS, None),
        "min-nvlinks": _less(wanted, "min_nvlinks", sorted(nvlinks, reverse=True), None),
        "shape": _patterns(wanted),
        "min-bandwidth": _bandwidths(wanted),
        "min-gpu-memory": _less(wanted, "min_gpu_memory", sorted(memories, reverse=True), None),
        "gpu-model": _less(wanted, "models", (), ()),
        "same-numa": _less(wanted, "same_numa", (), False),
        "nic": _less(wanted, "nic", LEVELS, None),
        "same-gpu": _less(wanted, "same_gpu", (), False),
        "spread-gpus": _less(wanted, "spread_gpus", (), False),
        "gpu-memory": _shared_memories(wanted),
        "sharing": _less(wanted, "exclusive_gpus", (), False),
    }
    for key, values in tried.items():
        yield (_relaxed(request, key, found) for found in islice(values, MOST_VALUES))
    yield islice(_counts(request), MOST_VALUES)
    if request.required:
        words = "with policy=preferred, without a promise"
        preferred = replace(request, policy=Policy.PREFERRED)
        yield iter([Relaxed("policy", "preferred", words, preferred)])


def _relaxed(request: GpuRequest, key: str, constraints: Constraints) -> Relaxed:
    found = replace(request, constraints=constraints)
    before, after = (render(r).get(PREFIX + key) for r in (request, found))
    if key == "shape" and after is None:
        after = constraints.pattern.value
    if after is None:
        words = f"without {key}={before}"
    else:
        words = f"with {key}={after} in place of {before or Pattern.PAIRWISE.value}"
    return Relaxed(key, after, words, found)


def _less(
    wanted: Constraints, field: str, values: Iterable[Any], nothing: Any
) -> Iterator[Constraints]:
    """A field with each of these values that asks for less, and at last with ``nothing``; none
    if the pod does not use it."""
    used = getattr(wanted, field)
    if used == nothing:
        return
    for value in values:
        if value < used:
            yield replace(wanted, **{field: value})
    yield replace(wanted, **{field: nothing})


def _patterns(wanted: Constraints) -> Iterator[Constraints]:
    if wanted.link is None and wanted.min_nvlinks is None:
        return
    order = (Pattern.PAIRWISE, Pattern.RING, Pattern.CONNECTED)
    for pattern in order[order.index(wanted.pattern) + 1 :]:
        yield replace(wanted, pattern=pattern)


def _bandwidths(wanted: Constraints) -> Iterator[Constraints]:
    if wanted.min_bandwidth is not None:
        for part in (0.75, 0.5, 0.25):
            yield replace(wanted, min_bandwidth=GBps(wanted.min_bandwidth * part))
        yield replace(wanted, min_bandwidth=None)


def _shared_memories(wanted: Constraints) -> Iterator[Constraints]:
    if wanted.gpu_memory is not None:
        for eighths in (7, 6, 5, 4, 2):
            some = wanted.gpu_memory * eighths // 8 >> 20 << 20  # whole MiB
            if some >= LEAST_MEMORY:
                yield replace(wanted, gpu_memory=Bytes(some))


def _counts(request: GpuRequest) -> Iterator[Relaxed]:
    """Fewer devices, if one container asks for all of them."""
    if len(request.containers) != 1 or request.containers[0].role is not Role.APP:
        return
    if request.exclusive.demands:
        return  # what its CPUs would be then is not ours to say
    (container,) = request.containers
    for count in _fewer(container.count):
        fewer = replace(request, containers=(replace(container, count=count),))
        words = f"with {fewer.count} {fewer.unit}{'s' if count > 1 else ''}"
        yield Relaxed("count", str(count), f"{words} in place of {request.count}", fewer)


def _fewer(count: int) -> Iterator[int]:
    """One less at a time for few devices, else half each time.

    >>> list(_fewer(4)), list(_fewer(64))
    ([3, 2, 1], [32, 16, 8, 7, 6, 5, 4, 3, 2, 1])
    """
    while count > 1:
        count = count - 1 if count <= 8 else count // 2
        yield count
