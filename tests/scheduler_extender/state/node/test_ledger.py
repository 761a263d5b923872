"""The ledger's state rules, and the cluster that remembers answers by them."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scheduler_extender.framework.equivalence import answer, ask
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.ledger import ledger
from scheduler_extender.state.node.objects import NodeObject, contradiction
from scheduler_extender.state.node.occupants import Occupants
from scheduler_extender.state.pods.record import PodRecord
from tests.nodes import container, offered, pod, record_of, shown, switched, unacknowledged
from tests.scheduler_extender.serving import Clock
from topology.core.availability import Availability, Holder, Unacknowledged
from topology.core.devices import DeviceId, GpuResource, NodeName, PodUid
from topology.core.devicesets import pack
from topology.core.links import LinkKind
from topology.core.report import CLIENT, Allocation, Condition, Health, Report
from topology.core.requests import Constraints, Exclusive, Role, gpu_request
from topology.machines import machine
from topology.machines.mig import cut

NODE = switched(name="node")
GPU = "nvidia.com/gpu"


def bound(count: int = 2, **more: Any) -> PodRecord:
    return record_of(pod(count, node="node", **more))


def free(report: Report, *pods: PodRecord, **more: Any) -> Availability:
    return ledger(NODE, report, pods, GPU, **more).availability


def test_a_running_pod_that_is_not_shown_holds_devices_that_we_do_not_know() -> None:
    """Just after its restart a kubelet shows no pods at all, and every device as allocatable."""
    running = bound(phase="Running")
    assert free(Report(), running) == Availability(0b1111, running=(Holder(0, 2),))
    assert free(Report(), replace(running, terminating=True)).releasing == (Holder(0, 2),)


def test_a_pod_that_vanishes_from_the_report_still_holds_its_devices() -> None:
    cluster = Cache(Clock())
    cluster.put_pod(bound())
    cluster.put_record(NODE, Report("boot", 1))
    now = offered(cluster.node_info(NODE.name)).availability
    assert now == Availability(0b1111, unacknowledged=(unacknowledged(2),))
    cluster.put_record(NODE, Report("boot", 2, allocations=(shown("uid-1", 1, 2),)))
    cluster.put_record(NODE, Report("boot", 3))
    assert offered(cluster.node_info(NODE.name)).availability == Availability(
        0b1111, running=(Holder(0, 2),)
    )
    # After a reboot it is admitted anew.
    cluster.put_record(NODE, Report("reboot", 1))
    now = offered(cluster.node_info(NODE.name)).availability
    assert now == Availability(0b1111, unacknowledged=(unacknowledged(2),))


def test_what_dra_serves_holds_no_plugin_device() -> None:
    claim: dict[str, Any] = {
        "resourceClaimName": "c",
        "requestMappings": [{"containerName": "main", "resourceName": GPU, "requestName": "r"}],
    }
    served = record_of(pod(2, node="node", extendedResourceClaimStatus=claim))
    assert served.has_extended_resource_claim
    assert free(Report(), served) == Availability(0b1111)
    claim["requestMappings"][0]["resourceName"] = "nvidia.com/mig-1g.10gb"
    other = record_of(pod(2, node="node", extendedResourceClaimStatus=claim))
    assert free(Report(), other) == Availability(0b1111, unacknowledged=(unacknowledged(2),))


def test_pod_level_resources_and_ephemeral_containers_carry_no_gpus() -> None:
    manifest = pod(1, node="node")
    manifest["spec"]["resources"] = {"limits": {GPU: "4"}}
    manifest["spec"]["ephemeralContainers"] = [container("debug", 2)]
    one = replace(
        unacknowledged(1), exclusive=Exclusive.CPUS
    )  # it may be: that is the kubelet's to say
    assert free(Report(), record_of(manifest)) == Availability(0b1111, unacknowledged=(one,))


def test_a_half_admitted_pod_stays_pending_with_the_rest() -> None:
    two = bound(containers=[container("a", 1), container("b", 2)])
    now = free(Report(allocations=(shown("uid-1", 0, name="a"),)), two)
    rest = Unacknowledged(((Role.APP, 2),), started=True, shown=0b0001)
    assert now == Availability(0b1110, unacknowledged=(rest,))


def test_init_containers_have_devices_that_no_report_shows() -> None:
    hungry = bound(containers=[container("a", 1)], init=[container("i", 3)])
    # Its init container may have its devices already: to others it may take any.
    entry = Unacknowledged(((Role.INIT, 3), (Role.APP, 1)), opaque=True)
    assert free(Report(), hungry) == Availability(0b1111, unacknowledged=(entry,))
    now = free(Report(allocations=(shown("uid-1", 0, name="a"),)), hungry)
    assert now == Availability(0b1110, running=(Holder(0b0001, 2),))
    assert now.devices_left == 1


@pytest.mark.parametrize("phase", ["Running", "Failed", "Succeeded"])
@pytest.mark.parametrize("apps", [1, 2], ids=["whole", "in the middle of its admission"])
def test_a_pod_of_another_resource_takes_nothing_of_this_one(phase: str, apps: int) -> None:
    """Its init container has two MIG instances, and no report shows the second."""
    profile = "nvidia.com/mig-2g.20gb"
    node = cut(machine("hgx-a100-4").topology(NODE.name), ["2g.20gb"] * 3, gpus=[0, 1])
    instance = node.gpus[0].mig_instances[0].uuid
    containers = [_mig(f"app-{i}", 1, profile) for i in range(apps)]
    cut_up = bound(containers=containers, init=[_mig("init", 2, profile)], phase=phase)
    allocation = Allocation(cut_up.uid, "default", "uid-1", "app-0", profile, (DeviceId(instance),))
    found = ledger(node, Report(allocations=(allocation,)), (cut_up,), GPU)
    assert (found.availability, found.unacknowledged) == (Availability(0b1100), {})
    assert found.availability.devices_left == 2
    ours = ledger(node, Report(allocations=(allocation,)), (cut_up,), profile)
    assert ours.availability.devices_left == 4


def _mig(name: str, count: int, resource: str) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {resource: str(count)}}}


def test_what_init_containers_hold_is_not_forgotten_with_the_pod_that_has_ended() -> None:
    """The report still shows it: a pod admitted before may have found all of it taken."""
    cluster = Cache(Clock())
    hungry = bound(containers=[container("a", 1)], init=[container("i", 3)])
    cluster.put_pod(hungry)
    cluster.put_record(NODE, Report("boot", 1, allocations=(shown("uid-1", 0, name="a"),)))
    cluster.put_pod(replace(hungry, phase="Failed"))
    cluster.drop_pod(hungry.uid, 7)
    now = offered(cluster.node_info(NODE.name)).availability
    assert now == Availability(0b1110, releasing=(Holder(0b0001, 2),))
    cluster.put_record(NODE, Report("boot", 2, pods_version="7"))
    assert offered(cluster.node_info(NODE.name)).availability == Availability(0b1111)


def test_what_init_containers_hold_may_have_failed_since() -> None:
    """Then it is none of those that seem free: the kubelet may hand out every one of them."""
    hungry = bound(containers=[container("a", 1)], init=[container("i", 2)])
    well = frozenset(DeviceId(f"GPU-{i}") for i in (0, 2, 3))
    report = Report(allocatable=well, allocations=(shown("uid-1", 0, name="a"),))
    assert free(report, hungry) == Availability(
        0b1100, running=(Holder(0b0001, 1),), gone=1, withheld=2
    )
    # Where nothing is hidden it changes nothing, and the moment stays one with others.
    assert free(Report(allocatable=well)).gone == 0


def placed(placement: object, *, node: str | None = "node") -> PodRecord:
    written = placement if isinstance(placement, str) else json.dumps(placement)
    return record_of(pod(2, {"link": "nvlink", "placement": written}, node=node))


@pytest.mark.parametrize("verdict", ["guaranteed", "expected"])
def test_a_promise_is_restored_from_the_placement_annotation(verdict: str) -> None:
    found = placed({"verdict": verdict, "node": "node", "uid": "uid-1", "sets": [], "time": "t"})
    assert found.promised == Constraints(link=LinkKind.NVLINK)
    assert found.survives_endings is (verdict == "guaranteed")
    assert record_of(pod(2, {"link": "nvlink"}, node="node")).promised == Constraints()


@pytest.mark.parametrize(
    "written",
    [
        pytest.param("", id="empty"),
        pytest.param("not JSON", id="unreadable"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param("1" * 10_000, id="a-number"),
        pytest.param({"verdict": ["guaranteed"], "node": "node", "uid": "uid-1"}, id="a-list"),
        pytest.param([], id="no-object"),
        pytest.param('{"x": ' + "[" * 100_000, id="nested-without-end"),
        pytest.param({"verdict": 3, "node": "node", "uid": "uid-1"}, id="no-word"),
        pytest.param({"verdict": "guaranteed"}, id="no-uid"),
        pytest.param({"verdict": "guaranteed", "node": "node", "uid": "uid-2"}, id="another-pod"),
        pytest.param({"verdict": "guaranteed", "node": "n", "uid": "uid-1"}, id="another-node"),
        pytest.param(
            {"verdict": "not-guaranteed", "node": "node", "uid": "uid-1"}, id="no-promise"
        ),
    ],
)
def test_an_annotation_that_another_client_wrote_promises_nothing(written: object) -> None:
    assert placed(written).promised == Constraints()


def test_a_pod_without_a_node_was_promised_nothing() -> None:
    written = {"verdict": "guaranteed", "node": "", "uid": "uid-1"}
    assert placed(written, node=None).promised == Constraints()


def test_a_promise_is_what_the_bind_gave_whatever_is_written_later() -> None:
    """A pod's owner knows its UID once it exists, and may write any annotation then."""
    forged = {"verdict": "guaranteed", "node": "node", "uid": "uid-1"}
    bare = record_of(pod(2, {"link": "nvlink"}, node="node"))
    cluster = Cache(Clock())
    cluster.put_pod(bare)
    cluster.put_pod(placed(forged))
    (known,) = cluster.node_info(NODE.name).pods.every
    assert known.promised == Constraints()
    cluster = Cache(Clock())
    cluster.put_pod(placed(forged))
    cluster.put_pod(bare)
    (known,) = cluster.node_info(NODE.name).pods.every
    assert known.promised == Constraints(link=LinkKind.NVLINK)


