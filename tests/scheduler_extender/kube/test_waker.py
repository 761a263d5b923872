"""The waker: a bounded amount of work a round, however many pods wait and nodes change."""

import itertools
import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from scheduler_extender.annotations import WAKE
from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.groupreference import Group, GroupReference
from scheduler_extender.kube.waker import Waker
from scheduler_extender.state.answers.answercache import AnswerCache
from scheduler_extender.state.answers.decision import Decision, Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.freshness import Watch
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import BARE
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.reservation import Reservation
from scheduler_extender.verbs import filter_nodes
from scheduler_extender.wire import Pod, Taint
from tests.dranodes import NODE, asking, claim, device, exactly, slice_of, two_pairs
from tests.nodes import last_report, pod, record_of, switched
from tests.scheduler_extender.evictions.scenes import Held, cluster_of, waiting
from tests.scheduler_extender.state import test_shared_memory as shared_memory
from topology.core.devices import NodeName, PodUid
from topology.core.links import LinkKind
from topology.core.report import Health, Report
from topology.core.requests import Constraints, GpuRequest, gpu_request
from topology.kubeapi.apiserver import ApiError, ApiServer, ApiUnreachable
from topology.machines import machine

NVLINK = Constraints(link=LinkKind.NVLINK)
PAIR = gpu_request(2, NVLINK)
HUGE = gpu_request(64, NVLINK)


