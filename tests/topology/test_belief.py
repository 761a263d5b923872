"""Belief and promises under an allocator that is not monotone.

The allocators of today's tree are monotone; this one is not, and shows that nothing relies on it:
it hands out the lowest free pair of neighbours and the two highest GPUs where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.nodes import bridged
from topology import placement
from topology.allocators import ALLOCATORS, Outcomes
from topology.belief import Availability, Pending, free_masks
from topology.devices import Mask, positions
from topology.graph import Shape
from topology.links import LinkKind
from topology.placement import Verdict, assess, endangers
from topology.requests import Constraints, gpu_request

NVLINK = Constraints(link=LinkKind.NVLINK)


class PairsFirst:
    name = "pairs-first"
    monotone = False

    def outcomes(
        self, shape: Shape, free: Mask, size: int, units: tuple[int, ...] | None = None
    ) -> Outcomes:
        members = positions(free)
        pairs = [0b11 << p for p in range(0, shape.size, 2) if free >> p & 3 == 3]
        if size == 2 and pairs:
            return Outcomes(free, size, (pairs[0],))
        taken = sum(1 << p for p in members[len(members) - size :])
        return Outcomes(free, size, (taken,))


@pytest.fixture(autouse=True)
def _pairs_first(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(ALLOCATORS, "pairs-first", PairsFirst())
    assess.cache_clear()
    endangers.cache_clear()
    yield
    assess.cache_clear()
    endangers.cache_clear()


def test_masks_under_every_order_of_admission() -> None:
    now = Availability(0b1111, pending=(Pending(1, 1), Pending(2, 2)))
    masks = free_masks(PairsFirst(), bridged().shape, now)
    # nobody; the single first (3); the pair first (0,1); single then pair; pair then single
    assert masks == (0b0100, 0b0111, 0b1100, 0b1111)


def test_masks_with_releases() -> None:
    now = Availability(0b0001, releasing=(0b0010,), running=(0b1100,))
    assert free_masks(PairsFirst(), bridged().shape, now) == (0b0001, 0b0011)
    later = free_masks(PairsFirst(), bridged().shape, now, endings=True)
    assert later == (0b0001, 0b0011, 0b1101, 0b1111)


def test_a_verdict_needs_every_mask() -> None:
    request, shape = gpu_request(2, NVLINK), bridged().shape
    sure = assess(shape, Availability(0b1011), request, "pairs-first")
    assert sure.verdict is Verdict.GUARANTEED
    now = Availability(0b1011, pending=(Pending(1, 1),))
    assert assess(shape, now, request, "pairs-first").verdict is Verdict.GUARANTEED
    now = Availability(0b0111, pending=(Pending(1, 1),))
    assert assess(shape, now, request, "pairs-first").verdict is Verdict.GUARANTEED
    now = Availability(0b1110, pending=(Pending(1, 1),))
    assert assess(shape, now, request, "pairs-first").verdict is Verdict.POSSIBLE


def test_a_newcomer_may_endanger_a_promise() -> None:
    promise = Pending(2, 2, NVLINK)
    shape = bridged().shape
    now = Availability(0b1110, pending=(promise,))
    assert endangers(shape, now, gpu_request(1), "pairs-first")
    assert not endangers(shape, now, gpu_request(1), "any")
    roomy = Availability(0b1111, pending=(promise,))
    assert not endangers(shape, roomy, gpu_request(1), "pairs-first")
    assert not endangers(shape, Availability(0b1110), gpu_request(1), "pairs-first")


def test_a_belief_that_grows_too_large_promises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topology.belief.MAX_MASKS", 2)
    now = Availability(0b1111, pending=(Pending(1, 1), Pending(1, 1)))
    assert free_masks(PairsFirst(), bridged().shape, now) is None
    found = assess(bridged().shape, now, gpu_request(2, NVLINK), "pairs-first")
    assert found.verdict is Verdict.POSSIBLE
    assert placement.endangers(
        bridged().shape,
        Availability(0b1111, pending=(Pending(2, 2, NVLINK), Pending(1, 1))),
        gpu_request(1),
        "pairs-first",
    )
