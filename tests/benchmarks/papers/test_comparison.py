"""The papers' node model: formulas by hand, laws of the simulation, and two published figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.figures.compared import Compared, ComparisonParameters, ComparisonRow
from benchmarks.ownpolicy import UnknownPolicyError, find_policy, label
from benchmarks.papers import comparison, openb
from benchmarks.papers.fragmentation import Typical
from benchmarks.papers.model import MOST_GPUS, WHOLE, NodeKind, Nodes, PodKind, feasible
from benchmarks.papers.policies import POLICIES
from benchmarks.papers.simulation import simulate
from tests import recorded

NODE = NodeKind(16_000, 64_000, 2, "T4")
HALF = PodKind(1_000, 1_000, 1, 500)
ONE = PodKind(1_000, 1_000, 1, WHOLE)
TWO = PodKind(1_000, 1_000, 2, WHOLE)
CPU = PodKind(1_000, 1_000, 0, 0)
ALL = np.array([True])

every_policy = pytest.mark.parametrize("policy", [pytest.param(n, id=n) for n in POLICIES])


def nodes(*free: Sequence[int], cpu: int = 16_000) -> Nodes:
    """Nodes of two GPUs with so much left of each."""
    found = Nodes.empty([NodeKind(cpu, 64_000, 2, "T4")] * len(free), ["T4"])
    for row, milli in enumerate(free):
        found.gpu[row, :2] = milli
    return found


def lost(pods: Sequence[PodKind], *free: int, cpu: int = 16_000) -> float:
    state = nodes(free, cpu=cpu)
    return float(Typical(pods, ["T4"]).fragmentation(state.cpu, state.gpu, state.model)[0])


def test_what_is_left_on_a_gpu_that_is_too_full_is_lost() -> None:
    assert lost([ONE], 1000, 300) == 300
    assert lost([HALF], 1000, 300) == 300
    assert lost([HALF], 1000, 600) == 0


def test_where_a_pod_cannot_run_all_is_lost() -> None:
    assert lost([TWO], 1000, 300) == 1300
    assert lost([ONE], 1000, 300, cpu=500) == 1300
    assert lost([CPU], 1000, 300) == 1300


def test_the_pods_count_by_how_often_they_come() -> None:
    assert lost([ONE, ONE, ONE, HALF], 1000, 600) == pytest.approx(0.75 * 600)


def test_rare_pods_are_left_out() -> None:
    assert Typical([ONE] * 96 + [TWO] * 4, ["T4"]).size == 1
    assert Typical([ONE] * 94 + [TWO] * 6, ["T4"]).size == 2


def test_a_model_that_is_not_allowed_is_no_place() -> None:
    picky = PodKind(1, 1, 1, WHOLE, frozenset({"A10"}))
    state = Nodes.empty([NODE, NodeKind(16_000, 64_000, 2, "A10")], ["A10", "T4"])
    assert feasible(state, picky, np.array([True, False])).tolist() == [False, True]


def worth(pods: Sequence[PodKind], *free: int, cpu: int = 16_000) -> float:
    state = nodes(free, cpu=cpu)
    return float(Typical(pods, ["T4"]).worth(state.cpu, state.gpu, state.model)[0])


def test_worth_is_what_still_fits() -> None:
    assert worth([ONE], 1000, 300) == 1000
    assert worth([HALF], 1000, 600) == 3 * 500
    assert worth([TWO], 1000, 1000) == 2000
    assert worth([TWO], 1000, 600) == 0
    assert worth([HALF], 1000, 1000, cpu=3_500) == 3 * 500
    assert worth([CPU], 1000, 1000) == 0


def test_damage_sees_cpu_run_short_before_it_has() -> None:
    """Either node will do now; on the second every GPU left will want the CPU."""
    hungry = PodKind(4_000, 0, 1, WHOLE)
    state = Nodes.empty([NodeKind(32_000, 64_000, 2, "T4"), NodeKind(8_000, 64_000, 2, "T4")],
                        ["T4"])  # fmt: skip
    assert best("Damage", state, PodKind(2_000, 0, 0, 0), [hungry]) == 0
    scores = POLICIES["FGD"](state, PodKind(2_000, 0, 0, 0), Typical([hungry], ["T4"])).scores
    assert scores[0] == scores[1]


def best(policy: str, state: Nodes, pod: PodKind, typical: Sequence[PodKind] = (ONE,)) -> int:
    return int(POLICIES[policy](state, pod, Typical(typical, ["T4"])).scores.argmax())


def test_fgd_puts_a_half_beside_a_half() -> None:
    state = nodes((1000, 1000), (500, 1000))
    assert best("FGD", state, HALF) == 1
    answer = POLICIES["FGD"](state, HALF, Typical([ONE], ["T4"]))
    assert answer.gpu[1] == 0


def test_packing_prefers_used_gpus_then_used_nodes() -> None:
    state = nodes((1000, 1000), (0, 1000), (500, 0))
    assert best("GpuPacking", state, HALF) == 2
    assert best("GpuPacking", state, ONE) == 1


def test_clustering_stays_among_its_own() -> None:
    state = nodes((1000, 1000), (500, 1000), (0, 1000))
    state.take(2, CPU, [])
    state.classes[1, HALF.class_] = state.classes[2, ONE.class_] = True
    assert best("GpuClustering", state, HALF) == 1
    assert best("GpuClustering", state, ONE) == 2
    assert best("GpuClustering", state, TWO) == 0


def test_best_fit_leaves_least() -> None:
    assert best("BestFit", nodes((1000, 1000), (500, 1000), (0, 1000)), ONE) == 2


kinds = st.builds(
    NodeKind,
    st.sampled_from([8_000, 32_000]),
    st.just(64_000),
    st.integers(1, MOST_GPUS),
    st.sampled_from(["A10", "T4"]),
)
asks = st.one_of(
    st.builds(PodKind, st.integers(0, 8_000), st.integers(0, 8_000), st.just(1),
              st.integers(1, 999)),
    st.builds(PodKind, st.integers(0, 8_000), st.integers(0, 8_000), st.integers(0, 4),
              st.just(WHOLE)),
)  # fmt: skip


@every_policy
@settings(max_examples=25, deadline=None)
@given(st.lists(kinds, min_size=1, max_size=5), st.lists(asks, min_size=1, max_size=30), st.data())
def test_nothing_is_given_twice_and_nothing_is_forgotten(
    policy: str, machines: list[NodeKind], pods: list[PodKind], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(pods))))
    outcome = simulate(machines, pods, order, POLICIES[policy], seed=1)
    assert outcome.placed + outcome.failed == len(pods)
    assert len(outcome.curve) == len(pods)
    arrived, allocated = outcome.curve[-1]
    assert arrived == sum(pod.gpu_milli for pod in pods)
    assert 0 <= allocated <= min(arrived, outcome.capacity)
    if outcome.failed == 0:
        assert allocated == arrived
    assert 0 <= outcome.fragmented <= 100
    again = simulate(machines, pods, order, POLICIES[policy], seed=1)
    assert again.curve == outcome.curve


@pytest.mark.parametrize("policy", [n for n in POLICIES if n != "Random"])
def test_remembered_scores_are_those_that_a_fresh_look_gives(policy: str) -> None:
    """A run in which every pod is a kind of its own remembers nothing."""
    rng = np.random.default_rng(3)
    machines = [NODE, NodeKind(32_000, 64_000, 8, "T4"), NodeKind(8_000, 64_000, 4, "T4")] * 3
    milli = [int(m) for m in rng.choice([200, 500, 1000], 60)]
    equal = [PodKind(500, 100, 1, m) for m in milli]
    # More memory than any node runs short of, a little more for each pod: other kinds, equal pods.
    own = [PodKind(500, 100 + i, 1, m) for i, m in enumerate(milli)]
    curves = [
        simulate(machines, pods, range(60), POLICIES[policy], seed=5).curve for pods in (equal, own)
    ]
    assert curves[0] == curves[1]


needs_trace = recorded.needs("traces", "openb")


@pytest.mark.long
@needs_trace
def test_ours_gives_more_gpus_out_than_fgd() -> None:
    pods, order = openb.pods("default"), openb.order("default", 42)
    ours, theirs = (
        simulate(openb.nodes(), pods, order, POLICIES[name], 42).allocated(130)
        for name in ("Damage", "FGD")
    )
    assert ours > theirs + 0.15
    assert ours > 95.5


@needs_trace
@pytest.mark.parametrize("policy", ["BestFit", "FGD"])
def test_a_published_figure_comes_out(policy: str) -> None:
    """The default workload in the order of seed 42, against that very seed's published figure."""
    published = openb.published_by_seed(130)["default", policy, 42]
    pods = openb.pods("default")
    outcome = simulate(openb.nodes(), pods, openb.order("default", 42), POLICIES[policy], 42)
    assert outcome.allocated(130) == pytest.approx(published, abs=0.4)