class Counting(Cache):
    """Counts what is worked out; a request in ``broken`` cannot be."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0, Settings(stale_after=None))
        self.asked: Counter[GpuRequest] = Counter()
        self.broken: set[GpuRequest] = set()
        self.answers = _Counted(self)


class _Counted(AnswerCache):
    def __init__(self, cluster: Counting) -> None:
        super().__init__(threading.RLock(), cluster.classes)
        self._cluster = cluster

    def put(self, request: GpuRequest, decisions: Mapping[int, Decision], *more: Any) -> None:
        self._cluster.asked[request] += len(decisions)
        super().put(request, decisions, *more)

    def known(self, request: GpuRequest, *args: Any, **how: Any) -> Any:
        if request in self._cluster.broken:
            raise AssertionError("cannot be worked out")
        return super().known(request, *args, **how)


class Api(ApiServer):
    def __init__(self) -> None:
        self.woken: list[str] = []
        self.values: list[str] = []
        self.fails: Exception | None = None
        self.slow: set[str] = set()
        self.calls = 0

    def patch(self, path: str, body: bytes, *, timeout: float) -> bytes:
        self.calls += 1
        if self.fails:
            raise self.fails
        metadata = json.loads(body)["metadata"]
        if metadata["uid"] in self.slow:
            raise ApiUnreachable("timed out")
        self.woken.append(metadata["uid"])
        self.values.append(metadata["annotations"][WAKE])
        return b"{}"


def unschedulable(uid: str, request: GpuRequest) -> PodRecord:
    return PodRecord(PodUid(uid), "default", uid, None, request, called_unschedulable=True)


def change(cluster: Cache, nodes: int, sequence: int = 1, states: int = 1) -> None:
    for i in range(nodes):
        node = switched(8, f"node-{i:04}")
        held = tuple(
            Health(gpu.uuid, not i % states >> bit & 1, "") for bit, gpu in enumerate(node.gpus)
        )
        cluster.put_record(node, Report("boot", sequence, health=held))


def make() -> tuple[Counting, Api, Waker]:
    cluster, api = Counting(), Api()
    return cluster, api, Waker(cluster, api, clock=lambda: 0.0)


def test_equal_requests_and_equal_nodes_share_one_evaluation() -> None:
    cluster, api, waker = make()
    for i in range(5_000):
        cluster.put_pod(unschedulable(f"p{i}", HUGE))
    change(cluster, 2_000)
    waker.round(0.0)
    assert cluster.asked[HUGE] == 1
    assert waker.looks <= 2_000 / Waker.SLICE + 1
    before = waker.looks
    for step in range(1, 5):
        waker.round(0.25 * step)
    assert waker.looks == before  # nothing has changed since
    assert api.calls == 0


def test_a_round_is_bounded_and_the_next_goes_on() -> None:
    cluster, api = Counting(), Api()
    # A round is over when its clock has been looked at so often: at least once for an evaluation.
    most, ticks = 500, itertools.count()
    waker = Waker(cluster, api, clock=lambda: next(ticks) * Waker.SECONDS / most)
    requests = [gpu_request(64 + i, NVLINK) for i in range(30)]
    for i in range(300):
        cluster.put_pod(unschedulable(f"p{i}", requests[i % 30]))
    change(cluster, 200, states=64)
    looks = rounds = 0
    while sum(cluster.asked.values()) < 30 * 64:
        before = sum(cluster.asked.values())
        waker.round(0.25 * rounds)
        assert 0 < sum(cluster.asked.values()) - before <= most
        assert waker.looks - looks <= 8
        looks, rounds = waker.looks, rounds + 1
    for _ in range(30):
        waker.round(0.25 * rounds)
    assert set(cluster.asked.values()) == {64}  # each state once for each request
    assert api.calls == 0


def test_many_pods_that_fit_no_node_do_not_starve_others() -> None:
    cluster, api, waker = make()
    for i in range(200):  # more requests than the cluster remembers
        cluster.put_pod(unschedulable(f"huge-{i}", gpu_request(64 + i, NVLINK)))
    cluster.put_pod(unschedulable("fits", PAIR))
    for step in range(60):
        change(cluster, 50, step + 1, states=4 + step % 3)
        waker.round(0.25 * step)
        if api.woken:
            break
    assert api.woken == ["fits"]


@pytest.mark.parametrize("first", [True, False])
def test_one_request_that_cannot_be_worked_out_does_not_stop_the_others(*, first: bool) -> None:
    cluster, api, waker = make()
    cluster.broken = {HUGE}
    for name, request in [("bad", HUGE), ("good", PAIR)][:: 1 if first else -1]:
        cluster.put_pod(unschedulable(name, request))
    change(cluster, 3)
    with capture_logs() as logs:
        for step in range(4):
            waker.round(0.25 * step)
        assert api.woken == ["good"]
        change(cluster, 3, 2, states=2)
        waker.round(10.0)
    assert waker.failed == 2
    assert [entry["log_level"] for entry in logs] == ["error"]


def test_an_api_server_that_does_not_answer_is_asked_once_a_round() -> None:
    cluster, api, waker = make()
    for i in range(100):
        cluster.put_pod(unschedulable(f"p{i}", PAIR))
    change(cluster, 3, states=2)
    api.fails = ApiUnreachable("timed out")
    for step in range(4):
        waker.round(0.25 * step)
    assert api.calls == 4 + waker.MOST_UNANSWERED - 1
    api.fails = None
    for step in range(4):
        waker.round(100.0 + step)  # the change is forgotten by then
    assert not api.woken
    change(cluster, 3, 2)
    for step in range(4):
        waker.round(200.0 + step)
    assert len(set(api.woken)) == 100


def test_a_pod_about_which_the_api_server_is_slow_is_waited_for_ever_more_rarely() -> None:
    cluster, api, waker = make()
    for i in range(10):
        cluster.put_pod(unschedulable(f"p{i}", PAIR))
    api.slow = {"p0"}
    change(cluster, 3)
    waker.round(0.0)
    assert len(api.woken) == 9
    assert api.calls == 10
    flaps(cluster, waker, 400, 1.0)
    assert len(set(api.woken)) == 9
    assert api.calls - len(api.woken) < 50


def test_one_rejected_patch_delays_no_other_pod() -> None:
    cluster, api, waker = make()
    for i in range(10):
        cluster.put_pod(unschedulable(f"p{i}", PAIR))
    change(cluster, 3)
    api.fails = ApiError(422, "Invalid", "no")
    waker.round(0.0)
    assert api.calls == 10


def test_those_woken_least_often_come_first() -> None:
    cluster, api, waker = make()
    for i in range(120):
        cluster.put_pod(unschedulable(f"p{i:03}", PAIR))
    change(cluster, 3, states=2)
    waker.round(0.0)
    assert len(api.woken) == Waker.AT_ONCE
    change(cluster, 3, 2)
    waker.round(5.0)
    waker.round(5.25)
    assert len(set(api.woken)) == 120


def flaps(cluster: Cache, waker: Waker, seconds: int, since: float = 0.0) -> float:
    """A node's report changes every second, and the node would take a pair each time."""
    now = since
    for step in range(seconds):
        now = since + step
        change(cluster, 2, sequence=int(now) + 2, states=1 + step % 2)
        waker.round(now)
    return now


