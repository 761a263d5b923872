"""Possible free states and promises under an allocator that is easy to follow by hand.

It hands out the lowest free pair of neighbours, and the highest GPUs where there is none. It is not
monotone: one more free GPU can take an outcome away.
"""

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nodes import bridged, unacknowledged
from topology.core.admission import DeviceManager, admissions
from topology.core.allocators import ALLOCATORS, Allocator, Call, Outcomes
from topology.core.availability import Availability, Holder, Unacknowledged
from topology.core.devices import Mask, positions
from topology.core.devicesets import marked
from topology.core.graph import AllocatorConfig
from topology.core.links import LinkKind
from topology.core.placement import Verdict, assess, endangers, keeps, predicted
from topology.core.possiblestates import FreeState, _State, possible_states
from topology.core.requests import Constraints, Role, gpu_request
from topology.machines import machine

NVLINK = Constraints(link=LinkKind.NVLINK)


class PairsFirst(Allocator):
    name = "pairs-first"

    def outcomes(self, call: Call) -> Outcomes:
        free = call.available
        members = positions(free)
        pairs = [0b11 << p for p in range(0, call.shape.size, 2) if free >> p & 3 == 3]
        if call.size == 2 and pairs:
            return Outcomes((pairs[0],))
        return Outcomes((sum(1 << p for p in members[len(members) - call.size :]),))


@pytest.fixture(autouse=True)
def _pairs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALLOCATORS, "pairs-first", PairsFirst())


def node() -> DeviceManager:
    return DeviceManager(bridged().shape, AllocatorConfig("pairs-first"))


def masks(availability: Availability, *, endings: bool = False) -> tuple[Mask, ...]:
    found = possible_states(node(), availability, endings=endings).free_states
    assert found is not None
    return tuple(state.free for state in found)


def test_masks_under_every_order_of_admission() -> None:
    availability = Availability(0b1111, unacknowledged=(unacknowledged(1), unacknowledged(2)))
    # nobody; the single first (3); the pair first (0,1); single then pair; pair then single
    assert masks(availability) == (0b0100, 0b0111, 0b1100, 0b1111)


def test_masks_with_releases() -> None:
    availability = Availability(0b0001, releasing=(Holder(0b0010),), running=(Holder(0b1100),))
    assert masks(availability) == (0b0001, 0b0011)
    assert masks(availability, endings=True) == (0b0001, 0b0011, 0b1101, 0b1111)


def test_a_release_may_fall_between_two_admissions() -> None:
    availability = Availability(
        0b1100, releasing=(Holder(0b0010),), unacknowledged=(unacknowledged(1),)
    )
    # the single takes 3 whatever comes first; the release adds 1 before or after it
    assert masks(availability) == (0b0100, 0b0110, 0b1100, 0b1110)


def test_a_pod_that_comes_and_goes() -> None:
    availability = Availability(0b0111, unacknowledged=(unacknowledged(2), unacknowledged(1)))
    assert 0b0101 not in masks(availability)
    # The single takes 2, the pair 0 and 1, the single ends again: only then is 2 alone free …
    assert 0b0100 in masks(availability, endings=True)


def test_what_init_containers_hide_may_be_any_free_gpu() -> None:
    availability = Availability(0b0111, running=(Holder(0b1000, 1),))
    assert masks(availability) == (0b0011, 0b0101, 0b0110)
    # Once the pod ends, what it hid is free as well.
    assert masks(availability, endings=True) == (0b0011, 0b0101, 0b0110, 0b1111)


def test_what_a_pod_hid_comes_free_with_what_it_showed() -> None:
    """Also between two containers of one admission."""
    availability = Availability(0b0011, releasing=(Holder(0b1000, 1),))
    found = possible_states(node(), availability, one_container=False).free_states
    assert found == (
        FreeState(0b0001, (0b1010,)),
        FreeState(0b0010, (0b1001,)),
        FreeState(0b1011),
    )


