"""What must hold while jobs arrive, wait, run and leave."""

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation.fleet import Node, cluster
from benchmarks.simulation.jobs import Ask, Job
from benchmarks.simulation.simulation import Result, Speed
from benchmarks.simulation.sweep import POLICIES
from tests.benchmarks.simulation.samples import LINK, RING, play, some_jobs, written
from topology import codec
from topology.machines import machine

ALIKE = Speed(communication=0)


def check(nodes: Sequence[Node], jobs: Sequence[Job], result: Result) -> None:
    placed = [o for o in result.outcomes if o.placed]
    failed = sum(o.failed for o in result.outcomes)
    assert len(jobs) - len(placed) - result.unplaceable - failed == result.stuck
    for outcome in placed:
        job = outcome.job
        assert outcome.started >= job.arrives
        slow = Speed().slowdown(outcome.hop)
        assert outcome.ended == pytest.approx(outcome.started + job.runs * slow)
        assert [pod.gpus.bit_count() for pod in outcome.pods] == [job.ask.gpus] * job.pods
        for one, other in combinations(outcome.pods, 2):
            assert one.row != other.row or one.gpus & other.gpus == 0
    for first, second in combinations(placed, 2):
        if first.started < second.ended and second.started < first.ended:
            for one in first.pods:
                assert all(one.gpus & p.gpus == 0 for p in second.pods if p.row == one.row)
    for row, node in enumerate(nodes):
        for moment in {o.started for o in placed}:
            here = [o for o in placed if o.started <= moment < o.ended]
            cpu = sum(o.job.ask.cpu for o in here for p in o.pods if p.row == row)
            assert cpu <= node.allocatable.cpu


@pytest.mark.parametrize("name", list(POLICIES))
@given(
    jobs=some_jobs,
    fleet=st.sampled_from(("dgx1-v100=2", "a100-pcie-4-bridged=2,l40s-4=1", "dgx1-v100=1,t4-1=2")),
    seed=st.integers(0, 3),
)
@settings(max_examples=12, deadline=None)
def test_no_job_gets_what_another_has(name: str, jobs: list[Job], fleet: str, seed: int) -> None:
    result = play(fleet, jobs, name, seed)
    check(cluster(fleet), jobs, result)
    assert not any(o.refused for o in result.outcomes)
    assert not result.stuck  # what could run alone runs in the end
    if name == "gpu-topology":
        required = [
            o for o in result.outcomes if ("policy", "preferred") not in o.job.ask.annotations
        ]
        assert all(o.kept in (None, True) for o in required)


def test_a_job_starts_with_all_its_pods_or_waits() -> None:
    jobs = [
        Job("until 10", 0, 10, Ask(1)),
        Job("until 20", 0, 20, Ask(1)),
        Job("wide", 1, 5, Ask(2), 2),  # two GPUs are free, and it needs two more
        Job("narrow", 2, 5, Ask(1), 3),
    ]
    result = play("l40s-4=1", jobs, "LeastAllocated", speed=ALIKE)
    assert [o.started for o in result.outcomes] == [0, 0, 20, 10]


def test_a_job_that_does_not_fit_steps_aside() -> None:
    jobs = [Job("six", 0, 100, Ask(6)), Job("four", 1, 10, Ask(4)), Job("two", 2, 10, Ask(2))]
    result = play("dgx1-v100=1", jobs, "MostAllocated", speed=ALIKE)
    assert [o.started for o in result.outcomes] == [0, 100, 2]


def test_what_no_empty_cluster_could_take_is_unplaceable() -> None:
    jobs = [Job("quad", 0, 10, Ask(4, 0, 0, RING)), Job("pair", 1, 10, Ask(2, 0, 0, LINK))]
    ours = play("a100-pcie-4-bridged=2", jobs, "gpu-topology")
    assert (ours.unplaceable, ours.outcomes[1].started) == (1, 1)
    stock = play("a100-pcie-4-bridged=2", jobs, "MostAllocated")
    assert (stock.unplaceable, stock.outcomes[0].kept) == (0, False)


def test_what_others_may_make_possible_is_not_unplaceable() -> None:
    # Five of an empty cube mesh may be no ring; with GPUs 0 and 4 gone they always are one.
    five = Ask(5, 0, 0, RING)
    alone = play("dgx1-v100=1", [Job("five", 0, 10, five)], "gpu-topology")
    assert (alone.unplaceable, alone.stuck) == (0, 1)
    six = play(
        "dgx1-v100=1", [Job("nine", 0, 10, Ask(9)), Job("one", 1, 1, Ask(1))], "gpu-topology"
    )
    assert (six.unplaceable, six.outcomes[1].placed) == (1, True)


