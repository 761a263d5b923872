"""What counts as a refusal, when a node pauses, and what lifts a pause: no network, no clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import MANAGED
from scheduler_extender.files.clusterfile import feed, parse
from scheduler_extender.files.snapshot import cluster_file
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.decision import Refusals, Settings, kept_away, refusing
from scheduler_extender.state.enquiry import answer_of, enquire
from scheduler_extender.state.pods import PodRecord, manifest_of, pod_record
from scheduler_extender.state.refusal import Refusal, refusal_of
from scheduler_extender.state.refusing import NodeRefusal
from scheduler_extender.state.streak import (
    LONGEST_PAUSE,
    MOST_KINDS,
    MOST_REFUSALS,
    NEW_PAUSE,
    NEW_PAUSE_AFTER,
)
from scheduler_extender.wire import Pod
from tests.nodes import pod, switched
from tests.scheduler_extender.serving import Clock
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.links import LinkKind
from topology.core.report import Allocation, Report
from topology.core.requests import Constraints, Exclusive, GpuRequest, gpu_request

GPU = "nvidia.com/gpu"
NODE = NodeName("switched")
ERROR = "UnexpectedAdmissionError"
ASKING = gpu_request(1)
PINNED = replace(ASKING, exclusive=Exclusive.CPUS)
PAIR = gpu_request(2)
LINKED = gpu_request(1, Constraints(link=LinkKind.NVLINK))
SHUT, SHUT_TO_ALIKE = refusing(ERROR, alike=False), refusing(ERROR, alike=True)


CASES: dict[str, tuple[str, str, str, bool, str | None]] = {
    "a device plugin that refuses": ("Failed", ERROR, "Pod was rejected: x", False, ERROR),
    "the same after a run": ("Failed", ERROR, "", True, ERROR),
    "NUMA": ("Failed", "TopologyAffinityError", "", False, "TopologyAffinityError"),
    "devices": ("Failed", "OutOfnvidia.com/gpu", "", False, "OutOfDevices"),
    "CPU": ("Failed", "OutOfcpu", "", False, "OutOfcpu"),
    "the pod's own fault": ("Failed", "SysctlForbidden", "", False, "SysctlForbidden"),
    "a new reason": ("Failed", "Unheard", "Pod was rejected: of", False, "other"),
    "a new reason after a run": ("Failed", "Unheard", "Pod was rejected: of", True, None),
    "evicted": ("Failed", "Evicted", "The node was low on resource: memory", True, None),
    "evicted, no containers kept": ("Failed", "Evicted", "The node was low on", False, None),
    "too long": ("Failed", "DeadlineExceeded", "Pod was active on the node", False, None),
    "a container that failed": ("Failed", "", "", True, None),
    "still pending": ("Pending", ERROR, "", False, None),
    "running": ("Running", "", "", True, None),
}


@pytest.mark.parametrize(
    ("phase", "reason", "message", "has_containers", "label"), CASES.values(), ids=CASES
)
def test_what_counts_as_a_refusal(
    phase: str, reason: str, message: str, has_containers: bool, label: str | None
) -> None:
    found = refusal_of(phase, reason, message, has_containers=has_containers)
    assert (found and found.label) == label


STATUSES: dict[str, tuple[dict[str, Any], bool]] = {
    "bound": ({}, False),
    "admitted, pulls its image": ({"startTime": "2026-11-22T07:00:00Z"}, True),
    "running": ({"phase": "Running"}, True),
    "refused": (
        {"phase": "Failed", "reason": ERROR, "startTime": "2026-11-22T07:00:00Z"},
        False,
    ),
    "ran and failed": (
        {
            "phase": "Failed",
            "startTime": "2026-11-22T07:00:00Z",
            "containerStatuses": [{"name": "main"}],
        },
        True,
    ),
    "failed, nobody knows why": (
        {"phase": "Failed", "reason": "Unheard", "startTime": "2026-11-22T07:00:00Z"},
        False,
    ),
    "a start time that is none": ({"startTime": "soon"}, False),
}


@pytest.mark.parametrize(("status", "admitted"), STATUSES.values(), ids=STATUSES)
def test_whether_the_kubelet_has_taken_a_pod(status: dict[str, Any], admitted: bool) -> None:
    found = read(pod(1, node=NODE, **status))
    assert found.admitted == admitted
    assert read(manifest_of(found)) == found


def read(manifest: dict[str, Any]) -> PodRecord:
    found = pod_record(msgspec.convert(manifest, Pod), MANAGED)
    assert found is not None
    return found


class World:
    """One node whose kubelet answers as the test says, and the extender's state of it."""

    def __init__(self, settings: Settings = Settings()) -> None:
        self.clock = Clock()
        self.cluster = Cluster(self.clock, settings)
        self.cluster.put_record(switched(8), Report("boot", 1))
        self.told: list[NodeRefusal] = []
        self.cluster.on_refusal(self.told.append)
        self.sequence = 1

    def bind(self, uid: str, asking: GpuRequest = ASKING) -> PodRecord:
        bound = PodRecord(PodUid(uid), "default", uid, NODE, asking)
        self.cluster.put_pod(bound)
        return bound

    def refuse(self, *uids: str, reason: str = ERROR, asking: GpuRequest = ASKING) -> None:
        for bound in [self.bind(uid, asking) for uid in uids]:
            self.answer(bound, refused=reason)

    def answer(self, bound: PodRecord, refused: str = "", age: float = 0.0) -> None:
        """The kubelet's answer; ``age`` counts where the extender has not seen the pod before."""
        started = 1000.0 + self.clock.now - age
        if refused:
            answered = replace(bound, phase="Failed", refusal=Refusal(refused), started=started)
        else:
            answered = replace(bound, admitted=True, started=started)
        self.cluster.put_pod(answered, age)

    def report(self, *uids: str) -> None:
        self.sequence += 1
        held = tuple(
            Allocation(PodUid(uid), "default", uid, "main", GPU, (DeviceId(f"GPU-{i}"),))
            for i, uid in enumerate(uids)
        )
        self.cluster.put_report(NODE, Report("boot", self.sequence, allocations=held))

    def shut(self, asking: GpuRequest = ASKING) -> bool:
        """Whether the node takes no pod that asks this."""
        self.cluster.expire()
        rejection = answer_of(self.cluster, self.cluster.facts(NODE), asking).rejection
        assert rejection in (None, SHUT, SHUT_TO_ALIKE)
        return rejection is not None

    def refuses(self, asking: GpuRequest) -> bool:
        """Whether the node takes no pod that asks this, whatever is free."""
        self.cluster.expire()
        return kept_away(self.cluster.facts(NODE), asking, self.cluster.settings) is not None

    def pause(self) -> float:
        """How many seconds the node stays shut if nothing happens."""
        began = self.clock.now
        while self.shut():
            self.clock.now += 1
        return self.clock.now - began


