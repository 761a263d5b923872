"""What a verb does when there is no time to work every node out."""

import threading
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.deadline import within
from scheduler_extender.framework import equivalence
from scheduler_extender.framework import nodedecision as decisions
from scheduler_extender.framework.rule import UNDECIDED
from scheduler_extender.framework.rules import devices
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.verbs import STILL_WORKING, preemption
from scheduler_extender.wire import MetaPod, MetaVictims, Pod, PreemptionArgs
from tests.deadlines import ending_when
from tests.nodes import pcie, pod, record_of, switched
from tests.scheduler_extender.serving import Clock
from tests.waiting import PATIENCE
from topology.core import placement, scoring
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.links import LinkKind
from topology.core.placement import IN_PROGRESS
from topology.core.report import Allocation, Health, Report
from topology.core.requests import Constraints, GpuRequest, gpu_request

NVLINK = {"link": "nvlink"}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Ten nodes in as many states; working one out takes a second."""
    found = Cache(clock)
    for i in range(10):
        node = pcie(2 + i, f"n{i}") if i < 5 else switched(2 + i, f"n{i}")
        found.put_record(node, Report("boot", 1))
    assess, placement_cost = placement.assess, scoring.placement_cost

    def slow_assess(*args: Any) -> Any:
        answer = assess(*args)
        clock.now += 1
        return answer

    def slow_placement_cost(*args: Any) -> Any:
        answer = placement_cost(*args)
        clock.now += 1
        return answer

    monkeypatch.setattr(devices, "assess", slow_assess)
    monkeypatch.setattr(scoring, "placement_cost", slow_placement_cost)
    return found


NAMES = [f"n{i}" for i in range(10)]


def asked(count: int, annotations: dict[str, str]) -> Pod:
    return msgspec.convert(pod(count, annotations, uid="next"), Pod)


def test_a_required_pod_gets_an_error_until_some_node_takes_it(
    cluster: Cache, clock: Clock
) -> None:
    pair = asked(2, NVLINK)
    first = verbs.filter_nodes(cluster, pair, NAMES, within(cluster.clock, 3.5))
    assert first.error == STILL_WORKING
    assert not first.failed
    assert not first.unresolvable, "nobody is evicted, and no reason is written"
    second = verbs.filter_nodes(cluster, pair, NAMES, within(cluster.clock, 3.5))
    assert second.error == ""
    assert second.node_names
    assert set(second.failed.values()) == {UNDECIDED.message}
    answered = {*second.node_names, *second.failed, *second.unresolvable}
    assert answered == set(NAMES), "each node stands in the answer once"
    while (
        verbs.filter_nodes(cluster, pair, NAMES, within(cluster.clock, 3.5)).node_names != NAMES[5:]
    ):
        assert clock.now < 60
    assert clock.now <= 14, "what was done is not done again, but for one interrupted in each call"


def test_a_plain_pod_passes_unless_it_could_break_a_promise(cluster: Cache) -> None:
    bound = record_of(pod(2, NVLINK, node="n9"))
    assert isinstance(bound.request, GpuRequest)
    cluster.put_pod(replace(bound, promised=bound.request.constraints))
    found = verbs.filter_nodes(cluster, asked(1, {}), NAMES, within(cluster.clock, 2.5))
    assert found.error == ""
    assert found.node_names == NAMES[:9]
    assert found.failed == {"n9": IN_PROGRESS.message}


def test_unknown_nodes_are_rejected_by_another_reason(cluster: Cache) -> None:
    found = verbs.filter_nodes(
        cluster, asked(1, {}), [*NAMES, "unknown"], within(cluster.clock, 2.5)
    )
    assert found.node_names == [*NAMES, "unknown"]
    required = verbs.filter_nodes(
        cluster, asked(2, NVLINK), ["n9", "n8", "n7", "unknown"], within(cluster.clock, 1.5)
    )
    assert required.node_names == ["n9", "n8"]
    assert required.failed == {"n7": UNDECIDED.message}
    assert "unknown" in required.unresolvable


def test_scores_that_were_not_worked_out_are_neutral(cluster: Cache, clock: Clock) -> None:
    single = asked(1, {})
    verbs.filter_nodes(cluster, single, NAMES)
    some = {
        row.host: row.score
        for row in verbs.prioritize(cluster, single, NAMES, within(cluster.clock, 3.5))
    }
    assert list(some) == NAMES
    assert some["n9"] == 5
    began = clock.now
    while verbs.prioritize(cluster, single, NAMES, within(cluster.clock, 3.5)) != verbs.prioritize(
        cluster, single, NAMES
    ):
        assert clock.now < began + 60
    assert clock.now - began <= 14, "each state is worked out once, or interrupted once"


def test_preempt_evicts_no_pod_on_nodes_that_it_did_not_evaluate(
    cluster: Cache, clock: Clock
) -> None:
    victims = {name: MetaVictims([MetaPod("v")]) for name in NAMES[5:]}
    args = PreemptionArgs(asked(2, NVLINK), None, dict(victims))
    assert set(preemption.preempt(cluster, args).meta_victims) == set(NAMES[5:])
    cluster.forget_answers()
    kept = preemption.preempt(cluster, args, within(clock, 1.5)).meta_victims
    assert set(kept) == set(NAMES[5:7])


@pytest.mark.parametrize("scores", [False, True])
def test_nothing_is_worked_out_under_the_lock(
    cluster: Cache, monkeypatch: pytest.MonkeyPatch, scores: bool
) -> None:
    """A report that comes in while a filter is at work waits for none of it."""
    free: list[bool] = []

    def watched(what: str) -> None:
        real = getattr(equivalence, what)

        def asked(*args: Any) -> Any:
            report = threading.Thread(
                target=lambda: free.append(cluster.node_info(NodeName("n0")).known)
            )
            report.start()
            report.join(PATIENCE)
            assert not report.is_alive(), "it waits for the lock that we hold"
            return real(*args)

        monkeypatch.setattr(equivalence, what, asked)

    watched("decide")
    watched("placement_cost")
    request = gpu_request(2, Constraints(link=LinkKind.NVLINK))
    equivalence.ask(cluster.snapshot(), request, NAMES, scores=scores)
    assert len(free) >= len(NAMES)


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_nodes_that_fail_are_tried_once_in_each_call(
    cluster: Cache, clock: Clock, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """A fault is tried again by the next call: within one it must not eat up the time."""
    tried: list[int] = []

    def broken(kubelet: Any, *_: Any) -> Any:
        tried.append(kubelet.shape.size)
        raise OverflowError("a fault of ours")

    pair = asked(2, NVLINK)
    if verb == "filter":
        monkeypatch.setattr(devices, "assess", broken)
        found = verbs.filter_nodes(cluster, pair, NAMES, within(cluster.clock, 60.0))
        assert found.error == ""
        assert found.failed == dict.fromkeys(NAMES, UNDECIDED.message)
        assert verbs.filter_nodes(cluster, pair, NAMES, within(cluster.clock, 60.0)) == found
    else:
        monkeypatch.setattr(scoring, "placement_cost", broken)
        verbs.filter_nodes(cluster, pair, NAMES)
        verbs.prioritize(cluster, pair, NAMES[5:], within(cluster.clock, 60.0))
        verbs.prioritize(cluster, pair, NAMES[5:], within(cluster.clock, 60.0))
    assert len(tried) <= 2 * len(NAMES)
    assert clock.now <= 10


def test_nodes_that_change_all_the_time_hold_no_call_for_long(clock: Clock) -> None:
    """Each node is answered as it was when the call began, however much has changed since."""
    cluster = Cache(clock)
    nodes = [switched(4, f"c{i:03}") for i in range(20)]
    names = [str(node.name) for node in nodes]
    gpus = tuple(enumerate(nodes[0].gpus))
    times = 0

    def everything_changes() -> bool:
        nonlocal times
        times += 1
        for i, node in enumerate(nodes):
            health = tuple(Health(gpu.uuid, not (i + times) >> p & 1, "x") for p, gpu in gpus)
            cluster.put_record(node, Report("boot", times + 1, health=health))
        return False

    everything_changes()
    seen, request = cluster.snapshot(), gpu_request(1)
    answers = equivalence.ask(seen, request, names, ending_when(everything_changes))
    # Each sick mask is compiled once, too: a plain pod is not promised a sick GPU.
    assert times <= 1 + 4 * len(names), "each is found and decided about once"
    answer = dict(answers.each())
    for info in seen.nodes:
        assert answer[info.name] == decisions.decide(info, request, cluster.settings)
        assert cluster.node_info(info.name) is not info


def test_states_that_there_was_no_time_to_find_are_late(clock: Clock) -> None:
    cluster = Cache(clock)
    names = [f"c{i:03}" for i in range(25)]
    for name in names:
        cluster.put_record(switched(4, name), Report("boot", 1))
    answered = equivalence.ask(
        cluster.snapshot(), gpu_request(1), names, within(cluster.clock, 0.0)
    )
    assert answered.late == set(names)
    assert len(answered.undecided) == len(names)
    assert not equivalence.ask(cluster.snapshot(), gpu_request(1), names).late


def test_answers_of_a_former_snapshot_are_not_used_for_the_next(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, node = Cache(clock), switched(4, "c")
    cluster.put_record(node, Report("boot", 1))
    ids = tuple(DeviceId(gpu.uuid) for gpu in node.gpus)
    held = Allocation(PodUid("p"), "n", "p", "c", "nvidia.com/gpu", ids)
    assess = placement.assess

    def assess_while_it_changes(*args: Any) -> Any:
        answer = assess(*args)
        cluster.put_report(node.name, Report("boot", 2, allocations=(held,)))
        return answer

    monkeypatch.setattr(devices, "assess", assess_while_it_changes)
    ((_, decision),) = equivalence.ask(cluster.snapshot(), gpu_request(1), [node.name]).each()
    assert decision is not None
    assert decision.rejection is None, "so it was when it was asked"
    ((_, decision),) = equivalence.ask(cluster.snapshot(), gpu_request(1), [node.name]).each()
    assert decision is not None
    assert decision.rejection is placement.BUSY, "it holds no free GPU any more"
