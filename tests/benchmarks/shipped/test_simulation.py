"""The as-shipped simulation: what comes in, what must hold while it runs, and what comes out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.ownpolicy import UnknownPolicyError
from benchmarks.protocol import openb
from benchmarks.shipped import sources, sweep
from benchmarks.shipped.baselines import Preserve
from benchmarks.shipped.buddy import cells, free_cell
from benchmarks.shipped.clusters import ClusterError, Node, cluster
from benchmarks.shipped.fleet import Fleet, SimPod
from benchmarks.shipped.jobs import Ask, Job, JobsError, read, write
from benchmarks.shipped.policies import POLICIES, policy
from benchmarks.shipped.policy import ByState, Choice
from benchmarks.shipped.scheduler import DEFAULT, WITH_GPUS, InTree, sample_size
from benchmarks.shipped.simulation import QUEUES, Outcome, Result, Rules, Simulation
from benchmarks.shipped.sources import Workload
from benchmarks.shipped.speed import Speed, weakest_hop
from tests import recorded
from topology import codec
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.links import GBps, Link, LinkKind, Via
from topology.machines import machine

DGX = machine("dgx1-v100").topology("n").shape
LINK = (("link", "nvlink"),)
RING = (("link", "nvlink"), ("shape", "ring"))


class Fixed:
    """A random.Random that always takes the first."""

    def randrange(self, n: int) -> int:
        return 0

    def sample(self, values: Sequence[object], n: int) -> list[object]:
        return list(values)[:n]

    def random(self) -> float:
        return 0.5


# --- jobs ---------------------------------------------------------------------------------------


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_csv_and_json_lines_say_the_same(tmp_path: Path) -> None:
    table = written(
        tmp_path,
        "jobs.csv",
        "arrival,duration,gpus,pods,share,cpu,memory,model,annotations,name\n"
        "60,120,2,3,,8,16Gi,V100*,link=nvlink policy=preferred,late\n"
        "0,,,,0.5,500m,1.5Gi,,,early\n",
    )
    lines = written(
        tmp_path,
        "jobs.jsonl",
        '{"arrival": 60, "duration": 120, "gpus": 2, "pods": 3, "cpu": 8, "memory": "16Gi",'
        ' "model": "V100*", "annotations": {"link": "nvlink", "policy": "preferred"},'
        ' "name": "late"}\n\n'
        '{"arrival": 0, "share": 0.5, "cpu": 0.5, "memory": "1536Mi", "name": "early"}\n',
    )
    found = read(table)
    assert found == read(lines)
    early, late = found
    assert early == Job("early", 0, 3600, Ask(1, 0.5, 500, 1536))
    wanted = (("gpu-model", "V100*"), ("link", "nvlink"), ("policy", "preferred"))
    assert late == Job("late", 60, 120, Ask(2, None, 8000, 16384, wanted), 3)
    assert (early.gpus, late.gpus) == (0.5, 6)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x,60,1,,", "line 2: arrival"),
        ("-1,60,1,,", "line 2: arrival"),
        ("nan,60,1,,", "line 2: arrival"),
        ("0,0,1,,", "line 2: duration"),
        ("0,60,1.5,,", "line 2: gpus"),
        ("0,60,2000,,", "line 2: gpus"),
        ("0,60,2,0.5,", "share: allowed with gpus 1 only, not 2"),
        ("0,60,1,1.5,", "line 2: share"),
        ("0,60,2,,links=nvlink", "'links': allowed are link, min-nvlinks"),
        ("0,60,2,,link=fast", "allowed are nvlink, pix"),
        ("0,60,2,,nvlink", "allowed are words such as link=nvlink"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = written(tmp_path, "jobs.csv", f"arrival,duration,gpus,share,annotations\n{line}\n")
    with pytest.raises(JobsError) as caught:
        read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_jobs(tmp_path: Path) -> None:
    for name, text, words in (
        ("a.txt", "", "allowed are files that end in .csv or .jsonl"),
        ("a.csv", "arrival\n", "no job in it"),
        ("a.jsonl", "[1]\n", "line 1: an object is needed"),
        ("b.jsonl", '{"arrival": 1}\n{', "line 2: not JSON"),
        ("c.jsonl", '{"arrival": 1, "gpu": 2}\n', "gpu"),
        ("c.csv", "arrival,gpu\n1,2\n", "gpu"),
        ("d.csv", "arrival\n1,2\n", "line 2"),
    ):
        with pytest.raises(JobsError, match=words.replace(".", r"\.")):
            read(written(tmp_path, name, text))
    with pytest.raises(JobsError, match="No such file"):
        read(tmp_path / "none.csv")


some_asks = st.builds(
    Ask,
    st.sampled_from((0, 1, 2, 3, 4, 8)),
    st.none(),
    st.sampled_from((0, 1000, 12000)),
    st.sampled_from((0, 4096)),
    st.sampled_from(((), LINK, RING, (("link", "nvlink"), ("policy", "preferred")))),
)
some_jobs = st.lists(
    st.builds(
        Job,
        st.just("job"),
        st.integers(0, 300).map(float),
        st.integers(1, 200).map(float),
        some_asks,
        st.sampled_from((1, 1, 1, 2, 3)),
    ),
    min_size=1,
    max_size=25,
).map(lambda jobs: sorted(jobs, key=lambda job: job.arrives))


@given(some_jobs)
@settings(max_examples=20, deadline=None)
def test_written_jobs_are_read_the_same(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[Job]
) -> None:
    path = tmp_path_factory.mktemp("jobs") / "jobs.jsonl"
    write(jobs, path)
    assert read(path) == jobs


# --- workloads ----------------------------------------------------------------------------------


def test_a_seed_draws_the_same_jobs_again() -> None:
    nodes = cluster("dgx1-v100=4")
    what = Workload("synthetic", 200, 0.8)
    assert sources.jobs(what, nodes, 3) == sources.jobs(what, nodes, 3)
    assert sources.jobs(what, nodes, 3) != sources.jobs(what, nodes, 4)


@pytest.mark.parametrize("load", [0.5, 1.3])
def test_a_load_is_gpu_time_asked_over_there(load: float) -> None:
    found = sources.jobs(Workload("synthetic", 300, load), cluster("dgx1-v100=4"), 1)
    asked = sum(job.gpus * job.runs for job in found)
    assert asked / (32 * found[-1].arrives) == pytest.approx(load)
    assert found[0].arrives == 0


def test_demands_are_what_some_node_could_give() -> None:
    dgx, bridged, l40s = (
        machine(name).topology("n").shape for name in ("dgx1-v100", "a100-pcie-4-bridged", "l40s-8")
    )
    demand = sources.demanding
    assert demand(Ask(1), (dgx,)) == Ask(1)
    assert demand(Ask(2), (dgx,)).annotations == LINK
    assert demand(Ask(4), (l40s, dgx)).annotations == RING
    assert demand(Ask(4), (bridged,)) == Ask(4)
    assert demand(Ask(2), (l40s,)) == Ask(2)
    assert demand(Ask(2), (bridged,), "preferred").annotations == (*LINK, ("policy", "preferred"))
    asked = Ask(2, None, 0, 0, (("same-numa", "true"),))
    assert demand(asked, (dgx,)) == asked


def test_large_jobs_are_split_into_equal_pods() -> None:
    wide = Job("wide", 0, 1, Ask(24, None, 24, 48))
    (found,) = sources.split([wide], 8)
    assert (found.pods, found.ask.gpus, found.ask.cpu, found.ask.memory) == (3, 8, 8, 16)
    (odd,) = sources.split([Job("odd", 0, 1, Ask(7))], 4)
    assert (odd.pods, odd.ask.gpus) == (7, 1)


def test_philly_is_played_by_time() -> None:
    recorded.shared("traces", "openb")
    nodes = cluster("dgx1-v100=4")
    found = sources.jobs(Workload("philly", None, None, pod_gpus=8), nodes, 1)
    assert len(found) == 82_247
    assert all(a.arrives <= b.arrives for a, b in pairwise(found))
    assert {j.ask.gpus for j in found} == {1, 2, 4, 6, 8}
    assert (
        sum(j.gpus for j in found if j.pods == 1)
        + 8 * sum(j.pods for j in found if j.pods > 1 and j.ask.gpus == 8)
        == 76_627 + 2 * 1818 + 4 * 1870 + 8 * 1643 + 16 * 199 + 24 * 7 + 32 * 67 + 64 * 6 + 128 * 3
    )
    stretch = sources.jobs(Workload("philly", 500, 0.9), nodes, 1)
    assert len(stretch) == 500


def test_openb_has_its_nodes_and_pods() -> None:
    recorded.shared("traces", "openb")
    nodes = cluster("openb")
    assert (len(nodes), sum(len(n.topology.gpus) for n in nodes)) == (1213, 6212)
    found = sources.jobs(Workload("openb:gpuspec10", 400, None, "none"), nodes, 1)
    assert any(job.ask.share for job in found)
    assert any(key == "gpu-model" for job in found for key, _ in job.ask.annotations)
    with pytest.raises(JobsError, match="allowed are default"):
        sources.jobs(Workload("openb:nope"), nodes, 1)


# --- clusters -----------------------------------------------------------------------------------


def test_groups_and_additions() -> None:
    nodes = cluster("dgx1-v100=2,l40s-4=1", ["dgx1-v100=1"])
    assert [str(n.topology.name) for n in nodes] == [
        *("dgx1-v100-0", "dgx1-v100-1", "l40s-4-0", "new1-dgx1-v100-0"),
    ]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("dgx1-v100=0", "counts from 1"),
        ("dgx1-v100=x", "counts from 1"),
        ("dgx1-v1=3", "close: dgx1-v100"),
        ("dgx1-v100=2,dgx1-v100=1", "dgx1-v100-0 is there twice"),
        ("dgx1-v100=99999,l40s-4=2", "at most 100,000"),
        ("none.yaml", "No such file"),
    ],
)
def test_clusters_that_are_none(source: str, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        cluster(source)


def snapshot(tmp_path: Path) -> Path:
    """A bridged node on which a pod that nobody ends holds GPUs 0 and 1, and CPU for one more."""
    node = machine("a100-pcie-4-bridged").topology("old")
    ids = [gpu.uuid for gpu in node.gpus]
    allocation = {
        "podUID": "u",
        "namespace": "x",
        "pod": "p",
        "container": "main",
        "resource": "nvidia.com/gpu",
        "deviceIds": ids[:2],
    }

    record = codec.encode(node) | {"status": {"bootID": "b", "sequence": 1}}
    record["status"]["allocations"] = [allocation]  # type: ignore[index]
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "x", "uid": "u"},
        "spec": {
            "nodeName": "old",
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
        },
        "status": {"phase": "Running"},
    }
    has = {
        "kind": "Node",
        "metadata": {"name": "old"},
        "status": {"allocatable": {"cpu": "10", "memory": "100Gi", "pods": "3"}},
    }
    path = tmp_path / "snapshot.yaml"
    path.write_text("\n---\n".join(json.dumps(d) for d in (record, pod, has)))
    return path


@pytest.mark.parametrize("name", ["gpu-topology", "LeastAllocated", "Preserve", "Buddy"])
def test_who_holds_gpus_in_a_snapshot_keeps_them(tmp_path: Path, name: str) -> None:
    nodes = cluster(str(snapshot(tmp_path)))
    pair = Ask(2, None, 4000, 1024, LINK)
    jobs = [Job("a", 0, 100, pair), Job("b", 1, 100, pair)]
    result = Simulation(nodes, jobs, lambda: policy(name), 1).run()
    first, second = result.outcomes
    assert first.places == [(0, 0b1100)]
    assert second.started == first.ended  # two GPUs are there, and no more
    more = cluster(str(snapshot(tmp_path)), ["a100-pcie-4-bridged=1"])
    result = Simulation(more, jobs, lambda: policy(name), 1).run()
    assert [o.waited for o in result.outcomes] == [0, 0]


def test_cpu_of_a_snapshots_nodes_binds(tmp_path: Path) -> None:
    nodes = cluster(str(snapshot(tmp_path)))
    jobs = [Job("a", 0, 10, Ask(1, None, 6000, 0)), Job("b", 0, 10, Ask(1, None, 6000, 0))]
    result = Simulation(nodes, jobs, lambda: policy("LeastAllocated"), 1).run()
    assert [o.started for o in result.outcomes] == [0, 10]
    too_much = [Job("c", 0, 10, Ask(1, None, 11_000, 0))]
    assert Simulation(nodes, too_much, lambda: policy("FGD"), 1).run().impossible == 1


# --- kube-scheduler's own part ------------------------------------------------------------------


def sim_pod(fleet: Fleet, ask: Ask, number: int = 0) -> SimPod:
    resource = fleet.resource(ask)
    return SimPod(PodUid(f"u{number}"), f"p{number}", ask, resource, ask.request(resource))


def test_samples_go_round_and_cover_every_node_that_fits() -> None:
    fleet = Fleet(cluster("t4-1=250"), Fixed())  # type: ignore[arg-type]
    in_tree = InTree(fleet, Fixed())  # type: ignore[arg-type]
    pod = sim_pod(fleet, Ask(1))
    limit = sample_size(250)
    assert limit == 120
    first = next(in_tree.samples(pod))
    assert list(first) == list(range(120))
    assert list(next(in_tree.samples(pod))) == list(range(120, 240))
    third = list(in_tree.samples(pod))
    assert third[0][0] == 240
    assert sorted(row for rows in third for row in rows) == list(range(250))
    for row in range(0, 250, 2):
        fleet.admit(row, sim_pod(fleet, Ask(1), row), None)
    rows = [row for rows in in_tree.samples(pod) for row in rows]
    assert sorted(rows) == list(range(1, 250, 2))


def test_in_tree_scores_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "kind: MachineGroup\nmachine: dgx1-v100\ncount: 2\nnamePrefix: n-\ncpu: 80\nmemory: 400Gi\n"
    )
    fleet = Fleet(cluster(str(path)), Fixed())  # type: ignore[arg-type]
    in_tree = InTree(fleet, Fixed())  # type: ignore[arg-type]
    fleet.admit(1, sim_pod(fleet, Ask(4, None, 40_000, 100 * 1024)), None)
    rows = next(in_tree.samples(pod := sim_pod(fleet, Ask(2, None, 8000, 100 * 1024), 1)))
    # After it n-0 has 90 % of the CPU, 75 % of the memory, 75 % of the GPUs; n-1 40, 50 and 25.
    # Balanced: n-0 uses 10 and 25 %, n-1 60 and 50: half the difference is lost.
    least = in_tree.scores(pod, rows, WITH_GPUS, most=False)
    assert list(least) == [(90 + 75 + 3 * 75) // 5 + 92, (40 + 50 + 3 * 25) // 5 + 95]
    most = in_tree.scores(pod, rows, WITH_GPUS, most=True)
    assert list(most) == [(10 + 25 + 3 * 25) // 5 + 92, (60 + 50 + 3 * 75) // 5 + 95]
    assert list(in_tree.scores(pod, rows, DEFAULT, most=False)) == [82 + 92, 45 + 95]


# --- policies -----------------------------------------------------------------------------------


def test_cells_of_a_cube_mesh_follow_its_links() -> None:
    found = cells(DGX)
    assert [c.bit_count() for c in found] == [8, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    assert set(found[1:3]) == {0b00001111, 0b11110000}
    for pair in found[3:7]:
        assert all(
            DGX.links[a][b].nvlinks == 2  # type: ignore[union-attr]
            for a, b in combinations([p for p in range(8) if pair >> p & 1], 2)
        )


def test_a_buddy_splits_the_smallest_cell() -> None:
    tree = cells(DGX)
    assert free_cell(tree, 0b11111111, 2) == (8, tree[3])
    # Half of the node and one pair of the other half are free: the pair goes.
    pair = next(c for c in tree if c.bit_count() == 2 and c & 0b11110000)
    assert free_cell(tree, 0b00001111 | pair, 2) == (2, pair)
    # Two free GPUs of different cells are no cell of two.
    assert free_cell(tree, 0b00010001, 2) is None
    assert free_cell(tree, 0b00001111, 3) == (4, 0b0111)


def test_preserve_gives_the_best_ring_and_spares_the_rest() -> None:
    nodes = cluster("dgx1-v100=1")
    fleet = Fleet(nodes, Fixed())  # type: ignore[arg-type]
    preserve = Preserve()
    preserve.begin(fleet, [], Fixed())  # type: ignore[arg-type]
    state = fleet.states[fleet.state[0]]
    pair = preserve.gpus(sim_pod(fleet, Ask(2, None, 0, 0, LINK)), state)
    assert pair is not None
    a, b = (p for p in range(8) if pair >> p & 1)
    assert DGX.links[a][b].nvlinks == 2  # type: ignore[union-attr]
    # Of three free GPUs 0-1-2 all linked, with 1-2 the double pair, a single takes 0.
    free = 0b0111
    doubles = {(a, b) for a, b in combinations(range(3), 2) if DGX.links[a][b].nvlinks == 2}  # type: ignore[union-attr]
    (keep,) = doubles
    single = preserve.gpus(sim_pod(fleet, Ask(1)), replace(state, free=free, left=3))
    assert single == free & ~sum(1 << p for p in keep)


class Last(ByState):
    """The fullest node first."""

    def score(self, pod: SimPod, state: object) -> float:
        return -state.left  # type: ignore[attr-defined, no-any-return]


OF_ONES_OWN = """
import numpy as np
from benchmarks.protocol.policies import Answer
from benchmarks.shipped.policy import ByState