def test_the_second_refusal_in_a_row_shuts_the_node() -> None:
    world = World()
    world.refuse("a")
    assert not world.shut()
    world.refuse("b")
    assert world.shut()
    assert [(r.in_a_row, r.pause) for r in world.told] == [(1, 0), (2, 30)]


def test_pauses_double_up_to_half_an_hour() -> None:
    world = World()
    world.refuse("a", "b")
    pauses = [world.pause()]
    for i in range(40):
        world.refuse(f"trial-{i}")
        pauses.append(world.pause())
    assert pauses[:8] == [30, 60, 120, 240, 480, 960, 1800, 1800]
    assert set(pauses[8:]) == {LONGEST_PAUSE}
    assert len(world.cluster.facts(NODE).streaks[GPU].refusals) == MOST_REFUSALS


def test_a_crowd_that_was_bound_before_makes_one_pause() -> None:
    world = World()
    world.refuse(*(f"p{i}" for i in range(20)))
    assert [r.pause for r in world.told] == [0, 30] + 18 * [0]
    assert world.pause() == 30


def test_after_a_pause_one_pod_may_try() -> None:
    world = World()
    world.refuse("a", "b")
    world.pause()
    assert not world.shut()
    flying = world.cluster.reserve(NODE, PodRecord(PodUid("c"), "default", "c", None, ASKING))
    assert flying is not None
    assert world.shut()
    trial = world.bind("c")
    assert world.shut()
    facts = world.cluster.facts(NODE)
    assert not facts.without(frozenset({trial.uid})).refusing(ASKING)  # it is not in its own way
    world.answer(trial)
    assert not world.shut()
    assert not world.cluster.facts(NODE).streaks