@pytest.mark.parametrize(
    "how", [{"phase": "Succeeded"}, {"phase": "Failed"}, {"terminating": True}]
)
def test_a_pod_that_has_ended_or_ends_may_release_what_is_shown(how: dict[str, Any]) -> None:
    going = replace(bound(), **how)
    now = free(Report(allocations=(shown("uid-1", 1, 2),)), going)
    assert now == Availability(0b1001, releasing=(Holder(0b0110),))
    if going.ended:
        assert free(Report(), going) == Availability(0b1111)


def test_an_unknown_holder() -> None:
    report = Report(allocations=(shown("unknown", 3),))
    assert free(report) == Availability(0b0111, releasing=(Holder(0b1000),))
    assert free(report, occupants=Occupants(complete=False)) == Availability(
        0b0111, running=(Holder(0b1000),)
    )


def test_what_the_kubelet_would_not_hand_out_is_not_free() -> None:
    report = Report(allocatable=frozenset({DeviceId("GPU-0"), DeviceId("GPU-3")}))
    assert free(report) == Availability(0b1001, withheld=0b0110)


def test_a_sick_gpu_that_a_pod_holds_may_heal_before_the_pod_ends() -> None:
    """Then it comes free with the pod, though no report has called it allocatable again."""
    report = Report(
        allocatable=frozenset({DeviceId("GPU-0"), DeviceId("GPU-2")}),
        allocations=(shown("uid-1", 0, 1),),
    )
    now = free(report, bound())
    assert now == Availability(0b0100, running=(Holder(0b0001),), withheld=0b1010)
    assert now.widest(endings=True) == 0b1111


