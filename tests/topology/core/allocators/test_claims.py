"""What claims get, case by case. Against the real allocator: tests/differential."""

from itertools import product

import pytest

from topology.core.allocators.claims import (
    STEPS,
    Alike,
    Alternative,
    NotFollowedError,
    Values,
    allocated,
)

ALL = Alternative(0b1111, None)


def exactly(devices: int, count: int) -> list[Alternative]:
    return [Alternative(devices, count)]


def test_the_first_free_devices_come_request_by_request() -> None:
    assert allocated(0b1101, [exactly(0b1111, 2), exactly(0b1111, 1)]) == (0, 2, 3)
    assert allocated(0b1101, [exactly(0b1111, 4)]) is None
    assert allocated(0b1111, []) == ()


def test_an_early_request_gives_way_to_a_later_one() -> None:
    assert allocated(0b0011, [exactly(0b0011, 1), exactly(0b0001, 1)]) == (1, 0)


def test_a_later_alternative_is_taken_where_the_first_leaves_nothing() -> None:
    first = [Alternative(0b0011, 2), Alternative(0b1100, 2)]
    assert allocated(0b1111, [first]) == (0, 1)
    assert allocated(0b1111, [first, exactly(0b0011, 1)]) == (2, 3, 0)


def test_all_are_given_together_or_not_at_all() -> None:
    assert allocated(0b1111, [[ALL]]) == (0, 1, 2, 3)
    assert allocated(0b0111, [[ALL, *exactly(0b1111, 1)]]) == (0,)
    assert allocated(0b1111, [[Alternative(0, None)]]) is None


def test_devices_have_a_value_in_common() -> None:
    alike = Alike(Values(("a", "b", None, "b")), frozenset({(0, 0)}))
    assert allocated(0b1111, [exactly(0b1111, 2)], [alike]) == (1, 3)
    assert allocated(0b1011, [exactly(0b1111, 3)], [alike]) is None
    of_second = Alike(alike.values, frozenset({(0, 1)}))
    either = [Alternative(0b0100, 2), Alternative(0b1111, 2)]
    assert allocated(0b1111, [either], [of_second]) == (1, 3), "the first finds too few"
    assert allocated(0b1111, [exactly(0b1111, 2)], [of_second]) == (0, 1), "it concerns nobody"


def test_all_that_do_not_go_together_end_the_search() -> None:
    """Kubernetes takes that for an error of the claim, and tries no other alternative."""
    alike = Alike(Values(("a", "b", "a", "a")), frozenset({(0, 0)}))
    assert allocated(0b1111, [[ALL, *exactly(0b1111, 1)]], [alike]) is None


def test_no_claim_costs_more_than_its_steps() -> None:
    values = [f"{a}{b}" for a, b in product("abcdefgh", repeat=2)]
    with pytest.raises(NotFollowedError):
        allocated(
            (1 << 64) - 1,
            [exactly((1 << 64) - 1, 8)] * 4,
            [Alike(Values(values), frozenset({(3, 0)}))],
        )
    with pytest.raises(NotFollowedError):
        allocated(0xFFFF, [exactly(0xFFFF, 1)] * 8 + [exactly(0b11, 1)] * 3)
    assert STEPS < 10_000


def test_what_cannot_be_given_takes_no_steps() -> None:
    everything = (1 << 64) - 1
    many = [[Alternative(1 << n, 1) for n in range(8)] for _ in range(9)]
    assert allocated(0xFF, many) is None
    assert allocated(everything, [exactly(everything, 8), [Alternative(1 << 64, 1)]]) is None
    by_two = Alike(Values([n // 2 for n in range(64)]), frozenset({(0, 0), (1, 0)}))
    for first, second in ((3, 1), (1, 2), (2, 1)):
        wanted = [exactly(everything, first), exactly(everything, second)]
        assert allocated(everything, wanted, [by_two]) is None
    assert allocated(everything, [exactly(everything, 1)] * 2, [by_two]) == (0, 1)
    terminating = Alternative(1 << 63, None)
    assert (
        allocated(everything ^ terminating.devices, [exactly(everything, 8), [terminating]]) is None
    )


def test_no_claim_is_too_deep() -> None:
    """Each device is a step further down."""
    with pytest.raises(NotFollowedError):
        allocated((1 << 1500) - 1, [exactly((1 << 1500) - 1, 32)] * 45)
