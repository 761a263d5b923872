"""The kubelet's stages: against the emulated kubelet, recorded admissions, and by hand."""

import json
import random
from dataclasses import replace

import pytest

from tests.nodes import bridged, pcie, switched
from tests.recorded import lines, mask, node, recorded
from topology.core.admission import (
    AFFINITY,
    MANAGERS,
    TOO_FEW,
    DeviceManager,
    admissions,
    container_sets,
    provider_answers,
)
from topology.core.availability import Availability, Unacknowledged
from topology.core.budget import SPENT
from topology.core.devices import GpuResource, Mask, PodUid
from topology.core.devicesets import pack, total
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.links import LinkKind
from topology.core.placement import assess
from topology.core.possiblestates import possible_states
from topology.core.requests import (
    Constraints,
    ContainerRequest,
    Counts,
    Exclusive,
    GpuRequest,
    Role,
)
from topology.emulation import EmulatedKubelet, Refused
from topology.emulation.kubelet import SMT_ALIGNMENT, UNEXPECTED_ADMISSION
from topology.emulation.topologymanager import TOPOLOGY_AFFINITY
from topology.machines import machine

INIT, SIDECAR, APP = Role.INIT, Role.SIDECAR, Role.APP
DGX = machine("dgx1-v100").topology("n")
KUBELET = DeviceManager(DGX.shape, AllocatorConfig("best-effort"))


def request(*counts: tuple[Role, int]) -> GpuRequest:
    containers = [ContainerRequest(f"c{i}", n, role) for i, (role, n) in enumerate(counts)]
    return GpuRequest("nvidia.com/gpu", tuple(containers))


CONTAINERS: list[tuple[tuple[Role, int], ...]] = [
    ((APP, 1),),
    ((APP, 2),),
    ((APP, 3),),
    ((APP, 1), (APP, 2)),
    ((APP, 2), (APP, 2)),
    ((INIT, 2), (APP, 2)),
    ((INIT, 3), (APP, 2)),
    ((INIT, 1), (APP, 3)),
    ((INIT, 2), (APP, 1), (APP, 2)),
    ((INIT, 1), (INIT, 2), (APP, 2)),
    ((SIDECAR, 1), (APP, 2)),
    ((SIDECAR, 1), (INIT, 2), (APP, 2)),
    ((INIT, 3), (SIDECAR, 1), (APP, 1)),
]

CONFIGS = [
    pytest.param(AllocatorConfig("best-effort"), False, id="best-effort"),
    pytest.param(AllocatorConfig("any"), False, id="any"),
    *(
        pytest.param(
            AllocatorConfig("best-effort", None, policy, scope, *managers),
            managers == (None, None),
            id=f"{policy}, {scope} scope, {'no ' * (managers != (None, None))}other hints",
        )
        for policy in ("best-effort", "restricted", "single-numa-node")
        for scope in ("container", "pod")
        for managers in ((None, None), ("none", "None"))
    ),
]


HAZARDS = {
    TOPOLOGY_AFFINITY: AFFINITY,
    SMT_ALIGNMENT: MANAGERS,
    UNEXPECTED_ADMISSION: TOO_FEW,
}


@pytest.mark.parametrize(("config", "foreign"), CONFIGS)
def test_whatever_the_kubelet_does_was_predicted(config: AllocatorConfig, foreign: bool) -> None:
    """Random free masks, every mix of containers: what comes lies in the ways, refusals in the
    hazards; and where the answer is exact, most ways are seen."""
    rng = random.Random(str(config))
    topology = replace(DGX, allocator=config)
    kubelet = DeviceManager(topology.shape, config)
    for counts in CONTAINERS:
        for _ in range(6):
            free = rng.randrange(1, 256)
            exclusive = Exclusive.CPUS if foreign else Exclusive.NOTHING
            others = provider_answers(kubelet, None, counts, exclusive=exclusive)
            found = admissions(kubelet, free, counts, others)
            assert found.ways is not None
            ways = {(way.shown, way.taken) for way in found.ways}
            for _ in range(12):
                happened = _admit(topology, rng, free, counts, foreign)
                if isinstance(happened, str):
                    assert HAZARDS[happened] in found.hazards, (free, counts, happened)
                else:
                    assert happened in ways, (free, counts, happened)


