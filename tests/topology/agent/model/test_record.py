"""The record of given facts: what it says, and whether it can be relied on."""

from dataclasses import replace
from typing import Any

import pytest

from tests.topology.agent.entries import GPU, entry
from topology.agent.model.exclusive import Allocatable
from topology.agent.model.hardware import Hardware
from topology.agent.model.holders import Holders
from topology.agent.model.nodecontext import KubeletConfig, NodeContext, Plugin
from topology.agent.model.observations import Processors, Unseen
from topology.agent.model.record import (
    ConditionTracker,
    KubeletState,
    Observation,
    Picture,
    compose,
)
from topology.agent.model.recordlimits import LONGEST_MESSAGE
from topology.core.devices import DeviceId, GpuUuid, PodUid
from topology.core.numa import Holding, NumaConfig, NumaNode, cpu_set
from topology.core.report import Condition, Health, MissingGpu
from topology.machines import machine
from topology.machines.mig import cut

NOON = "2026-01-01T12:00:00Z"
TOPOLOGY = machine("dgx1-v100").topology("n")
UUIDS = [gpu.uuid for gpu in TOPOLOGY.gpus]
IDS = [DeviceId(uuid) for uuid in UUIDS]
SEEN = Hardware(topology=TOPOLOGY, looked=True)
AROUND = NodeContext(
    {}, Plugin("v0.20.0", {}), kubelet=KubeletConfig("none", "container", "none", "None")
)
WELL = Observation(
    boot_id="boot-1",
    hardware=SEEN,
    context=AROUND,
    allocatable={GPU: frozenset(IDS)},
)
LOST = (Health(UUIDS[0], False, "Lost, Xid79", NOON),)
MISSING = (MissingGpu(UUIDS[0], counted=True),)
SHARES = frozenset(DeviceId(f"{uuid}::{n}") for uuid in UUIDS for n in range(2))
MPS = replace(AROUND, labels={"nvidia.com/gpu.sharing-strategy": "mps"})


def condition_of(picture: Picture, kind: str) -> Condition:
    return next(c for c in picture.report.conditions if c.type == kind)


def composed(**fields: Any) -> Picture:
    return compose(replace(WELL, **fields), ConditionTracker(), NOON)


READY: list[tuple[str, dict[str, Any], str]] = [
    # name, what is different from a node where all is well, reason; the first that applies is said
    ("all is well", {}, "Watching"),
    ("NVML does not answer", {"nvml_problem": "a call hangs"}, "NvmlUnavailable"),
    (
        "the driver contradicts itself",
        {"hardware": replace(SEEN, contradiction="it does")},
        "HardwareContradictory",
    ),
    ("a kubelet that is silent for a moment", {"kubelet": KubeletState(silent=True)}, "Watching"),
    (
        "a kubelet that is silent for long",
        {"kubelet": KubeletState(silent=True, too_long=True)},
        "KubeletUnavailable",
    ),
    (
        "a kubelet that has never answered",
        {"kubelet": KubeletState(silent=True, accepted=False)},
        "KubeletUnavailable",
    ),
    (
        "pods that are not known yet",
        {"kubelet": KubeletState(accepted=False)},
        "Starting",
    ),
    ("unknown ids", {"allocatable": {GPU: frozenset({DeviceId("nvidia0")})}}, "UnknownDevices"),
    ("missing pods", {"kubelet": KubeletState(pods_missing=True)}, "PodsMissing"),
    ("a lost GPU", {"health": LOST, "missing": MISSING}, "Watching"),
    (
        "several reasons",
        {"nvml_problem": "down", "health": LOST, "kubelet": KubeletState(pods_missing=True)},
        "NvmlUnavailable",
    ),
    (
        "what does not fit is said before missing pods",
        {
            "allocatable": {GPU: frozenset({DeviceId("nvidia0")})},
            "kubelet": KubeletState(pods_missing=True),
        },
        "UnknownDevices",
    ),
]


@pytest.mark.parametrize(
    ("fields", "reason"), [pytest.param(fields, reason, id=name) for name, fields, reason in READY]
)
def test_whether_it_can_be_relied_on(fields: dict[str, Any], reason: str) -> None:
    ready = condition_of(composed(**fields), "Ready")
    assert (ready.reason, ready.status) == (reason, reason == "Watching")


@pytest.mark.parametrize(
    ("served", "reason"),
    [
        ("nvidia.com/mig-1g.5gb.me", "Watching"),  # since v0.20 of the plugin
        ("nvidia.com/mig-1g.5gb", "Watching"),  # before
        ("nvidia.com/mig-3g.20gb", "UnexpectedResource"),
        ("nvidia.com/gpu", "Watching"),
    ],
)
def test_instances_under_a_name_that_is_not_their_profiles(served: str, reason: str) -> None:
    """The extender goes by names, so it would count other devices there than the kubelet."""
    sliced = cut(machine("dgx-a100").topology("n"), ["1g.5gb+me"], gpus=[0])
    ids = frozenset(DeviceId(part.uuid) for part in sliced.gpus[0].mig_instances)
    picture = composed(hardware=replace(SEEN, topology=sliced), allocatable={served: ids})
    ready = condition_of(picture, "Ready")
    assert (ready.reason, ready.status) == (reason, reason == "Watching")
    assert ready.status or f"served as {served}, and its profile is '1g.5gb+me'" in ready.message


