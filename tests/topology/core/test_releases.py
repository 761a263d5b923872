"""Pods that end while another is admitted container by container.

Each law is held against something written apart from the model: against every history of a small
node, counted out with sets of positions, and against the emulated kubelet over random schedules.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations

import pytest

from tests.nodes import bridged
from topology.core.admission import DeviceManager, admissions
from topology.core.allocators import ALLOCATORS, Allocator, Call, Outcomes
from topology.core.availability import Availability, Holder, Unacknowledged
from topology.core.devices import GpuResource, PodUid, positions
from topology.core.devicesets import pack, width_for
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.links import LinkKind
from topology.core.placement import assess, endangers, keeps, predicted
from topology.core.requests import (
    Constraints,
    ContainerRequest,
    Counts,
    GpuRequest,
    Role,
    device_count,
    gpu_request,
)
from topology.emulation import EmulatedKubelet, Refused
from topology.machines import machine

INIT, SIDECAR, APP = Role.INIT, Role.SIDECAR, Role.APP
NVLINK = Constraints(link=LinkKind.NVLINK)

Gpus = frozenset[int]

# Containers of one pod, in the kubelet's order; nearly all are three and more.
MANY: list[Counts] = [
    ((APP, 1), (APP, 1)),
    ((APP, 1), (APP, 1), (APP, 1)),
    ((APP, 1), (APP, 2), (APP, 1)),
    ((APP, 2), (APP, 1), (APP, 1)),
    ((INIT, 1), (APP, 1), (APP, 1)),
    ((INIT, 2), (APP, 1), (APP, 2)),
    ((INIT, 1), (INIT, 2), (APP, 1)),
    ((SIDECAR, 1), (INIT, 1), (APP, 1)),
    ((SIDECAR, 1), (APP, 1), (APP, 1)),
    ((INIT, 1), (SIDECAR, 1), (APP, 1), (APP, 1)),
    ((APP, 1), (APP, 1), (APP, 1), (APP, 1)),
]


class Lowest(Allocator):
    """Hands out a free pair of neighbours where it is asked for two, the lowest GPUs otherwise."""

    name = "lowest"

    def outcomes(self, call: Call) -> Outcomes:
        chosen = lowest(
            frozenset(positions(call.available)), frozenset(positions(call.required)), call.size
        )
        return Outcomes((mask(chosen),))


def lowest(available: Gpus, required: Gpus, size: int) -> Gpus:
    pairs = [frozenset((p, p + 1)) for p in range(0, 16, 2) if {p, p + 1} <= available]
    fitting = [pair for pair in pairs if required <= pair]
    if size == 2 and fitting:
        return fitting[0]
    return required | frozenset(sorted(available - required)[: size - len(required)])


@pytest.fixture
def lowest_kubelet(monkeypatch: pytest.MonkeyPatch) -> DeviceManager:
    monkeypatch.setitem(ALLOCATORS, "lowest", Lowest())
    return DeviceManager(bridged(6).shape, AllocatorConfig("lowest"))


def mask(gpus: Gpus) -> int:
    return sum(1 << p for p in gpus)


def parts(things: Gpus | tuple[int, ...]) -> Iterator[Gpus]:
    found = sorted(things)
    sizes = range(len(found) + 1)
    return map(frozenset, chain.from_iterable(combinations(found, n) for n in sizes))


def histories(
    free: Gpus, counts: Counts, holders: dict[int, Gpus], reusable: Gpus, shown: Gpus, taken: Gpus
) -> Iterator[tuple[Gpus, Gpus, Gpus]]:
    """What the rest of a pod shows and takes and who let go, over every way it may go on."""
    if not counts:
        yield shown, taken, frozenset()
        return
    (role, size), rest = counts[0], counts[1:]
    given: list[Gpus]
    if size <= len(reusable):
        given = [part for part in parts(reusable) if len(part) == size]
    elif size <= len(reusable) + len(free):
        given = [lowest(free | reusable, reusable, size)]
    else:
        return
    for got in given:
        left = free - got
        kept = reusable | got if role is INIT else reusable - got
        now_shown = shown if role is INIT else shown | got
        for gone in parts(tuple(holders)) if rest else [frozenset[int]()]:
            more = frozenset().union(*(holders[i] for i in gone))
            still = {i: held for i, held in holders.items() if i not in gone}
            for end in histories(left | more, rest, still, kept, now_shown, taken | got):
                yield end[0], end[1], end[2] | gone


@pytest.mark.parametrize("counts", MANY, ids=str)
@pytest.mark.parametrize(
    ("free", "holders"),
    [
        pytest.param({0, 1, 2, 3}, [{5}], id="the last GPU is released"),
        pytest.param({2, 3, 4, 5}, [{0}], id="the first GPU is released"),
        pytest.param({0, 3, 4}, [{1}, {2}], id="two pods release one each"),
        pytest.param({1, 4, 5}, [{0, 2}, {3}], id="two and one"),
        pytest.param({5}, [{0}, {1}, {2, 3, 4}], id="nearly everything is held"),
    ],
)
def test_the_ways_are_every_history(
    lowest_kubelet: DeviceManager, counts: Counts, free: set[int], holders: list[set[int]]
) -> None:
    """Exactly those of a recursion over sets: no fewer, no more."""
    held = {i: frozenset(gpus) for i, gpus in enumerate(holders)}
    expected = {
        (mask(shown), mask(taken), mask(gone))
        for shown, taken, gone in histories(
            frozenset(free), counts, held, frozenset(), frozenset(), frozenset()
        )
    }
    releasing = tuple(mask(gpus) for gpus in held.values())
    found = admissions(lowest_kubelet, mask(frozenset(free)), counts, releasing=releasing)
    assert found.ways is not None
    assert set(found.ways) == expected


def request(counts: Counts) -> GpuRequest:
    containers = [ContainerRequest(f"c{i}", n, role) for i, (role, n) in enumerate(counts)]
    return GpuRequest("nvidia.com/gpu", tuple(containers))


def config_with(policy: str, manager: str = "none", scope: str = "container") -> AllocatorConfig:
    return AllocatorConfig(policy, None, manager, scope, "none", "None")


NODES = [
    pytest.param(machine("dgx1-v100").topology("n"), config_with("best-effort"), 1, id="dgx1"),
    pytest.param(bridged(6), config_with("any"), 1, id="any"),
    pytest.param(bridged(), config_with("distributed"), 2, id="distributed"),
    pytest.param(bridged(), config_with("packed"), 3, id="packed"),
    pytest.param(bridged(6), config_with("best-effort", "best-effort"), 1, id="aligned"),
    pytest.param(bridged(6), config_with("best-effort", "restricted"), 1, id="restricted"),
    pytest.param(
        bridged(6), config_with("best-effort", "single-numa-node", "pod"), 1, id="pod scope"
    ),
    pytest.param(
        bridged(6), config_with("best-effort", "best-effort", "pod"), 1, id="aligned pods"
    ),
    pytest.param(bridged(), config_with("packed", "best-effort"), 2, id="packed and aligned"),
]


class Node:
    """One emulated node with pods that hold devices, some of them hidden in init containers."""

    def __init__(
        self, topology: NodeTopology, allocator: AllocatorConfig, replicas: int, rng: random.Random
    ) -> None:
        self.rng = rng
        resource = GpuResource("nvidia.com/gpu", "none" if replicas == 1 else "mps", replicas)
        topology = replace(topology, allocator=allocator, resources=(resource,))
        self.kubelet = DeviceManager(topology.shape, allocator, replicas)
        self.emulated = EmulatedKubelet(topology, rng)
        self.size, self.replicas = len(topology.gpus), replicas
        self.holders: dict[PodUid, Holder] = {}
        devices = rng.sample(self.emulated.free(), len(self.emulated.free()))
        for i in range(rng.randint(1, 3)):
            shown, hidden = rng.randint(1, 2), rng.choice([0, 0, 1])
            given = [devices.pop() for _ in range(shown + hidden) if devices]
            uid = PodUid(f"held-{i}")
            self.emulated.restore(
                uid,
                "default",
                uid,
                request(((INIT, shown + hidden), (APP, shown))),
                {"c0": given, "c1": given[:shown]},
            )
            self.holders[uid] = Holder(self.pool(given[:shown]), len(given[shown:]))

    def pool(self, devices: list[tuple[int, int]]) -> int:
        counts = [sum(p == q for q, _ in devices) for p in range(self.size)]
        return pack(counts, width_for(self.replicas))

    def free(self) -> int:
        """What no report shows as held: what init containers hide seems free."""
        everything = self.pool([(p, r) for p in range(self.size) for r in range(self.replicas)])
        return everything - sum(holder.shown for holder in self.holders.values())

    def admit(self, uid: str, counts: Counts, terminating: list[PodUid]) -> int | None:
        """Admit a pod while others end; what it shows, None where it is refused."""
        steps = self.emulated.admission(PodUid(uid), "default", uid, request(counts))
        try:
            for _ in steps:
                self.end_some(terminating)
        except Refused:
            return None
        report = self.emulated.report(forget_ended=False)
        mine = [a for a in report.allocations if a.pod_uid == uid]
        index = {gpu.uuid: p for p, gpu in enumerate(self.emulated.topology.gpus)}
        ids = [str(d).partition("::")[0] for a in mine for d in a.device_ids]
        return self.pool([(index[d], 0) for d in ids])  # type: ignore[index]

    def end_some(self, terminating: list[PodUid]) -> None:
        for uid in terminating:
            if self.rng.random() < 0.4:
                self.emulated.end(uid)


@pytest.mark.parametrize(("topology", "allocator", "replicas"), NODES)
def test_what_comes_beside_terminating_pods_was_predicted(
    topology: NodeTopology, allocator: AllocatorConfig, replicas: int
) -> None:
    """Pods that end at any time, an unacknowledged pod beside, pods of up to four containers."""
    rng = random.Random(f"{topology.name} {allocator}")
    seen = 0
    for _ in range(60):
        node = Node(topology, allocator, replicas, rng)
        terminating = [uid for uid in node.holders if rng.random() < 0.7]
        staying = [uid for uid in node.holders if uid not in terminating]
        counts, before = rng.choice(MANY), rng.choice(MANY[:4])
        beside = rng.random() < 0.4
        now = Availability(
            node.free(),
            releasing=tuple(sorted(node.holders[uid] for uid in terminating)),
            running=tuple(sorted(node.holders[uid] for uid in staying)),
            unacknowledged=(Unacknowledged(before),) if beside else (),
            width=width_for(replicas),
        )
        sets, hazards = predicted(node.kubelet, now, Unacknowledged(counts))
        node.end_some(terminating)
        if beside and rng.random() < 0.7:
            node.admit("beside", before, terminating)
        got = node.admit("pod", counts, terminating)
        if got is None:
            # Where the count alone refuses a pod nobody is asked about it.
            fits = now.devices_left >= device_count(counts)
            assert hazards or not fits, (now, counts)
        else:
            seen += 1
            assert sets is None or got in sets, (now, counts, got)
    assert seen > 10


THREE = GpuRequest("nvidia.com/gpu", tuple(ContainerRequest(f"c{i}", 1) for i in range(3)), NVLINK)
DGX = DeviceManager(machine("dgx1-v100").topology("n").shape, config_with("best-effort"))


@pytest.mark.parametrize("held", range(8))
def test_three_containers_are_promised_beside_a_pod_that_ends(held: int) -> None:
    """The same verdict whichever GPU the ending pod has: one more free GPU is all that it adds."""
    switched = DeviceManager(machine("hgx-h100-8").topology("n").shape, config_with("best-effort"))
    now = Availability(0xFF & ~(1 << held), releasing=(Holder(1 << held),))
    found = assess(switched, now, THREE)
    assert found.verdict.value == "guaranteed", found


@pytest.mark.parametrize("held", range(8))
def test_three_containers_beside_a_running_pod_get_an_answer(held: int) -> None:
    now = Availability(0xFF & ~(1 << held), running=(Holder(1 << held),))
    found = assess(DGX, now, THREE)
    assert found.verdict.value == "not-guaranteed"
    assert found.sets
    assert all(not s & 1 << held for s in found.sets), "what runs keeps its GPU"


@pytest.mark.parametrize("held", range(8))
def test_four_unacknowledged_containers_fail_no_pod(held: int) -> None:
    unacknowledged = Unacknowledged(((APP, 1),) * 4)
    now = Availability(
        0xFF & ~(1 << held), releasing=(Holder(1 << held),), unacknowledged=(unacknowledged,)
    )
    assess(DGX, now, gpu_request(1))
    assess(DGX, now, gpu_request(2, NVLINK))
    assert keeps(DGX, now, Unacknowledged(((APP, 1),))).every
    assert not endangers(DGX, now, gpu_request(2))
