"""A time without a zone means the same on every machine."""

import json
import time
from collections.abc import Iterator, Mapping

import msgspec
import pytest

from scheduler_extender.annotations import PLACEMENT, RESERVED
from scheduler_extender.state.pods.reservation import reservation_of
from scheduler_extender.wire import Pod
from tests.nodes import pod, record_of
from topology.times import seconds_of

NOON = 1_767_268_800.0  # 2026-01-01T12:00:00Z


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York"], autouse=True)
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The time zone of the machine."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "text", ["2026-01-01T12:00:00", "2026-01-01T12:00:00Z", "2026-01-01T21:00:00+09:00"]
)
def test_a_time_without_a_zone_is_utc(text: str) -> None:
    assert seconds_of(text) == NOON


@pytest.mark.parametrize(
    "text", ["", "soon", "9999-12-31T23:00:00-12:00", "0001-01-01T00:00+12:00"]
)
def test_what_is_no_time_is_none(text: str) -> None:
    assert seconds_of(text) is None


def test_a_placement_and_a_reservation_without_a_zone_are_utc() -> None:
    bound = _pod(
        PLACEMENT,
        {"verdict": "guaranteed", "uid": "u", "node": "n", "time": "2026-01-01T12:00:00"},
        node="n",
    )
    assert record_of(bound).placed == NOON
    kept = {"uid": "u", "node": "n", "until": "2026-01-01T12:00:00", "victims": []}
    found = reservation_of(_pod(RESERVED, kept, node=None))
    assert found is not None
    assert found.until == NOON


def _pod(key: str, value: Mapping[str, object], node: str | None) -> Pod:
    made = pod(2, name="a", uid="u", node=node)
    made["metadata"]["annotations"] = {key: json.dumps(value)}
    return msgspec.convert(made, Pod)