def test_unready_is_explained() -> None:
    silent = KubeletState(cause="kubelet.sock: gone", silent=True, too_long=True)
    assert condition_of(composed(kubelet=silent), "Ready").message == "kubelet.sock: gone"
    hanging = composed(nvml_problem="a call hangs")
    assert condition_of(hanging, "Ready").message == "NVML: a call hangs"
    assert Unseen("GPUs and links", "NVML: a call hangs") in hanging.unseen
    assert condition_of(hanging, "Complete").status, "what was seen before stays"
    unfit = composed(allocatable={GPU: frozenset({DeviceId("nvidia0")})}).unfit
    assert unfit is not None
    assert unfit.reason == "UnknownDevices"


@pytest.mark.parametrize(
    ("hardware", "published"),
    [
        pytest.param(SEEN, True, id="looked at"),
        pytest.param(replace(SEEN, looked=False), False, id="only remembered"),
        pytest.param(Hardware(), False, id="unknown"),
    ],
)
def test_unobserved_hardware_is_not_written(hardware: Hardware, published: bool) -> None:
    assert (composed(hardware=hardware).topology is not None) is published


def test_the_spec_says_how_devices_are_chosen() -> None:
    topology = composed(allocatable={GPU: SHARES}).topology
    assert topology is not None
    assert [(r.strategy, r.replicas) for r in topology.resources] == [("time-slicing", 2)]
    assert topology.allocator.policy == "distributed"
    lost = composed(health=LOST, missing=MISSING)
    assert lost.topology is not None
    assert lost.topology.allocator.policy == "best-effort"
    assert lost.report.missing == MISSING
    answer = composed(allocatable={GPU: SHARES}, refuses_several=True).topology
    assert answer is not None
    assert [r.refuses_several for r in answer.resources] == [True]
    whole = composed(refuses_several=True).topology
    assert whole is not None
    assert [r.refuses_several for r in whole.resources] == [None]
    doubtful = composed(hardware=replace(SEEN, doubt="it sees more")).topology
    assert doubtful is not None
    assert doubtful.allocator.policy == "any"
    answer = composed(policy="packed").topology
    assert answer is not None
    assert answer.allocator.policy == "packed"


def test_what_could_not_be_had_is_named() -> None:
    picture = composed(
        hardware=replace(SEEN, unseen=(Unseen("fabric", "denied", "GPU 1"),)),
        context=NodeContext({}, None, unseen=(Unseen("Node", "403 Forbidden"),)),
    )
    complete = condition_of(picture, "Complete")
    assert (complete.status, complete.reason) == (False, "SomeUnseen")
    assert complete.message.split("; ") == [
        "CPU and Memory Managers' policies: neither the kubelet nor a file shows them, so pods "
        "of the QoS class Guaranteed get no promises",
        "Node: 403 Forbidden",
        "Topology Manager's policy: the kubelet's configuration could not be read",
        "device plugin's policy: no container of NVIDIA's device plugin on this node, so it may "
        "pick any devices",
        "fabric of GPU 1: denied",
    ]
    assert picture.topology is not None
    assert picture.topology.allocator.topology_manager_policy == "unknown"


UNACCOUNTED: list[tuple[str, dict[str, Any], str]] = [
    ("nobody", {}, ""),
    ("two GPUs", {"unaccounted": {UUIDS[6], UUIDS[2]}}, "GPU 2, GPU 6"),
    ("a GPU that is not of this node", {"unaccounted": {GpuUuid("GPU-x")}}, ""),
    (
        "the MPS server computes on every GPU",
        {"unaccounted": {UUIDS[6]}, "context": MPS, "allocatable": {GPU: SHARES}},
        "",
    ),
    (
        "where nobody can tell who holds which GPU",
        {"unaccounted": {UUIDS[6]}, "allocatable": {GPU: frozenset({DeviceId("nvidia0")})}},
        "",
    ),
]


@pytest.mark.parametrize(
    ("fields", "message"),
    [pytest.param(fields, text, id=name) for name, fields, text in UNACCOUNTED],
)
def test_use_of_a_gpu_that_no_pod_holds(fields: dict[str, Any], message: str) -> None:
    found = condition_of(composed(**fields), "UnaccountedUse")
    assert (found.status, found.message) == (bool(message), message)


