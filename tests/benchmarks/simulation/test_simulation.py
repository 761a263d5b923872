"""What must hold while jobs arrive, wait, run and leave."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation.clusters import Node, cluster
from benchmarks.simulation.jobs import Ask, Job
from benchmarks.simulation.policies import POLICIES, UNBLOCKING, policy
from benchmarks.simulation.policy import Choice
from benchmarks.simulation.queues import QUEUES, Outcome
from benchmarks.simulation.simulation import Moves, Result, Rules, Simulation
from benchmarks.simulation.speed import Speed
from tests.benchmarks.simulation.samples import LINK, RING, play, some_jobs, written
from topology import codec
from topology.machines import machine


def check(nodes: Sequence[Node], jobs: Sequence[Job], result: Result, rules: Rules) -> None:
    placed = [o for o in result.outcomes if o.placed]
    waiting = len(jobs) - len(placed) - result.unplaceable
    assert waiting == result.stuck if rules.queue != "none" else waiting >= 0
    for outcome in placed:
        job = outcome.job
        assert outcome.started >= job.arrives
        slow = rules.speed.slowdown(outcome.hop)
        assert outcome.ended == pytest.approx(outcome.started + job.runs * slow)
        assert [mask.bit_count() for _, mask in outcome.places] == [job.ask.gpus] * job.pods
    for one, other in combinations(placed, 2):
        if one.started < other.ended and other.started < one.ended:
            for row, mask in one.places:
                assert all(mask & m == 0 for r, m in other.places if r == row)
    for outcome in placed:
        for (row, mask), (r, m) in combinations(outcome.places, 2):
            assert row != r or mask & m == 0
    for row, node in enumerate(nodes):
        for moment in {o.started for o in placed}:
            here = [o for o in placed if o.started <= moment < o.ended]
            cpu = sum(o.job.ask.cpu for o in here for r, _ in o.places if r == row)
            assert cpu <= node.allocatable.cpu
    if rules.queue == "fifo":
        starts = [o.started for o in placed]
        assert starts == sorted(starts)
    if rules.queue == "none":
        assert all(o.waited == 0 for o in placed)


@pytest.mark.parametrize("name", list(POLICIES))
@given(
    jobs=some_jobs,
    queue=st.sampled_from(QUEUES),
    gang=st.booleans(),
    fleet=st.sampled_from(("dgx1-v100=2", "a100-pcie-4-bridged=2,l40s-4=1", "dgx1-v100=1,t4-1=2")),
    seed=st.integers(0, 3),
)
@settings(max_examples=12, deadline=None)
def test_nobody_gets_what_another_has(
    name: str, jobs: list[Job], queue: str, gang: bool, fleet: str, seed: int
) -> None:
    nodes, rules = cluster(fleet), Rules(queue, gang)
    result = Simulation(nodes, jobs, lambda: policy(name), seed, rules).run()
    check(nodes, jobs, result, rules)
    assert not result.refused
    if gang:
        assert not result.stuck  # whoever could run alone runs in the end
    if name in ("gpu-topology", "Buddy") and "dgx1-v100=2" in fleet:
        required = [
            o for o in result.outcomes if ("policy", "preferred") not in o.job.ask.annotations
        ]
        # A buddy's cells of a cube mesh are all linked, but a part of one need not be a ring.
        if name == "gpu-topology":
            assert all(o.kept in (None, True) for o in required)


def test_half_placed_jobs_can_block_each_other() -> None:
    nodes = cluster("l40s-4=1")
    jobs = [
        Job("until 10", 0, 10, Ask(1)),
        Job("until 20", 0, 20, Ask(1)),
        Job("wide", 1, 5, Ask(2), 2),  # takes the two that are free, and needs two more
        Job("narrow", 2, 5, Ask(1), 3),  # takes what comes free one by one, and needs a third
    ]

    def play(gang: bool) -> Result:
        rules = Rules(gang=gang, speed=Speed(communication=0))
        return Simulation(nodes, jobs, lambda: policy("LeastAllocated"), 1, rules).run()

    assert [o.started for o in play(gang=True).outcomes] == [0, 0, 20, 10]
    one_by_one = play(gang=False)
    assert one_by_one.stuck == 2
    assert [o.placed for o in one_by_one.outcomes] == [True, True, False, False]


def test_backfill_passes_and_fifo_does_not() -> None:
    nodes = cluster("dgx1-v100=1")
    jobs = [Job("six", 0, 100, Ask(6)), Job("four", 1, 10, Ask(4)), Job("two", 2, 10, Ask(2))]

    def starts(queue: str) -> list[float]:
        rules = Rules(queue, speed=Speed(communication=0))
        run = Simulation(nodes, jobs, lambda: policy("MostAllocated"), 1, rules).run()
        return [o.started for o in run.outcomes]

    assert starts("backfill") == [0, 100, 2]
    assert starts("fifo") == [0, 100, 100]
    assert [math.isnan(s) for s in starts("none")] == [False, True, False]


def test_what_no_empty_cluster_could_take_holds_nobody_up() -> None:
    nodes = cluster("a100-pcie-4-bridged=2")
    jobs = [
        Job("quad", 0, 10, Ask(4, None, 0, 0, RING)),
        Job("pair", 1, 10, Ask(2, None, 0, 0, LINK)),
    ]
    ours = Simulation(nodes, jobs, lambda: policy("gpu-topology"), 1, Rules("fifo")).run()
    assert (ours.unplaceable, ours.outcomes[1].started) == (1, 1)
    stock = Simulation(nodes, jobs, lambda: policy("MostAllocated"), 1, Rules("fifo")).run()
    assert (stock.unplaceable, stock.outcomes[0].kept) == (0, False)


def test_a_share_is_a_replica_where_there_are_any_and_else_a_gpu(tmp_path: Path) -> None:
    share = [Job("", float(i), 100.0, Ask(1, 0.25)) for i in range(6)]
    whole = Simulation(cluster("t4-1=4"), share, lambda: policy("gpu-topology"), 1).run()
    assert sum(o.waited > 0 for o in whole.outcomes) == 2

    node = codec.encode(machine("t4-1").topology("s"))
    shared = {"name": "nvidia.com/gpu.shared", "strategy": "time-slicing", "replicas": 4}
    node["spec"]["resources"] = [shared]  # type: ignore[index]
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps(node))
    for name in ("gpu-topology", "MostAllocated", "FGD", "Buddy", "Preserve"):
        run = Simulation(cluster(str(path)), share, lambda n=name: policy(n), 1).run()  # type: ignore[misc]
        assert sum(o.waited > 0 for o in run.outcomes) == 2, name


def test_choice_and_outcome_say_nothing_of_what_never_was() -> None:
    assert Choice(1).gpus is None
    assert not Outcome(Job("", 0, 1, Ask(1))).placed


def test_what_others_may_make_possible_is_not_unplaceable() -> None:
    # Five of an empty cube mesh may be no ring; with GPUs 0 and 4 gone they always are one.
    five = Ask(5, None, 0, 0, RING)
    alone = play("dgx1-v100=1", [Job("five", 0, 10, five)], "gpu-topology")
    assert (alone.unplaceable, alone.stuck) == (0, 1)
    six = play(
        "dgx1-v100=1", [Job("nine", 0, 10, Ask(9)), Job("one", 1, 1, Ask(1))], "gpu-topology"
    )
    assert (six.unplaceable, six.outcomes[1].placed) == (1, True)


def test_one_sample_of_nodes_does_not_speak_for_the_others() -> None:
    # The last sample has no links at all; five of a cube mesh in the first may become a ring.
    five = Job("five", 0, 10, Ask(5, None, 0, 0, RING))
    result = play("dgx1-v100=120,l40s-8=120", [five], "gpu-topology")
    assert (result.unplaceable, result.stuck) == (0, 1)


@pytest.mark.parametrize("name", ["gpu-topology", "LeastAllocated", "Random"])
def test_one_kubelet_that_refuses_is_not_all_of_them(name: str, tmp_path: Path) -> None:
    documents = []
    for node, manager in (("bad", "single-numa-node"), ("good", "none")):
        record = codec.encode(machine("dgx1-v100").topology(node))
        record["spec"]["allocator"]["topologyManagerPolicy"] = manager  # type: ignore[index]
        documents.append(json.dumps(record))
    path = written(tmp_path, "c.yaml", "\n---\n".join(documents))
    result = play(str(path), [Job("", 1000.0 * i, 100, Ask(8)) for i in range(4)], name)
    assert all(o.placed and o.waited == 0 for o in result.outcomes)


def test_pods_move_for_whoever_has_waited_long() -> None:
    """Two of four GPUs come free, one of each pair; the pair waits until somebody moves."""
    nodes = cluster("a100-pcie-4-bridged=1")
    jobs = [
        Job("ends first", 0, 100, Ask(1)),
        Job("goes on", 0, 9000, Ask(1)),
        Job("ends, too", 0, 100, Ask(1)),
        Job("goes on, too", 0, 9000, Ask(1)),
        Job("pair", 10, 50, Ask(2, None, 0, 0, LINK)),
        Job("comes by", 1000, 1, Ask(0)),
    ]
    plain, moved = (
        Simulation(
            nodes,
            jobs,
            lambda name=name: policy(name),  # type: ignore[misc]
            1,
            Rules(speed=Speed(communication=0), moves=Moves(after=600, cost=60)),
        ).run()
        for name in ("gpu-topology", UNBLOCKING)
    )
    assert [run.outcomes[4].started for run in (plain, moved)] == [9000, 1000]
    assert (plain.moved, plain.unblocked) == (0, 0)
    assert (moved.moved, moved.unblocked, moved.restarted) == (1, 1, 0)
    assert moved.outcomes[4].kept
    # Who moved does a minute of its work again.
    assert sorted(o.ended for o in moved.outcomes)[-2:] == [9000, 9060]