def test_after_one_refusal_pods_are_let_in_one_at_a_time() -> None:
    """Until one succeeds: a crowd would be lost if the kubelet refuses them all."""
    world = World()
    world.refuse("a")
    assert not world.shut()
    trial = world.bind("b")
    assert world.shut()
    world.answer(trial)
    assert not world.shut()
    world.bind("c")
    assert not world.shut()


def test_a_kind_that_never_fits_shuts_out_itself_alone() -> None:
    """Its own CPUs cannot be aligned; pods without CPUs of their own go on as before."""
    world = World()
    for i in range(12):
        world.refuse(f"pinned-{i}", asking=PINNED)
        world.answer(world.bind(f"plain-{i}"))
        assert not world.shut()
        world.bind(f"more-{i}")
        assert not world.shut()
        for uid in ("plain", "more"):
            world.cluster.drop_pod(PodUid(f"{uid}-{i}"))
        while world.shut(PINNED):
            world.clock.now += 1
    assert world.clock.now == 30 + 60 + 120 + 240 + 480 + 960 + 5 * LONGEST_PAUSE
    assert world.told[-1].in_a_row == 12


def test_what_no_kubelet_sees_makes_no_kind() -> None:
    """Constraints are ours: two pods with the same containers are the same to a kubelet."""
    world = World()
    world.refuse("a", asking=LINKED)
    world.refuse("b")
    assert world.shut()
    assert world.shut(LINKED)


def test_two_kinds_in_a_row_shut_out_everybody() -> None:
    world = World()
    world.refuse("a", "b", asking=PINNED)
    assert world.shut(PINNED)
    assert not world.shut(PAIR)
    world.refuse("c")
    assert world.shut(PAIR)
    assert len(world.told) < 5
    assert [(r.in_a_row, r.pause) for r in world.told] == [(1, 0), (2, 30), (3, 30)]


def test_when_the_node_heals_all_kinds_are_let_in() -> None:
    """Whoever is admitted first lets all kinds in that were refused with it."""
    world = World()
    for i, asking in enumerate((ASKING, PINNED, PINNED, PINNED)):
        world.refuse(f"{i}", asking=asking)
    for i in range(5):
        while world.shut(PINNED):
            world.clock.now += 1
        world.refuse(f"again-{i}", asking=PINNED)
    assert world.shut(PINNED)
    assert not world.shut(PAIR)
    world.answer(world.bind("pair", PAIR))
    assert not world.shut()
    assert not world.shut(PINNED)


def test_a_success_between_two_kinds_keeps_the_node_open() -> None:
    world = World()
    world.refuse("a", asking=PINNED)
    world.answer(world.bind("good", PAIR))
    world.refuse("b")
    world.answer(world.bind("as-good", PAIR))
    assert not world.shut(PAIR)
    assert not world.shut(PINNED)


def test_kinds_that_were_at_fault_before_prove_nothing_against_the_node() -> None:
    """And the node still closes to all within five refusals once it refuses everybody."""
    world, never = World(), (PINNED, replace(PAIR, exclusive=Exclusive.CPUS))
    for i, asking in enumerate(never):
        world.refuse(f"never-{i}", asking=asking)
        world.answer(world.bind(f"good-{i}"))
    for i, asking in enumerate(never):
        world.refuse(f"again-{i}", asking=asking)
    assert not world.shut()
    world.refuse("b", asking=ASKING)
    world.refuse("c", asking=PAIR)
    assert world.shut(gpu_request(3))


def test_kinds_that_come_again_and_again_keep_the_others_away_for_one_pause_only() -> None:
    """They are always first to try; only the first refusal of each makes the others wait."""
    world, never = World(), (PINNED, gpu_request(9))
    good = 0
    for second in range(600):
        world.clock.now = float(second)
        for asking in (*never, PAIR):
            if world.refuses(asking):
                continue
            pod = world.bind(f"{second}-{asking.text}", asking)
            world.answer(pod, "" if asking is PAIR else ERROR)
            world.cluster.drop_pod(pod.uid)
            good += asking is PAIR
    assert good == 600 - 30
    lost = {kind: sum(r.pod.request == kind for r in world.told) for kind in never}
    assert all(5 <= count <= 7 for count in lost.values())


