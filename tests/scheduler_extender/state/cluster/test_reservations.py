"""A place that is reserved for a waiting pod: who is refused there, and when it ends."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import MANAGED, RESERVED
from scheduler_extender.framework.rules.reservations import leaves_whole
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord, manifest_of, pod_record
from scheduler_extender.state.pods.reservation import (
    CLOCKS_DIFFER,
    MAX_SECONDS,
    Reservation,
    reservation_of,
    value_of,
)
from scheduler_extender.verbs import BindError, bind, filter_nodes, prioritize
from scheduler_extender.wire import BindingArgs, Pod
from tests.nodes import last_report, pod, record_of
from tests.scheduler_extender.binding import Written
from tests.scheduler_extender.evictions.scenes import NVLINKED, Held, cluster_of, waiting
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.report import READY, Allocation, Condition, Report
from topology.core.requests import gpu_request
from topology.machines import machine

NODE = NodeName("pairs")
TODAY = 43_000.0
NOON = 43_500.0  # 12:05 UTC
REASON = "reserved for another pod until 12:05 UTC"


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
def cluster(clock: Clock) -> Cache:
    """One node with two bridged pairs; one GPU of each pair is held."""
    node = machine("a100-pcie-4-bridged").topology(NODE)
    found = cluster_of({node: {"a": Held((0,)), "b": Held((2,))}})
    found.clock = clock
    found.today = lambda: TODAY + clock.now - 100.0
    return found


def reserve(cluster: Cache, until: float = NOON, victim: str = "a", **more: Any) -> PodRecord:
    """The waiting pod with a place on the node, whose victim is a."""
    kept = Reservation(NODE, until, frozenset({PodUid(victim)}))
    wants = replace(waiting("wants", gpu_request(2, NVLINKED)), reservation=kept, **more)
    cluster.put_pod(wants)
    return wants


def asked(cluster: Cache, count: int = 1, uid: str = "other", link: bool = False) -> str:
    """Why a pod is refused on the node; empty where it passes."""
    return asked_manifest(cluster, pod(count, {"link": "nvlink"} if link else None, uid=uid))


def asked_manifest(cluster: Cache, wanted: dict[str, Any]) -> str:
    """The same for any pod."""
    found = filter_nodes(cluster, msgspec.convert(wanted, Pod), [NODE])
    return {**found.failed, **found.unresolvable}.get(NODE, "")


def evict(cluster: Cache, name: str) -> None:
    """A pod is gone, and a report shows that its GPU is free."""
    cluster.drop_pod(PodUid(name))
    report = last_report(cluster.node_info(NODE))
    left = tuple(a for a in report.allocations if a.pod_uid != name)
    cluster.put_report(NODE, Report("boot", report.sequence + 1, allocations=left))


def test_a_pod_that_would_break_the_reservation_is_rejected(cluster: Cache) -> None:
    assert asked(cluster) == ""
    reserve(cluster)
    # 1 and 3 are free; a single one might get 1, whose pair the place is.
    assert asked(cluster) == REASON
    evict(cluster, "a")
    assert asked(cluster, 2) == REASON


def test_a_pod_that_leaves_the_reservation_intact_passes() -> None:
    node = machine("hgx-h100-8").topology(NODE)
    cluster = cluster_of({node: {f"h{i}": Held((i,)) for i in range(5)}})
    cluster.today = lambda: TODAY
    kept = Reservation(NODE, NOON, frozenset({PodUid("h0")}))
    cluster.put_pod(replace(waiting("wants", gpu_request(2, NVLINKED)), reservation=kept))
    assert asked(cluster, 2) == ""  # three are free and one will be: any two of four are linked
    assert asked(cluster, 3) == REASON


def test_the_pod_itself_is_not_refused(cluster: Cache) -> None:
    reserve(cluster)
    assert "no set" in asked(cluster, 2, "wants", link=True)
    evict(cluster, "a")
    assert asked(cluster, 2, "wants", link=True) == ""
    assert asked(cluster, 2, "other", link=True) == REASON


def test_the_pod_prefers_its_own_reservation_to_every_other_node(cluster: Cache) -> None:
    """Another node may cost the cluster less; but no pod was evicted there for it."""
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


def test_bind_respects_a_reservation_and_gives_it_to_its_pod(cluster: Cache) -> None:
    wants, written = reserve(cluster), Written()
    evict(cluster, "a")
    cluster.put_pod(waiting("thief", gpu_request(1)))
    with pytest.raises(BindError, match="reserved for another pod"):
        bind(cluster, written, BindingArgs("thief", "team", "thief", NODE), lambda: "")
    bind(cluster, written, BindingArgs("wants", "team", "wants", NODE), lambda: "")
    assert [found.name for found in written.bindings] == ["wants"]
    cluster.put_pod(replace(wants, node=NODE, reservation=None))
    assert not cluster.snapshot().reserved_nodes(wants.uid)
    assert "reserved" not in asked(cluster)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda c, w: c.drop_pod(w.uid), id="deleted"),
        pytest.param(lambda c, w: c.put_pod(replace(w, terminating=True)), id="on-its-way-out"),
        pytest.param(lambda c, w: c.put_pod(replace(w, reservation=None)), id="taken-back"),
        pytest.param(lambda c, w: c.put_pod(replace(w, phase="Failed")), id="ended"),
        pytest.param(lambda c, w: c.put_pod(replace(w, node=NodeName("x"))), id="bound-elsewhere"),
        pytest.param(lambda c, w: c.put_pod(replace(w, gated=True)), id="gated"),
        pytest.param(lambda c, w: setattr(c.clock, "now", 601.0), id="late"),
        pytest.param(lambda c, w: c.keep_pods({PodUid("a"), PodUid("b")}), id="not-listed"),
    ],
)
def test_it_ends(cluster: Cache, end: Any) -> None:
    wants = reserve(cluster)
    changed: list[NodeName] = []
    cluster.on_change.append(changed.append)
    end(cluster, wants)
    assert asked(cluster) == ""
    assert not cluster.snapshot().reserved_nodes(wants.uid)
    assert NODE in changed, "whoever waits may be woken"


def test_it_holds_up_to_its_time(cluster: Cache, clock: Clock) -> None:
    reserve(cluster)
    clock.now = 599.0
    assert asked(cluster) == REASON


@pytest.mark.parametrize(
    ("seconds", "refused"),
    [(MAX_SECONDS + CLOCKS_DIFFER, REASON.partition(" until")[0]), (MAX_SECONDS * 100, "")],
)
def test_a_time_far_off_reserves_nothing(cluster: Cache, seconds: float, refused: str) -> None:
    """Else a place could be kept for ever."""
    reserve(cluster, until=TODAY + seconds)
    assert asked(cluster).startswith(refused)
    assert bool(asked(cluster)) is bool(refused)


def test_a_reservation_with_a_time_far_off_begins_once_it_lasts_an_hour_at_most(
    cluster: Cache, clock: Clock
) -> None:
    """Nothing else has to happen on the node, and it still ends at its time."""
    late = 600.0
    wants = reserve(cluster, until=TODAY + late + MAX_SECONDS + CLOCKS_DIFFER)
    clock.now += late - 1.0
    assert not cluster.snapshot().reserved_nodes(wants.uid)
    clock.now += 1.0
    assert cluster.snapshot().reserved_nodes(wants.uid) == {NODE}
    clock.now += MAX_SECONDS + CLOCKS_DIFFER - 1.0
    assert cluster.snapshot().reserved_nodes(wants.uid) == {NODE}
    clock.now += 1.0
    assert not cluster.snapshot().reserved_nodes(wants.uid)


def not_ready(cluster: Cache) -> None:
    """The agent cannot vouch for its report."""
    report = last_report(cluster.node_info(NODE))
    conditions = (Condition(READY, False, "KubeletRestarted"),)
    later = replace(report, sequence=report.sequence + 1, conditions=conditions)
    cluster.put_report(NODE, later)


def stale(cluster: Cache) -> None:
    """The agent says nothing any more."""
    cluster.settings = replace(cluster.settings, stale_after=60.0)
    report = last_report(cluster.node_info(NODE))
    cluster.put_report(NODE, replace(report, sequence=report.sequence + 1))
    cluster.clock.now += 70.0  # type: ignore[attr-defined]


def not_reported(cluster: Cache) -> None:
    """A pod was bound by hand and may take one GPU of the reservation."""
    cluster.put_pod(replace(waiting("by hand", gpu_request(1)), node=NODE))


def taken(cluster: Cache) -> None:
    """The pod that was bound by hand has got a GPU of the place."""
    not_reported(cluster)
    report, topology = last_report(cluster.node_info(NODE)), cluster.node_info(NODE).topology
    assert topology is not None
    ids = (DeviceId(topology.gpus[1].uuid),)
    got = Allocation(PodUid("by hand"), "team", "by hand", "main", "nvidia.com/gpu", ids)
    shown = replace(report, sequence=9, allocations=(*report.allocations, got))
    cluster.put_report(NODE, shown)


@pytest.mark.parametrize("news", [not_ready, stale, not_reported, taken])
def test_a_reservation_lasts_whatever_happens_to_its_node(
    cluster: Cache, clock: Clock, news: Callable[[Cache], None]
) -> None:
    reserve(cluster)
    news(cluster)
    assert asked(cluster) == REASON
    clock.now = 600.0
    assert asked(cluster) != REASON


def test_a_reservation_with_many_victims_is_evaluated_in_bounded_time() -> None:
    """Sixteen victims, of which any part may be there still: who comes is refused, and whether the
    place itself is there is known."""
    node = machine("dgx2").topology(NODE)
    cluster = cluster_of({node: {f"v{i}": Held((i,)) for i in range(15)}})
    cluster.today = lambda: TODAY
    kept = Reservation(NODE, NOON, frozenset(PodUid(f"v{i}") for i in range(15)))
    cluster.put_pod(replace(waiting("wants", gpu_request(16, NVLINKED)), reservation=kept))
    ((pod, then),) = cluster.node_info(NODE).for_reservations
    assert leaves_whole(then, pod)
    assert asked(cluster) == REASON


@pytest.mark.parametrize("uids", [("x", "y"), ("y", "x")], ids=str)
@pytest.mark.parametrize("seen", [(0, 1), (1, 0)], ids=["older-first", "younger-first"])
def test_of_two_reservations_on_one_node_the_older_pods_counts(
    cluster: Cache, uids: tuple[str, str], seen: tuple[int, int]
) -> None:
    """On every replica, whichever it sees first; the other has its turn when that one ends."""
    older, younger = PodUid(uids[0]), PodUid(uids[1])
    kept = Reservation(NODE, NOON, frozenset({PodUid("a")}))
    pods = [
        replace(waiting(uid, gpu_request(2, NVLINKED)), reservation=kept, created=float(created))
        for created, uid in enumerate((older, younger), 1)
    ]
    for which in seen:
        cluster.put_pod(pods[which])
    assert cluster.snapshot().reserved_nodes(older) == {NODE}
    assert not cluster.snapshot().reserved_nodes(younger)
    cluster.drop_pod(older)
    assert cluster.snapshot().reserved_nodes(younger) == {NODE}


def test_the_younger_reservation_counts_once_the_older_has_ended(
    cluster: Cache, clock: Clock
) -> None:
    reserve(cluster, created=1.0)
    longer = Reservation(NODE, NOON + 60, frozenset({PodUid("a")}))
    younger = replace(waiting("younger", gpu_request(2, NVLINKED)), reservation=longer, created=2.0)
    cluster.put_pod(younger)
    clock.now = 599.0
    assert not cluster.snapshot().reserved_nodes(younger.uid)
    clock.now = 600.0
    assert cluster.snapshot().reserved_nodes(younger.uid) == {NODE}
    clock.now = 660.0
    assert not cluster.node_info(NODE).reservations


def test_a_pod_that_names_another_node_keeps_the_former_no_more(cluster: Cache) -> None:
    wants = reserve(cluster)
    elsewhere = Reservation(NodeName("elsewhere"), NOON)
    cluster.put_pod(replace(wants, reservation=elsewhere))
    assert cluster.snapshot().reserved_nodes(wants.uid) == {NodeName("elsewhere")}
    assert asked(cluster) == ""


def annotated(value: str, uid: str = "wants") -> Pod:
    """A waiting pod with this annotation."""
    manifest = pod(2, uid=uid)
    manifest["metadata"]["annotations"][RESERVED] = value
    return msgspec.convert(manifest, Pod)


def test_the_annotation_is_read_as_it_is_written() -> None:
    value = value_of(PodUid("wants"), NODE, NOON, [PodUid("b"), PodUid("a")])
    expected = Reservation(NODE, NOON, frozenset({PodUid("a"), PodUid("b")}))
    assert reservation_of(annotated(value)) == expected
    record = record_of(annotated(value))
    assert record.reservation == expected
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
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(value_of(PodUid("wants"), NODE, NOON, map(PodUid, map(str, range(65)))),
                     id="too-many-victims"),
    ],
)  # fmt: skip
def test_values_that_make_no_sense_reserve_nothing(value: str) -> None:
    assert reservation_of(annotated(value)) is None
