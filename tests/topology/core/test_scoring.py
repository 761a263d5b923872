"""Guaranteed capacity, fragmentation cost and the scores they become."""

import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_extender.state.answers.answercache import REFRESH, RequestMixTracker
from tests.nodes import guaranteed_capacity, score_of
from topology.core import guaranteedcapacity, scoring
from topology.core.admission import DeviceManager, admissions, device_manager_of
from topology.core.availability import Availability
from topology.core.devices import Bytes, Mask
from topology.core.graph import AllocatorConfig
from topology.core.guaranteedcapacity import RequestClass, guaranteed_placements
from topology.core.links import LinkKind
from topology.core.placement import Verdict, assess
from topology.core.requests import Constraints, GpuRequest, Policy, Role, gpu_request
from topology.core.scoring import MAX_SCORE, PRIOR, UNKNOWN, RequestMix, Score, normalized_scores
from topology.machines import machine

NVLINK = Constraints(link=LinkKind.NVLINK)
SINGLE, PAIR = gpu_request(1), gpu_request(2, NVLINK)
SOFT_PAIR = gpu_request(2, NVLINK, Policy.PREFERRED)
BEST_EFFORT = AllocatorConfig("best-effort")


def fragmentation_cost(
    kubelet: DeviceManager, availability: Availability, request: GpuRequest, mix: RequestMix
) -> float:
    return score_of(
        kubelet, availability, request, assess(kubelet, availability, request), mix
    ).fragmentation_cost


def node(name: str) -> DeviceManager:
    return DeviceManager(machine(name).topology("n").shape, BEST_EFFORT)


BRIDGED, DGX, H100, PCIE = map(node, ("a100-pcie-4-bridged", "dgx1-v100", "hgx-h100-8", "l40s-4"))


def cost(kubelet: DeviceManager, free: Mask, request: GpuRequest = SINGLE) -> float:
    return fragmentation_cost(kubelet, Availability(free), request, PRIOR)


def test_promises_count_what_fits_one_after_the_other() -> None:
    assert guaranteed_placements(BRIDGED, 0b1111, RequestClass(2, NVLINK)) == 2
    assert guaranteed_placements(BRIDGED, 0b0111, RequestClass(2, NVLINK)) == 1
    assert guaranteed_placements(BRIDGED, 0b0110, RequestClass(2, NVLINK)) == 0
    assert guaranteed_placements(DGX, 0xFF, RequestClass(4, NVLINK)) == 2
    assert guaranteed_placements(H100, 0xFF, RequestClass(8)) == 1
    assert guaranteed_placements(PCIE, 0b1111, RequestClass(2, NVLINK)) == 0


def test_a_single_costs_least_where_it_breaks_no_pair() -> None:
    whole, broken = cost(BRIDGED, 0b1111), cost(BRIDGED, 0b0110)
    assert broken < whole
    # Beside a whole pair chance decides: it may break that pair.
    assert broken < cost(BRIDGED, 0b0111) < whole
    assert cost(PCIE, 0b1111) < whole
    # A whole node is worth something as one.
    assert cost(H100, 0xFF) > cost(H100, 0x7F)