@pytest.mark.parametrize("healthy_first", [True, False])
@pytest.mark.parametrize("kinds", [2 * MOST_KINDS, 5])
def test_many_kinds_that_never_fit_lose_few_pods(kinds: int, *, healthy_first: bool) -> None:
    """In an hour, each made anew at once, beside a kind that has run here and runs on."""
    world, never = World(), [gpu_request(i + 9) for i in range(kinds)]
    world.answer(world.bind("before"))
    world.cluster.drop_pod(PodUid("before"))
    ran = 0
    for second in range(0, 3600, 10):
        world.clock.now = float(second)
        for asking in (ASKING, *never) if healthy_first else (*never, ASKING):
            if world.refuses(asking):
                continue
            pod = world.bind(f"{second}-{asking.count}", asking)
            world.answer(pod, "" if asking is ASKING else ERROR)
            world.cluster.drop_pod(pod.uid)
            ran += asking is ASKING
    assert len(world.told) < min(11 * kinds, 200)
    assert ran > 300  # of 360: it waits while two new kinds in a row are refused


def test_new_kinds_wait_once_many_in_a_row_did_not_fit() -> None:
    """Those that have run here do not wait; the first new one that is admitted ends it."""
    world, new = World(), gpu_request(3)
    for i in range(NEW_PAUSE_AFTER):
        assert not world.refuses(new)
        world.answer(world.bind(f"good-{i}"))
        world.refuse(f"bad-{i}", asking=gpu_request(i + 10))
    world.answer(world.bind("good"))
    assert world.refuses(new)
    assert not world.refuses(ASKING)
    world.clock.now += NEW_PAUSE
    assert not world.refuses(new)
    trial = world.bind("trial", new)
    assert world.refuses(gpu_request(4))
    assert not world.refuses(ASKING)
    world.answer(trial)
    assert not world.refuses(gpu_request(4))


def test_a_kind_that_is_forgotten_is_new_again() -> None:
    """Though it was admitted once: else kinds that fit no more would be lost again and again."""
    world, forgotten = World(), gpu_request(9)
    for i in range(MOST_KINDS + 1):
        world.answer(world.bind(f"ran-{i}", gpu_request(i + 9)))
    for i in range(MOST_KINDS + 1):
        world.clock.now += 1
        world.answer(world.bind(f"good-{i}"))
        world.refuse(f"bad-{i}", asking=gpu_request(i + 9))
    streaks = world.cluster.facts(NODE).streaks[GPU]
    assert forgotten not in streaks.of_kind
    assert forgotten not in world.cluster.facts(NODE).admitted[GPU]


def test_who_has_ended_is_no_proof_when_a_report_shows_it_late() -> None:
    world = World()
    early = world.bind("early")
    world.cluster.put_pod(replace(early, phase="Failed"))
    world.refuse("a", "b")
    world.report("early")
    assert world.shut()
    ran = replace(early, phase="Failed", admitted=True)
    world.cluster.put_pod(ran)
    assert world.shut()


def test_refused_pods_are_not_gone_through_again_for_each_that_comes() -> None:
    world = World()
    waits = world.bind("waits")
    world.refuse(*(f"p{i}" for i in range(50)))
    facts = world.cluster.facts(NODE)
    assert facts.streaks[GPU].beside == {waits.uid}
    world.refuse("another")
    after = world.cluster.facts(NODE)
    shared = [a is b for a, b in zip(facts.pods.ended, after.pods.ended, strict=True)]
    assert shared.count(False) == 1


