"""Nodes that share GPUs: memory that a pod asked for is given to no other pod."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduler_extender.explain.nodesummary import shared_gpus
from scheduler_extender.framework.equivalence import answer
from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import contradiction
from scheduler_extender.state.node.verification import BROKEN, Misprediction
from tests.nodes import GIB, offered, pcie, pod, record_of
from tests.scheduler_extender.serving import Clock
from topology.core.devices import Bytes, DeviceId, GpuResource, NodeName, PodUid
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.placement import IN_PROGRESS, Verdict
from topology.core.report import Allocation, Report
from topology.core.requests import GpuRequest
from topology.machines import machine
from topology.machines.mig import cut

GPU, RENAMED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
NAME = NodeName("node")


def node(
    gpus: int = 1,
    replicas: int = 4,
    *,
    policy: str = "distributed",
    resource: str = GPU,
    strategy: str = "time-slicing",
) -> NodeTopology:
    """GPUs of 40 GiB, each shared by so many."""
    found = pcie(gpus, "node")
    return replace(
        found,
        gpus=tuple(replace(gpu, memory=Bytes(40 * GIB)) for gpu in found.gpus),
        resources=(GpuResource(resource, strategy, replicas, refuses_several=False),),
        allocator=AllocatorConfig(policy, "v0.20.0"),
    )


def manifest(
    uid: str, count: int = 1, annotations: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    resource = more.pop("resource", GPU)
    found = pod(count, annotations or {}, name=uid, uid=uid, **more)
    found["spec"]["containers"][0]["resources"] = {"limits": {resource: str(count)}}
    return found


def uses(gib: int, **more: str) -> dict[str, str]:
    return {"gpu-memory": f"{gib}Gi", **more}


class Node:
    """One node and its pods, as the extender learns of them."""

    def __init__(self, topology: NodeTopology) -> None:
        self.topology = topology
        self.cluster = Cache(Clock())
        self.held: list[Allocation] = []
        self.sequence = 1
        self.report()

    def report(self, allocatable: frozenset[DeviceId] | None = None) -> None:
        """A report of now."""
        self.sequence += 1
        found = Report("boot", self.sequence, allocatable=allocatable, allocations=tuple(self.held))
        self.cluster.put_record(self.topology, found)

    def bound(self, uid: str, *args: Any, **more: Any) -> None:
        """A pod is bound, and no report shows it yet."""
        self.cluster.put_pod(record_of(manifest(uid, *args, node="node", **more)))

    def holds(self, uid: str, devices: Sequence[str], *args: Any, **more: Any) -> None:
        """A pod runs with these devices, written as the GPU's number and the share's."""
        self.bound(uid, len(devices), *args, phase="Running", **more)
        ids = tuple(DeviceId(f"GPU-{device}") for device in devices)
        resource = self.topology.resources[0].name
        self.held.append(Allocation(PodUid(uid), "default", uid, "main", resource, ids))
        self.report()

    def answer(self, *args: Any, **more: Any) -> Decision:
        found = record_of(manifest("asks", *args, **more))
        assert isinstance(found.request, GpuRequest)
        return answer(self.cluster.snapshot(), self.cluster.node_info(NAME), found.request)

    def reason(self, *args: Any, **more: Any) -> str:
        found = self.answer(*args, **more).rejection
        return found.message if found is not None else ""


LITTLE = "a GPU that the pod may get has too little memory left for"


# --- What min-gpu-memory speaks of ----------------------------------------------------------------

PART = "each share's part of the {} memory (1/4) is less than {}"


@pytest.mark.parametrize("strategy", ["time-slicing", "mps"])
@pytest.mark.parametrize(
    ("count", "asked", "reason"),
    [
        (1, {"min-gpu-memory": "10Gi"}, ""),
        (1, {"min-gpu-memory": "11Gi"}, PART.format("GPU", "11Gi")),
        (4, {"min-gpu-memory": "11Gi"}, PART.format("GPU", "11Gi")),
        (1, {"min-gpu-memory": "41Gi"}, "GPU memory is less than 41Gi"),
        (1, {"min-gpu-memory": "40Gi", "gpu-memory": "2Gi"}, ""),
        (1, {"min-gpu-memory": "1Gi", "gpu-memory": "41Gi"}, "GPU memory is less than 41Gi"),
        (4, {"min-gpu-memory": "40Gi", "sharing": "exclusive"}, ""),
    ],
    ids=["a part", "more", "of several", "than all", "what it uses", "too much", "alone"],
)
def test_min_gpu_memory_is_a_shares_part_of_a_shared_gpu(
    strategy: str, count: int, asked: dict[str, str], reason: str
) -> None:
    found = Node(node(strategy=strategy)).answer(count, asked)
    assert (found.rejection.message if found.rejection else "") == reason
    assert found.verdict == ("never" if reason else "guaranteed")


def test_min_gpu_memory_is_a_shares_part_of_a_shared_instance() -> None:
    gpus = replace(machine("dgx-a100").topology("node"), allocator=AllocatorConfig("any"))
    sliced = Node(cut(gpus, ["3g.20gb"] * 2, strategy="single", replicas=4))
    assert sliced.reason(1, {"min-gpu-memory": "4Gi"}) == ""
    assert sliced.reason(1, {"min-gpu-memory": "8Gi"}) == PART.format("MIG instance", "8Gi")


# --- Who is bound by it ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "asked", "refused"),
    [
        (30, uses(10), False),
        (30, uses(11), True),
        (30, {}, False),
        (31, {}, True),
        (31, {"policy": "preferred", "link": "nvlink"}, True),
        (31, {"min-gpu-memory": "10Gi"}, True),
        (20, uses(21, policy="preferred"), True),
        (20, uses(20, policy="preferred"), False),
    ],
    ids=[
        "just enough",
        "one too much",
        "a part is 10 GiB",
        "a part too much",
        "preferred",
        "required",
        "preferred and too much",
        "preferred and enough",
    ],
)
def test_memory_that_a_pod_asked_for_is_given_to_no_other(
    answer: int, asked: dict[str, str], refused: bool
) -> None:
    shared = Node(node())
    shared.holds("first", ["0::1"], uses(answer))
    found = shared.answer(1, asked)
    assert (found.rejection is not None) is refused
    if refused:
        assert found.rejection is not None
        assert found.rejection.message.startswith(LITTLE)
        assert found.rejection.resolvable
        assert found.verdict == "not-now"


def test_pods_that_say_nothing_are_never_held_up() -> None:
    shared = Node(node())
    for i in range(3):
        shared.holds(f"p{i}", [f"0::{i}"])
    assert shared.reason(1) == ""
    shared.bound("last")
    assert shared.reason(1) == "not enough free GPU shares"


def test_memory_is_counted_once_for_each_gpu() -> None:
    shared = Node(node(gpus=2))
    shared.holds("two-on-one", ["0::0", "0::1"], uses(20))
    assert [(row.used // GIB, row.pods) for row in rows(shared)] == [
        (20, ["default/two-on-one"]),
        (0, []),
    ]


def test_whole_gpus_have_to_have_the_memory_and_no_more() -> None:
    whole = Node(replace(node(), resources=(GpuResource(),), allocator=AllocatorConfig("any")))
    assert whole.reason(1, uses(40)) == ""
    assert whole.reason(1, uses(41)) == "GPU memory is less than 41Gi"
    before = whole.cluster.node_info(NAME).key(GPU)
    whole.holds("first", ["0"], uses(4))
    held = whole.cluster.node_info(NAME).key(GPU)
    other = Node(whole.topology)
    other.holds("first", ["0"])
    assert before != held == other.cluster.node_info(NAME).key(GPU)  # nodes share their answers


def test_a_gpu_that_could_never_do_is_refused_for_good() -> None:
    found = Node(node()).answer(1, uses(41))
    assert found.rejection is not None
    assert (found.rejection.message, found.rejection.resolvable) == (
        "GPU memory is less than 41Gi",
        False,
    )


# --- What may come --------------------------------------------------------------------------------


# --- What no report shows -------------------------------------------------------------------------


def test_a_bound_pod_counts_until_a_report_may_show_it() -> None:
    shared = Node(node(gpus=2))
    shared.bound("first", 1, uses(30))
    assert shared.answer(1, uses(20)).rejection == IN_PROGRESS
    shared.holds("first", ["0::0"], uses(30))
    assert shared.reason(1, uses(20)) == ""


def test_a_bound_pod_gets_no_gpu_that_is_full() -> None:
    """The pod on its way lands on GPU 1, unless another one takes a share of it first."""
    shared = Node(node(gpus=2))
    shared.holds("full", ["0::0"], uses(38))
    shared.bound("first", 1, uses(20))
    assert shared.answer(1, uses(1)).rejection == IN_PROGRESS


def test_a_terminating_pod_uses_its_memory_until_a_report_shows_it_no_more() -> None:
    shared = Node(node())
    shared.holds("first", ["0::0"], uses(30))
    shared.cluster.drop_pod(PodUid("first"), 7)
    assert shared.reason(1, uses(20)).startswith(LITTLE)
    shared.held.clear()
    shared.report()
    shared.report()
    assert shared.reason(1, uses(20)) == ""


def test_a_pod_that_a_kubelet_does_not_show_after_its_restart_counts() -> None:
    shared = Node(node())
    shared.holds("first", ["0::0"], uses(30))
    shared.held.clear()
    shared.report()
    assert shared.reason(1, uses(20)).startswith(LITTLE)


def test_what_init_containers_hide_counts() -> None:
    shared = Node(node(gpus=2))
    init = [{"name": "first", "resources": {"limits": {GPU: "2"}}}]
    shared.holds("app", ["0::0"], uses(30), init=init)
    assert shared.reason(1, uses(20)).startswith(LITTLE)  # it may have a share of GPU 1, too


def test_devices_that_are_not_handed_out_count() -> None:
    shared = Node(node())
    shared.holds("first", ["0::0"], uses(30))
    shared.report(frozenset(DeviceId(f"GPU-0::{i}") for i in range(1, 4)))
    assert shared.reason(1, uses(11)).startswith(LITTLE)
    assert shared.reason(1, uses(10)) == ""


def test_all_is_known_again_after_a_restart() -> None:
    """Of an extender that knew nothing: from the pods' annotations and the report."""
    shared = Node(node())
    shared.holds("first", ["0::0"], uses(30))
    shared.bound("second", 1, uses(6))
    fresh = Cache(Clock())
    for known in shared.cluster.node_info(NAME).pods.every:
        fresh.put_pod(known)
    fresh.put_record(shared.topology, shared.cluster.node_info(NAME).report or Report())
    for gib, refused in ((4, False), (5, True)):
        found = record_of(manifest("asks", 1, uses(gib)))
        assert isinstance(found.request, GpuRequest)
        assert (
            answer(fresh.snapshot(), fresh.node_info(NAME), found.request).rejection is not None
        ) is refused