class Fullest(ByState):
    def score(self, pod, state):
        return -state.left

def emptiest(nodes, pod, typical):
    return Answer(nodes.free_gpu.astype(float), np.zeros(len(nodes), dtype=np.int64))
"""


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    path = written(tmp_path, "mine.py", OF_ONES_OWN)
    nodes = cluster("dgx1-v100=3")
    jobs = [Job("", float(i), 1000.0, Ask(1)) for i in range(6)]
    for name, used in (("Fullest", 1), ("emptiest", 3)):
        result = Simulation(nodes, jobs, lambda n=name: policy(f"{path}:{n}"), 1).run()  # type: ignore[misc]
        assert len({o.places[0][0] for o in result.outcomes}) == used
    for word, says in (
        ("mine", "allowed are gpu-topology"),
        (f"{path}:Nope", "has no Nope"),
        (f"{tmp_path}/none.py:X", "there is no file"),
    ):
        with pytest.raises(UnknownPolicyError, match=says):
            policy(word)


# --- what must hold -----------------------------------------------------------------------------


def check(nodes: Sequence[Node], jobs: Sequence[Job], result: Result, rules: Rules) -> None:
    placed = [o for o in result.outcomes if o.placed]
    waiting = len(jobs) - len(placed) - result.impossible
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
    assert (ours.impossible, ours.outcomes[1].started) == (1, 1)
    stock = Simulation(nodes, jobs, lambda: policy("MostAllocated"), 1, Rules("fifo")).run()
    assert (stock.impossible, stock.outcomes[0].kept) == (0, False)


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


def test_slow_links_make_jobs_longer() -> None:
    shape = machine("l40s-4").topology("n").shape
    speed = Speed(communication=0.1, full=50, network=10)
    assert weakest_hop([shape], [0b1], speed) == 0
    assert weakest_hop([DGX], [0b1001], speed) == 100
    assert weakest_hop([DGX, DGX], [0b1001, 0b1001], speed) == 10
    assert speed.slowdown(10) == pytest.approx(1.4)
    assert speed.slowdown(0) == speed.slowdown(80) == 1


def test_nominal_hops_are_near_what_eight_v100_measured() -> None:
    recorded.shared("traces", "openb")
    path = openb.shared() / "bandwidth" / "v100x8_measured_GBps.tsv"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    measured = [[float(cell) for cell in line.split("\t")] for line in lines]

    def hop(a: int, b: int) -> float:
        return min(measured[a][b], measured[b][a])

    def link(a: int, b: int) -> Link:
        count = round(hop(a, b) / 48) if hop(a, b) > 40 else 0
        return Link(a, b, LinkKind.NODE, count, Via.DIRECT, GBps(25))

    gpus = machine("dgx1-v100").topology("n").gpus
    pairs = [link(a, b) for a, b in combinations(range(8), 2)]
    shape = NodeTopology(NodeName("measured"), gpus, tuple(pairs)).shape
    degrees = sorted(sum(k.nvlinks for k in pairs if p in (k.a, k.b)) for p in range(8))
    assert degrees == [6] * 8  # a cube mesh, six links a GPU
    linked = 0
    for size in (2, 3, 4):
        for members in combinations(range(8), size):
            best = max(
                min(hop(a, b) for a, b in pairwise((*order, order[0])))
                for order in permutations(members)
            )
            nominal = weakest_hop([shape], [sum(1 << p for p in members)], Speed())
            if nominal >= 50:
                linked += 1
                assert best == pytest.approx(nominal, rel=0.05)
            else:
                assert 4 < best < 20  # PCIe, 12 in our table
    assert linked > 20


# --- sweeps -------------------------------------------------------------------------------------


def small(**more: object) -> sweep.Sweep:
    return sweep.Sweep(
        ("dgx1-v100=2",),
        Workload("synthetic", 60),
        (0.7, 1.1),
        ("gpu-topology", "LeastAllocated"),
        (1, 2),
        **more,  # type: ignore[arg-type]
    )


def without_cost(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if k != "cpu_seconds"} for row in rows]


def test_shards_together_are_the_whole_and_the_same_again() -> None:
    whole = sweep.run(small(), workers=1)
    parts = [sweep.run(small(shard=(i, 3)), workers=1) for i in range(3)]
    # As `report` has them: through JSON.
    merged = sweep.merge([json.loads(json.dumps(part)) for part in (parts[2], parts[0], parts[1])])
    assert without_cost(merged["runs"]) == without_cost(json.loads(json.dumps(whole["runs"])))
    assert without_cost(merged["rows"]) == without_cost(json.loads(json.dumps(whole["rows"])))
    with pytest.raises(ValueError, match="parameters differ"):
        sweep.merge([whole, sweep.run(replace(small(), seeds=(1,)), workers=1)])


def test_figures_and_their_table() -> None:
    found = sweep.run(small(), workers=1)
    assert json.loads(json.dumps(found, allow_nan=False))["mode"] == "as shipped"
    for row in found["rows"]:
        assert row["jobs"] == 120
        assert row["placed"] == 120
        assert 0 <= row["allocated"][0] <= 100
        assert 0 <= row["fragmented"][0] <= 100
        if row["policy"] == "gpu-topology":
            assert row["kept"] == [1.0, 0.0]
            assert row["completion_against_ours"] == [1.0, 0.0]
    stock = [r for r in found["rows"] if r["policy"] == "LeastAllocated"]
    assert all(r["kept"][0] < 1 for r in stock)
    lines = sweep.tsv(found).splitlines()
    assert len(lines) == 1 + 8
    assert len({line.count("\t") for line in lines}) == 1
    assert sweep.table(found).row_count == 4


def test_intervals_are_students() -> None:
    assert sweep.interval([]) is None
    assert sweep.interval([3.0]) == [3.0, 0.0]
    # Five values with a standard deviation of 1: t is 2.776 for four degrees of freedom.
    values = [10 + math.sqrt(1 / 2.5) * x for x in (-2, -1, 0, 1, 2)]
    middle, half = sweep.interval(values) or (0, 0)
    assert middle == pytest.approx(10)
    assert half == pytest.approx(2.776 / math.sqrt(5), rel=1e-3)


def test_choice_and_outcome_say_nothing_of_what_never_was() -> None:
    assert Choice(1).gpus is None
    assert not Outcome(Job("", 0, 1, Ask(1))).placed


# --- what people start with -----------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[3]
runner = CliRunner()


@pytest.mark.parametrize("jobs", ["jobs.csv", "jobs.jsonl"])
def test_the_examples_of_the_docs(jobs: str, tmp_path: Path) -> None:
    folder = ROOT / "examples" / "simulation"
    args = ["simulate", "--cluster", str(folder / "cluster.yaml"), "--jobs", str(folder / jobs)]
    args += ["--policy", "gpu-topology", "--policy", f"{folder / 'policy.py'}:Tidy"]
    args += ["--seeds", "1", "--workers", "1", "--json", str(tmp_path / "found.json")]
    done = runner.invoke(app, args)
    assert done.exit_code == 0, done.output
    assert "Tidy" in done.output
    found = json.loads((tmp_path / "found.json").read_text())
    ours, tidy = found["runs"]
    assert (ours["jobs"], ours["placed"], ours["kept"]) == (7, 7, 1.0)
    assert tidy["policy"] == "Tidy"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--cluster", "dgx9=1"], "not in the catalogue"),
        (["--jobs", "none.csv"], "none.csv"),
        (["--policy", "Best"], "allowed are gpu-topology"),
        (["--policy", "FGD", "--policy", "x.py:FGD"], "x.py"),
        (["--queue", "lifo"], "allowed are backfill, fifo, none"),
        (["--demand", "all"], "allowed are none, nvlink, preferred"),
        (["--shard", "3/3"], "PART from 0 to 2"),
        (["--shard", "a/3"], "allowed is PART/PARTS"),
        (["--communication", "2"], "less than or equal to 1"),
        (["--jobs", "openb:nope"], "nope"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(args: list[str], words: str) -> None:
    done = runner.invoke(app, ["simulate", *args], env={"COLUMNS": "400"})
    assert done.exit_code == 2
    (line,) = [line for line in done.output.splitlines() if "Error" in line]
    assert words in line


def test_a_shard_without_simulations_is_no_failure() -> None:
    args = ["simulate", "--cluster", "t4-1=1", "--count", "3", "--seeds", "1"]
    done = runner.invoke(app, [*args, "--policy", "Random", "--shard", "1/2", "--tsv", "-"])
    assert done.exit_code == 0, done.output


def test_the_sweeps_job_runs_what_it_says() -> None:
    folder = ROOT / "manifests" / "sweep"
    job = yaml.safe_load((folder / "job.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    parts = job["spec"]["completions"]
    assert f"--shard=$(JOB_COMPLETION_INDEX)/{parts}" in container["args"]
    args = [
        arg.replace("$(JOB_COMPLETION_INDEX)", "3").replace("/sweep/", f"{folder}/")
        for arg in container["args"]
    ]
    args += ["--count", "10", "--seeds", "1"]
    done = runner.invoke(app, args)
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)  # both outputs, as `kubectl logs` has them
    assert len(found["runs"]) == len(range(3, 3 * len(POLICIES), parts))


# --- faults that a review found -------------------------------------------------------------------


def play(source: str, jobs: Sequence[Job], name: str, **rules: object) -> Result:
    nodes = cluster(source)
    return Simulation(nodes, jobs, lambda: policy(name), 1, Rules(**rules)).run()  # type: ignore[arg-type]


def test_what_others_may_make_possible_is_not_impossible() -> None:
    # Five of an empty cube mesh may be no ring; with GPUs 0 and 4 gone they always are one.
    five = Ask(5, None, 0, 0, RING)
    alone = play("dgx1-v100=1", [Job("five", 0, 10, five)], "gpu-topology")
    assert (alone.impossible, alone.stuck) == (0, 1)
    six = play(
        "dgx1-v100=1", [Job("nine", 0, 10, Ask(9)), Job("one", 1, 1, Ask(1))], "gpu-topology"
    )
    assert (six.impossible, six.outcomes[1].placed) == (1, True)


def test_one_sample_of_nodes_does_not_speak_for_the_others() -> None:
    # The last sample has no links at all; five of a cube mesh in the first may become a ring.
    five = Job("five", 0, 10, Ask(5, None, 0, 0, RING))
    result = play("dgx1-v100=120,l40s-8=120", [five], "gpu-topology")
    assert (result.impossible, result.stuck) == (0, 1)


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


def replayed(tmp_path: Path, status: Mapping[str, object], *pods: Mapping[str, object]) -> str:
    """A cluster file of one DGX-1V with this status."""
    record = codec.encode(machine("dgx1-v100").topology("n"))
    record["status"] = {"bootID": "b", "sequence": 1, **status}
    path = tmp_path / "c.yaml"
    path.write_text("\n---\n".join(json.dumps(d) for d in (record, *pods)))
    return str(path)


UUIDS = [gpu.uuid for gpu in machine("dgx1-v100").topology("n").gpus]


def holds(gpus: Sequence[int], uid: str = "u") -> dict[str, object]:
    found: dict[str, object] = {"namespace": "x", "pod": "p", "container": "main"}
    found |= {"resource": "nvidia.com/gpu", "deviceIds": [UUIDS[i] for i in gpus]}
    return found | ({"podUID": uid} if uid else {})


@pytest.mark.parametrize("name", ["gpu-topology", "LeastAllocated", "Preserve"])
def test_gpus_that_no_kubelet_hands_out_are_not(name: str, tmp_path: Path) -> None:
    source = replayed(tmp_path, {"allocatable": UUIDS[:4]})
    result = play(source, [Job("", 0, 10, Ask(4)), Job("", 20, 10, Ask(5))], name)
    assert result.outcomes[0].places == [(0, 0b1111)]
    assert not result.outcomes[1].placed


def test_a_gpu_that_is_gone_and_a_pod_without_uid(tmp_path: Path) -> None:
    lost = holds([0, 1])
    lost["deviceIds"] = [UUIDS[0], "GPU-gone"]
    first = play(replayed(tmp_path, {"allocations": [lost]}), [Job("", 0, 9, Ask(7))], "FGD")
    assert first.outcomes[0].placed
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "x", "uid": "u"},
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "4"}}}],
        },
        "status": {"phase": "Running"},
    }
    source = replayed(tmp_path, {"allocations": [holds(range(4), uid="")]}, pod)
    assert play(source, [Job("", 0, 9, Ask(4))], "FGD").outcomes[0].places == [(0, 0b11110000)]
    over = replayed(tmp_path, {"allocations": [holds(range(6), uid="other")]}, pod)
    with pytest.raises(ClusterError, match="hold more GPUs than it has"):
        Fleet(cluster(over), Fixed())  # type: ignore[arg-type]


def test_nodes_without_gpus_to_ask_for(tmp_path: Path) -> None:
    record = codec.encode(machine("dgx1-v100").topology("n"))
    record["spec"]["resources"] = []  # type: ignore[index]
    path = written(tmp_path, "c.yaml", json.dumps(record))
    with pytest.raises(ClusterError, match=r"served as nvidia\.com/gpu"):
        Fleet(cluster(str(path)), Fixed())  # type: ignore[arg-type]


def test_gpu_time_is_of_gpus_that_are_taken() -> None:
    # A share is a whole GPU where nothing else is served; so is its time.
    whole = sweep.run(
        sweep.Sweep(
            ("t4-1=4",), Workload("synthetic", 80, demand="none"), (0.8,), ("Random",), (1,)
        ),
        workers=1,
    )
    assert 0 < whole["runs"][0]["allocated"] <= 100
    shares = [Job("", float(i), 1000.0, Ask(1, 0.1)) for i in range(4)]
    result = play("t4-1=4", shares, "Random")
    assert [o.gpus for o in result.outcomes] == [1, 1, 1, 1]
    (first, *_, last) = sources.loaded(shares, 0.5, 4)
    assert (first.arrives, last.arrives) == (0, 4 * 1000 / (0.5 * 4))


def test_models_bind_every_policy() -> None:
    model = (("gpu-model", "*L40S*"),)
    jobs = [Job("", float(i), 100.0, Ask(2, None, 0, 0, model)) for i in range(3)]
    for name in POLICIES:
        result = play("dgx1-v100=2,l40s-4=1", jobs, name)
        assert [o.kept for o in result.outcomes] == [True] * 3, name


def test_demands_are_of_nodes_that_serve_whole_gpus(tmp_path: Path) -> None:
    record = codec.encode(machine("dgx1-v100").topology("n"))
    part = {"name": "nvidia.com/gpu.shared", "strategy": "time-slicing", "replicas": 4}
    record["spec"]["resources"] = [part]  # type: ignore[index]
    other = codec.encode(machine("l40s-4").topology("m"))
    path = written(tmp_path, "c.yaml", f"{json.dumps(record)}\n---\n{json.dumps(other)}")
    found = sources.jobs(Workload("synthetic", 50), cluster(str(path)), 1)
    assert not any(job.ask.annotations for job in found)


RUDE = """
from benchmarks.shipped.policy import ByState

