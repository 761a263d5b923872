"""What one replica makes of the Lease."""

from dataclasses import replace

import pytest

from scheduler_extender.leader.election import HOLDS, OFFERED_AFTER, Election, Lease, Step

OTHERS = Lease("other", 10.0, 3, version="7")


@pytest.fixture
def found() -> Election:
    """A replica that has read nothing yet."""
    return Election("me", 10.0)


@pytest.fixture
def leader(found: Election) -> Election:
    """A replica that has taken a Lease which did not exist."""
    found.saw(Lease(), 0)
    taken(found)
    return found


def taken(found: Election, now: float = 0.0) -> Lease:
    """The Lease as the API server has it after we took it."""
    lease = replace(found.wanted(Step.TAKE), version="8")
    found.wrote(lease, now, now)
    return lease


def test_nothing_is_written_before_the_lease_was_read(found: Election) -> None:
    assert found.step(0) is Step.NOTHING


def test_a_lease_that_does_not_exist_is_taken(found: Election) -> None:
    found.saw(Lease(), 0)
    assert found.step(0) is Step.TAKE
    assert found.wanted(Step.TAKE) == Lease("me", 10.0, 1)


def test_one_that_is_renewed_is_never_taken(found: Election) -> None:
    for now in range(0, 100, 9):
        found.saw(replace(OTHERS, version=str(now)), now)
        assert found.step(now + 9) is Step.NOTHING


def test_one_that_stands_still_is_taken_when_it_has_run_out(found: Election) -> None:
    for now in (0, 5, 9.9):
        found.saw(OTHERS, now)
        assert found.step(now) is Step.NOTHING
    assert found.step(10) is Step.TAKE
    assert found.wanted(Step.TAKE) == Lease("me", 10.0, 4, version="7")


def test_the_holder_s_own_duration_counts_where_it_is_longer(found: Election) -> None:
    found.saw(replace(OTHERS, seconds=30.0), 0)
    assert found.step(29) is Step.NOTHING
    assert found.step(30) is Step.TAKE


def test_a_released_lease_is_taken_at_once(found: Election) -> None:
    found.saw(replace(OTHERS, holder="", drained=3), 0)
    assert found.step(0) is Step.TAKE
    taken(found)
    assert found.after_drained


@pytest.mark.parametrize(
    "before", [OTHERS, replace(OTHERS, holder=""), replace(OTHERS, holder="", drained=2), Lease()]
)
def test_binds_may_be_unfinished_unless_the_lease_says_otherwise(
    found: Election, before: Lease
) -> None:
    found.saw(before, 0)
    assert found.step(10) is Step.TAKE
    taken(found, 10)
    assert not found.after_drained


def test_the_holder_stops_before_another_begins(found: Election) -> None:
    """By its own clock, and with clocks that are 5 % wrong."""
    found.saw(Lease(), 0)
    taken(found, 100)
    assert found.leads(100 + HOLDS * 10 - 0.1)
    assert not found.leads(100 + HOLDS * 10)
    assert HOLDS / 0.95 < 1 / 1.05


def test_an_answer_that_came_late_counts_from_when_it_was_asked_for(found: Election) -> None:
    found.saw(Lease(), 0)
    found.wrote(replace(found.wanted(Step.TAKE), version="8"), 100, 108)
    assert found.leads(108.9)
    assert not found.leads(109)


def test_a_holder_whose_time_is_up_renews_and_leads_on_in_the_same_term(leader: Election) -> None:
    """No other replica took the Lease in between: each write names the version before."""
    assert not leader.leads(50)
    assert leader.step(50) is Step.RENEW
    leader.wrote(replace(leader.wanted(Step.RENEW), version="9"), 50, 50)
    assert leader.leads(51)
    assert leader.term == 1


def test_a_write_whose_answer_was_lost_is_ours_once_the_lease_says_so(found: Election) -> None:
    found.saw(Lease(), 0)
    found.saw(replace(found.wanted(Step.TAKE), version="8"), 1)
    assert found.holds
    assert not found.leads(1)
    assert found.step(1) is Step.RENEW