def test_evictions_help() -> None:
    shared = Node(node())
    shared.holds("first", ["0::0"], uses(30))
    without = shared.cluster.node_info(NAME).without(frozenset({PodUid("first")}))
    found = record_of(manifest("asks", 1, uses(40)))
    assert isinstance(found.request, GpuRequest)
    assert answer(shared.cluster.snapshot(), without, found.request).rejection is None


# --- Alone on a GPU -------------------------------------------------------------------------------

ALONE = {"sharing": "exclusive"}


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        (4, ""),
        (8, ""),
        (
            2,
            "sharing=exclusive: GPUs have 4 shares each, and the pod must request all shares of "
            "each",
        ),
    ],
)
def test_a_pod_that_wants_a_gpu_alone_asks_for_every_share(count: int, reason: str) -> None:
    found = Node(node(gpus=2, policy="packed")).answer(count, ALONE)
    assert (found.rejection.message if found.rejection else "") == reason


@pytest.mark.parametrize(
    ("policy", "verdict"), [("distributed", Verdict.NOT_NOW), ("packed", Verdict.GUARANTEED)]
)
def test_only_packed_gives_all_shares_of_one_gpu(policy: str, verdict: Verdict) -> None:
    assert Node(node(gpus=2, policy=policy)).answer(4, ALONE).verdict == verdict.value


