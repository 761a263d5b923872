"""Which evictions are tried again, and when. Evictions themselves are tried on a real API server
(``tests/e2e/test_unblock_halfway.py``)."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_extender.cli.evictions import (
    AGAIN,
    LONGEST_PAUSE,
    PATIENCE,
    may_have_been_made,
    pause_before_another_try,
    why_needless,
)
from topology.core.devices import NodeName, PodUid
from topology.kubeapi.apiserver import (
    ApiFailure,
    ApiMisconfigured,
    ApiNotSent,
    ApiUnreachable,
    api_error,
)

SINCE, UNTIL = 1000.0, 1600.0
"""When the eviction was tried first, and when the place's time is up."""


def answered(status: int, retry_after: float = 0.0) -> ApiFailure:
    found = api_error(status, "", "")
    found.retry_after = retry_after
    return found


@pytest.mark.parametrize(
    ("error", "now", "pause"),
    [
        pytest.param(answered(429), SINCE, AGAIN, id="a budget forbids it"),
        pytest.param(answered(429, 1), SINCE, AGAIN, id="asked to come at once"),
        pytest.param(answered(429, 10), SINCE, 10.0, id="asked to come later"),
        pytest.param(answered(429, 86400), SINCE, LONGEST_PAUSE, id="asked to come tomorrow"),
        pytest.param(answered(429), UNTIL - AGAIN - 1, AGAIN, id="a budget, the last moment"),
        pytest.param(answered(429), UNTIL - AGAIN, None, id="a budget, too late"),
        pytest.param(answered(429, 10), UNTIL - 10, None, id="asked to come too late"),
        pytest.param(answered(503), SINCE, AGAIN, id="the server is overloaded"),
        pytest.param(answered(500), SINCE + PATIENCE - AGAIN, None, id="and stays so"),
        pytest.param(ApiUnreachable("no answer"), SINCE, AGAIN, id="no answer"),
        pytest.param(ApiNotSent("refused"), SINCE + PATIENCE, None, id="no answer for long"),
        pytest.param(answered(403), SINCE, None, id="not allowed"),
        pytest.param(answered(422), SINCE, None, id="not understood"),
        pytest.param(ApiMisconfigured("token"), SINCE, None, id="no credentials"),
    ],
)
def test_an_eviction_is_tried_again_where_that_may_help(
    error: ApiFailure, now: float, pause: float | None
) -> None:
    assert pause_before_another_try(error, now, SINCE, UNTIL) == pause


@pytest.mark.parametrize(
    ("error", "maybe"),
    [
        pytest.param(answered(403), False, id="not allowed"),
        pytest.param(answered(429), False, id="a budget forbids it"),
        pytest.param(ApiNotSent("refused"), False, id="nobody was asked"),
        pytest.param(ApiUnreachable("timeout"), True, id="no answer"),
        pytest.param(answered(504), True, id="the server gave up on it"),
    ],
)
def test_a_place_is_given_back_only_where_surely_nobody_was_evicted(
    error: ApiFailure, maybe: bool
) -> None:
    assert may_have_been_made(error) is maybe


KEPT = {"node": "train-01", "holds": True}
ANSWER = {"uid": "waits", "node": None, "reserved": KEPT}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param(ANSWER, None, id="the place is there"),
        pytest.param(None, "the pod is gone", id="the pod is gone"),
        pytest.param({**ANSWER, "uid": "another"}, "the pod is gone", id="another pod of its name"),
        pytest.param({**ANSWER, "node": "n"}, "the pod is on n now", id="bound elsewhere"),
        pytest.param({**ANSWER, "reserved": None}, "is kept no more", id="given back"),
        pytest.param(
            {**ANSWER, "reserved": {**KEPT, "node": "n"}}, "is kept no more", id="another plan"
        ),
        pytest.param(
            {**ANSWER, "reserved": {**KEPT, "holds": False}}, "is not there", id="taken meanwhile"
        ),
    ],
)
def test_nobody_else_is_evicted_once_the_place_is_of_no_use(
    found: dict[str, Any] | None, words: str | None
) -> None:
    needless = why_needless(found, PodUid("waits"), NodeName("train-01"))
    assert (needless is None) is (words is None)
    assert words is None or words in str(needless)
    assert needless is None or needless.placed is bool(found and found["node"])
    assert needless is None or not may_have_been_made(needless)
