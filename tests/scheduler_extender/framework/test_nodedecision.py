"""The filter table of the design, row by row: a pure function of facts and request."""

from dataclasses import replace

import pytest

from scheduler_extender.annotations import MANAGED
from scheduler_extender.framework.nodedecision import decide, undecided
from scheduler_extender.framework.rule import UNDECIDED
from scheduler_extender.state.answers.decision import Refusals, Settings
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.node.transitions import (
    with_pod,
    with_record,
    with_stale_report,
    without_record,
)
from scheduler_extender.state.pods.attributes import amounts_of
from scheduler_extender.state.pods.record import PodRecord
from tests.nodes import bridged, pcie, switched
from topology.core.devices import Bytes, DeviceId, GpuResource, NodeName, PodUid
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.links import LinkKind
from topology.core.placement import (
    ALL_SPLIT_BY_MIG,
    BUSY,
    IN_PROGRESS,
    NO_ALLOCATOR,
    NO_REPORT,
    NOT_READY,
    NOT_SERVED,
    SPLIT_BY_MIG,
    STALE,
    TOO_FEW,
    UNUSABLE,
    Verdict,
)
from topology.core.report import Allocation, Condition, Health, MissingGpu, Report
from topology.core.requests import Constraints, Policy, gpu_request
from topology.machines import machine
from topology.machines.mig import cut

NVLINK = Constraints(link=LinkKind.NVLINK)
REQUESTS = {
    "plain": gpu_request(2),
    "preferred": gpu_request(2, NVLINK, Policy.PREFERRED),
    "required": gpu_request(2, NVLINK),
}
NOT_SURE = "not guaranteed: the node may hand out GPUs without link=nvlink"
NO_LINKS = "the hardware has no set of 2 GPUs with link=nvlink"


def node(topology: NodeTopology, held: int = 0, **how: object) -> NodeInfo:
    ids = tuple(DeviceId(gpu.uuid) for gpu in topology.gpus[:held])
    found = Allocation(PodUid("other"), "d", "other", "main", "nvidia.com/gpu", ids)
    report = replace(Report("boot", 1, allocations=(found,) if held else ()), **how)  # type: ignore[arg-type]
    other = PodRecord(PodUid("other"), "d", "other", topology.name, gpu_request(max(held, 1)))
    empty = NodeInfo(topology.name)
    known = with_pod(empty, replace(other, phase="Running")) if held else empty
    return with_record(known, topology, report, "")


def promised(topology: NodeTopology) -> NodeInfo:
    """A pair was promised its links here, and no report has shown it."""
    pair = PodRecord(PodUid("pair"), "d", "pair", topology.name, REQUESTS["required"])
    return with_pod(node(topology), replace(pair, promised=NVLINK))


def losing(strategy: str = "none") -> NodeInfo:
    """One of the GPUs does not answer, and the kubelet hands out the others."""
    topology = switched()
    uuids = [gpu.uuid for gpu in topology.gpus]
    resource = GpuResource("nvidia.com/gpu", strategy, refuses_several=False)
    allocator = AllocatorConfig("best-effort" if strategy == "none" else "distributed", "v0.19.3")
    return node(
        replace(topology, resources=(resource,), allocator=allocator),
        allocatable=frozenset(map(DeviceId, uuids[:3])),
        health=(Health(uuids[3], False, "Lost"),),
        missing=(MissingGpu(uuids[3], counted=True),),
    )


def not_ready(info: NodeInfo) -> NodeInfo:
    """The same, while the agent cannot vouch for its report."""
    assert info.topology is not None
    assert info.report is not None
    hangs = Condition("Ready", False, "NvmlUnavailable", "NVML: a call hangs")
    return with_record(info, info.topology, replace(info.report, conditions=(hangs,)), "")


