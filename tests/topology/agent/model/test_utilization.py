"""Use of a GPU that no pod holds, and allocations that are not used: when they are published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.agent.entries import GPU, entry
from topology.agent.model.observations import GpuProcess, InstanceVitals, Vitals
from topology.agent.model.podentries import Entry, Held, allocations
from topology.agent.model.utilization import (
    INSTANCE_MEMORY,
    LONGEST_GAP,
    LOOKS,
    SHORTEST,
    STEP,
    USED_MEMORY,
    IdleTracker,
    UnaccountedUse,
    idle_allocations,
)
from topology.core.devices import MIB, Bytes, DeviceId, GpuUuid, PodUid
from topology.core.report import IdleAllocation, Report

GPU_0 = GpuUuid("GPU-0")
BUSY: dict[str, Any] = {"processes": ((4711, 1),)}
IDLE: dict[str, Any] = {"processes": ()}


@pytest.mark.parametrize(
    ("looks", "reported"),
    [
        pytest.param([(BUSY, False, False)] * (LOOKS - 1), False, id="a moment"),
        pytest.param([(BUSY, False, False)] * LOOKS, True, id="long enough"),
        pytest.param([(BUSY, True, False)] * LOOKS, False, id="by a pod"),
        pytest.param([(BUSY, False, True)] * LOOKS, False, id="while a pod comes or goes"),
        pytest.param(
            [(BUSY, False, False), (BUSY, False, True), *[(BUSY, False, False)] * (LOOKS - 1)],
            True, id="a pod that comes or goes ends no count",
        ),
        pytest.param(
            [*[(BUSY, False, False)] * (LOOKS - 1), (IDLE, False, False), (BUSY, False, False)],
            False, id="not in a row",
        ),
        pytest.param(
            [*[(BUSY, False, False)] * LOOKS, (BUSY, True, False)], False, id="until a pod has it"
        ),
        pytest.param(
            [({"memory_used": Bytes(USED_MEMORY + 1)}, False, False)] * LOOKS, True,
            id="memory tells where processes cannot be seen",
        ),
        pytest.param(
            [({"memory_used": Bytes(USED_MEMORY)}, False, False)] * LOOKS, False,
            id="the driver's own memory is no use",
        ),
    ],
)  # fmt: skip
def test_use_by_no_pod(looks: Sequence[tuple[dict[str, Any], bool, bool]], reported: bool) -> None:
    use = UnaccountedUse()
    for fields, held, news_due in looks:
        use.look([Vitals(GPU_0, **fields)], {GPU_0} if held else set(), news_due=news_due)
    assert (GPU_0 in use.gpus()) is reported


def test_it_is_counted_anew_after_it_was_forgotten() -> None:
    use = UnaccountedUse()
    for _ in range(LOOKS):
        use.look([Vitals(GPU_0, **BUSY)], (), news_due=False)
    use.forget()
    use.look([Vitals(GPU_0, **BUSY)], (), news_due=False)
    assert use.gpus() == frozenset()


LOOK = 5.0
HOUR = 3600.0
ONE = {PodUid("a"): entry("a", "GPU-0")}
PAIR = {PodUid("a"): entry("a", "GPU-0", "GPU-1")}
CONTEXT = (GpuProcess(4711, Bytes(400 * MIB)),)


def gpu(number: int = 0, utilisation: float | None = 0.0, **fields: Any) -> Vitals:
    return Vitals(GpuUuid(f"GPU-{number}"), utilisation=utilisation, **fields)


def mig(processes: int | None = 0, memory: int | None = 20 * MIB) -> Vitals:
    used = None if memory is None else Bytes(memory)
    return Vitals(GpuUuid("GPU-0"), instances=(InstanceVitals("MIG-0", processes, used),))


class Agent:
    """Looks at a driver every five seconds, at two minutes past noon by the node's clock."""

    def __init__(self, noon: float = 120.0) -> None:
        self.now = 1000.0
        self.off = noon - self.now
        self.holders = ONE
        self.tracker = IdleTracker()

    @property
    def text(self) -> str:
        noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        return (noon + timedelta(seconds=self.now + self.off)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def looks(self, seconds: float, *vitals: Vitals) -> list[str]:
        """Look for so long; the times published since, each change once."""
        published = self.published()
        answer = [published]
        for _ in range(int(seconds / LOOK)):
            self.now += LOOK
            self.tracker.look(vitals, self.holders, self.now)
            if self.published() != answer[-1]:
                answer.append(self.published())
        return answer[1:] if len(answer) > 1 else [published]

    def published(self) -> str:
        return ", ".join(i.since[11:16] for i in self.report().idle)

    def report(self) -> Report:
        held = allocations(self.holders)
        idle = idle_allocations(held, self.tracker.since(self.now, self.text))
        return Report("boot", 1, allocations=held, idle=idle, observed_at=self.text)

    def restarted(self, after: float = 0.0, stepped: float = 0.0) -> Agent:
        """The agent restarted so many seconds later; the clock was set meanwhile."""
        report = self.report()
        other = Agent()
        other.now, other.off = self.now + after, self.off + stepped
        other.holders = self.holders
        other.tracker.remember(report, other.now, other.text)
        return other


@pytest.fixture
def agent() -> Agent:
    return Agent()


def test_a_spell_is_published_after_ten_minutes_rounded_down_and_then_stays(agent: Agent) -> None:
    assert agent.looks(SHORTEST, gpu()) == [""]
    assert agent.looks(LOOK, gpu()) == ["12:00"]
    assert agent.looks(5 * HOUR, gpu()) == ["12:00"], "it changes no more"
    assert agent.looks(LOOK, gpu(utilisation=0.01)) == [""]
    assert agent.looks(SHORTEST, gpu()) == [""], "it begins anew"


@pytest.mark.parametrize(
    ("vitals", "idle"),
    [
        pytest.param([gpu()], True, id="no kernel runs"),
        pytest.param(
            [gpu(processes=CONTEXT, memory_used=400 * MIB)], True, id="a context that waits"
        ),
        pytest.param([gpu(utilisation=0.01)], False, id="a kernel runs"),
        pytest.param([gpu(memory_utilisation=0.01)], False, id="memory is copied"),
        pytest.param([gpu(utilisation=None, processes=())], False, id="not told"),
        pytest.param([Vitals(GpuUuid("GPU-0"), lost=True)], False, id="lost"),
        pytest.param([], False, id="not there"),
    ],
)
def test_what_counts_as_unused(agent: Agent, vitals: Sequence[Vitals], idle: bool) -> None:
    assert agent.looks(HOUR, *vitals)[-1] == ("12:00" if idle else "")


@pytest.mark.parametrize(
    ("vital", "idle"),
    [
        pytest.param(mig(), True, id="nobody runs"),
        pytest.param(mig(processes=1), False, id="a process waits, or works"),
        pytest.param(mig(memory=INSTANCE_MEMORY + 1), False, id="a process that is hidden from us"),
        pytest.param(mig(processes=None), False, id="processes are not told"),
        pytest.param(mig(memory=None), False, id="memory is not told"),
    ],
)
@pytest.mark.parametrize("device", ["MIG-0", "MIG-0::1"])
def test_what_counts_as_unused_of_a_mig_instance(
    agent: Agent, vital: Vitals, idle: bool, device: str
) -> None:
    agent.holders = {PodUid("a"): entry("a", device)}
    assert agent.looks(HOUR, vital)[-1] == ("12:00" if idle else "")


def test_an_allocation_is_idle_when_all_of_its_devices_are(agent: Agent) -> None:
    agent.holders = PAIR
    assert agent.looks(HOUR, gpu(0), gpu(1, 1.0)) == [""]
    assert agent.looks(HOUR, gpu(0), gpu(1)) == ["13:00"], "since the later of the two"
    agent.holders = {PodUid("a"): Entry("ns", "a", (held("x", "GPU-0"), held("y", "GPU-1")))}
    agent.looks(LOOK, gpu(0), gpu(1, 1.0))
    assert [(i.container, i.since[11:16]) for i in agent.report().idle] == [("x", "12:00")]


def held(container: str, device: str) -> Held:
    return Held(container, GPU, (DeviceId(device),))


def test_pods_that_share_a_gpu_are_idle_together(agent: Agent) -> None:
    agent.holders = {PodUid("a"): entry("a", "GPU-0::0"), PodUid("b"): entry("b", "GPU-0::1")}
    assert agent.looks(HOUR, gpu()) == ["12:00, 12:00"]
    assert agent.looks(LOOK, gpu(utilisation=0.5)) == [""]


def test_a_pod_answers_for_its_own_time_only(agent: Agent) -> None:
    agent.looks(HOUR, gpu())
    agent.holders = {PodUid("b"): entry("b", "GPU-0")}
    assert agent.looks(SHORTEST, gpu()) == [""]
    assert agent.looks(HOUR, gpu()) == ["13:00"]
    agent.holders = {}
    assert agent.looks(HOUR, gpu()) == [""]
    agent.holders = ONE
    assert agent.looks(SHORTEST, gpu()) == [""], "it had let go"


def test_unidentified_pods_are_not_named() -> None:
    none_named = allocations({}, [entry("a", "GPU-0")])
    assert idle_allocations(none_named, {(PodUid(""), GpuUuid("GPU-0")): "x"}) == ()


def test_only_a_long_silence_of_the_driver_ends_an_idle_time(
    agent: Agent,
) -> None:
    agent.looks(HOUR, gpu())
    assert agent.looks(LONGEST_GAP, gpu(utilisation=None)) == ["12:00"]
    assert agent.looks(LOOK, gpu()) == [""], "a look too late"
    agent.looks(HOUR, gpu())
    agent.now += LONGEST_GAP + LOOK
    assert agent.published() == "", "nobody has looked"
    assert agent.looks(LOOK, gpu()) == [""]


@pytest.mark.parametrize("step", [-5 * HOUR, -90.0, 90.0, 5 * HOUR])
def test_a_step_of_the_clock_makes_no_spell_longer(agent: Agent, step: float) -> None:
    agent.looks(HOUR, gpu())
    agent.off += step
    agent.looks(LOOK, gpu())
    (idle,) = agent.report().idle
    since = datetime.fromisoformat(idle.since)
    lasted = (datetime.fromisoformat(agent.text) - since).total_seconds()
    assert HOUR <= lasted < HOUR + SHORTEST + 2 * LOOK
    assert agent.looks(HOUR, gpu()) == [idle.since[11:16]]


def test_a_clock_that_drifts_a_little_changes_nothing(agent: Agent) -> None:
    agent.off = 0.0 - agent.now  # noon, where every second back is another ten minutes
    agent.looks(HOUR, gpu())
    for drift in (-2.0, 7.0, -9.0):
        agent.off += drift
        assert agent.looks(LOOK, gpu()) == ["12:00"]


def test_an_agent_that_starts_anew_goes_on(agent: Agent) -> None:
    agent.looks(HOUR, gpu())
    other = agent.restarted(after=120.0)
    assert other.published() == "12:00"
    assert other.looks(HOUR, gpu()) == ["12:00"]
    assert other.looks(LOOK, gpu(utilisation=1.0)) == [""]


@pytest.mark.parametrize(
    ("after", "stepped"),
    [
        pytest.param(LONGEST_GAP + LOOK, 0.0, id="nobody looked for too long"),
        pytest.param(LOOK, 3 * HOUR, id="the clock was set forward"),
        pytest.param(LOOK, -3 * HOUR, id="the clock was set back"),
    ],
)
def test_what_was_not_watched_is_not_claimed(agent: Agent, after: float, stepped: float) -> None:
    agent.looks(HOUR, gpu())
    assert agent.restarted(after, stepped).looks(SHORTEST, gpu()) == [""]


@pytest.mark.parametrize(
    "broken",
    [
        {"observed_at": ""},
        {"observed_at": "yesterday"},
        {"observed_at": "2026-01-01T13:02:00"},
        {"idle": (IdleAllocation(PodUid("a"), "main", GPU, "soon"),)},
        {"idle": (IdleAllocation(PodUid("a"), "main", GPU, "2126-01-01T00:00:00Z"),)},
        {"idle": (IdleAllocation(PodUid("b"), "main", GPU, "2026-01-01T12:00:00Z"),)},
    ],
    ids=["no time", "a word", "no zone", "since a word", "since a later time", "another pod"],
)
def test_a_record_that_was_tampered_with_counts_for_nothing(
    agent: Agent, broken: dict[str, Any]
) -> None:
    agent.looks(HOUR, gpu())
    other = Agent()
    other.now, other.off = agent.now, agent.off
    other.tracker.remember(replace(agent.report(), **broken), other.now, other.text)
    assert other.looks(LOOK, gpu()) == [""]
    assert other.looks(SHORTEST, gpu()) == ["13:00"], "and what is seen from now on does"


MOMENTS = st.lists(
    st.tuples(
        st.sampled_from(["rests", "works", "nobody knows", "restarts", "clock is set"]),
        st.floats(1.0, 2 * LONGEST_GAP),
    ),
    max_size=40,
)


@given(MOMENTS)
def test_no_story_makes_an_idle_time_longer_than_it_was(
    moments: list[tuple[str, float]],
) -> None:
    """But for the rounding, and ten minutes for each restart, without an observation."""
    agent = Agent()
    worked, slack, clock = agent.now, 600.0 + STEP, Draw()
    for what, seconds in moments:
        agent.now += seconds
        if what == "restarts":
            agent = agent.restarted(after=0.0)
            slack += 2 * LONGEST_GAP
        elif what == "clock is set":
            agent.off += clock.step(seconds)
        else:
            answer = {"rests": 0.0, "works": 0.5, "nobody knows": None}[what]
            agent.tracker.look([gpu(utilisation=answer)], agent.holders, agent.now)
            worked = agent.now if what == "works" else worked
        for idle in agent.report().idle:
            since = datetime.fromisoformat(idle.since)
            lasted = (datetime.fromisoformat(agent.text) - since).total_seconds()
            assert SHORTEST - 1 <= lasted <= agent.now - worked + slack


class Draw:
    """Steps of the clock, forward and back in turns."""

    sign = -1

    def step(self, seconds: float) -> float:
        self.sign = -self.sign
        return self.sign * seconds * 20