def test_one_sample_of_nodes_does_not_speak_for_the_others() -> None:
    # The last sample has no links at all; five of a cube mesh in the first may become a ring.
    five = Job("five", 0, 10, Ask(5, 0, 0, RING))
    result = play("dgx1-v100=120,l40s-8=120", [five], "gpu-topology")
    assert (result.unplaceable, result.stuck) == (0, 1)


@pytest.fixture(scope="module")
def restricted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One node with two NUMA nodes of four GPUs."""
    group = {"kind": "MachineGroup", "machine": "hgx-h100-8", "count": 1, "namePrefix": "n"}
    group["allocator"] = {"topologyManagerPolicy": "restricted"}
    return str(written(tmp_path_factory.mktemp("restricted"), "c.yaml", json.dumps(group)))


@pytest.mark.parametrize("name", ["gpu-topology", "LeastAllocated"])
def test_one_kubelet_that_refuses_is_not_all_of_them(name: str, tmp_path: Path) -> None:
    """kube-scheduler alone may choose the same node again after each back-off."""
    documents = []
    for node, manager in (("bad", "single-numa-node"), ("good", "none")):
        record = codec.encode(machine("dgx1-v100").topology(node))
        record["spec"]["allocator"]["topologyManagerPolicy"] = manager  # type: ignore[index]
        documents.append(json.dumps(record))
    path = written(tmp_path, "c.yaml", "\n---\n".join(documents))
    result = play(str(path), [Job("", 1000.0 * i, 100, Ask(8)) for i in range(4)], name)
    assert all(o.placed and o.waited == 10 * (2**o.refused - 1) for o in result.outcomes)
    assert any(o.refused for o in result.outcomes) == (name == "LeastAllocated")


@pytest.mark.parametrize("runs", [10, 600, 700])
@pytest.mark.parametrize("name", list(POLICIES))
def test_a_job_whose_pods_are_refused_backs_off_and_fails_in_the_end(
    name: str, runs: int, restricted: str
) -> None:
    """Each three takes a NUMA node of four GPUs, so the two GPUs that are left are apart.

    The kubelet refuses a pod of two GPUs until a three has ended, although two GPUs are free. The
    seventh pod comes 630 s after the first one and is the last.
    """
    threes = [Job("three", 0, runs, Ask(3)), Job("three", 1, runs, Ask(3))]
    result = play(restricted, [*threes, Job("two", 2, 10, Ask(2))], name, speed=ALIKE)
    two = result.outcomes[2]
    if name == "gpu-topology":
        assert (two.refused, two.failed, two.started) == (0, False, runs)
    else:
        refused = {10: 1, 600: 6, 700: 7}[runs]
        assert (two.refused, two.failed, two.placed) == (refused, runs == 700, runs < 700)
        assert two.failed or two.waited == 10 * (2**refused - 1)


def test_a_job_that_backs_off_keeps_no_other_one_waiting(restricted: str) -> None:
    """The first two is refused at 1 and, after another pod has left, at 12; at 15 a three ends."""
    jobs = [Job("three", 0, 15, Ask(3)), Job("three", 0, 100, Ask(3))]
    jobs += [Job("two", 1, 10, Ask(2)), Job("one", 2, 10, Ask(1)), Job("two", 15, 10, Ask(2))]
    result = play(restricted, jobs, "LeastAllocated", speed=ALIKE)
    assert [o.started for o in result.outcomes] == [0, 0, 32, 2, 15]


@pytest.mark.parametrize("name", list(POLICIES))
@given(jobs=some_jobs, seed=st.integers(0, 3))
@settings(max_examples=12, deadline=None)
def test_kubelets_that_refuse_lose_no_job(
    name: str, jobs: list[Job], seed: int, restricted: str
) -> None:
    result = play(restricted, jobs, name, seed)
    check(cluster(restricted), jobs, result)
    assert not result.stuck
    assert all(o.failed == (o.refused == 7) for o in result.outcomes)
    assert name != "gpu-topology" or not any(o.refused for o in result.outcomes)


@pytest.mark.parametrize("name", list(POLICIES))
def test_models_bind_every_policy(name: str) -> None:
    model = (("gpu-model", "*L40S*"),)
    jobs = [Job("", float(i), 100.0, Ask(2, 0, 0, model)) for i in range(3)]
    result = play("dgx1-v100=2,l40s-4=1", jobs, name)
    assert [o.kept for o in result.outcomes] == [True] * 3