@pytest.mark.long
@needs_trace
def test_a_row_per_seed_and_the_bound_in_every_form() -> None:
    found = [comparison.experiment("default", name, 42) for name in ("DotProd", comparison.BOUND)]
    given = ComparisonParameters(
        workloads=("default",), policies=("DotProd",), seeds=(42,), bound=True
    )
    row = ComparisonRow(workload="default", policy="DotProd", ours=found[0].ours)
    figures = Compared(parameters=given, experiments=tuple(found), rows=(row,))
    assert [one.published for one in found] == [90.54, None]
    assert found[0].allocation_at_130 < found[1].allocation_at_130 < 100
    lines = [line.split("\t") for line in comparison.tsv(figures).splitlines()]
    assert [line[1] for line in lines[1:]] == ["DotProd", "upper bound"]
    assert {len(line) for line in lines} == {len(found[0].as_json())}
    assert comparison.table_by_seed(figures).row_count == 2


OF_ONES_OWN = """
from benchmarks.papers.model import best_fit
from benchmarks.papers.policies import Answer

def fullest(nodes, pod, typical):
    return Answer(-nodes.free_gpu.astype(float), best_fit(nodes, pod))
"""


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OF_ONES_OWN)
    mine = find_policy(f"{path}:fullest", POLICIES)
    outcome = simulate([NODE] * 3, [ONE] * 3, range(3), mine, seed=1)
    assert (outcome.placed, label(f"{path}:fullest")) == (3, "fullest")
    with pytest.raises(UnknownPolicyError, match="allowed are Random"):
        find_policy("fullest", POLICIES)