def test_what_is_hidden_may_be_what_the_kubelet_hands_out_no_more() -> None:
    availability = Availability(0b0111, running=(Holder(0b1000, 1),), gone=1)
    assert masks(availability) == (0b0011, 0b0101, 0b0110, 0b0111)


def test_more_hidden_than_there_is_promises_nothing() -> None:
    assert (
        possible_states(node(), Availability(0b0001, running=(Holder(0b1000, 2),))).free_states
        is None
    )


def test_a_terminated_pod_counts_for_pods_before_it_ended() -> None:
    terminated = Unacknowledged(((Role.APP, 1),), terminated=True)
    pair = unacknowledged(2, NVLINK)
    availability = Availability(0b0111, unacknowledged=(terminated, pair))
    # The departed pod had 2 and has let go; the pair took 0 and 1 whatever came first.
    assert masks(availability) == (0b0100, 0b0111)
    # Of three in a row the pair could have come second, to 1 alone and 0: the departed pod held 3.
    gone = Availability(0b1110, unacknowledged=(terminated,))
    alone = predicted(node(), Availability(0b1110), pair)[0]
    assert set(predicted(node(), gone, pair)[0] or ()) > set(alone or ())
    assert keeps(node(), gone, pair).every, "who comes only now does not meet it"
    assert keeps(node(), Availability(0b1110), pair).every


def test_a_pod_that_comes_after_others_finds_what_they_left() -> None:
    """One that departs holds 3 and the pair that is to come takes 0 and 1, or, once it is gone, 2
    and 3 where 0 or 1 is held."""
    victims = Availability(0b0111, victims=(Holder(0b1000),))
    assert masks(victims) == (0b1111,)
    first = unacknowledged(2)
    assert masks(replace(victims, unacknowledged=(first,))) == (0b1100, 0b1111)
    held = replace(victims, free=0b0110, unacknowledged=(first,))
    assert masks(held) == (0b0010, 0b1000, 0b1110)
    assert masks(Availability(0b0011, victims=(Holder(0b1000, 1),))) == (0b1011,)


@pytest.mark.parametrize("marks", range(1 << 4))
def test_what_is_released_leaves_its_own_group(marks: int) -> None:
    before = _State(16, (1, 2), (4, 8), ())
    after = before.after_release(marks)
    assert after.free == 16 + marked(before.pools, marks)
    assert after.free + sum(after.pools) == 16 + sum(before.pools)
    assert set(after.held) == {p for n, p in enumerate(before.held) if not marks >> n & 1}
    assert set(after.terminated) == {
        p for n, p in enumerate(before.terminated, 2) if not marks >> n & 1
    }


def test_each_pool_is_released_alone() -> None:
    before = _State(16, (1, 2), (4, 8), ())
    each = {before.after_release(1 << n) for n in range(4)}
    assert len(each) == 4
    assert before.after_endings() == each


def test_an_opaque_pod_may_take_any_devices() -> None:
    unseen = Unacknowledged(((Role.INIT, 2), (Role.APP, 2)), opaque=True)
    assert len(masks(Availability(0b1111, unacknowledged=(unseen,)))) == 1 + 6


def test_a_half_admitted_pod_comes_first_or_fails() -> None:
    half = Unacknowledged(((Role.APP, 1),), started=True, shown=0b1000)
    availability = Availability(0b0111, unacknowledged=(half, unacknowledged(2)))
    # It takes 2 and the pair may follow; or it fails and gives 3 back.
    assert masks(availability) == (0b0000, 0b0011, 0b1100, 0b1111)


def test_a_release_between_two_containers() -> None:
    two = ((Role.APP, 1), (Role.APP, 2))
    at_rest = admissions(node(), 0b1110, two)
    assert {way.shown for way in at_rest.ways or ()} == {0b1110}
    later = admissions(node(), 0b1110, two, releasing=(0b0001,))
    # The single takes 3; if 0 comes free after that, the pair 0-1 is there for the second.
    assert {way.shown for way in later.ways or ()} == {0b1110, 0b1011}