def test_a_node_that_changes_all_the_time_wakes_a_pod_as_often_as_it_would_be_tried() -> None:
    """kube-scheduler lets a pod that it keeps refusing wait for ten seconds."""
    cluster, api, waker = make()
    cluster.put_pod(unschedulable("p", PAIR))
    flaps(cluster, waker, 300)
    assert 30 <= api.calls <= 34


def test_a_pod_that_was_woken_often_is_woken_soon_where_few_wait() -> None:
    cluster, api, waker = make()
    cluster.put_pod(unschedulable("p", PAIR))
    now = flaps(cluster, waker, 300)
    before = api.calls
    change(cluster, 2, sequence=10_000)
    waker.round(now + Waker.LONGEST_ALONE)
    assert api.calls == before + 1


def test_many_waiting_pods_cost_no_more_than_the_rate() -> None:
    """And a small rest of it is woken as often as if it had always been small."""
    cluster, api, waker = make()
    for i in range(300):
        cluster.put_pod(unschedulable(f"p{i}", PAIR))
    now = flaps(cluster, waker, 120)
    before = api.calls
    now = flaps(cluster, waker, 300, now)
    assert api.calls - before <= 300 * Waker.CROWD_RATE + Waker.AT_ONCE
    assert min(Counter(api.woken).values()) >= 10, "each gets its share"
    for i in range(1, 300):
        cluster.drop_pod(PodUid(f"p{i}"))
    api.woken.clear()
    flaps(cluster, waker, 100, now + 1)
    assert 9 <= len(api.woken) <= 11


def test_a_wake_that_could_not_be_written_delays_no_pod() -> None:
    cluster, api, waker = make()
    cluster.put_pod(unschedulable("p", PAIR))
    api.fails = ApiUnreachable("timed out")
    now = flaps(cluster, waker, 50)
    api.fails = None
    flaps(cluster, waker, 3, now)
    assert 1 <= len(api.woken) <= 2


def test_a_node_that_is_gone_is_not_asked() -> None:
    cluster, api, waker = make()
    cluster.put_pod(unschedulable("p", HUGE))
    change(cluster, 300)
    for i in range(300):
        cluster.drop_record(NodeName(f"node-{i:04}"))
    waker.round(0.0)
    assert waker.looks == 0
    assert api.calls == 0


def test_a_round_ends_when_its_time_is_over() -> None:
    cluster, api, _ = make()
    time = iter(range(1000))
    waker = Waker(cluster, api, clock=lambda: float(next(time)))
    for i in range(10):
        cluster.put_pod(unschedulable(f"p{i}", gpu_request(64 + i, NVLINK)))
    change(cluster, 1)
    waker.round(0.0)
    assert waker.looks <= 1


def test_no_pod_is_woken_that_a_stale_watch_would_reject() -> None:
    cluster, api, waker = make()
    watches = [Watch("pods", None)]
    cluster.watches = lambda: watches
    change(cluster, 1)
    cluster.put_pod(unschedulable("required", PAIR))
    cluster.put_pod(unschedulable("plain", gpu_request(2)))
    waker.round(0.0)
    assert api.woken == ["plain"]
    watches.clear()
    cluster.tell_of_all_nodes()
    waker.round(1.0)
    assert api.woken == ["plain", "required"]


