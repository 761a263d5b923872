"""A place that is kept for a waiting pod: who is refused there, and when it ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import KEPT_PLACE, MANAGED
from scheduler_extender.state.answers.keptforanother import Place, place_of
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.cluster.placequeue import ASKING_SECONDS, MOST
from scheduler_extender.state.pods.keptplace import MAX_SECONDS, KeptPlace, kept_place_of, value_of
from scheduler_extender.state.pods.record import PodRecord, manifest_of, pod_record
from scheduler_extender.verbs import BindError, Binding, bind, filter_nodes, prioritize
from scheduler_extender.wire import BindingArgs, Pod
from tests.nodes import container, pod
from tests.scheduler_extender.unblocking.scenes import NVLINKED, Held, cluster_of, waiting
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.report import READY, Allocation, Condition, Health, Report
from topology.core.requests import Constraints, gpu_request
from topology.machines import machine

NODE = NodeName("pairs")
TODAY = 43_000.0
NOON = 43_500.0
"""12:05 UTC."""
REASON = "a place is kept for another pod until 12:05 UTC"


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
    found.board.clock = clock
    found.board.today = lambda: TODAY + clock.now - 100.0
    return found


def keep_place(cluster: Cluster, until: float = NOON, victim: str = "a", **more: Any) -> PodRecord:
    """The waiting pod with a place on the node, whose victim is a."""
    kept = KeptPlace(NODE, until, frozenset({PodUid(victim)}))
    wants = replace(waiting("wants", gpu_request(2, NVLINKED)), kept_place=kept, **more)
    cluster.feed.put_pod(wants)
    return wants


def asked(cluster: Cluster, count: int = 1, uid: str = "other", link: bool = False) -> str:
    """Why a pod is refused on the node; empty where it passes."""
    return asked_manifest(cluster, pod(count, {"link": "nvlink"} if link else None, uid=uid))


def asked_manifest(cluster: Cluster, wanted: dict[str, Any]) -> str:
    """The same for any pod."""
    found = filter_nodes(cluster, msgspec.convert(wanted, Pod), [NODE])
    return {**found.failed, **found.unresolvable}.get(NODE, "")


def evict(cluster: Cluster, name: str) -> None:
    """A pod is gone, and a report shows that its GPU is free."""
    cluster.feed.drop_pod(PodUid(name))
    report = cluster.facts(NODE).report
    assert report is not None
    left = tuple(a for a in report.allocations if a.pod_uid != name)
    cluster.feed.put_report(NODE, Report("boot", report.sequence + 1, allocations=left))


def test_who_would_break_the_place_is_refused(cluster: Cluster) -> None:
    assert asked(cluster) == ""
    keep_place(cluster)
    # 1 and 3 are free; a single one might get 1, whose pair the place is.
    assert asked(cluster) == REASON
    evict(cluster, "a")
    assert asked(cluster, 2) == REASON


def test_who_leaves_the_place_whole_passes() -> None:
    node = machine("hgx-h100-8").topology(NODE)
    cluster = cluster_of({node: {f"h{i}": Held((i,)) for i in range(5)}})
    cluster.board.today = lambda: TODAY
    kept = KeptPlace(NODE, NOON, frozenset({PodUid("h0")}))
    cluster.feed.put_pod(replace(waiting("wants", gpu_request(2, NVLINKED)), kept_place=kept))
    assert asked(cluster, 2) == ""  # three are free and one will be: any two of four are linked
    assert asked(cluster, 3) == REASON


def test_the_pod_itself_is_not_refused(cluster: Cluster) -> None:
    keep_place(cluster)
    assert "no set" in asked(cluster, 2, "wants", link=True)
    evict(cluster, "a")
    assert asked(cluster, 2, "wants", link=True) == ""
    assert asked(cluster, 2, "other", link=True) == REASON


def test_the_pod_prefers_its_own_place_to_every_other(cluster: Cluster) -> None:
    """Another node may cost the cluster less; but there nobody was evicted for the pod."""
    better = machine("a100-pcie-4-bridged").topology("better")
    cluster.feed.put_record(better, Report("boot", 1))
    keep_place(cluster)
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
    wants, written = keep_place(cluster), Written()
    evict(cluster, "a")
    thief = waiting("thief", gpu_request(1))
    cluster.feed.put_pod(thief)
    with pytest.raises(BindError, match="kept for another pod"):
        bind(cluster, written, BindingArgs("thief", "team", "thief", NODE), lambda: "")
    bind(cluster, written, BindingArgs("wants", "team", "wants", NODE), lambda: "")
    assert [found.name for found in written.binds] == ["wants"]
    cluster.feed.put_pod(replace(wants, node=NODE, kept_place=None))
    assert not cluster.snapshot().places_of(wants.uid)
    assert "is kept" not in asked(cluster)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda c, w: c.feed.drop_pod(w.uid), id="deleted"),
        pytest.param(lambda c, w: c.feed.put_pod(replace(w, deleting=True)), id="on-its-way-out"),
        pytest.param(lambda c, w: c.feed.put_pod(replace(w, kept_place=None)), id="taken-back"),
        pytest.param(lambda c, w: c.feed.put_pod(replace(w, phase="Failed")), id="ended"),
        pytest.param(
            lambda c, w: c.feed.put_pod(replace(w, node=NodeName("x"))), id="bound-elsewhere"
        ),
        pytest.param(lambda c, w: c.feed.put_pod(replace(w, gated=True)), id="gated"),
        pytest.param(lambda c, w: setattr(c.board.clock, "now", 601.0), id="late"),
        pytest.param(lambda c, w: c.feed.keep_pods({PodUid("a"), PodUid("b")}), id="not-listed"),
    ],
)
def test_it_ends(cluster: Cluster, end: Any) -> None:
    wants = keep_place(cluster)
    changed: list[NodeName] = []
    cluster.on_change.append(changed.append)
    end(cluster, wants)
    assert asked(cluster) == ""
    assert not cluster.snapshot().places_of(wants.uid)
    assert NODE in changed, "whoever waits may be woken"


def test_it_holds_up_to_its_time(cluster: Cluster, clock: Clock) -> None:
    keep_place(cluster)
    clock.now = 599.0
    assert asked(cluster) == REASON


def test_nobody_keeps_a_place_for_ever(cluster: Cluster, clock: Clock) -> None:
    keep_place(cluster, until=TODAY + 100 * MAX_SECONDS)
    assert asked(cluster)
    clock.now += MAX_SECONDS
    assert asked(cluster) == ""


def test_what_else_happens_to_the_pod_does_not_keep_its_place_longer(
    cluster: Cluster, clock: Clock
) -> None:
    """Whoever says a time far off keeps a place for an hour, not for an hour after each change."""
    wants = keep_place(cluster, until=TODAY + 100 * MAX_SECONDS)
    clock.now += MAX_SECONDS
    assert asked(cluster) == ""
    cluster.feed.put_pod(replace(wants, called_unschedulable=False))
    assert asked(cluster) == ""
    assert not cluster.snapshot().places_of(wants.uid)
    cluster.feed.put_pod(replace(wants, kept_place=None))
    keep_place(cluster, until=TODAY + 100 * MAX_SECONDS)
    assert asked(cluster), "taken away and written again it is another place"


def test_a_place_that_is_not_there_holds_up_nobody(cluster: Cluster) -> None:
    """As where the victim holds other GPUs than the plan thought."""
    keep_place(cluster, victim="nobody")
    assert asked(cluster) == ""


def scattered(gone: bool = False) -> Cluster:
    """Bridged pairs 0-1 and 2-3: v holds 0 and 3, and a place is kept for a pair once v is gone."""
    node = machine("a100-pcie-4-bridged").topology(NODE)
    found = cluster_of({node: {"v": Held((0, 3), deleting=gone)}})
    found.board.today = lambda: TODAY
    keep_place(found, victim="v")
    return found


PLAIN: dict[str, str] = {}
PREFERRED = {"link": "nvlink", "policy": "preferred"}
ONE_MODEL = {"gpu-model": "A100*"}


@pytest.mark.parametrize("gone", [False, True], ids=["not-evicted-yet", "ending"])
@pytest.mark.parametrize("says", [PLAIN, PREFERRED, ONE_MODEL], ids=str)
def test_who_would_take_the_place_while_its_victim_is_still_there_is_refused(
    says: dict[str, str], gone: bool
) -> None:
    """Of the free GPUs 1 and 2 each is half of a pair; were v gone already the newcomer would be
    given one pair and leave the other."""
    cluster = scattered(gone)
    newcomer = msgspec.convert(pod(2, says, uid="other"), Pod)
    record = pod_record(newcomer, MANAGED)
    assert record is not None
    assert filter_nodes(cluster, newcomer, [NODE]).unresolvable == {NODE: REASON}
    cluster.feed.put_pod(record)
    args = BindingArgs(record.name, record.namespace, record.uid, NODE)
    with pytest.raises(BindError, match="kept for another pod"):
        bind(cluster, Written(), args, lambda: "")
    cluster.feed.drop_pod(record.uid)
    evict(cluster, "v")
    assert asked(cluster, 2) == ""


def test_who_hides_devices_is_refused_where_these_could_be_of_the_place() -> None:
    """No report shows what an init container leaves unused: once the pod is bound nobody could say
    that the place is there."""
    node = machine("dgx1-v100").topology(NODE)
    cluster = cluster_of({node: {"old": Held((0, 4))}})
    cluster.board.today = lambda: TODAY
    same_numa = Constraints(same_numa=True)
    kept = KeptPlace(NODE, NOON)
    cluster.feed.put_pod(replace(waiting("wants", gpu_request(3, same_numa)), kept_place=kept))
    linked = {"min-nvlinks": "2"}
    assert asked_manifest(cluster, pod(2, linked, uid="other")) == ""
    hides = pod(1, linked, uid="other", init=[container("init", 2)])
    assert asked_manifest(cluster, hides) == REASON


def not_ready(cluster: Cluster) -> None:
    """The agent cannot vouch for its report."""
    report = cluster.facts(NODE).report
    assert report is not None
    conditions = (Condition(READY, False, "KubeletRestarted"),)
    later = replace(report, sequence=report.sequence + 1, conditions=conditions)
    cluster.feed.put_report(NODE, later)


def stale(cluster: Cluster) -> None:
    """The agent says nothing any more."""
    cluster.board.settings = replace(cluster.settings, stale_after=60.0)
    report = cluster.facts(NODE).report
    assert report is not None
    cluster.feed.put_report(NODE, replace(report, sequence=report.sequence + 1))
    cluster.board.clock.now += 70.0  # type: ignore[attr-defined]


def not_reported(cluster: Cluster) -> None:
    """Somebody has bound a pod by hand, which may take one GPU of the place."""
    cluster.feed.put_pod(replace(waiting("by hand", gpu_request(1)), node=NODE))


@pytest.mark.parametrize("news", [not_ready, stale, not_reported])
def test_while_it_is_not_certain_that_the_place_is_there_nobody_takes_it(
    cluster: Cluster, news: Callable[[Cluster], None]
) -> None:
    keep_place(cluster)
    news(cluster)
    assert asked(cluster) == REASON


def test_a_place_that_a_pod_has_taken_by_hand_holds_up_nobody(cluster: Cluster) -> None:
    """As soon as a report shows it."""
    keep_place(cluster)
    not_reported(cluster)
    report, topology = cluster.facts(NODE).report, cluster.facts(NODE).topology
    assert report is not None
    assert topology is not None
    ids = (DeviceId(topology.gpus[1].uuid),)
    taken = Allocation(PodUid("by hand"), "team", "by hand", "main", "nvidia.com/gpu", ids)
    shown = replace(report, sequence=9, allocations=(*report.allocations, taken))
    cluster.feed.put_report(NODE, shown)
    assert asked(cluster) == ""


def test_a_place_on_a_sick_gpu_holds_up_nobody(cluster: Cluster) -> None:
    keep_place(cluster)
    report, topology = cluster.facts(NODE).report, cluster.facts(NODE).topology
    assert report is not None
    assert topology is not None
    sick = (Health(topology.gpus[1].uuid, False, "Xid79"),)
    cluster.feed.put_report(NODE, replace(report, sequence=9, health=sick))
    assert asked(cluster) == ""


def test_a_place_of_many_victims_is_worked_out_in_bounded_time() -> None:
    """Sixteen victims, of which any part may be there still: who comes is refused, and whether the
    place itself is there is known."""
    node = machine("dgx2").topology(NODE)
    cluster = cluster_of({node: {f"v{i}": Held((i,)) for i in range(15)}})
    cluster.board.today = lambda: TODAY
    kept = KeptPlace(NODE, NOON, frozenset(PodUid(f"v{i}") for i in range(15)))
    cluster.feed.put_pod(replace(waiting("wants", gpu_request(16, NVLINKED)), kept_place=kept))
    facts = cluster.facts(NODE)
    assert facts.kept is not None
    assert facts.kept_for is not None
    assert place_of(facts.kept, facts.kept_for) is Place.THERE
    assert asked(cluster) == REASON


WRITES = sorted({*permutations(("A asks", "A tells", "B asks", "B tells"))})


@pytest.mark.parametrize("names", [("A", "B"), ("B", "A")], ids=str)
@pytest.mark.parametrize(
    "writes",
    [w for w in WRITES if all(w.index(f"{n} asks") < w.index(f"{n} tells") for n in "AB")],
    ids=", ".join,
)
def test_of_two_on_one_node_the_one_that_the_api_server_took_first_is_kept(
    writes: tuple[str, ...], names: tuple[str, str]
) -> None:
    """On every replica, whenever it started: two people write at once, each asks for a place and
    tells the version of that write. Who is told once that nobody can come before him stays first:
    he may have evicted."""
    first = next(write[0] for write in writes if write.endswith("asks"))
    objects: dict[str, PodRecord] = {}
    versions: dict[str, int] = {}
    replicas: list[Cluster] = []
    told: set[str] = set()
    for version, write in enumerate(writes, 100):
        who = write[0]
        known = versions.get(who)
        versions.setdefault(who, version)
        place = KeptPlace(NODE, NOON + 60 * (who == first), frozenset({PodUid("a")}), known)
        uid = names[who == "B"]
        objects[who] = replace(waiting(uid, gpu_request(2, NVLINKED)), kept_place=place)
        started = cluster_of({machine("a100-pcie-4-bridged").topology(NODE): {"a": Held((0,))}})
        started.board.today = lambda: TODAY
        for replica in replicas:
            replica.feed.put_pod(objects[who])
        for each in objects.values() if version % 2 else reversed(objects.values()):
            started.feed.put_pod(each)
        replicas.append(started)
        for replica in replicas:
            found = replica.facts(NODE).kept_for
            assert found is not None
            if replica.snapshot().places_settled:
                told.add(next(name for name, pod in objects.items() if pod.uid == found.uid))
    assert told == {first}
    assert all(replica.snapshot().places_settled for replica in replicas)


def test_who_asks_and_tells_no_version_holds_up_evictions_for_a_moment_only(
    cluster: Cluster, clock: Clock
) -> None:
    """As where the command was killed between its writes."""
    kept = KeptPlace(NODE, NOON, frozenset({PodUid("a")}), 7)
    cluster.feed.put_pod(replace(waiting("wants", gpu_request(2, NVLINKED)), kept_place=kept))
    assert cluster.snapshot().places_settled
    cluster.feed.put_pod(
        replace(waiting("killed", gpu_request(1)), kept_place=KeptPlace(NodeName("else"), NOON))
    )
    assert not cluster.snapshot().places_settled
    assert cluster.snapshot().places_of(PodUid("wants")) == {NODE}
    clock.now += ASKING_SECONDS
    assert cluster.snapshot().places_settled


def with_many(order: list[int]) -> Cluster:
    """One place more than are kept, each on a node of its own, seen in this order."""
    found = cluster_of({machine("dgx1-v100").topology(f"n{i}"): {} for i in range(MOST + 1)})
    found.board.today = lambda: TODAY
    for i in order:
        kept = KeptPlace(NodeName(f"n{i}"), NOON, version=i + 1)
        found.feed.put_pod(replace(waiting(f"w{i}", gpu_request(1)), kept_place=kept))
    return found


def kept_in(cluster: Cluster) -> list[int]:
    """The places that are kept."""
    return [i for i in range(MOST + 1) if cluster.snapshot().places_of(PodUid(f"w{i}"))]


@pytest.mark.parametrize("seed", range(5))
def test_of_too_many_every_replica_keeps_the_same(seed: int) -> None:
    """Whichever it sees first: those that were asked for first. The others take their turn."""
    order = list(range(MOST + 1))
    random.Random(seed).shuffle(order)
    cluster = with_many(order)
    assert kept_in(cluster) == list(range(MOST))
    assert cluster.facts(NodeName(f"n{MOST}")).kept_for is None
    changed: list[NodeName] = []
    cluster.on_change.append(changed.append)
    cluster.feed.drop_pod(PodUid("w3"))
    assert kept_in(cluster) == sorted(set(order) - {3})
    assert {NodeName("n3"), NodeName(f"n{MOST}")} <= set(changed)
    assert cluster.facts(NodeName(f"n{MOST}")).kept_for is not None


def test_the_next_one_takes_its_turn_when_a_place_ends() -> None:
    cluster, clock = with_many(list(range(MOST + 1))), Clock()
    first = cluster.pod(PodUid("w0"))
    assert first is not None
    assert first.kept_place is not None
    cluster.feed.put_pod(replace(first, kept_place=replace(first.kept_place, until=NOON - 60)))
    clock.now = NOON - TODAY - 60
    cluster.board.clock = clock
    assert kept_in(cluster) == list(range(1, MOST + 1))


def annotated(value: str, uid: str = "wants") -> Pod:
    """A waiting pod with this annotation."""
    manifest = pod(2, uid=uid)
    manifest["metadata"]["annotations"][KEPT_PLACE] = value
    return msgspec.convert(manifest, Pod)


@pytest.mark.parametrize("version", [None, 1, 1 << 62])
def test_the_annotation_is_read_as_it_is_written(version: int | None) -> None:
    value = value_of(PodUid("wants"), NODE, NOON, [PodUid("b"), PodUid("a")], version)
    expected = KeptPlace(NODE, NOON, frozenset({PodUid("a"), PodUid("b")}), version)
    assert kept_place_of(annotated(value)) == expected
    record = pod_record(annotated(value), MANAGED)
    assert record is not None
    assert record.kept_place == expected
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
            '{"uid": "wants", "node": "n", "until": "2026-01-01T00:00:00Z", "version": 0}',
            id="odd-version",
        ),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(value_of(PodUid("wants"), NODE, NOON, map(PodUid, map(str, range(65)))),
                     id="too-many-victims"),
    ],
)  # fmt: skip
def test_what_nobody_can_have_meant_counts_for_nothing(value: str) -> None:
    assert kept_place_of(annotated(value)) is None
