"""What a report shows is held against what was foreseen; a misprediction is counted, logged,
told."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest

from scheduler_extender.annotations import MANAGED
from scheduler_extender.files.clusterfile import parse
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.ledger import ledger
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.node.objects import AgentRecord, NodeObject
from scheduler_extender.state.node.occupants import Occupants, Roster, Terminated
from scheduler_extender.state.node.transitions import with_record
from scheduler_extender.state.node.verification import (
    BROKEN,
    OUTSIDE,
    Misprediction,
    Verified,
    verify,
)
from scheduler_extender.state.pods.record import PodRecord, manifest_of, pod_record
from scheduler_extender.wire import Pod
from tests.nodes import container, pod, record_of
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Health, MissingGpu, Report
from topology.machines import machine

NODE = machine("dgx1-v100").topology("node")


def record(uid: str, count: int = 2, *, link: bool = True, **more: Any) -> PodRecord:
    promise = json.dumps({"verdict": "guaranteed", "node": "node", "uid": uid})
    annotations = {"link": "nvlink", "placement": promise} if link else {}
    return record_of(pod(count, annotations, name=uid, uid=uid, node="node", **more))


def shows(uid: str, *gpus: int, name: str = "main") -> Allocation:
    ids = tuple(NODE.gpus[p].uuid for p in gpus)
    return Allocation(PodUid(uid), "default", uid, name, "nvidia.com/gpu", ids)  # type: ignore[arg-type]


def report(*allocations: Allocation, sequence: int = 2, boot: str = "boot") -> Report:
    return Report(boot, sequence, allocations=allocations)


BEFORE = report(sequence=1)
PAIR = record("pair")


def kinds(after: Report, *pods: PodRecord, before: Report = BEFORE) -> list[str]:
    return [misprediction.kind for misprediction in mispredictions(after, *pods, before=before)]


def mispredictions(
    after: Report,
    *pods: PodRecord,
    before: Report = BEFORE,
    terminated: tuple[Terminated, ...] = (),
    node: NodeTopology = NODE,
) -> list[Misprediction]:
    info = known(*pods, before=before, terminated=terminated, node=node)
    return list(verified(info, after).mispredictions)


def verified(info: NodeInfo, after: Report) -> Verified:
    return verify(info, with_record(info, info.topology or NODE, after, ""))


def known(
    *pods: PodRecord,
    before: Report = BEFORE,
    terminated: tuple[Terminated, ...] = (),
    node: NodeTopology = NODE,
) -> NodeInfo:
    held = {gone.pod.uid: gone for gone in terminated}
    there = Occupants(bound=Roster.of(pods), terminated=held)
    return NodeInfo(NODE.name, record=AgentRecord(node, before), pods=there)


def test_promises_kept_are_counted_once_when_all_devices_are_shown() -> None:
    plain = record("plain", 1, link=False)
    after = report(shows("pair", 0, 3), shows("plain", 1))
    assert verified(known(PAIR, plain), after).kept == 1, "the plain pod was promised nothing"
    again = report(*after.allocations, sequence=3)
    assert verified(known(PAIR, plain, before=after), again).kept == 0
    assert verified(known(PAIR), report(shows("pair", 0, 5))).kept == 0, "it is broken"
    two = record("two", containers=[container("a", 1), container("b", 1)])
    half = report(shows("two", 0, name="a"))
    assert verified(known(two), half).kept == 0
    whole = report(shows("two", 0, name="a"), shows("two", 3, name="b"), sequence=3)
    assert verified(known(two, before=half), whole).kept == 1


def test_an_allocator_that_does_what_we_do_not_model() -> None:
    # Linked, but no pair of a best split of eight: not broken, and a bug of the model.
    assert kinds(report(shows("pair", 0, 1)), PAIR) == [OUTSIDE]
    assert kinds(report(shows("pair", 0, 5)), PAIR) == [OUTSIDE, BROKEN]


def test_a_plain_pod_can_be_outside_too() -> None:
    plain = record("plain", link=False)
    assert kinds(report(shows("plain", 0, 5)), plain) == [OUTSIDE]


def test_a_pod_that_was_pending_may_have_come_first() -> None:
    single = record("single", 1, link=False)
    assert kinds(report(shows("single", 0), shows("pair", 1, 2)), PAIR, single) == []
    assert kinds(report(shows("pair", 1, 2)), PAIR) == []


def test_a_pod_that_came_and_went_may_have_come_first() -> None:
    links = tuple(link for link in NODE.links if link.b < 4)
    lower = replace(NODE, gpus=NODE.gpus[:4], links=links, nics=())
    before = Report("boot", 1)
    after = Report("boot", 2, allocations=(shows("pair", 2, 3),))
    gone = record("gone", 1, link=False, phase="Succeeded")
    # Of 0 to 3 the pair would be 0-3 or 1-2; it is 2-3 where another pod took 0 first.
    found = mispredictions(after, PAIR, gone, before=before, node=lower)
    assert [misprediction.kind for misprediction in found] == [OUTSIDE]
    terminated = Terminated(gone, frozenset({PAIR.uid}))
    assert (
        mispredictions(after, PAIR, gone, before=before, terminated=(terminated,), node=lower) == []
    )


def test_a_pod_that_only_the_report_shows_is_named() -> None:
    taken = [shows(f"foreign-{p}", p) for p in (1, 2, 3, 4, 6)]
    (outside, broken) = mispredictions(report(shows("pair", 0, 5), *taken), PAIR)
    assert (outside.kind, broken.kind) == (OUTSIDE, BROKEN)
    assert broken.foreign[0] == "default/foreign-1"
    assert broken.message.endswith("pods bound without the extender may have taken GPUs first")
    assert broken.message.startswith("node gave GPUs 0,5: these GPUs do not meet the pod's ")


def test_a_half_admitted_pod_is_judged_when_it_is_whole() -> None:
    two = record("two", containers=[container("a", 1), container("b", 1)])
    half = report(shows("two", 0, name="a"), sequence=2)
    assert kinds(half, two) == []
    whole = report(shows("two", 0, name="a"), shows("two", 5, name="b"), sequence=3)
    assert kinds(whole, two, before=half) == [BROKEN]


def test_a_gpu_may_have_answered_between_two_reports_that_miss_it() -> None:
    """What its plugin allocates meanwhile is not predicted, and the promise still counts."""
    missing = (MissingGpu(str(NODE.gpus[7].uuid), counted=True),)
    before, after = replace(BEFORE, missing=missing), report(shows("pair", 0, 1))
    assert kinds(after, PAIR, before=before) == []
    assert kinds(replace(after, missing=missing), PAIR) == []
    assert kinds(report(shows("pair", 0, 5)), PAIR, before=before) == [BROKEN]


WITHOUT_7 = frozenset(DeviceId(gpu.uuid) for gpu in NODE.gpus[:7])
ALL_8 = frozenset(DeviceId(gpu.uuid) for gpu in NODE.gpus)


def test_gpus_that_healed_before_the_report_may_have_been_withheld_at_admission() -> None:
    def judged(before: Report, *gpus: int) -> list[str]:
        return kinds(replace(report(shows("pair", *gpus)), allocatable=ALL_8), PAIR, before=before)

    steady = replace(BEFORE, allocatable=ALL_8)
    healing = replace(BEFORE, allocatable=WITHOUT_7)
    sick = replace(steady, health=(Health(NODE.gpus[7].uuid, False, "Xid79"),))
    assert judged(steady, 0, 1) == [OUTSIDE]
    assert judged(healing, 0, 1) == []
    assert judged(sick, 0, 1) == []
    assert judged(healing, 0, 5) == [BROKEN]


@pytest.mark.parametrize("when", ["before the bind", "after the bind"])
@pytest.mark.parametrize("in_parts", [True, False])
def test_gpus_that_changed_while_the_pod_was_unacknowledged_count_up_to_its_report(
    when: str, *, in_parts: bool
) -> None:
    cluster, seen = Cache(lambda: 0.0, Settings(stale_after=None)), list[Misprediction]()
    cluster.on_misprediction.append(seen.append)
    two = record("pair", containers=[container("a", 1), container("b", 2)], link=False)
    pod = two if in_parts else record("pair", link=False)
    first, second = shows("pair", 0, name="a"), shows("pair", 3, 4, name="b")
    parts = (first, second) if in_parts else (shows("pair", 0, 1),)

    def answer(sequence: int, allocatable: frozenset[DeviceId], *found: Allocation) -> None:
        cluster.put_record(
            NODE, replace(report(*found, sequence=sequence), allocatable=allocatable)
        )

    answer(1, WITHOUT_7)
    if when == "after the bind":
        cluster.put_pod(pod)
    answer(2, ALL_8)
    cluster.put_pod(pod)
    answer(3, ALL_8)
    if in_parts:
        answer(4, ALL_8, first)
    answer(5, ALL_8, *parts)
    assert [s.kind for s in seen] == ([OUTSIDE] if when == "before the bind" else [])
    assert cluster.node_info(NODE.name).pods.unsettled <= {pod.uid}
    answer(6, ALL_8, *parts)
    assert not cluster.node_info(NODE.name).pods.unsettled


def test_a_half_shown_pod_that_has_ended_is_judged_when_it_is_whole() -> None:
    """Its end may be heard of before the reports of its admission come."""
    two = record("two", containers=[container("a", 1), container("b", 1)], phase="Succeeded")
    terminated = (Terminated(two, frozenset({PAIR.uid})),)
    half = report(shows("two", 0, name="a"), sequence=2)
    assert mispredictions(half, two, PAIR, terminated=terminated) == []
    whole = report(shows("two", 0, name="a"), shows("two", 5, name="b"), sequence=3)
    found = mispredictions(whole, two, PAIR, before=half, terminated=terminated)
    assert [misprediction.kind for misprediction in found] == [BROKEN]


def test_a_half_admitted_pod_keeps_what_has_turned_sick_since() -> None:
    """GPU 6 was shown before the kubelet ended; it admits the pod anew, with GPU 6 and another."""
    first, second = container("a", 1), container("b", 1)
    pod = record("whole", link=False, containers=[first, second])
    before = replace(report(shows("whole", 6, name="a")), allocatable=frozenset())
    for gpu, expected in ((6, []), (5, [OUTSIDE])):
        shown = (shows("whole", gpu, name="a"), shows("whole", 4, name="b"))
        after = replace(before, sequence=3, allocations=shown)
        assert kinds(after, pod, before=before) == expected


@pytest.mark.parametrize("boot", ["boot", "another"])
def test_a_lost_checkpoint_puts_every_promise_to_the_test(boot: str) -> None:
    first = report(shows("pair", 0, 3))
    assert kinds(report(shows("pair", 1, 4), sequence=3, boot=boot), PAIR, before=first) == [BROKEN]
    assert kinds(report(shows("pair", 5, 6), sequence=3, boot=boot), PAIR, before=first) == []


def test_an_ended_pod_that_is_shown_again_changes_nothing() -> None:
    """A kubelet that has not forgotten an ended pod yet may leave it out and name it again."""
    cluster, seen, _ = mispredicted()
    assert [s.kind for s in seen] == [OUTSIDE, BROKEN]
    cluster.put_record(NODE, report(sequence=3))
    cluster.put_pod(replace(PAIR, phase="Succeeded"))
    cluster.put_record(NODE, report(shows("pair", 0, 5), sequence=4))
    assert len(seen) == 2


def test_a_pod_that_has_ended_before_its_first_report_is_held_against_its_promise() -> None:
    ended = record("pair", phase="Succeeded")
    assert kinds(report(shows("pair", 0, 5)), ended) == [BROKEN]


def mispredicted() -> tuple[Cache, list[Misprediction], Metrics]:
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    metrics, seen = Metrics(), list[Misprediction]()
    metrics.watch(cluster)
    cluster.on_misprediction.append(seen.append)
    cluster.put_record(NODE, BEFORE)
    cluster.put_pod(PAIR)
    cluster.put_record(NODE, report(shows("pair", 0, 5)))
    return cluster, seen, metrics


def test_a_misprediction_is_counted_and_logged(capsys: pytest.CaptureFixture[str]) -> None:
    _, seen, metrics = mispredicted()
    text = generate_latest(metrics.registry).decode()
    assert 'gpu_topology_mispredictions_total{kind="promise-broken"} 1.0' in text
    assert 'gpu_topology_mispredictions_total{kind="outside-outcomes"} 1.0' in text
    assert [s.kind for s in seen] == [OUTSIDE, BROKEN]
    assert "promise-broken" in capsys.readouterr().out


def test_the_cluster_file_of_a_misprediction_replays_it() -> None:
    _, seen, _ = mispredicted()
    content = parse(seen[0].cluster_file)
    (found,) = content.records
    assert found.topology == NODE
    assert found.report == BEFORE
    assert content.pods == (PAIR,)
    again = ledger(found.topology, found.report, content.pods, "nvidia.com/gpu")
    assert again == ledger(NODE, BEFORE, [PAIR], "nvidia.com/gpu")


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(record("a"), id="promised"),
        pytest.param(record("b", link=False, phase="Running"), id="plain"),
        pytest.param(replace(record("a"), placed=1764000000.0), id="promised at a time"),
        pytest.param(
            replace(record("b", link=False), placed=1764000000.0), id="plain, bound at a time"
        ),
        pytest.param(
            record("c", containers=[container("x", 1)], init=[container("i", 2)]), id="init"
        ),
        pytest.param(
            record(
                "d",
                containers=[container("x", 1)],
                init=[container("s", 1, restartPolicy="Always")],
            ),
            id="sidecar",
        ),
    ],
)
def test_a_pod_written_down_is_read_as_the_same(known: PodRecord) -> None:
    assert pod_record(msgspec.convert(manifest_of(known), Pod), MANAGED) == known


def test_nodes_that_are_gone_are_forgotten() -> None:
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    for name in ("a", "b"):
        cluster.put_node(NodeName(name), NodeObject())
    cluster.put_record(machine("l40s-4").topology("c"), BEFORE)
    cluster.keep_nodes({NodeName("a")})
    assert sorted(cluster.snapshot().by_name) == ["a", "c"]
    cluster.drop_node(NodeName("a"))
    cluster.drop_record(NodeName("c"))
    assert sorted(cluster.snapshot().by_name) == []
    cluster.put_pod(PAIR)
    assert sorted(cluster.snapshot().by_name) == ["node"]
    cluster.drop_pod(PAIR.uid)
    assert sorted(cluster.snapshot().by_name) == []