def test_nodes_that_differ_in_who_tries_share_no_answers() -> None:
    """Both have been refused a pod, and hold one that no report shows; one of those is admitted."""
    world, second = World(), NodeName("second")
    world.cluster.put_record(switched(8, second), Report("boot", 1))
    early: dict[NodeName, PodRecord] = {}
    for name in (NODE, second):
        for uid in ("early", "refused"):
            found = PodRecord(PodUid(f"{uid}-{name}"), "default", uid, name, ASKING)
            early.setdefault(name, found)
            world.cluster.put_pod(found)
        world.answer(found, ERROR)
    world.answer(early[NODE])
    for _ in range(2):
        told = dict(enquire(world.cluster, ASKING, [NODE, second]).each())
        assert {name: answer and answer.rejection for name, answer in told.items()} == {
            NODE: None,
            second: SHUT_TO_ALIKE,
        }


@pytest.mark.parametrize("step", [1, -1])
def test_after_a_restart_kinds_are_told_apart(step: int) -> None:
    world = World()
    answers = [("a", ERROR, 40.0, PINNED), ("b", ERROR, 30.0, PINNED), ("good", "", 20.0, ASKING)]
    for uid, reason, age, asking in answers[::step]:
        world.answer(PodRecord(PodUid(uid), "default", uid, NODE, asking), reason, age)
    world.bind("another")
    assert not world.shut()
    assert not world.shut(PINNED)  # its pause of 30 s is over
    world.bind("trial", PINNED)
    assert world.shut(PINNED)
    assert not world.shut()


def test_kinds_without_end_are_not_all_remembered() -> None:
    world = World()
    for i in range(3 * MOST_KINDS):
        world.answer(world.bind(f"good-{i}"))
        world.refuse(f"bad-{i}", asking=gpu_request(i + 2))
    assert len(world.cluster.facts(NODE).streaks[GPU].of_kind) == MOST_KINDS


def test_a_trial_that_is_deleted_makes_room_for_another() -> None:
    world = World()
    world.refuse("a", "b")
    world.pause()
    trial = world.bind("c")
    assert world.shut()
    world.cluster.drop_pod(trial.uid)
    assert not world.shut()


def test_a_report_that_shows_the_trial_lifts_the_pause() -> None:
    world = World()
    world.refuse("a", "b")
    world.pause()
    world.bind("c")
    world.report("c")
    assert not world.cluster.facts(NODE).streaks


@pytest.mark.parametrize("by", ["status", "report"])
def test_who_was_bound_before_the_last_refusal_lifts_nothing(by: str) -> None:
    world = World()
    early = world.bind("early")
    world.refuse("a", "b")
    if by == "status":
        world.answer(early)
    else:
        world.report("early")
    assert world.shut()


def test_a_success_between_starts_the_count_again() -> None:
    world = World()
    for i in range(6):
        world.refuse(f"bad-{i}")
        world.answer(world.bind(f"good-{i}"))
    assert not world.shut()
    assert {r.in_a_row for r in world.told} == {1}


def test_the_pods_own_faults_are_told_and_shut_nothing() -> None:
    world = World()
    world.refuse("a", "b", "c", reason="SysctlForbidden")
    assert not world.shut()
    assert [r.in_a_row for r in world.told] == [0, 0, 0]


def test_other_resources_are_not_shut() -> None:
    world = World()
    world.refuse("a", "b")
    assert not world.shut(gpu_request(1, resource="nvidia.com/gpu.shared"))


def test_ignored_refusals_shut_nothing_and_are_told() -> None:
    world = World(Settings(refusals=Refusals.IGNORE))
    world.refuse("a", "b")
    assert not world.shut()
    assert [r.pause for r in world.told] == [0, 0]


def test_a_node_without_a_record_is_shut_too() -> None:
    world = World()
    world.cluster.drop_record(NODE)
    world.refuse("a", "b")
    assert world.shut()
    world.pause()
    world.bind("c")
    assert not world.cluster.facts(NODE).without(frozenset({PodUid("c")})).refusing(ASKING)


ORDERS = {"as they came": 1, "the latest first": -1}


