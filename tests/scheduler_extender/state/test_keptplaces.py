"""A place that is kept for a waiting pod: who is refused there, and when it ends."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf
from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import KEPT_PLACE, MANAGED
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.keptplaces import MOST
from scheduler_extender.state.pods import PodRecord, manifest_of, pod_record
from scheduler_extender.state.reserved import MAX_SECONDS, Reserved, reserved_of, value_of
from scheduler_extender.verbs import BindError, Binding, bind, filter_nodes, prioritize
from scheduler_extender.wire import BindingArgs, Pod
from tests.nodes import pod
from tests.scheduler_extender.unblocking.scenes import NVLINKED, Held, cluster_of, waiting
from topology.core.devices import NodeName, PodUid
from topology.core.report import Report
from topology.core.requests import gpu_request
from topology.machines import machine

NODE = NodeName("pairs")
TODAY = 43_000.0
NOON = 43_500.0
"""12:05 UTC."""
REASON = "GPUs are reserved for another pod until 12:05 UTC"


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The cluster's clock."""
    return Clock()


@pytest.fixture
def cluster(clock: Clock) -> Cluster:
    """One node with two bridged pairs; one GPU of each pair is held."""
    node = machine("a100-pcie-4-bridged").topology(NODE)
    found = cluster_of({node: {"a": Held((0,)), "b": Held((2,))}})
    found.clock = clock
    found.today = lambda: TODAY + clock.now - 100.0
    return found


def reserve(cluster: Cluster, until: float = NOON, victim: str = "a", **more: Any) -> PodRecord:
    """The waiting pod with a place on the node, whose victim is a."""
    kept = Reserved(NODE, until, frozenset({PodUid(victim)}))
    wants = replace(waiting("wants", gpu_request(2, NVLINKED)), reserved=kept, **more)
    cluster.put_pod(wants)
    return wants


def asked(cluster: Cluster, count: int = 1, uid: str = "other", link: bool = False) -> str:
    """Why a pod is refused on the node; empty where it passes."""
    wanted = pod(count, {"link": "nvlink"} if link else None, uid=uid)
    found = filter_nodes(cluster, msgspec.convert(wanted, Pod), [NODE])
    return {**found.failed, **found.unresolvable}.get(NODE, "")


def evict(cluster: Cluster, name: str) -> None:
    """A pod is gone, and a report shows that its GPU is free."""
    cluster.drop_pod(PodUid(name))
    report = cluster.facts(NODE).report
    assert report is not None
    left = tuple(a for a in report.allocations if a.pod_uid != name)
    cluster.put_report(NODE, Report("boot", report.sequence + 1, allocations=left))


def test_who_would_break_the_place_is_refused(cluster: Cluster) -> None:
    assert asked(cluster) == ""
    reserve(cluster)
    # 1 and 3 are free; a single one might get 1, whose pair the place is.
    assert asked(cluster) == REASON
    evict(cluster, "a")
    assert asked(cluster, 2) == REASON


def test_who_leaves_the_place_whole_passes() -> None:
    node = machine("hgx-h100-8").topology(NODE)
    cluster = cluster_of({node: {f"h{i}": Held((i,)) for i in range(5)}})
    cluster.today = lambda: TODAY
    kept = Reserved(NODE, NOON, frozenset({PodUid("h0")}))
    cluster.put_pod(replace(waiting("wants", gpu_request(2, NVLINKED)), reserved=kept))
    assert asked(cluster, 2) == ""  # three are free and one will be: any two of four are linked
    assert asked(cluster, 3) == REASON


def test_the_pod_itself_is_not_refused(cluster: Cluster) -> None:
    reserve(cluster)
    assert "no set" in asked(cluster, 2, "wants", link=True)
    evict(cluster, "a")
    assert asked(cluster, 2, "wants", link=True) == ""
    assert asked(cluster, 2, "other", link=True) == REASON


def test_the_pod_prefers_its_own_place_to_every_other(cluster: Cluster) -> None:
    """Another node may cost the cluster less; but there nobody was evicted for the pod."""
    better = machine("a100-pcie-4-bridged").topology("better")
    cluster.put_record(better, Report("boot", 1))
    reserve(cluster)
    evict(cluster, "a")
    wanted = msgspec.convert(pod(2, {"link": "nvlink"}, uid="wants"), Pod)
    names = ["better", NODE, "unknown"]
    assert set(names[:2]) <= set(filter_nodes(cluster, wanted, names).node_names or ())
    found = {row.host: row.score for row in prioritize(cluster, wanted, names)}
    assert found[NODE] == 10
    assert max(found["better"], found["unknown"]) < 10


