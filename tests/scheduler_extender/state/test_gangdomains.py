"""Members of a gang follow those that were asked about before them."""

from __future__ import annotations

import pytest

from scheduler_extender.membership import Group, Membership
from scheduler_extender.state import gangdomains
from scheduler_extender.state.gangdomains import ANYWHERE, SECONDS, Direction, GangDomains
from topology.core.devices import PodUid

GANG, OTHER = (Membership(Group("default", name), 4, "block", gang=True) for name in "gh")
A, B, C = PodUid("a"), PodUid("b"), PodUid("c")


def test_who_is_asked_next_follows_and_who_is_asked_again_chooses() -> None:
    gangs = GangDomains()
    assert gangs.of(GANG, A, 0.0) == ANYWHERE
    gangs.answered(GANG, A, "east", 0.0)
    assert gangs.of(GANG, B, 1.0) == Direction("east")
    assert gangs.of(GANG, A, 1.0) == ANYWHERE
    assert gangs.of(OTHER, C, 1.0) == ANYWHERE


def test_a_domain_to_which_somebody_could_not_follow_is_chosen_last() -> None:
    gangs = GangDomains()
    gangs.answered(GANG, A, "east", 0.0)
    gangs.answered(GANG, B, None, 0.0)
    assert gangs.of(GANG, C, 0.0) == Direction("east", ("east",))
    gangs.answered(GANG, B, "west", 1.0)
    gangs.answered(GANG, A, None, 1.0)
    assert gangs.of(GANG, B, 2.0) == Direction(None, ("east", "west"))
    gangs.answered(GANG, B, "east", 2.0)
    gangs.answered(GANG, C, None, 2.0)
    assert gangs.of(GANG, B, 3.0) == Direction(None, ("west", "east"))


def test_what_was_said_long_ago_binds_nobody() -> None:
    gangs = GangDomains()
    gangs.answered(GANG, A, "east", 0.0)
    gangs.answered(GANG, B, None, SECONDS - 1)
    assert gangs.of(GANG, C, SECONDS - 0.5) == Direction("east", ("east",))
    assert gangs.of(GANG, C, SECONDS) == ANYWHERE
    gangs.answered(GANG, C, "west", SECONDS)
    assert gangs.of(GANG, A, SECONDS) == Direction("west")


def test_members_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gangdomains, "MOST_MEMBERS", 4)
    gangs = GangDomains()
    for i in range(3):
        gangs.answered(GANG, PodUid(f"g{i}"), "east", 0.0)
    gangs.answered(OTHER, A, "west", 0.0)
    assert len(gangs) == 4
    gangs.answered(OTHER, B, "west", 0.0)
    assert len(gangs) == 2
    assert gangs.of(GANG, C, 0.0) == ANYWHERE
    assert gangs.of(OTHER, C, 0.0) == Direction("west")
    gangs.answered(OTHER, A, "west", 0.0)
    assert len(gangs) == 1
