"""Policies: buddy cells, Preserve, and policies of a user’s own."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.ownpolicy import UnknownPolicyError
from benchmarks.simulation.baselines import Preserve, cells, free_cell
from benchmarks.simulation.clusters import cluster
from benchmarks.simulation.fleet import Fleet
from benchmarks.simulation.jobs import Ask, Job
from benchmarks.simulation.policies import POLICIES, policy
from benchmarks.simulation.simulation import Simulation
from tests.benchmarks.simulation.samples import DGX, LINK, Fixed, play, sim_pod, written


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


OF_ONES_OWN = """
import numpy as np
from benchmarks.papers.policies import Answer
from benchmarks.simulation.policy import ByState

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


def test_models_bind_every_policy() -> None:
    model = (("gpu-model", "*L40S*"),)
    jobs = [Job("", float(i), 100.0, Ask(2, None, 0, 0, model)) for i in range(3)]
    for name in POLICIES:
        result = play("dgx1-v100=2,l40s-4=1", jobs, name)
        assert [o.kept for o in result.outcomes] == [True] * 3, name


RUDE = """
from benchmarks.simulation.policy import ByState

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
        done = CliRunner().invoke(app, args, env={"COLUMNS": "400"})
        assert (done.exit_code, words in done.output) == (2, True), done.output
