"""Sick GPUs and dropped links are remembered until a reset."""

import pytest

from topology.agent.model.health import HARMLESS_XIDS, REMAP_XIDS, HealthTracker
from topology.agent.model.observations import FabricState, Vitals, Xid
from topology.core.devices import GpuUuid
from topology.core.report import Health

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
NOON, LATER = "2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z"


def vital(uuid: GpuUuid = A, links: frozenset[int] = frozenset({0, 1}), **fields: object) -> Vitals:
    return Vitals(uuid, active_links=links, **fields)  # type: ignore[arg-type]


def tracker(*vitals: Vitals) -> HealthTracker:
    found = HealthTracker()
    found.look(vitals, NOON)
    return found


def test_all_is_well() -> None:
    assert tracker(vital(), vital(B)).report() == ()


@pytest.mark.parametrize("number", sorted(HARMLESS_XIDS))
def test_an_applications_fault_is_not_the_gpus(number: int) -> None:
    health = tracker(vital())
    assert not health.xid(Xid(A, number), NOON)
    assert health.report() == ()


def test_an_xid_without_a_gpu_counts_for_the_lost_gpu() -> None:
    health = tracker(vital(), vital(B))
    health.xid(Xid(None, 79), NOON)
    health.look([vital(), Vitals(B, lost=True)], NOON)
    assert [(h.uuid, h.reason) for h in health.report()] == [(B, "Lost, Xid79")]


def test_an_xid_without_a_gpu_counts_for_every_gpu_if_none_is_lost() -> None:
    health = tracker(vital(), vital(B))
    health.xid(Xid(None, 79), NOON)
    health.look([vital(), vital(B)], NOON)
    assert [h.uuid for h in health.report()] == [A, B]


def test_a_lost_gpu_without_a_counter_is_well_when_it_is_back() -> None:
    health = tracker(vital())
    health.look([Vitals(A, lost=True)], NOON)
    health.look([vital()], LATER)
    assert health.report() == ()


def test_a_gpu_that_is_not_even_counted_is_lost() -> None:
    health = tracker(vital())
    health.gone([A], 0, NOON)
    assert health.report() == (Health(A, False, "Lost", NOON),)


def test_gpus_that_may_all_be_those_that_hang_are_well_when_they_answer() -> None:
    health = tracker(vital())
    health.gone([A], 1, NOON)
    assert health.report() == (Health(A, False, "Hangs", NOON, energy=vital().energy),)
    health.look([vital()], LATER)
    assert health.report() == ()
    health.gone([A, B], 1, LATER)
    assert [found.reason for found in health.report()] == ["Lost", "Lost"]


def test_the_recovery_action_going_back_to_none_is_a_reset() -> None:
    health = tracker(vital(recovery="none"))
    health.xid(Xid(A, 95), NOON)
    health.look([vital(recovery="reset")], NOON)
    health.look([vital(recovery="none")], LATER)
    assert health.report() == ()


def test_a_row_that_could_not_be_remapped_is_sick_one_that_waits_is_not() -> None:
    health = tracker(vital(remap_pending=True), vital(B, remap_failed=True))
    assert [(h.uuid, h.healthy, h.reason) for h in health.report()] == [
        (A, True, "RowRemapPending"), (B, False, "RowRemapFailed"),
    ]  # fmt: skip


def test_a_dropped_link_stays_down_though_it_comes_back() -> None:
    health = tracker(vital(energy=10))
    health.look([vital(links=frozenset({0}), energy=20)], NOON)
    health.look([vital(energy=30)], LATER)
    assert health.link_faults().down == {A: {1}}
    assert health.expected() == {A: 2}
    assert health.report() == (Health(A, True, "NVLinkDown", NOON, (1,), 20),)


def test_a_reset_raises_a_dropped_link() -> None:
    health = tracker(vital(energy=10))
    health.look([vital(links=frozenset({0}), energy=20)], NOON)
    health.look([vital(energy=1)], LATER)
    assert (health.link_faults().down, health.report()) == ({}, ())


def test_a_link_that_was_never_up_is_not_down() -> None:
    health = tracker(vital(links=frozenset({0})))
    assert (health.link_faults().down, health.expected()) == ({}, {A: 1})


def test_a_new_tracker_remembers_what_the_former_reported() -> None:
    expected = (Health(A, False, "Xid79, RowRemapPending, NVLinkDown", NOON, (1,), 100),)
    health = HealthTracker(expected)
    assert health.report() == expected
    health.look([vital(energy=500)], LATER)
    assert health.report() == expected