def test_two_replicas_that_started_together_write_different_values() -> None:
    """The same value once more would change nothing, and the pod would not be looked at."""
    api = Api()
    for _ in range(2):
        cluster = Counting()
        cluster.put_pod(unschedulable("waiting", PAIR))
        waker = Waker(cluster, api)
        change(cluster, 1)
        waker.round(0.0)
    assert len(api.values) == len(set(api.values)) == 2


def let_go_of_a(cluster: Cache, node: NodeName) -> None:
    """Pod a is gone, and a report shows b alone."""
    cluster.drop_pod(PodUid("a"))
    report = last_report(cluster.node_info(node))
    left = tuple(held for held in report.allocations if held.pod_uid == "b")
    cluster.put_report(node, replace(report, sequence=2, allocations=left))


def test_a_pod_with_a_reservation_is_woken_when_its_gpus_are_free() -> None:
    """To all others that node answers no, and they sleep on."""
    node = machine("a100-pcie-4-bridged").topology("pairs")
    cluster = cluster_of({node: {"a": Held((0,)), "b": Held((2, 3))}})
    cluster.today = lambda: 0.0
    api = Api()
    waker = Waker(cluster, api)
    kept = Reservation(node.name, 600.0, frozenset({PodUid("a")}))
    wants = replace(waiting("wants", PAIR), reservation=kept)
    cluster.put_pod(wants)
    cluster.put_pod(waiting("other", PAIR))
    waker.round(0.0)
    assert api.woken == []
    let_go_of_a(cluster, node.name)
    api.fails = ApiUnreachable("timed out")
    waker.round(10.0)
    api.fails = None
    waker.round(13.0)
    assert [name.rpartition("/")[2] for name in api.woken] == ["wants"]
    # When the place is given back the other one has its turn.
    cluster.put_pod(replace(wants, reservation=None, terminating=True))
    waker.round(20.0)
    assert [name.rpartition("/")[2] for name in api.woken] == ["wants", "other"]


@pytest.mark.parametrize(("priority", "woken"), [(0, []), (5, ["wants"])])
def test_a_pod_is_woken_to_which_a_reservation_yields(priority: int, woken: list[str]) -> None:
    """It is kept for a pod that is nominated; filter lets one of higher priority come first."""
    node = machine("a100-pcie-4-bridged").topology("pairs")
    cluster, api = cluster_of({node: {"a": Held((0,)), "b": Held((2, 3))}}), Api()
    waker = Waker(cluster, api, clock=lambda: 0.0)
    nominee, wants = waiting("nominee", PAIR), waiting("wants", PAIR)
    coming = replace(nominee.attributes, nominated=node.name)
    cluster.put_pod(replace(nominee, attributes=coming, called_unschedulable=False))
    cluster.put_pod(replace(wants, attributes=replace(wants.attributes, priority=priority)))
    waker.round(0.0)
    assert api.woken == []
    let_go_of_a(cluster, node.name)
    waker.round(10.0)
    assert [name.rpartition("/")[2] for name in api.woken] == woken


def test_every_pod_with_a_reservation_is_evaluated_where_each_round_has_time_for_one() -> None:
    """Though the node of the first changes all the time, in vain."""
    pairs = [machine("a100-pcie-4-bridged").topology(name) for name in ("busy", "free")]
    cluster = cluster_of({pairs[0]: {"a": Held((0, 2))}, pairs[1]: {"b": Held((0, 1))}})
    cluster.today = lambda: 0.0
    api, seconds = Api(), itertools.count()
    waker = Waker(cluster, api, clock=lambda: next(seconds) * 0.01)
    for node in pairs:
        kept = Reservation(node.name, 600.0, frozenset())
        cluster.put_pod(replace(waiting(f"{node.name}-wants", PAIR), reservation=kept))
    for at in range(3):
        cluster.tell_of([node.name for node in pairs])
        waker.round(float(at))
    assert [name.rpartition("/")[2] for name in api.woken] == ["free-wants"]