def _admit(
    topology: NodeTopology, rng: random.Random, free: Mask, counts: Counts, foreign: bool
) -> tuple[Mask, Mask] | str:
    """What one emulated admission shows and takes, or why it was refused."""
    emulated = EmulatedKubelet(topology, rng, foreign_hints=foreign)
    emulated.sicken(p for p in range(len(topology.gpus)) if not free >> p & 1)
    try:
        asked = request(*counts)
        if foreign:
            asked = replace(asked, exclusive=Exclusive.CPUS)
        emulated.admit(PodUid("u"), "default", "pod", asked)
    except Refused as refusal:
        return str(refusal)
    left = {p for p, _ in emulated.free()}
    return mask(list(emulated.held(PodUid("u")))), free & ~mask(sorted(left))


@pytest.mark.parametrize("policy", ["distributed", "packed"])
def test_replicas_are_predicted_too(policy: str) -> None:
    rng = random.Random(policy)
    config = AllocatorConfig(policy, "v0.20.0")
    served = GpuResource("nvidia.com/gpu", "time-slicing", 3)
    topology = replace(bridged(), allocator=config, resources=(served,))
    kubelet = DeviceManager(topology.shape, config, 3)
    emulated = EmulatedKubelet(topology, rng)
    alive: list[PodUid] = []
    for i in range(300):
        uid, size = PodUid(f"u{i}"), rng.randint(1, 4)
        free = pack([sum(d[0] == p for d in emulated.free()) for p in range(4)], kubelet.width)
        found = admissions(kubelet, free, ((APP, size),))
        try:
            emulated.admit(uid, "default", "pod", request((APP, size)))
        except Refused:
            assert found.hazards == (TOO_FEW,)
            emulated.end(alive.pop(rng.randrange(len(alive))))
            continue
        alive.append(uid)
        left = pack([sum(d[0] == p for d in emulated.free()) for p in range(4)], kubelet.width)
        assert free - left in {way.taken for way in found.ways or ()}
        if rng.random() < 0.4:
            emulated.end(alive.pop(rng.randrange(len(alive))))


def test_every_recorded_admission_of_a_real_kubelet_is_explained() -> None:
    """Pods created together, in creation order, container by container: each step lies in the
    outcomes over what is left, and what the last one found free lies in the possible states
    before."""
    topology = node("dgx1v", json.loads(recorded("kubelet-1.36/dgx1v.topology.json").read_text()))
    kubelet = DeviceManager(topology.shape, topology.allocator)
    steps = 0
    for line in lines("kubelet-1.36/dgx1v.jsonl"):
        if line["op"] != "admit":
            continue
        start = free = mask(line["free"])
        earlier: list[Unacknowledged] = []
        for pod in line["pods"]:
            counts = tuple((APP, n) for n in pod["containers"])
            known = possible_states(
                kubelet, Availability(start, unacknowledged=tuple(earlier))
            ).free_states
            assert known is not None
            assert free in {state.free for state in known}, line
            got = mask([i for container in pod["got"] for i in container])
            assert got in {way.shown for way in admissions(kubelet, free, counts).ways or ()}, line
            for n, (container, given) in enumerate(zip(counts, pod["got"], strict=True)):
                before = free & ~mask([i for c in pod["got"][:n] for i in c])
                assert mask(given) in (container_sets(kubelet, before, (container,))[0] or ())
            free &= ~got
            earlier.append(Unacknowledged(counts))
            steps += 1
    assert steps > 300


def test_recorded_init_containers_and_sidecars_are_explained() -> None:
    topology = node("dgx1v", json.loads(recorded("kubelet-1.36/dgx1v.topology.json").read_text()))
    kubelet = DeviceManager(topology.shape, topology.allocator)
    halves = wholes = 0
    for line in lines("kubelet-1.36/init.jsonl"):
        shown = {name: mask(given) for name, given in line["shown"].items()}
        if line.get("half_admitted"):
            free, count = mask(line["free"]), line["containers"][0]
            first = container_sets(kubelet, free, ((APP, count),))[0] or ()
            assert shown["c0"] in first, line
            halves += 1
            continue
        # Sidecars come first in the recorded pods, then ordinary init containers.
        counts: Counts = (
            *((SIDECAR, n) for n in line.get("sidecar", ())),
            *((INIT, n) for n in line.get("init", ())),
            *((APP, n) for n in line["containers"]),
        )
        found = admissions(kubelet, 0xFF, counts)
        assert sum(shown.values()) in {way.shown for way in found.ways or ()}, line
        held = total((found.ways or ())[0].taken, 1)
        inits = line.get("init", [])
        assert held == sum(line.get("sidecar", ())) + max(sum(line["containers"]), *inits, 0)
        wholes += 1
    assert halves
    assert wholes