def test_the_report_has_the_holders_and_the_known_pods() -> None:
    holders = Holders(
        {PodUid("1"): entry("a", UUIDS[1])}, (entry("b", UUIDS[2]),), NOON, "17", deletions=4
    )
    picture = composed(holders=holders, due=frozenset({PodUid("2")}))
    report = picture.report
    assert [(str(a.pod_uid), a.pod, a.device_ids) for a in report.allocations] == [
        ("1", "a", (IDS[1],)), ("", "b", (IDS[2],)),
    ]  # fmt: skip
    assert (report.observed_at, report.pods_version, report.sequence) == (NOON, "17", 0)
    assert report.allocatable == frozenset(IDS)
    assert picture.deletions == 4
    assert (picture.shown, picture.due) == (frozenset({PodUid("1")}), frozenset({PodUid("2")}))


SINCE = [
    # now, whether it is so, since when that is said
    ("12:00", True, "12:00"),
    ("12:01", True, "12:00"),
    ("12:02", False, "12:02"),
    ("12:03", False, "12:02"),
    ("12:04", True, "12:04"),
]


def test_since_when_a_condition_is_as_it_is() -> None:
    tracker = ConditionTracker()
    found = [
        (now, so, tracker.say("Ready", so, f"at {now}", "", now).since) for now, so, _ in SINCE
    ]
    assert found == SINCE
    former = tracker.say("Ready", True, "", "", "12:05")
    assert ConditionTracker([former]).say("Ready", True, "", "", "13:00").since == "12:04"


def test_a_message_without_an_end_is_cut() -> None:
    assert (
        len(ConditionTracker().say("Ready", False, "", "x" * 9999, NOON).message) == LONGEST_MESSAGE
    )


STATIC = replace(
    AROUND,
    kubelet=KubeletConfig(
        "none", cpu_manager_policy="static", memory_manager_policy="None", socket_aligned=False
    ),
)
PROCESSORS = Processors((cpu_set("0-3"),), (0,), (cpu_set("0-1"), cpu_set("2-3")))
OWN = (Holding("ns", "a", cpu_set("2-3")),)


def test_cpus_are_reported_where_a_manager_is_static() -> None:
    own: dict[str, Any] = {
        "processors": PROCESSORS,
        "exclusive": Allocatable(cpu_set("1-3")),
        "holders": Holders(exclusive=OWN),
    }
    picture = composed(context=STATIC, **own)
    assert picture.topology is not None
    assert picture.topology.allocator.numa == NumaConfig(
        (NumaNode(cpu_set("0-3"), 0),), cpu_set("1-3"), cpu_set("2-3"), 2
    )
    assert picture.report.holdings == OWN
    assert composed(context=STATIC, **own | {"holders": Holders()}).report.holdings == ()
    early = composed(context=STATIC, kubelet=KubeletState(accepted=False), **own)
    assert early.report.holdings is None, "no list has been taken for true yet"
    plain = composed(**own)
    assert plain == composed(), "nothing changes elsewhere"


def test_cpus_that_cannot_be_read_are_unseen() -> None:
    hidden = Unseen("CPUs by NUMA node", "no such file")
    picture = composed(
        context=STATIC,
        processors=hidden,
        exclusive=Allocatable(cpu_set("1-3")),
        holders=Holders(exclusive=OWN),
    )
    assert picture.topology is not None
    assert picture.topology.allocator.numa is None
    assert hidden in picture.unseen
    assert condition_of(picture, "Complete").message == str(hidden)
    assert picture.report.holdings == OWN


CUT = cut(TOPOLOGY, ["1g.5gb", "1g.5gb"], gpus=[0])  # as if a V100 could be cut


def test_the_numa_nodes_of_instances_are_their_gpus() -> None:
    """The plugin names NUMA nodes for what it serves: instances, and not the GPU they are on."""
    parts = [DeviceId(part.uuid) for part in CUT.gpus[0].mig_instances]
    named = {GpuUuid(device): (1,) for device in parts} | dict.fromkeys(UUIDS[1:], (0,))
    aligning = replace(
        AROUND, kubelet=replace(AROUND.kubelet, topology_manager_policy="restricted")
    )
    allocatable = {GPU: frozenset(IDS[1:]), "nvidia.com/mig-1g.5gb": frozenset(parts)}
    picture = composed(
        hardware=replace(SEEN, topology=CUT),
        context=aligning,
        allocatable=allocatable,
        topology_nodes=named,
    )
    assert picture.topology is not None
    assert picture.topology.gpus[0].topology_nodes == (1,)
    assert picture.topology.allocator.sees_topology
    assert picture.report.allocatable == frozenset((*IDS[1:], *parts))


@pytest.mark.parametrize(
    ("fabric", "condition"),
    [
        ({}, None),
        (dict.fromkeys(UUIDS, True), (True, "AllUsable", "")),
        ({UUIDS[0]: True, UUIDS[3]: False}, (False, "FabricNotReady", "GPU 3")),
    ],
)
def test_a_node_with_a_fabric_says_whether_its_gpus_can_use_it(
    fabric: dict[GpuUuid, bool], condition: tuple[bool, str, str] | None
) -> None:
    found = [c for c in composed(fabric=fabric).report.conditions if c.type == "FabricReady"]
    answer = [(c.status, c.reason, c.message) for c in found]
    assert answer == ([] if condition is None else [condition])