def test_a_pod_that_is_nominated_under_dra_is_woken_for_the_gpus_that_count_as_its_own() -> None:
    """On its nominated node it counts as having the first free GPUs."""
    world, api = two_pairs(), Api()
    waker = Waker(world.cluster, api, clock=lambda: 0.0)
    for held in 3, 0:
        world.claims.apply(claim(f"c{held}", held, pod=f"c{held}"))
    wants = unschedulable("wants", PAIR)
    world.cluster.put_pod(replace(wants, attributes=replace(BARE, nominated=NODE)))
    waker.round(0.0)
    assert api.woken == []
    world.claims.delete(claim("c0"))
    waker.round(1.0)
    assert api.woken == ["wants"]


@pytest.mark.parametrize("change", ["freed", "freed before the pod is unschedulable", "deleted"])
def test_a_pod_whose_claim_has_lost_its_devices_is_woken_for_any_node(change: str) -> None:
    """kube-scheduler has heard of it first, and no other node changes any more."""
    world, api = two_pairs(), Api()
    waker = Waker(world.cluster, api, clock=lambda: 0.0)
    wants = replace(unschedulable("wants", gpu_request(0, NVLINK)), namespace="ns", claims=("c",))
    late = change == "freed before the pod is unschedulable"
    world.cluster.put_pod(replace(wants, called_unschedulable=not late))
    world.claims.apply(claim("c", 0, 2))  # not linked
    for held in 1, 3:
        world.claims.apply(claim(f"c{held}", held, pod=f"c{held}"))
    other = NodeName("other")
    world.cluster.put_node(other, NodeObject(exists=True, advertises_none=True))
    world.slices.apply(slice_of(other, *map(device, range(4)), name="o", pool=other))
    world.speak(1, other)
    for now in 0.0, Waker.MEMORY:
        waker.round(now)
    assert api.woken == []
    if change == "deleted":  # and made anew
        world.claims.delete(claim("c", 0, 2))
    world.claims.apply(asking("c", exactly(2)))
    looks = waker.looks
    waker.round(100.0)
    world.cluster.put_pod(wants)
    for now in 101.0, 200.0, 300.0:
        waker.round(now)
    assert (api.woken, waker.looks - looks) == (["wants"], 1)


@pytest.mark.parametrize("calls", range(14))
def test_no_pod_is_woken_for_ineligible_nodes_where_the_time_is_up(calls: int) -> None:
    """Others with its request have asked them, so that their answers are there at once."""
    cluster, api = Counting(), Api()
    seconds = itertools.chain([0.0] * calls, itertools.repeat(100.0))
    waker = Waker(cluster, api, clock=seconds.__next__)
    wants = replace(unschedulable("wants", PAIR), group_ref=GroupReference(Group("team", "g")))
    cluster.put_pod(wants)
    change(cluster, 3)
    for name in cluster.snapshot().by_name:
        cluster.put_node(name, NodeObject(taints=(Taint("team", "a", "NoSchedule"),)))
    assert len(evaluate(cluster.snapshot(), Question(wants, Purpose.FILTER)).passed) == 3
    waker.round(0.0)
    assert api.woken == []


def in_group(name: str, pod: PodRecord) -> PodRecord:
    return replace(pod, group_ref=GroupReference(Group("team", name), 2, "zone"))


@pytest.mark.parametrize("how", ["moves", "taken", "ended"])
def test_a_pod_is_woken_where_another_groups_reservation_moves_away(how: str) -> None:
    """No node has changed on which the pod fits."""
    free, full, other = (
        machine(name).topology(node)
        for node, name in (("v", "hgx-a100-4"), ("x", "hgx-a100-4"), ("w", "l40s-8"))
    )
    pods = {"a-0": Held((0, 1)), "fill-x": Held((2, 3))}
    cluster, api = (
        cluster_of({free: {}, full: pods, other: {"fill-w": Held(tuple(range(8)))}}),
        Api(),
    )
    for node in (free, full, other):
        cluster.put_node(node.name, NodeObject(exists=True, labels={"zone": "z"}))
    begun = cluster.node_info(full.name).pods.bound[PodUid("a-0")]
    cluster.put_pod(in_group("a", begun))
    two = in_group("a", waiting("a-1", gpu_request(2)))
    cluster.put_pod(replace(two, called_unschedulable=False))
    asks = gpu_request(2, Constraints(link=LinkKind.NVLINK, models=("a100*",)))
    for member in ("b-0", "b-1"):
        cluster.put_pod(in_group("b", waiting(member, asks)))
    waker = Waker(cluster, api, clock=lambda: 0.0)
    waker.round(0.0)
    waker.round(100.0)
    api.woken.clear()
    if how == "moves":  # to w, where no b fits
        cluster.drop_pod(PodUid("fill-w"))
        cluster.put_report(other.name, Report("boot", 2))
    elif how == "taken":
        cluster.put_pod(replace(two, node=full.name))
    else:
        cluster.drop_pod(two.uid)
        cluster.drop_pod(begun.uid)
    waker.round(200.0)
    assert sorted(name.rpartition("/")[2] for name in api.woken) == ["b-0", "b-1"]