OUTAGE = (
    "NVIDIA's device plugin 0.19.3 refuses every pod with whole GPUs while GPU-3 does not answer"
)
GOOD = node(switched())
ROWS = {
    # Facts; then why it refuses plain, preferred and required; "" where it passes.
    "guaranteed": (GOOD, "", "", ""),
    "could break a promise": (promised(bridged(6)), "", "", NOT_SURE),
    "possible": (node(bridged()), "", "", NOT_SURE),
    "busy": (node(switched(), 3), BUSY.message, BUSY.message, BUSY.message),
    "too small": (node(switched(1)), TOO_FEW.message, TOO_FEW.message, TOO_FEW.message),
    "never": (node(pcie()), "", "", NO_LINKS),
    "nothing known": (NodeInfo(NodeName("n")), "", "", NO_REPORT.message),
    "no report": (without_record(GOOD), "", "", NO_REPORT.message),
    "stale": (with_stale_report(GOOD), "", "", STALE.message),
    "DRA only": (
        replace(GOOD, node_object=NodeObject(advertises_none=True)),
        "",
        "",
        NO_ALLOCATOR.message,
    ),
    "no resources": (
        node(replace(switched(), resources=())),
        "",
        "",
        NO_ALLOCATOR.message,
    ),
    "not ready": (
        node(switched(), conditions=(Condition("Ready", False, "Starting", "x"),)),
        "",
        "",
        NOT_READY.message,
    ),
    "unusable": (without_record(GOOD, "spec.links: bad"), "", "", UNUSABLE.message),
    "contradicts itself": (
        node(switched(), allocatable=frozenset({DeviceId("GPU-99")})),
        "",
        "",
        UNUSABLE.message,
    ),
    "another resource": (
        node(replace(switched(), resources=(GpuResource("nvidia.com/gpu.shared"),))),
        NOT_SERVED.message,
        NOT_SERVED.message,
        NOT_SERVED.message,
    ),
    "another resource by its record, and this one by its Node object": (
        replace(
            node(replace(switched(), resources=(GpuResource("nvidia.com/gpu.shared"),))),
            node_object=NodeObject(allocatable=amounts_of({"nvidia.com/gpu": 4})),
        ),
        "",
        "",
        NOT_SERVED.message,
    ),
    "MIG splits all its GPUs, and its Node object counts them": (
        replace(
            node(cut(machine("hgx-a100-4").topology("n"), ["3g.40gb"])),
            node_object=NodeObject(allocatable=amounts_of({"nvidia.com/gpu": 4})),
        ),
        ALL_SPLIT_BY_MIG.message,
        ALL_SPLIT_BY_MIG.message,
        ALL_SPLIT_BY_MIG.message,
    ),
    "its plugin refuses everything": (losing(), OUTAGE, OUTAGE, OUTAGE),
    "its plugin refuses everything, and the agent sees nothing more": (
        not_ready(losing()),
        OUTAGE,
        OUTAGE,
        NOT_READY.message,
    ),
    "it was so when the record was written long ago": (
        with_stale_report(not_ready(losing())),
        "",
        "",
        STALE.message,
    ),
    "its plugin shares GPUs, and the agent sees nothing more": (
        not_ready(losing("time-slicing")),
        "",
        "",
        NOT_READY.message,
    ),
    "its plugin shares GPUs and gets over a lost one": (losing("time-slicing"), "", "", ""),
    "MIG instances that its record does not name": (
        node(replace(switched(), resources=(GpuResource("nvidia.com/gpu", "mig"),))),
        "",
        "",
        UNUSABLE.message,
    ),
    "MIG instances": (
        node(cut(switched(), ["1g.5gb"] * 7, strategy="single")),
        "",
        "",
        "MIG instances have no links, and the pod requires link=nvlink",
    ),
    "all of its GPUs in MIG mode, handed out as if they were whole": (
        node(
            replace(cut(switched(), ["1g.5gb"] * 7, strategy="single"), resources=(GpuResource(),))
        ),
        "",
        "",
        SPLIT_BY_MIG.message,
    ),
}


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table(row: str, kind: str) -> None:
    info, *reasons = ROWS[row]
    found = decide(info, REQUESTS[kind], Settings())
    expected = reasons[list(REQUESTS).index(kind)]
    assert (found.rejection.message if found.rejection else "") == expected


def test_a_node_whose_plugin_refuses_everything_is_open_again_when_the_gpu_answers() -> None:
    info = losing()
    refused = decide(info, REQUESTS["plain"], Settings()).rejection
    assert refused is not None
    assert not refused.resolvable
    ignored = Settings(refusals=Refusals.IGNORE)
    assert decide(info, REQUESTS["plain"], ignored).rejection is None
    assert decide(not_ready(info), REQUESTS["plain"], ignored).rejection is None
    assert info.report is not None
    assert info.topology is not None
    healed = with_record(info, info.topology, replace(info.report, missing=()), "")
    assert healed.key("nvidia.com/gpu") != info.key("nvidia.com/gpu")
    for kind, request in REQUESTS.items():
        assert decide(healed, request, Settings()).rejection is None, kind