class Written:
    """Takes binds, as an API server that answers at once."""

    def __init__(self) -> None:
        self.binds: list[Binding] = []

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        """No pod that the cluster does not know."""
        return None

    def write(self, binding: Binding) -> None:
        """Done."""
        self.binds.append(binding)


def test_bind_keeps_the_place_and_gives_it_to_its_pod(cluster: Cluster) -> None:
    wants, written = reserve(cluster), Written()
    evict(cluster, "a")
    thief = waiting("thief", gpu_request(1))
    cluster.put_pod(thief)
    with pytest.raises(BindError, match="reserved for another pod"):
        bind(cluster, written, BindingArgs("thief", "team", "thief", NODE), lambda: "")
    bind(cluster, written, BindingArgs("wants", "team", "wants", NODE), lambda: "")
    assert [found.name for found in written.binds] == ["wants"]
    cluster.put_pod(replace(wants, node=NODE, reserved=None))
    assert cluster.reserved_for(wants.uid) is None
    assert "reserved" not in asked(cluster)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda c, w: c.drop_pod(w.uid), id="deleted"),
        pytest.param(lambda c, w: c.put_pod(replace(w, deleting=True)), id="on-its-way-out"),
        pytest.param(lambda c, w: c.put_pod(replace(w, reserved=None)), id="taken-back"),
        pytest.param(lambda c, w: c.put_pod(replace(w, phase="Failed")), id="ended"),
        pytest.param(lambda c, w: c.put_pod(replace(w, node=NodeName("x"))), id="bound-elsewhere"),
        pytest.param(lambda c, w: c.put_pod(replace(w, gated=True)), id="gated"),
        pytest.param(lambda c, w: setattr(c.clock, "now", 601.0), id="late"),
        pytest.param(lambda c, w: c.keep_pods({PodUid("a"), PodUid("b")}), id="not-listed"),
    ],
)
def test_it_ends(cluster: Cluster, end: Any) -> None:
    wants = reserve(cluster)
    changed: list[NodeName] = []
    cluster.on_change(changed.append)
    end(cluster, wants)
    assert asked(cluster) == ""
    assert cluster.reserved_for(wants.uid) is None
    assert NODE in changed, "whoever waits may be woken"


def test_it_holds_up_to_its_time(cluster: Cluster, clock: Clock) -> None:
    reserve(cluster)
    clock.now = 599.0
    assert asked(cluster) == REASON


def test_nobody_keeps_a_place_for_ever(cluster: Cluster, clock: Clock) -> None:
    reserve(cluster, until=TODAY + 100 * MAX_SECONDS)
    assert asked(cluster)
    clock.now += MAX_SECONDS
    assert asked(cluster) == ""


def test_what_else_happens_to_the_pod_does_not_keep_its_place_longer(
    cluster: Cluster, clock: Clock
) -> None:
    """Whoever says a time far off keeps a place for an hour, not for an hour after each change."""
    wants = reserve(cluster, until=TODAY + 100 * MAX_SECONDS)
    clock.now += MAX_SECONDS
    assert asked(cluster) == ""
    cluster.put_pod(replace(wants, called_unschedulable=False))
    assert asked(cluster) == ""
    assert cluster.reserved_for(wants.uid) is None
    cluster.put_pod(replace(wants, reserved=None))
    reserve(cluster, until=TODAY + 100 * MAX_SECONDS)
    assert asked(cluster), "taken away and written again it is another place"


def test_a_place_that_is_not_there_holds_up_nobody(cluster: Cluster) -> None:
    """As where the victim holds other GPUs than the plan thought."""
    reserve(cluster, victim="nobody")
    assert asked(cluster) == ""


@pytest.mark.parametrize("early_comes_first", [True, False])
def test_of_two_on_one_node_the_one_that_was_asked_for_first_is_kept(
    cluster: Cluster, early_comes_first: bool
) -> None:
    """Else a second person, with a shorter time, would take what the first has evicted for."""
    early = Reserved(NODE, NOON + 60, frozenset({PodUid("a")}), TODAY - 10)
    late = Reserved(NODE, NOON, frozenset({PodUid("a")}), TODAY - 9.75)
    pods = [
        replace(waiting(name, gpu_request(2, NVLINKED)), reserved=kept)
        for name, kept in (("early", early), ("late", late))
    ]
    for each in pods if early_comes_first else reversed(pods):
        cluster.put_pod(each)
    found = cluster.facts(NODE).reserved
    assert found is not None
    assert found.uid == pods[0].uid
    cluster.drop_pod(pods[0].uid)
    found = cluster.facts(NODE).reserved
    assert found is not None
    assert found.uid == pods[1].uid