def test_an_allocation_without_a_uid_is_the_pods_of_that_name() -> None:
    nameless = replace(shown("", 0, 1), pod="train")
    report = Report(allocations=(nameless,))
    assert free(report, bound(uid="uid-2")) == Availability(0b1100, running=(Holder(0b0011),))
    # Of two pods of that name it cannot be told whose it is: each of them may take two more.
    twice = free(report, bound(uid="uid-2"), bound(uid="uid-3"))
    assert (twice.free, len(twice.unacknowledged)) == (0b1100, 2)


def test_a_sick_gpu_stays_free_and_is_marked() -> None:
    report = Report(health=(Health(NODE.gpus[2].uuid, False, "Xid79"),))
    assert free(report) == Availability(0b1111, sick=0b0100)


def test_a_vanished_uuid_is_nobodys_bit() -> None:
    gone = Allocation(PodUid("x"), "d", "x", "main", GPU, (DeviceId("GPU-gone"),))
    assert free(Report(allocations=(gone,))) == Availability(0b1111)


def test_a_bound_pod_with_a_bad_annotation_still_holds_its_gpus() -> None:
    bad = record_of(pod(4, {"oops": "1"}, node="node"))
    assert free(Report(), bad).devices_left == 0


@pytest.mark.parametrize(
    ("report", "words"),
    [
        pytest.param(
            Report(allocatable=frozenset({DeviceId("GPU-0"), DeviceId("GPU-x")})),
            "GPU-x is not among the devices",
            id="unknown",
        ),
        pytest.param(
            Report(
                allocations=(Allocation(PodUid("a"), "d", "a", "m", GPU, (DeviceId("GPU-0::1"),)),)
            ),
            "is a share",
            id="share",
        ),
        pytest.param(
            Report(
                allocations=(Allocation(PodUid("a"), "d", "a", "m", GPU, (DeviceId("GPU-0"),) * 2),)
            ),
            "is listed twice for one container",
            id="twice",
        ),
    ],
)
def test_a_report_that_cannot_be_true(report: Report, words: str) -> None:
    assert words in (contradiction(NODE, report, GPU) or "")