def test_a_gpu_in_use_is_no_gpu_alone() -> None:
    shared = Node(node(gpus=2, policy="packed"))
    shared.holds("other", ["0::0"])
    assert shared.reason(4, ALONE) == "no set of 4 free GPU shares with sharing=exclusive"


def test_links_are_asked_of_the_gpus_that_it_has_alone() -> None:
    shared = Node(node(gpus=2))
    assert shared.reason(8, {**ALONE, "link": "node"}) == ""
    assert shared.reason(8, {"link": "node"}) == "node has fewer GPUs than requested"
    assert "link=nvlink" in shared.reason(8, {**ALONE, "link": "nvlink"})


def test_a_whole_gpu_is_always_had_alone() -> None:
    whole = Node(replace(node(gpus=2), resources=(GpuResource(),)))
    assert whole.reason(1, ALONE) == ""
    assert whole.reason(2, ALONE) == ""


def test_a_pod_that_is_not_alone_is_called_out() -> None:
    shared, found = Node(node()), list[Misprediction]()
    shared.cluster.on_misprediction.append(found.append)
    promise = '{"verdict":"guaranteed","node":"node","uid":"alone"}'
    shared.holds("alone", ["0::0", "0::1"], {**ALONE, "placement": promise})
    assert [misprediction.kind for misprediction in found] == [BROKEN]