def test_a_replaced_leader_knows_it_when_it_reads_the_lease(leader: Election) -> None:
    leader.saw(OTHERS, 1)
    assert not leader.leads(1)
    assert leader.step(1) is Step.NOTHING


def test_a_deleted_lease_begins_above_every_known_term(
    found: Election,
) -> None:
    found.saw(Lease(), 0)
    found.heard_of(12)
    assert found.wanted(Step.TAKE).term == 13


def test_a_holder_that_sees_a_later_term_begins_another(leader: Election) -> None:
    leader.heard_of(5)
    assert leader.step(1) is Step.TAKE
    assert leader.wanted(Step.TAKE).term == 6


def test_a_holder_whose_term_another_has_begun_too_begins_a_later_one(leader: Election) -> None:
    """Else it would renew its Lease for ever, and lead never: the Lease was deleted in between."""
    leader.heard_of(1, others=1)
    assert leader.step(1) is Step.TAKE
    assert leader.wanted(Step.TAKE).term == 2


def test_a_resigning_leader_says_whether_binds_are_unfinished(found: Election) -> None:
    found.saw(OTHERS, 0)
    assert found.step(10) is Step.TAKE
    taken(found, 10)
    assert found.released(drained=True) == Lease("", 10.0, 4, 4, "8")
    assert found.released(drained=False) == Lease("", 10.0, 4, -1, "8")


def renewed(found: Election, now: float) -> Lease:
    """The Lease as it is after it was renewed."""
    assert found.step(now) is Step.RENEW
    lease = replace(found.wanted(Step.RENEW), version=str(now))
    found.wrote(lease, now, now)
    return lease


def test_a_leader_that_is_stale_for_long_offers_its_lease_and_leads_on(leader: Election) -> None:
    leader.looked(sees=False)
    assert not any(renewed(leader, now).offered for now in range(2, int(OFFERED_AFTER) + 1, 2))
    assert renewed(leader, OFFERED_AFTER + 2).offered
    assert leader.leads(OFFERED_AFTER + 3)
    leader.looked(sees=True)
    assert not renewed(leader, OFFERED_AFTER + 4).offered
    leader.looked(sees=False)
    assert not renewed(leader, OFFERED_AFTER + 6).offered, "it counts from the beginning"


def test_staleness_does_not_count_while_no_replica_reaches_the_api_server(leader: Election) -> None:
    """Every replica is stale after an outage, and the Lease is not to go round."""
    leader.looked(sees=False)
    assert not renewed(leader, 300).offered
    assert not renewed(leader, 300 + OFFERED_AFTER - 1).offered


def test_an_offered_lease_is_taken_at_once_by_a_replica_that_sees_and_by_no_other(
    found: Election,
) -> None:
    found.saw(replace(OTHERS, offered=True), 0)
    found.looked(sees=False)
    assert found.step(1) is Step.NOTHING
    found.looked(sees=True)
    assert found.step(1) is Step.TAKE
    assert not found.wanted(Step.TAKE).offered


@pytest.mark.parametrize(
    "edited",
    [
        pytest.param(replace(OTHERS, seconds=2.0, version="8"), id="shortened"),
        pytest.param(Lease(), id="deleted"),
        pytest.param(replace(OTHERS, offered=True, seconds=30.0, version="8"), id="offered"),
    ],
)
def test_a_former_holder_may_count_on_the_longest_lease_that_was_seen(
    found: Election, edited: Lease
) -> None:
    found.saw(replace(OTHERS, seconds=30.0), 0)
    found.saw(edited, 0)
    assert found.step(12) is Step.TAKE
    taken(found, 12)
    assert found.others_count_on_it(12) == 18


def test_no_replica_relies_on_an_expired_lease(found: Election) -> None:
    found.saw(OTHERS, 0)
    taken(found, 10)
    assert found.others_count_on_it(10) == 0
