"""The papers' node model: formulas by hand, laws of the simulation, and a published figure."""

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.papers import comparison, openb
from benchmarks.papers.model import MOST_GPUS, WHOLE, NodeKind, Nodes, PodKind, feasible
from benchmarks.papers.policies import POLICIES, Typical
from benchmarks.papers.simulation import simulate
from scheduler_extender import terminal
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


def test_a_job_is_not_placed_on_a_model_it_does_not_allow() -> None:
    picky = PodKind(1, 1, 1, WHOLE, frozenset({"A10"}))
    state = Nodes.empty([NODE, NodeKind(16_000, 64_000, 2, "A10")], ["A10", "T4"])
    assert feasible(state, picky, np.array([True, False])).tolist() == [False, True]


def guaranteed_capacity(pods: Sequence[PodKind], *free: int, cpu: int = 16_000) -> float:
    state = nodes(free, cpu=cpu)
    return float(Typical(pods, ["T4"]).guaranteed_capacity(state.cpu, state.gpu, state.model)[0])


def test_guaranteed_capacity_is_what_still_fits() -> None:
    assert guaranteed_capacity([ONE], 1000, 300) == 1000
    assert guaranteed_capacity([HALF], 1000, 600) == 3 * 500
    assert guaranteed_capacity([TWO], 1000, 1000) == 2000
    assert guaranteed_capacity([TWO], 1000, 600) == 0
    assert guaranteed_capacity([HALF], 1000, 1000, cpu=3_500) == 3 * 500
    assert guaranteed_capacity([CPU], 1000, 1000) == 0


def test_guaranteed_capacity_falls_before_cpu_runs_out() -> None:
    """Either node will do now; on the second every GPU left will want the CPU."""
    hungry = PodKind(4_000, 0, 1, WHOLE)
    state = Nodes.empty([NodeKind(32_000, 64_000, 2, "T4"), NodeKind(8_000, 64_000, 2, "T4")],
                        ["T4"])  # fmt: skip
    assert best("Guaranteed capacity", state, PodKind(2_000, 0, 0, 0), [hungry]) == 0
    scores = POLICIES["FGD"](state, PodKind(2_000, 0, 0, 0), Typical([hungry], ["T4"])).scores
    assert scores[0] == scores[1]


def best(policy: str, state: Nodes, pod: PodKind, typical: Sequence[PodKind] = (ONE,)) -> int:
    return int(POLICIES[policy](state, pod, Typical(typical, ["T4"])).scores.argmax())


def test_fgd_puts_a_half_beside_a_half() -> None:
    state = nodes((1000, 1000), (500, 1000))
    assert best("FGD", state, HALF) == 1
    assert POLICIES["FGD"](state, HALF, Typical([ONE], ["T4"])).gpu[1] == 0


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
    assert len(outcome.curve) == len(pods)
    arrived, allocated = outcome.curve[-1]
    assert arrived == sum(pod.gpu_milli for pod in pods)
    assert 0 <= allocated <= min(arrived, outcome.capacity)
    again = simulate(machines, pods, order, POLICIES[policy], seed=1)
    assert again.curve == outcome.curve


@pytest.mark.parametrize("policy", list(POLICIES))
def test_cached_scores_equal_fresh_scores(policy: str) -> None:
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


@needs_trace
def test_a_published_figure_comes_out() -> None:
    """The default workload in the order of seed 42, against the published mean."""
    published = openb.published(130)["default", "FGD"]
    found = comparison.experiment("default", "FGD", 42)
    assert found == pytest.approx(published, abs=0.4)


@pytest.mark.long
@needs_trace
def test_the_command_shows_both_policies(tmp_path: Path) -> None:
    words = ["compare", "--seeds", "1"]
    done = CliRunner().invoke(app, [*words, "--json", str(tmp_path / "c.json")])
    assert done.exit_code == 0, done.output
    fgd, ours = json.loads((tmp_path / "c.json").read_text())["rows"]
    assert [row["policy"] for row in (fgd, ours)] == ["FGD", "Guaranteed capacity"]
    assert fgd["ours"] < ours["ours"] < 100
    assert all(f"{row['ours']:.2f}" in done.output for row in (fgd, ours))


def test_bad_words_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["compare", "--workload", "none"], env={"COLUMNS": "400"})
    assert (done.exit_code, "allowed are default, multigpu20" in done.output) == (2, True)
    monkeypatch.setenv("GPU_TOPOLOGY_SHARED", str(tmp_path))
    done = CliRunner().invoke(app, ["compare"], env={"COLUMNS": "400"})
    assert (done.exit_code, "no such file (set GPU_TOPOLOGY_SHARED" in done.output) == (2, True)


def test_a_figure_that_is_not_reproduced_stands_out() -> None:
    row = {"workload": "default", "policy": "FGD", "published": 95.0}
    console = Console(file=StringIO(), force_terminal=True, color_system="standard", width=100)
    with console.capture() as printed:
        terminal.show(console, comparison.table([{**row, "ours": 95.1}, {**row, "ours": 94.0}]))
    assert printed.get().count("\x1b[33m") == 1
    assert "\x1b[33m-1.00" in printed.get().replace(" ", "")
