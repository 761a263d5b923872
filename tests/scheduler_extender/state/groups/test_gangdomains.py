"""Members of a gang follow those that were asked about before them."""

import pytest

from scheduler_extender.groupreference import Group, GroupReference
from scheduler_extender.state.groups import gangdomains
from scheduler_extender.state.groups.gangdomains import (
    ANY_DOMAIN,
    QUIET,
    SECONDS,
    Direction,
    GangDomains,
)

GANG, OTHER = (GroupReference(Group("default", name), 4, "block", gang=True) for name in "gh")


def test_the_next_member_follows_the_earlier_ones_however_often_they_ask() -> None:
    gangs = GangDomains()
    assert gangs.of(GANG, 0.0) == ANY_DOMAIN
    gangs.answered(GANG, "east", 0.0)
    for moment in (0.0, 1.0, SECONDS - 1):
        gangs.answered(GANG, "west", moment)  # by a thread that looked before the first answer
        assert gangs.of(GANG, moment) == Direction("east")
    assert gangs.of(OTHER, 1.0) == ANY_DOMAIN


def test_a_domain_that_a_member_could_not_follow_to_is_given_up_between_two_cycles() -> None:
    gangs = GangDomains()
    gangs.answered(GANG, "east", 0.0)
    gangs.answered(GANG, None, 0.1)
    gangs.answered(GANG, "east", 0.2)  # the cycle goes on
    assert gangs.of(GANG, 0.1 + QUIET) == Direction("east")
    assert gangs.of(GANG, 0.2 + QUIET) == Direction(None, ("east",))
    gangs.answered(GANG, None, 1.5)  # it fits nowhere
    assert gangs.of(GANG, 1.5) == Direction(None, ("east",))
    gangs.answered(GANG, "west", 2.0)
    assert gangs.of(GANG, 2.0 + QUIET) == Direction("west", ("east",))
    gangs.answered(GANG, None, 2.0)
    assert gangs.of(GANG, 2.0 + QUIET) == Direction(None, ("east", "west"))
    gangs.answered(GANG, "east", 4.0)
    gangs.answered(GANG, None, 4.0)
    assert gangs.of(GANG, 4.0 + QUIET) == Direction(None, ("west", "east"))


def test_an_old_answer_binds_no_member() -> None:
    gangs = GangDomains()
    gangs.answered(GANG, "east", 0.0)
    gangs.answered(GANG, None, 0.0)
    assert gangs.of(GANG, SECONDS) == ANY_DOMAIN
    gangs.answered(GANG, "west", SECONDS)
    assert gangs.of(GANG, SECONDS) == Direction("west")


def test_the_number_of_remembered_gangs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gangdomains, "MOST_GANGS", 2)
    gangs = GangDomains()
    third = GroupReference(Group("default", "i"), 4, "block", gang=True)
    for gang in (GANG, OTHER, GANG, third):
        gangs.answered(gang, "east", 0.0)
    assert len(gangs) == 2
    assert gangs.of(GANG, 0.0) == Direction("east")
    assert gangs.of(OTHER, 0.0) == ANY_DOMAIN
