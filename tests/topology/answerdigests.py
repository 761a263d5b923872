"""Digests of the answers about every machine of the catalogue: no budget may change one.

``python -m tests.topology.answerdigests FILE`` writes them again. The committed table comes from
the code before evaluations had budgets, which listed and tried every set. Write it again only if
you intend to change answers, and say so in the changelog.
"""

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from topology.core.admission import DeviceManager
from topology.core.availability import Availability, Holder, Unacknowledged
from topology.core.devicesets import count, pack, width_for
from topology.core.graph import AllocatorConfig
from topology.core.guaranteedcapacity import RequestClass
from topology.core.links import GBps, LinkKind
from topology.core.placement import assess
from topology.core.requests import (
    Constraints,
    ContainerRequest,
    GpuRequest,
    Pattern,
    Role,
    gpu_request,
)
from topology.core.scoring import PRIOR, classes_of, placement_cost
from topology.machines import MACHINES, machine

TABLE = Path(__file__).with_name("answerdigests.json")
REPLICAS = 4
KINDS = (
    *classes_of(PRIOR),
    RequestClass(3, Constraints(link=LinkKind.NVLINK, pattern=Pattern.CONNECTED)),
    RequestClass(4, Constraints(min_bandwidth=GBps(40.0))),
)

_NVLINK = Constraints(link=LinkKind.NVLINK)
_CONSTRAINTS = (
    Constraints(),
    _NVLINK,
    Constraints(link=LinkKind.NVLINK, pattern=Pattern.RING),
    Constraints(min_nvlinks=2, pattern=Pattern.CONNECTED),
    Constraints(min_bandwidth=GBps(45.0)),
    Constraints(same_numa=True),
)
_COUNTS = (1, 2, 3, 4, 6, 8, 16)
_SHAPES = (
    ((Role.APP, 2), (Role.APP, 2)),
    ((Role.INIT, 2), (Role.APP, 1)),
    ((Role.INIT, 1), (Role.APP, 2)),
    ((Role.SIDECAR, 1), (Role.INIT, 2), (Role.APP, 1)),
)


def requests(size: int) -> Iterator[GpuRequest]:
    """The requests that a machine of ``size`` devices is asked."""
    for wish in _CONSTRAINTS:
        for n in _COUNTS:
            if n <= size:
                yield gpu_request(n, wish)
    for shape in _SHAPES:
        containers = tuple(ContainerRequest(f"c{i}", n, r) for i, (r, n) in enumerate(shape))
        for wish in (Constraints(), _NVLINK):
            yield GpuRequest("nvidia.com/gpu", containers, wish)


def kubelets(name: str) -> Iterator[DeviceManager]:
    """The ways in which a machine may hand out its GPUs."""
    shape = machine(name).topology("n").shape
    for policy in ("best-effort", "any"):
        yield DeviceManager(shape, AllocatorConfig(policy))
    if shape.size <= 4:
        for policy in ("distributed", "packed"):
            yield DeviceManager(shape, AllocatorConfig(policy, plugin_version="0.20.0"), REPLICAS)


def states(kubelet: DeviceManager, rng: random.Random) -> Iterator[Availability]:
    """States of a node: all free, some held, and some with pods that come and go."""
    n, replicas = kubelet.shape.size, kubelet.replicas
    width = width_for(replicas)
    yield Availability(pack([replicas] * n, width), width=width)
    for _ in range(2 if n <= 8 else 1):
        free = pack([rng.randint(0, replicas) for _ in range(n)], width)
        yield Availability(free, width=width)
    if n >= 4:
        held = rng.sample(range(n), 3)
        one, two, three = (pack([int(p == at) for p in range(n)], width) for at in held)
        rest = pack([replicas] * n, width) - one - two - three
        assert all(count(rest, p, width) >= 0 for p in range(n))
        yield Availability(
            rest,
            releasing=(Holder(one),),
            running=tuple(sorted((Holder(two), Holder(three)))),
            unacknowledged=(Unacknowledged(((Role.APP, 1),)),),
            width=width,
        )


def digest(kubelet: DeviceManager, availability: Availability, request: GpuRequest) -> str:
    """Verdict, outcomes and score of one question, in a few hexadecimal digits."""
    found = assess(kubelet, availability, request)
    words: list[object] = [
        found.verdict.value,
        found.fits,
        found.sets,
        f"{found.passing_fraction:.9g}",
        found.hazards,
        found.exact,
        found.rejection is None or found.rejection.resolvable,
    ]
    if found.fits:
        cost = placement_cost(kubelet, availability, request, found, KINDS)
        numbers = (cost.score.ring, cost.score.ceiling, cost.score.passing_fraction, *cost.losses)
        words += [cost.score.devices_left, *(f"{x:.9g}" for x in numbers)]
    return hashlib.sha256(repr(words).encode()).hexdigest()[:12]


def answers(name: str) -> dict[str, str]:
    """One digest for each way in which a machine hands out and each state, over all requests."""
    found = {}
    for kubelet in kubelets(name):
        rng = random.Random(f"{name} {kubelet.config.policy}")
        for i, availability in enumerate(states(kubelet, rng)):
            each = [
                digest(kubelet, availability, request)
                for request in requests(kubelet.shape.size * kubelet.replicas)
                if not availability.unacknowledged
                or len(request.counts) <= (2 if kubelet.shape.size <= 8 else 1)
            ]
            whole = hashlib.sha256(" ".join(each).encode()).hexdigest()[:16]
            found[f"{kubelet.config.policy} {i}"] = whole
    return found


if __name__ == "__main__":
    table = {known: answers(known) for known in MACHINES}
    Path(sys.argv[1]).write_text(json.dumps(table, indent=0) + "\n")