PROMISED_ALONE = {**ALONE, "placement": '{"verdict":"guaranteed","node":"node","uid":"alone"}'}


def test_a_share_that_is_not_handed_out_now_belongs_to_its_gpu() -> None:
    """NVIDIA's plugin calls one share sick for an Xid, and forgets it when it starts anew."""
    shared = Node(node())
    shared.report(frozenset(DeviceId(f"GPU-0::{i}") for i in range(3)))
    assert "the pod must request all shares of each" in shared.reason(3, ALONE)
    assert shared.reason(4, ALONE) == "not enough free GPU shares"
    shared.report()
    assert shared.reason(4, ALONE) == ""


def test_a_record_that_counts_too_few_shares_is_no_record() -> None:
    shared = Node(node(replicas=3))
    shared.report(frozenset(DeviceId(f"GPU-0::{i}") for i in range(1, 4)))
    assert shared.reason(3, ALONE) == "topology record unusable"
    assert shared.reason(1) == ""


@pytest.mark.parametrize("asked", [{}, uses(1), {"min-gpu-memory": "1Gi"}, ALONE])
@pytest.mark.parametrize("hidden", [False, True], ids=["reported", "after a kubelet's restart"])
def test_no_pod_gets_shares_of_a_gpu_that_another_has_alone(
    asked: dict[str, str], hidden: bool
) -> None:
    """The plugin has started with more shares: what was all of them is a part."""
    shared = Node(node(replicas=2))
    shared.holds("alone", ["0::0", "0::1"], PROMISED_ALONE)
    if hidden:
        shared.held.clear()
    shared.topology = node(replicas=4)
    shared.report()
    count = 4 if asked == ALONE else 2
    reason = "a GPU that is promised to another pod alone"
    assert reason in shared.reason(2, asked) or count == 4
    assert shared.reason(count, asked) != ""
    shared.cluster.drop_pod(PodUid("alone"))
    shared.held.clear()
    shared.report()
    assert shared.reason(count, asked) == ""