def test_without_the_time_of_asking_the_one_that_ends_first_is_kept(cluster: Cluster) -> None:
    """So had releases before it written the annotation."""
    reserve(cluster, until=NOON + 60)
    assert asked(cluster) == REASON.replace("12:05", "12:06")
    kept = Reserved(NODE, NOON, frozenset({PodUid("a")}))
    first = replace(waiting("first", gpu_request(2, NVLINKED)), reserved=kept)
    cluster.put_pod(first)
    assert asked(cluster) == REASON.replace("wants", "first")
    cluster.drop_pod(first.uid)
    assert asked(cluster) == REASON.replace("12:05", "12:06")


def with_many(order: list[int]) -> Cluster:
    """One place more than are kept, each on a node of its own, seen in this order."""
    found = cluster_of({machine("dgx1-v100").topology(f"n{i}"): {} for i in range(MOST + 1)})
    found.today = lambda: TODAY
    for i in order:
        kept = Reserved(NodeName(f"n{i}"), NOON + i)
        found.put_pod(replace(waiting(f"w{i}", gpu_request(1)), reserved=kept))
    return found


def kept_in(cluster: Cluster) -> list[int]:
    """The places that are kept."""
    return [i for i in range(MOST + 1) if cluster.reserved_for(PodUid(f"w{i}")) is not None]


@pytest.mark.parametrize("seed", range(5))
def test_of_too_many_every_replica_keeps_the_same(seed: int) -> None:
    """Whichever it sees first: those that end first. The others take their turn."""
    order = list(range(MOST + 1))
    random.Random(seed).shuffle(order)
    cluster = with_many(order)
    assert kept_in(cluster) == list(range(MOST))
    assert cluster.facts(NodeName(f"n{MOST}")).reserved is None
    changed: list[NodeName] = []
    cluster.on_change(changed.append)
    cluster.drop_pod(PodUid("w3"))
    assert kept_in(cluster) == sorted(set(order) - {3})
    assert {NodeName("n3"), NodeName(f"n{MOST}")} <= set(changed)
    assert cluster.facts(NodeName(f"n{MOST}")).reserved is not None


def test_the_next_one_takes_its_turn_when_a_place_ends() -> None:
    cluster, clock = with_many(list(range(MOST + 1))), Clock()
    clock.now = NOON - TODAY
    cluster.clock = clock
    assert kept_in(cluster) == list(range(1, MOST + 1))


def annotated(value: str, uid: str = "wants") -> Pod:
    """A waiting pod with this annotation."""
    manifest = pod(2, uid=uid)
    manifest["metadata"]["annotations"][KEPT_PLACE] = value
    return msgspec.convert(manifest, Pod)


@pytest.mark.parametrize("since", [inf, TODAY, TODAY + 0.25])
def test_the_annotation_is_read_as_it_is_written(since: float) -> None:
    value = value_of(PodUid("wants"), NODE, NOON, [PodUid("b"), PodUid("a")], since)
    expected = Reserved(NODE, NOON, frozenset({PodUid("a"), PodUid("b")}), since)
    assert reserved_of(annotated(value)) == expected
    record = pod_record(annotated(value), MANAGED)
    assert record is not None
    assert record.reserved == expected
    assert pod_record(msgspec.convert(manifest_of(record), Pod), MANAGED) == record


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(value_of(PodUid("another"), NODE, NOON, []), id="of-another-pod"),
        pytest.param("", id="empty"),
        pytest.param("true", id="no-object"),
        pytest.param('{"uid": "wants", "node": "pairs"}', id="no-time"),
        pytest.param('{"uid": "wants", "node": "", "until": "2026-01-01T00:00:00Z"}', id="no-node"),
        pytest.param('{"uid": "wants", "node": "n", "until": "tomorrow"}', id="odd-time"),
        pytest.param(
            '{"uid": "wants", "node": "n", "until": "2026-01-01T00:00:00Z", "since": "yesterday"}',
            id="odd-since",
        ),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(value_of(PodUid("wants"), NODE, NOON, map(PodUid, map(str, range(65)))),
                     id="too-many-victims"),
    ],
)  # fmt: skip
def test_what_nobody_can_have_meant_counts_for_nothing(value: str) -> None:
    assert reserved_of(annotated(value)) is None