def test_a_verdict_needs_every_mask() -> None:
    request = gpu_request(2, NVLINK)
    for free, pending, verdict in (
        (0b1011, (), Verdict.GUARANTEED),
        (0b1011, (unacknowledged(1),), Verdict.GUARANTEED),
        (0b0111, (unacknowledged(1),), Verdict.GUARANTEED),
        (0b1110, (unacknowledged(1),), Verdict.NOT_GUARANTEED),
    ):
        assert (
            assess(node(), Availability(free, unacknowledged=pending), request).verdict is verdict
        )


def test_a_newcomer_may_endanger_a_promise() -> None:
    promise = unacknowledged(2, NVLINK)
    availability = Availability(0b1110, unacknowledged=(promise,))
    assert endangers(node(), availability, gpu_request(1))
    assert not endangers(DeviceManager(bridged().shape), availability, gpu_request(1))
    roomy = Availability(0b1111, unacknowledged=(promise,))
    assert not endangers(node(), roomy, gpu_request(1))
    assert not endangers(node(), Availability(0b1110), gpu_request(1))


def test_only_a_promise_that_survives_endings_minds_them() -> None:
    held = (Holder(0b0001),)
    # 2-3 is the only pair; if 0 came free beside 1, that pair would be handed out first, also good;
    # with 1 held instead, 0-1 stays apart.
    availability = Availability(0b1110, running=held, unacknowledged=(unacknowledged(2, NVLINK),))
    assert endangers(node(), availability, gpu_request(1))
    wide = Availability(0b1111, unacknowledged=(unacknowledged(2, NVLINK, survives_endings=True),))
    assert not endangers(node(), wide, gpu_request(1))


def test_too_many_possible_states_promise_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topology.core.possiblestates.MAX_STATES", 2)
    possible_states.clear()
    availability = Availability(
        0b11110, unacknowledged=(unacknowledged(1), unacknowledged(1), unacknowledged(1))
    )
    node = DeviceManager(bridged(6).shape, AllocatorConfig("pairs-first"))
    assert possible_states(node, availability).free_states is None
    found = assess(node, availability, gpu_request(2, NVLINK))
    assert (found.verdict, found.hazards) == (Verdict.NOT_NOW, ())  # too few are left
    availability = Availability(
        0b111110, unacknowledged=(unacknowledged(1), unacknowledged(1), unacknowledged(1))
    )
    found = assess(node, availability, gpu_request(2, NVLINK))
    assert (found.verdict, found.hazards) == (Verdict.NOT_GUARANTEED, ("too-much-at-once",))
    promise = Availability(0b111110, unacknowledged=(unacknowledged(2, NVLINK), unacknowledged(1)))
    assert endangers(node, promise, gpu_request(1))
    possible_states.clear()


DGX = DeviceManager(machine("dgx1-v100").topology("n").shape, AllocatorConfig("best-effort"))
sizes = st.lists(st.integers(1, 3), max_size=2)


@given(st.integers(1, 255), sizes, st.lists(st.integers(0, 7), max_size=2, unique=True))
@settings(max_examples=60, deadline=None)
def test_possible_states_are_those_of_every_history(
    free: Mask, pods: list[int], gone: list[int]
) -> None:
    """Against playing out every interleaving of admissions and releases, step by step."""
    holders = [1 << p for p in gone if not free >> p & 1]
    availability = Availability(
        free,
        releasing=tuple(Holder(h) for h in sorted(holders)),
        unacknowledged=tuple(unacknowledged(n) for n in sorted(pods)),
    )
    steps = [("admit", n) for n in pods] + [("release", h) for h in holders]
    expected = {free}
    for length in range(1, len(steps) + 1):
        for history in permutations(steps, length):
            reached = {free}
            for what, value in history:
                if what == "release":
                    reached = {mask | value for mask in reached}
                    continue
                reached = {
                    mask & ~way.taken
                    for mask in reached
                    for way in admissions(DGX, mask, ((Role.APP, value),)).ways or ()
                }
            expected |= reached
    found = possible_states(DGX, availability).free_states
    assert found == tuple(sorted(FreeState(mask) for mask in expected))