def test_single_numa_node_refuses_what_spans_two() -> None:
    config = AllocatorConfig("best-effort", None, "single-numa-node", "container", "none", "None")
    kubelet = DeviceManager(DGX.shape, config)
    found = admissions(kubelet, 0b00010001, ((APP, 2),))
    assert (found.ways, found.hazards) == ((), (AFFINITY,))
    sure = admissions(kubelet, 0b00110001, ((APP, 2),))
    assert ({way.shown for way in sure.ways or ()}, sure.hazards) == ({0b00110000}, ())


def test_what_other_providers_hint_is_not_known() -> None:
    config = AllocatorConfig("best-effort", None, "best-effort")
    alone = replace(config, cpu_manager_policy="none", memory_manager_policy="None")
    two = ((APP, 2),)
    unknown = provider_answers(
        DeviceManager(DGX.shape, config), None, two, exclusive=Exclusive.CPUS
    )
    either = admissions(DeviceManager(DGX.shape, config), 0xFF, two, unknown)
    lower = admissions(DeviceManager(DGX.shape, alone), 0xFF, ((APP, 2),))
    assert {way.shown for way in lower.ways or ()} < {way.shown for way in either.ways or ()}
    assert lower.ways
    assert all(way.shown & 0xF0 == 0 for way in lower.ways)
    # A pod that asks for another plugin's devices as well brings hints of its own.
    more = provider_answers(DeviceManager(DGX.shape, alone), None, two, only_gpu_plugin=False)
    both = admissions(DeviceManager(DGX.shape, alone), 0xFF, two, more)
    assert both.ways == either.ways
    # Managers that are not known give nothing to a pod that is not of the class Guaranteed.
    assert admissions(DeviceManager(DGX.shape, config), 0xFF, ((APP, 2),)).ways == lower.ways


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_an_unknown_topology_manager_may_do_what_any_of_them_does(policy: str, scope: str) -> None:
    unknown = DeviceManager(DGX.shape, AllocatorConfig("best-effort", None, "unknown", scope))
    one = DeviceManager(DGX.shape, AllocatorConfig("best-effort", None, policy, scope))
    counts = ((APP, 2), (APP, 1))
    for free in (0xFF, 0x3F, 0x1E):
        every, some = (admissions(k, free, counts) for k in (unknown, one))
        assert set(some.ways or ()) <= set(every.ways or ())
        assert set(some.hazards) <= set(every.hazards)
        assert AFFINITY in every.hazards


def test_devices_that_do_not_suffice_are_a_hazard() -> None:
    found = admissions(KUBELET, 0b1, ((APP, 2),))
    assert (found.ways, found.hazards) == ((), (TOO_FEW,))


@pytest.mark.parametrize("policy", ["single-numa-node", "restricted"])
@pytest.mark.parametrize("allocator", ["distributed", "any", "best-effort"])
def test_a_pod_that_is_not_followed_to_its_end_may_be_refused(allocator: str, policy: str) -> None:
    """Any GPUs would do, but after the first container no NUMA node has 28 for each of two."""
    config = AllocatorConfig(allocator, None, policy, "container", "none", "None")
    node = DeviceManager(switched(64).shape, config)
    pod = request((APP, 5), (APP, 28), (APP, 28))
    found = admissions(node, node.shape.all_gpus, pod.counts)
    assert found.sets is None
    assert SPENT in found.hazards
    wanted = replace(pod, constraints=Constraints(link=LinkKind.NVLINK))
    assert not assess(node, Availability(node.shape.all_gpus), wanted).verdict.holds


def test_a_question_that_is_given_up_keeps_its_refusals() -> None:
    """The choices of the first container are too many to list; the second finds too few devices."""
    shape = pcie(20).shape
    kubelet = DeviceManager(shape, AllocatorConfig("distributed", "v0.20.0"))
    enough = admissions(kubelet, shape.all_gpus, ((Role.APP, 8), (Role.APP, 12)))
    assert enough.ways is None
    assert enough.hazards == ()
    found = admissions(kubelet, shape.all_gpus, ((Role.APP, 8), (Role.APP, 13)))
    assert found.ways is None
    assert found.hazards == (TOO_FEW,)