@pytest.mark.parametrize("step", ORDERS.values(), ids=ORDERS)
def test_after_a_restart_the_pods_tell_how_long_the_pause_is(step: int) -> None:
    """Refused 100, 99 and 68 s ago: the second pause, of 60 s, is over."""
    for latest, left in ((68.0, 0), (20.0, 40)):
        world = World()
        world.clock.now = 5.0
        ages = {"a": 100.0, "b": 99.0, "c": latest}
        for uid, age in [*ages.items()][::step]:
            world.answer(PodRecord(PodUid(uid), "default", uid, NODE, ASKING), ERROR, age)
        assert world.pause() == left
        assert len(world.cluster.facts(NODE).streaks[GPU].refusals) == 3
        assert not world.told


@pytest.mark.parametrize("step", ORDERS.values(), ids=ORDERS)
def test_after_a_restart_a_success_in_between_counts(step: int) -> None:
    world = World()
    answers = [("a", ERROR, 40.0), ("b", ERROR, 30.0), ("good", "", 20.0), ("c", ERROR, 10.0)]
    for uid, reason, age in answers[::step]:
        world.answer(PodRecord(PodUid(uid), "default", uid, NODE, ASKING), reason, age)
    assert [r.at for r in world.cluster.facts(NODE).streaks[GPU].refusals] == [-10.0]
    assert not world.shut()


def test_an_operator_lifts_the_pause() -> None:
    world = World()
    world.cluster.put_node(NODE, advertises=True)
    world.refuse("a", "b")
    world.cluster.put_node(NODE, advertises=True, resumed=1.0)  # whatever the operator's clock
    assert not world.shut()
    world.refuse("c", "d")
    world.cluster.put_node(NODE, advertises=True, resumed=1.0)  # nothing new
    world.cluster.put_node(NODE, advertises=True)  # nor is it to take the annotation away
    assert world.shut()


def test_an_operator_whose_clock_was_ahead_lifts_the_next_pause_too() -> None:
    world = World()
    world.cluster.put_node(NODE, advertises=True)
    for resumed in (5_000.0, 1_010.0):
        world.refuse(f"a-{resumed}", f"b-{resumed}")
        assert world.shut()
        world.cluster.put_node(NODE, advertises=True, resumed=resumed)
        assert not world.shut()


@pytest.mark.parametrize("pods_first", [True, False])
def test_after_a_restart_what_was_forgiven_stays_so(pods_first: bool) -> None:
    world = World()
    if not pods_first:
        world.cluster.put_node(NODE, advertises=True, resumed=975.0)
    for uid, age in (("a", 40.0), ("b", 30.0), ("c", 20.0)):
        world.answer(PodRecord(PodUid(uid), "default", uid, NODE, ASKING), ERROR, age)
    if pods_first:
        world.cluster.put_node(NODE, advertises=True, resumed=975.0)
    assert len(world.cluster.facts(NODE).streaks[GPU].refusals) == 1
    assert not world.shut()


def test_a_pause_that_is_left_after_a_restart_ends() -> None:
    """The Node comes after its pods, forgiven from between their refusals."""
    world = World()
    for uid, age in (("a", 25.0), ("b", 24.0), ("c", 5.0), ("d", 4.0)):
        world.answer(PodRecord(PodUid(uid), "default", uid, NODE, ASKING), ERROR, age)
    world.cluster.put_node(NODE, advertises=True, resumed=1000.0 + world.clock.now - 24.5)
    assert len(world.cluster.facts(NODE).streaks[GPU].refusals) == 3
    assert world.shut()
    world.clock.now += 200
    assert not world.shut()


def test_a_snapshot_replays_whether_the_node_takes_pods() -> None:
    world = World(Settings(stale_after=None))
    for step in range(2):
        if step:
            world.answer(world.bind("good"))
        else:
            world.refuse("a", "b")
        text = b"".join(cluster_file(world.cluster)).decode()
        replayed = Cluster(world.clock, world.cluster.settings)
        feed(replayed, parse(text))
        shut = answer_of(replayed, replayed.facts(NODE), ASKING).rejection is not None
        assert shut == world.shut() == (step == 0)


def test_who_is_told_learns_whether_it_was_foreseen() -> None:
    world = World()
    world.refuse("a", "b")
    assert [r.foreseen for r in world.told] == [(), ()]
    assert world.told[1].words == (
        "switched refused default/b (UnexpectedAdmissionError), not foreseen; 2 in a row, "
        "no GPU pods for 30 s"
    )
