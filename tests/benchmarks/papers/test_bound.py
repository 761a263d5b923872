"""The upper bound: by hand, against every policy, and against every way to place a few pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers import openb
from benchmarks.papers.bound import easier, open_until, upper_bound
from benchmarks.papers.model import WHOLE, NodeKind, Nodes, PodKind, feasible
from benchmarks.papers.policies import POLICIES
from benchmarks.papers.simulation import simulate
from tests.benchmarks.papers.test_comparison import needs_trace

MODELS = ["A10", "T4"]
ONE_GPU = NodeKind(64, 64, 1, "T4")
TWO_GPUS = NodeKind(12, 64, 2, "T4")
FOUR_GPUS = NodeKind(64, 64, 4, "T4")


def share(milli: int, cpu: int = 1) -> PodKind:
    return PodKind(cpu, 1, 1, milli)


def whole(gpus: int, cpu: int = 1) -> PodKind:
    return PodKind(cpu, 1, gpus, WHOLE)


@pytest.mark.parametrize(
    ("machines", "pods", "best"),
    [
        pytest.param([ONE_GPU], [share(400)] * 2, 80, id="all-that-arrives"),
        pytest.param([ONE_GPU], [share(600)] * 2, 60, id="shares-that-do-not-pack"),
        pytest.param([ONE_GPU], [share(700), share(600)], 70, id="larger-first"),
        pytest.param([ONE_GPU], [share(600), share(700)], 60, id="smaller-first-is-placed"),
        pytest.param([TWO_GPUS], [whole(1, cpu=8)] * 2, 50, id="cpu-for-one"),
        pytest.param([TWO_GPUS], [PodKind(12, 1, 0, 0), whole(2)], 0, id="cpu-taken-at-once"),
        pytest.param([TWO_GPUS] * 2, [whole(4)], 0, id="no-pod-on-two-nodes"),
        pytest.param([ONE_GPU], [PodKind(1, 1, 1, 500, frozenset({"A10"}))], 0, id="wrong-model"),
        pytest.param([FOUR_GPUS], [whole(3), whole(3)], 75, id="what-comes-after-130-counts-not"),
        pytest.param([FOUR_GPUS], [], 0, id="nothing-arrives"),
    ],
)
def test_by_hand(machines: list[NodeKind], pods: list[PodKind], best: float) -> None:
    assert upper_bound(machines, pods) == pytest.approx(best)


def test_the_first_pods_cannot_be_turned_away() -> None:
    """Three shares of 400 may stand on three GPUs; a fourth GPU is open to a whole one."""
    found = open_until([FOUR_GPUS], [share(400)] * 3 + [whole(1)] * 2)
    assert found[whole(1)] >= 4
    assert found[share(400)] == 5


machines_ = st.builds(
    NodeKind,
    st.sampled_from([4, 9, 8_000]),
    st.sampled_from([4, 64]),
    st.integers(1, 4),
    st.sampled_from(MODELS),
)
cpu_ = st.sampled_from([0, 1, 3, 4, 999, 3_152])
models_ = st.sampled_from([frozenset[str](), frozenset({"T4"}), frozenset(MODELS)])
pods_ = st.one_of(
    st.builds(PodKind, cpu_, st.integers(0, 4), st.just(1),
              st.sampled_from([100, 300, 400, 600, 810]), models_),
    st.builds(PodKind, cpu_, st.integers(0, 4), st.integers(1, 4), st.just(WHOLE), models_),
    st.builds(PodKind, cpu_, st.integers(0, 4), st.just(0), st.just(0)),
)  # fmt: skip
clusters = st.lists(machines_, min_size=1, max_size=3)


def orders(most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 4), min_size=1, max_size=most)


@settings(max_examples=40, deadline=None)
@given(
    clusters,
    st.lists(pods_, min_size=1, max_size=5),
    st.lists(st.integers(0, 4), min_size=1, max_size=30),
)
def test_no_policy_exceeds_it(
    machines: list[NodeKind], kinds: list[PodKind], drawn: list[int]
) -> None:
    pods = [kinds[i % len(kinds)] for i in drawn]
    most = upper_bound(machines, pods) + 1e-6
    for policy in POLICIES.values():
        assert simulate(machines, pods, range(len(pods)), policy, 1).allocated(130) <= most


@settings(max_examples=60, deadline=None)
@given(
    clusters,
    st.lists(pods_, min_size=1, max_size=3),
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
)
def test_no_way_to_place_exceeds_it(
    machines: list[NodeKind], kinds: list[PodKind], drawn: list[int]
) -> None:
    pods = [kinds[i % len(kinds)] for i in drawn]
    capacity = WHOLE * sum(m.gpus for m in machines)
    arrived = np.cumsum([p.gpu_milli for p in pods])
    pods = pods[: int((arrived <= 1.3 * capacity).sum())]
    sure = open_until(machines, pods)
    best = 0
    for placed in every_way(Nodes.empty(machines, MODELS), pods):
        best = max(best, sum(p.gpu_milli for p, here in zip(pods, placed, strict=True) if here))
        assert all(here for i, here in enumerate(placed) if i < sure[pods[i]])
    assert 100 * best / capacity <= upper_bound(machines, pods) + 1e-6


def every_way(nodes: Nodes, pods: Sequence[PodKind]) -> Iterator[list[bool]]:
    """Which pods are placed, for every choice of node and of the GPU for a share."""
    if not pods:
        yield []
        return
    pod = pods[0]
    allowed = np.array([not pod.models or m in pod.models for m in MODELS])
    rows = np.flatnonzero(feasible(nodes, pod, allowed))
    if not len(rows):
        yield from ([False, *rest] for rest in every_way(nodes, pods[1:]))
    for row in rows:
        room = np.flatnonzero(nodes.gpu[row] >= pod.milli)
        distinct = {int(nodes.gpu[row, g]): int(g) for g in room}.values()
        for gpus in [[g] for g in distinct] if pod.is_share else [room[: pod.gpus]]:
            after = nodes.some(np.arange(len(nodes)))
            after.take(int(row), pod, [int(g) for g in gpus])
            yield from ([True, *rest] for rest in every_way(after, pods[1:]))


def harder(pod: PodKind, other: PodKind) -> PodKind:
    """A pod that asks for what either does, on the models that both may use where there are any."""
    models = pod.models & other.models or pod.models or other.models
    gpus, milli = max(pod.gpus, other.gpus), max(pod.milli, other.milli)
    return PodKind(
        max(pod.cpu, other.cpu),
        max(pod.memory, other.memory),
        gpus,
        WHOLE if gpus > 1 else milli,
        models if pod.gpus else other.models,
    )


@given(pods_, pods_, st.lists(st.tuples(machines_, st.integers(0, 9)), min_size=1, max_size=4))
def test_what_is_easier_fits_wherever_the_harder_does(
    a: PodKind, other: PodKind, state: list[tuple[NodeKind, int]]
) -> None:
    b = harder(a, other)
    nodes = Nodes.empty([m for m, _ in state], MODELS)
    for row, (machine, used) in enumerate(state):
        nodes.gpu[row, : machine.gpus] -= 100 * used
    fits = [
        feasible(nodes, p, np.array([not p.models or m in p.models for m in MODELS]))
        for p in (a, b)
    ]
    assert easier(a, b)
    assert (fits[0] | ~fits[1]).all()


@needs_trace
def test_the_default_workload_cannot_be_filled() -> None:
    pods = openb.pods("default")
    arrivals = [pods[i] for i in openb.order("default", 42)]
    assert 95.8 < upper_bound(openb.nodes(), arrivals) < 96.7
