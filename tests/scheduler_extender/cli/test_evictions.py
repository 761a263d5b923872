"""Which evictions are tried again, and when. Evictions themselves are tried on a real API server
(``tests/e2e/test_unblock_halfway.py``)."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from scheduler_extender.annotations import MANAGED
from scheduler_extender.cli import evictions
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.evictions import (
    AGAIN,
    LONGEST_PAUSE,
    PATIENCE,
    Waiting,
    may_have_been_made,
    pause_before_another_try,
    why_needless,
)
from scheduler_extender.cli.kubeconfig import Access, api_server
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.pods.record import pod_record
from scheduler_extender.told.unblocking import KeptPlace, Unblocking, unblocking_of
from scheduler_extender.wire import Pod
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod
from tests.scheduler_extender.unblocking.scenes import Held, cluster_of
from topology.core.devices import NodeName, PodUid
from topology.kubeapi.apiserver import (
    ApiFailure,
    ApiMisconfigured,
    ApiNotSent,
    ApiUnreachable,
    api_error,
)
from topology.machines import machine

PODS = "/api/v1/namespaces/default/pods"
SINCE, UNTIL = 1000.0, 1600.0  # when the eviction was tried first, and when the place's time is up


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


KEPT = KeptPlace("train-01", "2026-11-22T12:05:00Z", [], [], holds=True, lost=False, settled=True)
ANSWER = Unblocking("team/waits", "waits", None, kept_place=KEPT)


def but(**fields: Any) -> Unblocking:
    """The answer with other fields."""
    return structs.replace(ANSWER, **fields)


def with_place(**fields: Any) -> Unblocking:
    """The answer with another place."""
    return but(kept_place=structs.replace(KEPT, **fields))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param(ANSWER, None, id="the place is there"),
        pytest.param(None, "the pod is gone", id="the pod is gone"),
        pytest.param(but(uid="another"), "the pod is gone", id="another pod of its name"),
        pytest.param(but(node="n"), "the pod is on n now", id="bound elsewhere"),
        pytest.param(but(kept_place=None), "is kept no more", id="given back"),
        pytest.param(with_place(node="n"), "is kept no more", id="another plan"),
        pytest.param(
            with_place(holds=False, lost=True),
            "is not there",
            id="taken meanwhile",
        ),
        pytest.param(with_place(holds=False), "it is uncertain", id="no report now"),
    ],
)
def test_nobody_else_is_evicted_once_the_place_is_of_no_use(
    found: Unblocking | None, words: str | None
) -> None:
    needless = why_needless(found, PodUid("waits"), NodeName("train-01"))
    assert (needless is None) is (words is None)
    assert words is None or words in str(needless)
    assert needless is None or needless.placed is bool(found and found.node)
    assert needless is None or needless.passing is ("it is uncertain" in str(needless))
    assert needless is None or not may_have_been_made(needless)


NODE = machine("a100-pcie-4-bridged").topology("pairs")


class Extender:
    """The admin port of an extender that has seen all that the API server has."""

    def __init__(self, fake: FakeApiServer) -> None:
        self.fake = fake
        self.cluster = self.started()

    def started(self) -> Cluster:
        """An extender that has just started, and lists the pods in any order."""
        cluster = cluster_of({NODE: {"a": Held((0,)), "b": Held((2,), 5)}})
        cluster.board.today = time.time
        pods = self.fake.items(PODS)
        for each in random.sample(pods, len(pods)):
            self.see(cluster, each)
        return cluster

    def see(self, cluster: Cluster, found: Any) -> None:
        record = pod_record(msgspec.convert(found, Pod), MANAGED)
        assert record is not None
        cluster.feed.put_pod(record)

    def get(self, place: str, kind: type[Unblocking]) -> Unblocking | None:
        """What it answers about a pod."""
        for each in self.fake.items(PODS):
            self.see(self.cluster, each)
        return unblocking_of(self.cluster, "default", place)


class Clock:
    """One person's computer."""

    def __init__(self, wrong_by: float) -> None:
        self.time = lambda: time.time() + wrong_by
        self.monotonic = time.monotonic
        self.strftime, self.gmtime = time.strftime, time.gmtime


@pytest.mark.parametrize("wrong_by", [-300.0, 0.0, 300.0], ids=["slow", "right", "fast"])
@pytest.mark.parametrize("first", ["x", "y"])
def test_of_two_who_evict_at_once_the_one_whom_the_api_server_took_first_does(
    first: str, wrong_by: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever the clock of the second one says, and whoever is asked: an extender that has seen
    it all, or one that has just started."""
    second = {"x": "y", "y": "x"}[first]
    with FakeApiServer() as fake:
        for name in (first, second):
            wanted = pod(2, {"link": "nvlink"}, name=name, uid=name)
            wanted["spec"]["priority"] = 3
            fake.put(PODS, wanted)
        extender = Extender(fake)
        plans = [
            found.plan for name in (first, second) if (found := extender.get(name, Unblocking))
        ]
        assert plans[0] is not None
        assert plans[1] is not None
        api = api_server(Access(kubeconfig=fake.write_kubeconfig(tmp_path / "kubeconfig")))[0]
        monkeypatch.setattr(evictions, "PATIENCE", 0.05)
        monkeypatch.setattr(evictions, "AGAIN", 0.01)

        def carrying(name: str) -> Any:
            waits = Waiting("default", name, PodUid(name), name)
            return evictions._Carrying(extender, waits, api)  # type: ignore[arg-type]

        def kept() -> set[str]:
            known = (extender.cluster, extender.started())
            return {str(found.kept_for.uid) for c in known if (found := c.facts("pairs")).kept_for}  # type: ignore[arg-type]

        evicted: list[str] = []
        monkeypatch.setattr(evictions, "_post_eviction", lambda _, step: evicted.append(step.pod))
        carrying(first).begin(plans[0], 600)
        assert kept() == {first}
        assert evicted == ["a"]
        monkeypatch.setattr(evictions, "time", Clock(wrong_by))
        seen: list[set[str]] = []
        monkeypatch.setattr(evictions, "pause", lambda _: seen.append(kept()))
        with pytest.raises(BadInputError, match="does not keep the place"):
            carrying(second).begin(plans[1], 600)
        assert seen
        assert all(found == {first} for found in seen)
        assert kept() == {first}
        assert evicted == ["a"]