def test_a_reset_while_the_agent_was_away_is_noticed() -> None:
    health = HealthTracker((Health(A, False, "Xid79", NOON, (), 100),))
    health.look([vital(energy=7)], LATER)
    assert health.report() == ()


def test_since_is_since_when_it_is_as_healthy_as_it_is() -> None:
    health = tracker(vital(remap_pending=True))
    health.xid(Xid(A, 79), LATER)
    assert health.report()[0].since == LATER
    health.xid(Xid(A, 95), NOON)
    assert health.report()[0].since == LATER


def test_an_xid_before_the_first_observation_has_its_counter_from_there() -> None:
    health = HealthTracker()
    health.xid(Xid(A, 79), NOON)
    health.look([vital(energy=50)], NOON)
    assert health.report()[0].energy == 50


def test_an_observation_without_the_recovery_action_forgets_nothing() -> None:
    health = tracker(vital(recovery="reset"))
    health.xid(Xid(A, 79), NOON)
    health.look([vital()], LATER)
    health.look([vital(recovery="none")], LATER)
    assert health.report() == ()


@pytest.mark.parametrize("number", sorted(REMAP_XIDS))
def test_a_row_remap_that_waits_is_one_problem_from_any_source(number: int) -> None:
    """The plugin gives the GPU out no more, so its list of devices is read again."""
    health = tracker(vital(energy=1))
    assert health.xid(Xid(A, number), NOON)
    health.look([vital(remap_pending=True, energy=2)], NOON)
    (answer,) = health.report()
    assert (answer.healthy, answer.reason) == (True, f"Xid{number}, RowRemapPending")
    health.xid(Xid(A, 95), NOON)
    assert not health.report()[0].healthy


REGISTERED, WAITING = FabricState(registered=True), FabricState(registered=False)


@pytest.mark.parametrize(
    ("state", "reason", "off", "slow"),
    [
        (WAITING, "FabricNotReady", True, False),
        (FabricState(True, misconfigured=True), "FabricMisconfigured", True, False),
        (FabricState(True, route_unhealthy=True), "FabricRouteUnhealthy", True, False),
        (FabricState(True, degraded=True), "FabricDegraded", False, True),
        (FabricState(True, recovering=True), "FabricRecovering", False, False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fabric_is_as_it_was_reported_last(
    state: FabricState, reason: str, off: bool, slow: bool
) -> None:
    health = tracker(vital(fabric=state), vital(B, fabric=REGISTERED))
    assert health.report() == (Health(A, True, reason, NOON),)
    assert health.report()[0].off_fabric is off
    assert health.fabric() == {A: not off, B: True}
    faults = health.link_faults()
    assert (A in faults.off_fabric, A in faults.degraded) == (off, slow)
    taken_over = HealthTracker(health.report())
    assert taken_over.report() == (), "the first look tells it"
    health.look([vital(fabric=REGISTERED)], LATER)
    assert health.report() == ()
    assert not health.link_faults().off_fabric


def test_the_fabric_state_of_a_lost_gpu_is_old() -> None:
    health = tracker(vital(fabric=WAITING))
    health.look([Vitals(A, lost=True)], LATER)
    assert [h.reason for h in health.report()] == ["Lost"]
    assert health.fabric() == {}


def test_a_link_that_has_not_been_up_since_the_boot_is_reported_until_it_is() -> None:
    health = HealthTracker()
    health.look([vital(links=frozenset({0}))], NOON, {A: 2})
    assert health.report() == (Health(A, True, "NVLinkNeverUp", NOON),)
    assert (health.expected(), health.link_faults().down) == ({A: 2}, {})
    health.look([vital()], LATER, {A: 2})
    assert health.report() == ()
    health.look([vital(links=frozenset({1}))], LATER, {A: 2})
    assert [h.reason for h in health.report()] == ["NVLinkDown"]


def test_a_gpu_that_is_split_by_mig_after_a_reset_lacks_no_link() -> None:
    health = HealthTracker()
    health.look([vital(links=frozenset({0, 1}), energy=200)], NOON, {A: 2})
    health.look([vital(links=frozenset(), energy=100)], LATER, {A: 0})
    assert (health.report(), health.expected()) == ((), {A: 0})


def test_more_errors_in_the_sram_than_nvidia_allows() -> None:
    health = tracker(vital(sram_exceeded=True))
    assert health.report() == (Health(A, True, "SramThresholdExceeded", NOON),)