@given(st.integers(1, 255), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_guaranteed_capacity_grows_with_free_gpus_and_is_what_a_placement_costs(
    free: Mask, count: int
) -> None:
    assert 0 <= guaranteed_capacity(H100, free, PRIOR) <= free.bit_count()
    for p in range(8):
        assert guaranteed_capacity(H100, free, PRIOR) <= guaranteed_capacity(
            H100, free | 1 << p, PRIOR
        )
    if free.bit_count() >= count:
        request = gpu_request(count)
        ways = admissions(DGX, free, ((Role.APP, count),)).ways or ()
        after = [guaranteed_capacity(DGX, free - way.taken, PRIOR) for way in ways]
        lost = guaranteed_capacity(DGX, free, PRIOR) - sum(after) / len(after)
        assert cost(DGX, free, request) == pytest.approx(lost)


def test_of_a_shared_gpu_each_share_has_its_part_of_the_memory() -> None:
    shared = DeviceManager(machine("l40s-4").topology("n").shape, AllocatorConfig("packed"), 4)
    everything = 0b100_100_100_100
    for gib, places in ((10, 16), (40, 0)):
        wanted = Constraints(min_gpu_memory=Bytes(gib << 30))
        assert guaranteed_placements(shared, everything, RequestClass(1, wanted)) == places


@pytest.mark.parametrize("policy", ["any", "distributed", "packed"])
@pytest.mark.parametrize(
    ("count", "wanted"),
    [
        pytest.param(2, NVLINK, id="links"),
        pytest.param(2, Constraints(same_numa=True), id="same-numa"),
        pytest.param(2, Constraints(same_gpu=True), id="same-gpu"),
        pytest.param(2, Constraints(spread_gpus=True), id="spread-gpus"),
        pytest.param(4, Constraints(exclusive_gpus=True), id="exclusive"),
        pytest.param(1, Constraints(exclusive_gpus=True), id="exclusive, too few"),
    ],
)
def test_the_capacity_of_shared_gpus_is_what_verdicts_guarantee(
    policy: str, count: int, wanted: Constraints
) -> None:
    kubelet = DeviceManager(machine("hgx-a100-4").topology("n").shape, AllocatorConfig(policy), 4)
    request, counts = gpu_request(count, wanted), ((Role.APP, count),)
    everything = free = 0b100_100_100_100
    placements = 0
    while assess(kubelet, Availability(free, width=3), request).verdict is Verdict.GUARANTEED:
        free -= (admissions(kubelet, free, counts).sets or ())[0]
        placements += 1
    assert guaranteed_placements(kubelet, everything, RequestClass(count, wanted)) == placements


@pytest.mark.parametrize("policy", ["any", "packed"])
def test_pairs_that_the_plugin_may_refuse_have_no_guaranteed_capacity(policy: str) -> None:
    shape = machine("hgx-a100-4").topology("n").shape
    for refuses, singles, pairs in ((False, 16, 8), (None, 16, 0), (True, 16, 0)):
        kubelet = DeviceManager(shape, AllocatorConfig(policy), 4, refuses)
        found = [guaranteed_placements(kubelet, 0b100_100_100_100, RequestClass(n)) for n in (1, 2)]
        assert found == [singles, pairs]


def node_scores(request: GpuRequest, *states: tuple[DeviceManager, Mask]) -> list[Score]:
    found = []
    for kubelet, free in states:
        availability = Availability(free)
        found.append(
            score_of(kubelet, availability, request, assess(kubelet, availability, request), PRIOR)
        )
    return found


def test_one_node_alone_gets_the_best_score() -> None:
    (found,) = node_scores(SINGLE, (DGX, 0xFF))
    assert normalized_scores(SINGLE, [found]) == {found: MAX_SCORE}


@pytest.mark.parametrize(
    ("asked", "verdict", "share", "best", "worst"),
    [
        pytest.param(PAIR, Verdict.GUARANTEED, 1.0, 10, 6, id="required, guaranteed"),
        pytest.param(PAIR, Verdict.EXPECTED, 1.0, 4, 0, id="required, expected"),
        pytest.param(SINGLE, Verdict.GUARANTEED, 1.0, 10, 0, id="plain"),
        pytest.param(SOFT_PAIR, Verdict.GUARANTEED, 1.0, 10, 7, id="preferred, full quality"),
        pytest.param(SOFT_PAIR, Verdict.NOT_GUARANTEED, 0.5, 7, 4, id="preferred, half of them"),
        pytest.param(SOFT_PAIR, Verdict.NOT_NOW, 0.0, 3, 0, id="preferred, no outcome now"),
        pytest.param(SOFT_PAIR, Verdict.NEVER, 0.0, 0, 0, id="preferred, never"),
    ],
)
def test_the_table_of_scores(
    asked: GpuRequest, verdict: Verdict, share: float, best: int, worst: int
) -> None:
    """The lowest and the highest cost get the ends of a row, what was not measured the middle."""
    least, most = (
        Score(verdict, fragmentation_cost=lost, passing_fraction=share) for lost in (1.0, 2.0)
    )
    unmeasured = Score(verdict, passing_fraction=share, measured=False)
    found = normalized_scores(asked, [least, most, unmeasured])
    assert (found[least], found[most]) == (best, worst)
    assert found[unmeasured] == (best + worst) // 2


@pytest.mark.parametrize("verdict", [Verdict.NOT_GUARANTEED, Verdict.NOT_NOW])
def test_a_preferred_pod_goes_last_to_hardware_that_never_meets_its_constraints(
    verdict: Verdict,
) -> None:
    never, costly, cheap = (
        Score(each, fragmentation_cost=lost)
        for each, lost in ((Verdict.NEVER, 0.0), (verdict, 2.0), (verdict, 1.0))
    )
    assert normalized_scores(SOFT_PAIR, [never, costly, cheap]) == {never: 0, costly: 0, cheap: 3}


@pytest.mark.parametrize(
    ("asked", "score"),
    [
        pytest.param(SINGLE, 5, id="plain"),
        pytest.param(PAIR, 0, id="required"),
        pytest.param(SOFT_PAIR, 0, id="preferred"),
    ],
)
def test_the_score_of_a_node_without_a_usable_report(asked: GpuRequest, score: int) -> None:
    assert normalized_scores(asked, [UNKNOWN]) == {UNKNOWN: score}


def test_of_equal_cost_the_faster_and_then_the_fuller_node_wins() -> None:
    slow, fast = Score(Verdict.GUARANTEED, ring=50.0), Score(Verdict.GUARANTEED, ring=100.0)
    roomy, full = (
        Score(Verdict.GUARANTEED, devices_left=6),
        Score(Verdict.GUARANTEED, devices_left=0),
    )
    assert normalized_scores(PAIR, [slow, fast])[fast] > normalized_scores(PAIR, [slow, fast])[slow]
    assert (
        normalized_scores(PAIR, [roomy, full])[full] > normalized_scores(PAIR, [roomy, full])[roomy]
    )


def test_a_preferred_pod_goes_where_its_links_are_and_are_fast() -> None:
    wanted = SOFT_PAIR
    h100, bridged, pcie = node_scores(wanted, (H100, 0xFF), (BRIDGED, 0b1111), (PCIE, 0b1111))
    score = normalized_scores(wanted, [h100, bridged, pcie, UNKNOWN])
    assert score[h100] > score[bridged] > score[pcie] == 0 == score[UNKNOWN]


@given(st.lists(st.tuples(st.sampled_from(Verdict), st.floats(0, 8)), min_size=1, max_size=30))
def test_scores_are_integers_from_0_to_10_and_never_prefer_a_higher_cost(
    drawn: list[tuple[Verdict, float]],
) -> None:
    found = [Score(verdict, fragmentation_cost=lost) for verdict, lost in drawn]
    for request in (SINGLE, PAIR, SOFT_PAIR):
        score = normalized_scores(request, found)
        assert all(type(s) is int and 0 <= s <= MAX_SCORE for s in score.values())
        for a, b in combinations(found, 2):
            if a.verdict is b.verdict and a.fragmentation_cost < b.fragmentation_cost:
                assert score[a] >= score[b]


def test_sets_that_the_kubelet_may_refuse_have_no_guaranteed_capacity() -> None:
    """It may also be admitted, with GPUs that would do: that is no promise."""
    unsure = DeviceManager(DGX.shape, AllocatorConfig("best-effort", None, "unknown"))
    found = admissions(unsure, 0xFF, ((Role.APP, 2),))
    assert found.ways
    assert found.hazards
    assert guaranteed_placements(unsure, 0xFF, RequestClass(2)) == 0
    assert guaranteed_placements(DGX, 0xFF, RequestClass(2)) == 4


@pytest.fixture
def mix() -> RequestMixTracker:
    return RequestMixTracker()


def test_the_mix_starts_from_the_prior_and_learns(mix: RequestMixTracker) -> None:
    assert mix.current == PRIOR
    triple = gpu_request(3, NVLINK)
    for _ in range(10):
        before = mix.current
        for _ in range(REFRESH - 1):
            mix.observe(triple)
        assert mix.current is before  # it changes now and then, not always
        mix.observe(triple)
        assert mix.current is not before
    weights = dict(mix.current)
    assert weights[RequestClass(3, NVLINK)] > 0.9
    assert sum(weights.values()) == pytest.approx(1, abs=0.02)


def test_the_mix_forgets(mix: RequestMixTracker) -> None:
    for _ in range(5 * REFRESH):
        mix.observe(gpu_request(3, NVLINK))
    for _ in range(40 * REFRESH):
        mix.observe(SINGLE)
    weights = dict(mix.current)
    assert weights[RequestClass(1)] > 0.9
    assert weights.get(RequestClass(3, NVLINK), 0) < 0.01


def test_what_the_cluster_asks_decides_what_it_protects() -> None:
    quads = ((RequestClass(4, NVLINK), 1.0),)
    singles = ((RequestClass(1), 1.0),)
    availability = Availability(0xFF)
    assert fragmentation_cost(DGX, availability, SINGLE, quads) == 4
    assert fragmentation_cost(DGX, availability, SINGLE, singles) == 1


def test_nodes_whose_kubelet_may_refuse_come_last() -> None:
    sure = Score(Verdict.GUARANTEED, fragmentation_cost=3.0)
    worse = Score(Verdict.GUARANTEED, fragmentation_cost=5.0)
    risky = Score(Verdict.NOT_GUARANTEED, fragmentation_cost=0.0, may_refuse=True)
    found = normalized_scores(SINGLE, [sure, worse, risky])
    assert found[sure] > found[worse] > found[risky]
    assert normalized_scores(SINGLE, [risky]) == {risky: MAX_SCORE}


def test_a_preferred_placement_that_may_be_refused_counts_half() -> None:
    sure = Score(Verdict.NOT_GUARANTEED, passing_fraction=0.5, ring=10.0, ceiling=20.0)
    risky = Score(
        Verdict.NOT_GUARANTEED, passing_fraction=0.5, ring=10.0, ceiling=20.0, may_refuse=True
    )
    found = normalized_scores(SOFT_PAIR, [sure, risky])
    assert found[sure] > found[risky]


@pytest.mark.parametrize("name", ["dgx1-v100", "hgx-h100-8", "a100-pcie-4-bridged"])
def test_in_an_order_that_is_known_less_has_to_be_followed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same losses as by following every outcome, in random orders, which may lack GPUs."""
    bare, rng = machine(name).topology("n"), random.Random(1)
    size, asked = len(bare.gpus), []
    for _ in range(60):
        order = tuple(rng.sample(range(size), rng.randint(size - 1, size)))
        ordered = replace(bare, allocator=AllocatorConfig("dra", published=order))
        kubelet = device_manager_of(ordered, bare.resources[0])
        availability = Availability(rng.randrange(1, 1 << size))
        request = gpu_request(rng.randint(1, availability.free.bit_count()), Constraints())
        asked.append((kubelet, availability, request, scoring.classes_of(scoring.PRIOR)))
    quick = [scoring.losses(*each) for each in asked]
    monkeypatch.setattr(scoring, "follows_one_by_one", lambda _: False)
    monkeypatch.setattr(guaranteedcapacity, "follows_one_by_one", lambda _: False)
    assert quick == [scoring.losses(*each) for each in asked]
    assert any(map(any, filter(None, quick)))