class Cpu(ByState):
    def score(self, pod, state):
        return None if pod.ask.cpu > 1000 else 1

class Same(ByState):
    def score(self, pod, state):
        return 1
    def gpus(self, pod, state):
        return 1

class Raises(ByState):
    def score(self, pod, state):
        raise KeyError("score")

seven = 7

class Stranger:
    pass
"""


def test_policies_of_ones_own_that_do_not_behave(tmp_path: Path) -> None:
    path = written(tmp_path, "rude.py", RUDE)
    jobs = [Job("", 0.0, 5.0, Ask(1, None, 1000)), Job("", 9.0, 5.0, Ask(1, None, 2000))]
    result = play("dgx1-v100=1", jobs, f"{path}:Cpu")
    assert [o.placed for o in result.outcomes] == [True, False]
    broken = written(tmp_path, "broken.py", "def f(:\n")
    for name, words in (
        (f"{path}:Same", "of the free ones"),
        (f"{path}:Raises", "KeyError"),
        (f"{path}:seven", "a class or a function is needed"),
        (f"{path}:Stranger", "a Base or a ByState is needed"),
        (f"{broken}:f", "SyntaxError"),
    ):
        args = ["simulate", "--count", "30", "--seeds", "1", "--workers", "1", "--policy", name]
        done = runner.invoke(app, args, env={"COLUMNS": "400"})
        assert (done.exit_code, words in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--json", "/proc/none/x.json"], "/proc/none/x.json: No such file"),
        (["--html", "/"], "/: Is a directory"),
        (["--load", "1e-320"], "allowed are 0 and 0.001 to 100"),
        (["--network", "inf"], "--network"),
        (["--shard", "0/0"], "PARTS is 1 or more"),
        (["--cluster", ",".join(["dgx1-v100=1"] * 60)], "is there twice"),
    ],
)
def test_what_would_fail_at_the_end_fails_at_once(args: list[str], words: str) -> None:
    done = runner.invoke(app, ["simulate", "--count", "3", *args], env={"COLUMNS": "2000"})
    assert done.exit_code == 2, done.output
    assert words in done.output


def test_short_jobs_and_jobs_without_gpus(tmp_path: Path) -> None:
    path = written(tmp_path, "j.csv", "arrival,duration,gpus\n0,0.5,1\n1,0.2,2\n")
    none = written(tmp_path, "n.csv", "arrival,duration,gpus\n0,60,0\n1,60,0\n")
    for jobs in (path, none):
        args = ["simulate", "--jobs", str(jobs), "--seeds", "1", "--policy", "gpu-topology"]
        done = runner.invoke(app, [*args, "--json", str(tmp_path / "o.json")])
        assert done.exit_code == 0, done.output
    twice = ["--cluster", "t4-1=1", "--load", "0.5", "--load", "0.5", "--policy", "all"]
    args = ["simulate", *twice, "--cluster", "t4-1=1", "--policy", "FGD", "--seeds", "1"]
    done = runner.invoke(app, [*args, "--count", "3", "--json", str(tmp_path / "t.json")])
    found = json.loads((tmp_path / "t.json").read_text())
    assert len(found["runs"]) == len(POLICIES)