def test_other_gpus_are_open_beside_one_that_is_anothers_alone() -> None:
    shared = Node(node(gpus=2, replicas=2))
    shared.holds("alone", ["0::0", "0::1"], PROMISED_ALONE)
    assert shared.reason(2) == ""
    shared.topology = node(gpus=2, replicas=4)
    shared.report()
    assert shared.reason(1) == "", "distributed takes the GPU with more shares left"
    assert "promised to another pod alone" in shared.reason(4)
    assert [(row.gpu, row.used // GIB) for row in rows(shared)] == [(0, 40), (1, 0)]


# --- What people see ------------------------------------------------------------------------------


def rows(shared: Node) -> list[Any]:
    info = shared.cluster.node_info(NAME)
    return shared_gpus(info, offered(info, shared.topology.resources[0].name))


@pytest.mark.parametrize("resource", [GPU, RENAMED])
@pytest.mark.parametrize("strategy", ["time-slicing", "mps"])
def test_which_pods_share_a_gpu(resource: str, strategy: str) -> None:
    shared = Node(node(gpus=2, resource=resource, strategy=strategy))
    shared.holds("one", ["0::0"], uses(25), resource=resource)
    shared.holds("two", ["0::1", "1::3"], resource=resource)
    assert [(r.gpu, r.shares, r.free, r.used // GIB, r.pods) for r in rows(shared)] == [
        (0, 4, 2, 35, ["default/one", "default/two"]),
        (1, 4, 3, 10, ["default/two"]),
    ]
    assert {row.resource for row in rows(shared)} == {resource}
    assert shared.reason(1, uses(6), resource=resource) == ""


# --- Pods from before the plugin's configuration was changed --------------------------------------


@pytest.mark.parametrize("device", ["0", "0::4"], ids=["whole", "of more shares"])
@pytest.mark.parametrize("known", [True, False], ids=["allocatable told", "allocatable not told"])
def test_nothing_is_promised_beside_a_pod_with_a_device_of_before(device: str, known: bool) -> None:
    """The kubelet hands out all four shares of the GPU beside it."""
    here = Node(node(1, 4))
    here.holds("old", [device])
    here.report(frozenset(DeviceId(f"GPU-0::{i}") for i in range(4)) if known else None)
    for count, asked in ((1, uses(31)), (1, uses(5)), (4, {"sharing": "exclusive"})):
        assert here.reason(count, asked) == "topology record unusable"
    assert f"GPU-{device} is not one of the 4 shares" in (
        here.cluster.node_info(NAME).record.contradiction(GPU) or ""
    )
    assert here.reason(1) == "", "a plain pod is not held up"
    here.held.clear()
    here.cluster.drop_pod(PodUid("old"))
    here.report()
    assert here.reason(1, uses(31)) == ""


# --- What is not shared, beside what is ----------------------------------------------------------


def test_a_sick_instance_that_is_not_shared_is_none_from_before() -> None:
    """The kubelet lists it no more, and the pod that has it still has it."""
    cut_up = cut(machine("dgx-a100").topology("n"), ["1g.5gb", "1g.5gb", "3g.20gb"], gpus=[0])
    small, large = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
    shared = GpuResource(small, "mig", 4)
    node = replace(cut_up, resources=(GpuResource(), shared, GpuResource(large, "mig")))
    one, two, sick = (part.uuid for part in node.gpus[0].mig_instances)
    allocations = (
        Allocation(PodUid("a"), "x", "a", "main", large, (DeviceId(sick),)),
        Allocation(PodUid("b"), "x", "b", "main", small, (DeviceId(f"{one}::3"),)),
    )
    listed = frozenset(DeviceId(f"{part}::{i}") for part in (one, two) for i in range(4))
    report = Report(allocations=allocations, allocatable=listed)
    assert contradiction(node, report, small) is None
    old = Allocation(PodUid("c"), "x", "c", "main", small, (DeviceId(two),))
    report = replace(report, allocations=(*allocations, old))
    assert "not one of the 4 shares" in (contradiction(node, report, small) or "")