def test_pods_that_ask_for_other_cpus_answer_for_none_but_themselves() -> None:
    cluster, api = Cache(lambda: 0.0, Settings(stale_after=None)), Api()
    waker = Waker(cluster, api, clock=lambda: 0.0)
    cluster.put_record(switched(4, "n"), Report("boot", 1))
    has = (("cpu", 8000), ("nvidia.com/gpu", 4000))
    cluster.put_node(NodeName("n"), NodeObject(allocatable=has, exists=True))
    for name, cpu in ("big", "64"), ("small", "1"):
        manifest = pod(2, {"link": "nvlink"}, name=name, uid=name)
        manifest["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
        cluster.put_pod(replace(record_of(manifest), called_unschedulable=True))
    for now in 1.0, 10.0, 60.0:
        waker.round(now)
    assert {*api.woken} == {"small"}


def test_a_gang_is_woken_once_it_is_no_longer_sent_to_a_domain_that_is_full() -> None:
    now = [0.0]
    cluster, api = Cache(lambda: now[0], Settings(stale_after=None)), Api()
    waker = Waker(cluster, api, clock=lambda: 0.0)
    for name in "a", "b":
        cluster.put_record(switched(4, name), Report("boot", 1))
        cluster.put_node(NodeName(name), NodeObject(exists=True))
    wants = {"link": "nvlink", "group-size": "2", "group-domain": "node"}
    members = [pod(2, wants, name=name, uid=name) for name in ("m1", "m2")]
    for member in members:
        member["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "gang"}
        cluster.put_pod(record_of(member))
    asked = filter_nodes(cluster, msgspec.convert(members[0], Pod), ["a", "b"])
    assert asked.node_names == ["a"]
    for member in members:  # kube-scheduler has not bound them, for a reason of its own
        cluster.put_pod(replace(record_of(member), called_unschedulable=True))
    waker.round(0.1)
    now[0] = 2.0
    api.woken.clear()
    cluster.put_pod(record_of(pod(3, name="other", uid="other", node="a", phase="Running")))
    for second in range(3, 90):
        now[0] = float(second)
        waker.round(now[0])
    assert {*api.woken} == {"m1", "m2"}


def test_a_member_of_a_gang_is_woken_once_a_peer_that_held_it_up_waits_no_more() -> None:
    """One GPU of 40 GiB is shared, and kube-scheduler counts its shares alone."""
    cluster, api = Cache(lambda: 0.0, Settings(stale_after=None)), Api()
    waker = Waker(cluster, api, clock=lambda: 0.0)
    cluster.put_record(shared_memory.node(1, 8), Report("boot", 1))
    cluster.put_node(NodeName("node"), NodeObject(exists=True))
    for name, gib in ("small", 12), ("large", 35):
        uses = shared_memory.uses(gib, **{"group-size": "2"})
        member = shared_memory.manifest(name, 1, uses)
        member["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "gang"}
        cluster.put_pod(replace(record_of(member), called_unschedulable=True))
    waker.round(1.0)
    assert not api.woken
    cluster.drop_pod(PodUid("large"))
    waker.round(2.0)
    assert api.woken == ["small"]