@pytest.mark.parametrize("policy", [None, Policy.PREFERRED, Policy.REQUIRED])
def test_every_pod_that_could_break_a_promise_waits_for_the_next_report(
    policy: Policy | None,
) -> None:
    """Of three GPUs two are bridged: a single that comes first may take one of them."""
    topology = replace(bridged(3), allocator=AllocatorConfig("best-effort"))
    memory = Constraints(min_gpu_memory=Bytes(1))
    single = gpu_request(1) if policy is None else gpu_request(1, memory, policy)
    assert decide(node(topology), single, Settings()).rejection is None
    assert decide(promised(topology), single, Settings()).rejection is IN_PROGRESS


def test_what_an_operator_requires() -> None:
    """Of a bridged pair beside a running single the promise holds unless the single ends."""
    topology = bridged(3)
    info = node(topology, 0)
    one = PodRecord(PodUid("one"), "d", "one", topology.name, gpu_request(1), phase="Running")
    held = Allocation(PodUid("one"), "d", "one", "main", MANAGED[0], (DeviceId("GPU-2"),))
    info = with_record(with_pod(info, one), topology, Report("boot", 2, None, (held,)), "")
    pair = REQUESTS["required"]
    assert decide(info, pair, Settings()).verdict == "expected"
    assert decide(info, pair, Settings()).rejection is None
    strict = decide(info, pair, Settings(Verdict.GUARANTEED)).rejection
    assert strict is not None
    assert strict.message == "not guaranteed if a running GPU pod ends: link=nvlink"


def test_the_undecided() -> None:
    assert undecided(GOOD, REQUESTS["required"]).rejection is UNDECIDED
    assert undecided(GOOD, REQUESTS["plain"]).rejection is None
    assert undecided(promised(switched()), REQUESTS["plain"]).rejection is IN_PROGRESS


def test_four_pairs_that_come_at_one_time_are_all_promised() -> None:
    """Two run that no report shows yet, one is on its way: an ordinary moment of a busy node."""
    topology = machine("hgx-h100-8").topology("hgx")
    pair = REQUESTS["required"]
    info = node(topology)
    for number in range(3):
        came = PodRecord(PodUid(f"p{number}"), "d", f"p{number}", topology.name, pair)
        came = replace(came, promised=NVLINK, survives_endings=True)
        if number < 2:
            came = replace(came, phase="Running", admitted=True)
        info = with_pod(info, came)
    assert decide(info, pair, Settings()).rejection is None


@pytest.mark.parametrize(
    ("off", "count", "constraints", "reason"),
    [
        pytest.param((3,), 4, NVLINK, "no set of 4 GPUs with link=nvlink: {GPU 3}", id="all"),
        pytest.param((3,), 2, NVLINK, "may hand out GPUs without link=nvlink: {GPU 3}", id="some"),
        pytest.param((0, 1, 2, 3), 2, NVLINK, "with link=nvlink: {its GPUs}", id="every GPU"),
        pytest.param((3,), 4, Constraints(models=("t4",)), "not t4", id="another reason"),
        pytest.param((3,), 4, Constraints(), None, id="plain"),
    ],
)
def test_a_fabric_that_is_not_ready_is_named_where_it_decides(
    off: tuple[int, ...], count: int, constraints: Constraints, reason: str | None
) -> None:
    topology = switched()
    bare = tuple(replace(k, nvlinks=0) if {k.a, k.b} & {*off} else k for k in topology.links)
    health = tuple(Health(topology.gpus[p].uuid, True, "FabricNotReady") for p in off)
    info = node(replace(topology, links=bare), health=health)
    found = decide(info, gpu_request(count, constraints), Settings()).rejection
    if reason is None:
        assert found is None
        return
    message = reason.replace("{", "the NVLink fabric is not ready for ").replace("}", "")
    assert found is not None
    assert found.message.endswith(message)
    assert info.key("nvidia.com/gpu") != node(replace(topology, links=bare)).key("nvidia.com/gpu")


def test_a_pod_that_asks_for_no_devices_is_no_fault() -> None:
    """Neighbours bind pods without GPUs through us, too."""
    info = NodeInfo(NodeName("switched"))
    info = with_record(info, switched(), Report("boot", 1), "")
    assert decide(info, gpu_request(0), Settings()).rejection is None
    required = gpu_request(0, Constraints(link=LinkKind.NVLINK))
    assert decide(info, required, Settings()).rejection == UNDECIDED