def test_shared_gpus_are_counted_and_not_distinguished() -> None:
    shared = replace(NODE, resources=(GpuResource(GPU, "time-slicing", 4),))
    ids = (DeviceId("GPU-0::1"), DeviceId("GPU-0::3"))
    report = Report(allocations=(Allocation(PodUid("x"), "d", "x", "main", GPU, ids),))
    now = ledger(shared, report, [bound(3)], GPU).availability
    assert (now.free, now.width) == (pack([2, 4, 4, 4], 3), 3)
    assert now.releasing == (Holder(pack([2], 3)),)
    assert now.devices_left == 16 - 2 - 3


# The cluster.


@pytest.fixture
def cluster() -> Cache:
    found = Cache(Clock(), Settings())
    found.put_record(NODE, Report("boot", 5))
    return found


def passes(cluster: Cache, count: int = 2) -> bool:
    request = gpu_request(count, Constraints(link=LinkKind.NVLINK))
    ((_, cached),) = ask(cluster.snapshot(), request, ["node"]).each()
    decision = answer(cluster.snapshot(), cluster.node_info(NodeName("node")), request)
    assert cached in (None, decision)
    return decision.rejection is None


def test_reports_out_of_order_are_passed_over_until_a_new_boot(cluster: Cache) -> None:
    cluster.put_report(NodeName("node"), Report("boot", 4, allocations=(shown("x", 0, 1, 2),)))
    assert passes(cluster)
    assert cluster.reports_out_of_order == 1
    cluster.put_report(NodeName("node"), Report("new", 1, allocations=(shown("x", 0, 1, 2),)))
    assert not passes(cluster)


def test_a_nodename_is_never_taken_back(cluster: Cache) -> None:
    cluster.put_pod(bound(3))
    cluster.put_pod(record_of(pod(3)))
    assert not passes(cluster)
    cluster.drop_pod(PodUid("uid-1"))
    assert passes(cluster)


def test_a_heartbeat_keeps_a_node_fresh_and_wakes_no_pod() -> None:
    clock = Clock()
    cluster = Cache(clock, Settings(stale_after=100))
    cluster.put_record(NODE, Report("boot", 1))
    changes: list[str] = []
    cluster.on_change.append(changes.append)
    for i in range(2, 6):
        clock.now += 60
        cluster.put_report(NodeName("node"), Report("boot", i))
        assert passes(cluster)
    assert changes == []
    clock.now += 60
    cluster.put_report(NodeName("node"), Report("boot", 5))  # the same again is no sign of life
    clock.now += 60
    assert not passes(cluster)
    cluster.put_report(NodeName("node"), Report("boot", 6))
    assert passes(cluster)


DRA_ALONE, MAINTAINED = NodeObject(advertises_none=True), NodeObject(labels={CLIENT: "false"})
UNREADY = Report("boot", 2, conditions=(Condition("Ready", False, "Starting", ""),))


@pytest.mark.parametrize(
    ("change", "seconds"),
    [
        pytest.param(lambda cache: cache.put_problem(NODE.name, "bad"), 0, id="problem"),
        pytest.param(lambda cache: cache.put_record(NODE, None), 0, id="no report"),
        pytest.param(lambda cache: cache.put_node(NODE.name, DRA_ALONE), 0, id="DRA alone"),
        pytest.param(lambda cache: cache.put_node(NODE.name, MAINTAINED), 0, id="maintained"),
        pytest.param(lambda cache: cache.put_record(NODE, UNREADY), 0, id="not ready"),
        pytest.param(lambda cache: None, 60, id="stale"),
    ],
)
def test_of_alike_nodes_the_one_that_is_unknown_now_answers_for_itself(
    change: Callable[[Cache], object], seconds: float
) -> None:
    clock, other = Clock(), switched(name="other")
    cluster = Cache(clock, Settings(stale_after=100))
    cluster.put_record(NODE, Report("boot", 1))
    clock.now += 60
    cluster.put_record(other, Report("boot", 1))
    request, both = gpu_request(2, Constraints(link=LinkKind.NVLINK)), [NODE.name, other.name]

    def refused() -> list[bool]:
        answers = dict(ask(cluster.snapshot(), request, both).each()).values()
        return [found is not None and found.rejection is not None for found in answers]

    assert refused() == [False, False]
    change(cluster)
    clock.now += seconds
    assert refused() == [True, False]


def test_a_relist_forgets_what_it_does_not_name(cluster: Cache) -> None:
    cluster.put_pod(bound(3))
    cluster.assume(NodeName("node"), record_of(pod(1, uid="flying")))
    cluster.keep_pods({PodUid("another")})
    assert [p.uid for p in cluster.node_info(NodeName("node")).pods.every] == ["flying"]
    cluster.keep_records(set())
    assert not passes(cluster)
