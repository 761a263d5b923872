"""Every rule of the reflector, against a server that can be made to misbehave."""

import dataclasses
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
import structlog

from tests.topology.kubeapi.reflecting import (
    NEVER_HEALTHY,
    NODES,
    PATIENT,
    QUICK,
    Halving,
    Page,
    Picture,
    Rig,
    Waits,
    away,
    error_line,
    following,
    stalling,
    waiting_long,
)
from tests.waiting import FOREVER, PATIENCE, eventually
from topology.kubeapi.apiserver import ApiServer, ApiUnreachable, Query
from topology.kubeapi.reflector import WHERE_ABSENT, Reflector, Watched


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig()
    with made.server:
        made.api = ApiServer.from_kubeconfig(made.server.write_kubeconfig(tmp_path / "config"))
        try:
            yield made
        finally:
            made.stop()


class TestList:
    def test_pages_make_one_replace(self, rig: Rig) -> None:
        for number in range(7):
            rig.put(f"n{number}")
        rig.synced(watched=Watched(NODES, page_limit=3))
        assert rig.sink.calls == ["replace"]
        assert rig.in_step()
        assert [request.query.get("limit") for request in rig.lists] == ["3"] * 3
        assert ["continue" in request.query for request in rig.lists] == [False, True, True]
        assert all("resourceVersion" not in request.query for request in rig.lists)
        assert rig.state.lists == 1

    def test_an_empty_collection_is_synced(self, rig: Rig) -> None:
        rig.synced()
        assert rig.sink.calls == ["replace"]

    def test_the_query_goes_with_every_request(self, rig: Rig) -> None:
        rig.put("n")
        rig.put("m")
        rig.synced(watched=Watched(NODES, page_limit=1, query=[("pretty", "false")]))
        assert len(rig.server.requests) == 3
        assert all(request.query["pretty"] == "false" for request in rig.server.requests)

    def test_an_expired_token_starts_the_list_again_whole(self, rig: Rig) -> None:
        for number in range(4):
            rig.put(f"n{number}")
        rig.server.delay(NODES, FOREVER, after=1)
        rig.start(watched=Watched(NODES, page_limit=2))
        eventually(lambda: len(rig.lists) == 2)  # the second page is on its way
        rig.server.expire_history()
        rig.server.remove(f"{NODES}/n0")  # it was on the first page
        rig.server.allow()
        eventually(lambda: rig.reflector.state.synced)
        assert rig.sink.calls == ["replace"]
        assert rig.in_step()
        assert "continue" in rig.lists[1].query
        assert rig.lists[2].query == {}, "neither limit nor token"
        assert rig.state.failures == 0

    def test_not_synced_before_the_last_page(self, rig: Rig) -> None:
        rig.put("a")
        rig.put("b")
        rig.server.delay(NODES, FOREVER, after=1)
        rig.start(watched=Watched(NODES, page_limit=1))
        eventually(lambda: len(rig.lists) == 2)
        assert not rig.reflector.state.synced
        assert rig.state.last_contact is not None
        assert rig.sink.calls == []
        rig.server.allow()
        eventually(lambda: rig.reflector.state.synced)

    def test_a_page_is_let_go_before_the_next_comes(self, rig: Rig) -> None:
        for name in "abcdefg":
            rig.put(name)
        get, pages, most = rig.api.get, list[weakref.ref[Page]](), 0

        def counted(path: str, query: Query = (), *, timeout: float) -> bytes:
            nonlocal most
            page = Page(get(path, query, timeout=timeout))
            pages.append(weakref.ref(page))
            most = max(most, sum(known() is not None for known in pages))
            return page  # type: ignore[return-value]

        rig.api.get = counted  # type: ignore[method-assign]
        rig.synced(watched=Watched(NODES, page_limit=1))
        assert len(pages) == 7
        assert most == 1
        assert rig.in_step()

    def test_half_a_list_leaves_the_picture_old(self, rig: Rig) -> None:
        """The server answers, and yet we know less and less of what it knows."""
        rig.put("a")
        rig.put("b")
        rig.synced(watched=Watched(NODES, page_limit=1))
        whole = rig.state.whole_at
        get = rig.api.get

        def half(path: str, query: Query = (), *, timeout: float) -> bytes:
            if any(key == "continue" for key, _ in query):
                raise ApiUnreachable("the second page takes too long")
            return get(path, query, timeout=timeout)

        rig.api.get = half  # type: ignore[method-assign]
        lists = rig.state.lists
        rig.server.expire_history()
        rig.server.drop_streams()
        eventually(lambda: rig.state.lists >= lists + 3)
        assert rig.state.whole_at == whole
        since = rig.state.failing_since
        assert since is not None
        rig.api.get = get  # type: ignore[method-assign]
        eventually(lambda: rig.state.streaming)
        assert rig.state.whole_at is not None
        assert rig.state.whole_at > since

    def test_a_list_that_the_sink_refuses_leaves_the_picture_old(self, rig: Rig) -> None:
        rig.synced()
        whole = rig.state.whole_at
        rig.sink.fail_on = {"replace"}
        rig.server.expire_history()
        rig.server.drop_streams()
        eventually(lambda: rig.state.sink_failures >= 2)
        assert rig.state.whole_at == whole
        assert rig.state.failing_since is not None

    @pytest.mark.parametrize("status", [401, 403, 404, 500, 503])
    def test_rejected_requests_are_retried_and_logged(self, rig: Rig, status: int) -> None:
        rig.server.refuse(status, times=None)
        rig.start()
        eventually(lambda: rig.state.failures >= 3)
        assert not rig.reflector.state.synced
        assert rig.state.failure_status == status
        assert rig.state.last_failure.startswith(f"{status} ")
        assert rig.state.last_contact is None
        rig.put("n")
        rig.server.allow()
        eventually(lambda: rig.reflector.state.synced)
        assert rig.in_step()
        assert rig.state.failures == 0

    def test_a_sink_that_refuses_the_list_is_given_another(self, rig: Rig) -> None:
        rig.sink.fail_on = {"replace"}
        rig.put("n")
        with structlog.testing.capture_logs() as logs:
            rig.start()
            eventually(lambda: rig.state.sink_failures >= 2)
            assert not rig.reflector.state.synced
            rig.sink.fail_on = set()
            eventually(lambda: rig.reflector.state.synced)
        assert rig.in_step()
        assert [entry["change"] for entry in logs if entry["event"] == "sink failed"] == [
            "LIST"
        ] * rig.state.sink_failures


class TestWatch:
    def test_what_it_asks_for(self, rig: Rig) -> None:
        rig.put("n")
        rig.synced(dataclasses.replace(PATIENT, watch_timeout_s=100.0, healthy_s=0.0))
        (request,) = rig.watches
        seconds = int(request.query.pop("timeoutSeconds"))
        assert 100 <= seconds <= 200
        assert request.query == {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(rig.server.resource_version),
        }

    def test_watches_do_not_all_end_together(self, rig: Rig) -> None:
        rig.server.refuse(503, times=2, watch=True)
        rig.start(dataclasses.replace(QUICK, watch_timeout_s=1000.0), rng=Halving())
        eventually(lambda: len(rig.watches) == 3)
        asked = [int(request.query["timeoutSeconds"]) for request in rig.watches]
        assert asked == [1500] * 3, "1 to 2 times what was asked for, at random"

    def test_changes_arrive_in_order(self, rig: Rig) -> None:
        rig.synced()
        rig.put("a")
        rig.put("a", spec={"x": 1})
        rig.put("b")
        rig.server.remove(f"{NODES}/a")
        eventually(lambda: rig.state.events == 4)
        assert rig.sink.calls[1:] == ["apply a", "apply a", "apply b", "delete a"]
        assert rig.in_step()
        assert rig.state.resource_version == str(rig.server.resource_version)

    def test_a_bookmark_moves_the_version_and_nothing_else(self, rig: Rig) -> None:
        rig.synced()
        rig.server.put("/api/v1/pods", {"metadata": {"name": "p", "namespace": "x"}})
        version = str(rig.server.resource_version)
        assert rig.state.resource_version != version
        rig.server.bookmark()
        eventually(lambda: rig.state.resource_version == version)
        assert rig.sink.calls == ["replace"]
        assert rig.state.events == 0
        rig.server.drop_streams()
        eventually(lambda: len(rig.watches) == 2)
        assert rig.watches[1].query["resourceVersion"] == version

    def test_an_orderly_end_is_followed_by_a_watch_without_a_wait(self, rig: Rig) -> None:
        waits = Waits()
        rig.synced(rng=waits)
        rig.put("a")
        eventually(lambda: rig.state.events == 1)
        rig.server.end_streams()
        eventually(lambda: len(rig.watches) == 2)
        assert waits.ceilings == []
        assert rig.watches[1].query["resourceVersion"] == str(rig.server.resource_version)
        assert rig.state.failures == 0
        assert len(rig.lists) == 1

    def test_a_watch_that_ends_at_once_is_a_failure(self, rig: Rig) -> None:
        waits = Waits()
        rig.start(NEVER_HEALTHY, rng=waits)
        for number in range(1, 4):
            eventually(lambda n=number: rig.watching(n))  # type: ignore[misc]
            rig.server.end_streams()
            eventually(lambda n=number: len(waits.ceilings) == n)  # type: ignore[misc]
        assert waits.ceilings == [0.2, 0.4, 0.8]
        assert len(rig.lists) == 1, "the version is still good"

    def test_a_broken_stream_is_resumed_not_listed_again(self, rig: Rig) -> None:
        rig.synced()
        rig.put("a")
        eventually(lambda: rig.state.events == 1)
        rig.server.stall()
        rig.put("b")
        rig.server.drop_streams()
        rig.server.resume()
        eventually(rig.in_step)
        assert rig.sink.calls == ["replace", "apply a", "apply b"]
        assert len(rig.lists) == 1
        assert "watch broken" in rig.state.last_failure

    def test_a_silent_stream_is_dropped_and_resumed(self, rig: Rig) -> None:
        rig.synced(stalling(0.3))
        rig.server.stall()
        rig.put("a")
        version = rig.state.resource_version
        eventually(lambda: rig.state.failures >= 2)
        assert rig.sink.calls == ["replace"]
        assert {request.query["resourceVersion"] for request in rig.watches} == {version}
        rig.server.bookmark_every_s = 0.02
        rig.server.resume()
        eventually(rig.in_step)
        assert len(rig.lists) == 1
        eventually(lambda: rig.state.failures == 0)

    def test_bookmarks_keep_a_quiet_stream(self, rig: Rig) -> None:
        """One watch outlives the time after which a silent one is dropped, by far."""
        rig.server.bookmark_every_s = 0.02
        rig.synced(stalling(0.3))
        seen, since = 0, time.monotonic()

        def outlives() -> bool:
            nonlocal seen, since
            if rig.state.watches != seen:
                seen, since = rig.state.watches, time.monotonic()
            return time.monotonic() - since > 1.0

        eventually(outlives)
        assert rig.state.events == 0

    @pytest.mark.parametrize("as_event", [False, True], ids=["http-410", "error-event"])
    def test_objects_deleted_while_away_are_noticed(self, rig: Rig, as_event: bool) -> None:
        rig.server.gone_as_event = as_event
        rig.put("a")
        rig.put("b")
        rig.synced()
        away(rig)
        rig.server.remove(f"{NODES}/a")
        rig.put("c")
        rig.server.expire_history()
        rig.server.allow()
        eventually(rig.in_step)
        assert rig.sink.calls == ["replace", "replace"]
        assert rig.reflector.state.synced

    def test_a_sink_that_asks_for_a_list_gets_one(self, rig: Rig) -> None:
        asks = iter([False, True])
        rig.synced(watched=Watched(NODES, again=lambda: next(asks, False)))
        rig.put("a")
        eventually(lambda: rig.state.events == 1)
        assert len(rig.lists) == 1
        rig.put("b")
        eventually(lambda: rig.watching(2))
        assert rig.sink.calls == ["replace", "apply a", "apply b", "replace"]
        assert rig.in_step()
        assert rig.state.failures == 0

    def test_the_first_410_does_not_wait(self, rig: Rig) -> None:
        rig.synced(waiting_long(healthy_s=0.0), rng=Halving())
        rig.server.inject(error_line(410))
        eventually(lambda: rig.state.lists == 2)
        eventually(lambda: rig.watching(2))

    def test_repeated_410_backs_off(self, rig: Rig) -> None:
        waits = Waits()
        rig.server.refuse(410, times=4, watch=True)
        rig.start(NEVER_HEALTHY, rng=waits)
        eventually(lambda: rig.server.open_streams == 1)
        assert rig.state.lists == 5
        assert waits.ceilings == [0.2, 0.4, 0.8, 1.6], "of which the first is not waited for"

    @pytest.mark.parametrize("code", [429, 500, 504])
    def test_another_error_event_keeps_the_version(self, rig: Rig, code: int) -> None:
        rig.synced()
        rig.put("a")
        eventually(lambda: rig.state.events == 1)
        rig.server.inject(error_line(code))
        eventually(lambda: len(rig.watches) == 2)
        assert rig.state.failure_status == code
        assert rig.watches[1].query["resourceVersion"] == str(rig.server.resource_version)
        assert len(rig.lists) == 1

    @pytest.mark.parametrize("status", [401, 403, 503])
    def test_a_refused_watch_keeps_the_version(self, rig: Rig, status: int) -> None:
        rig.server.refuse(status, times=3, watch=True)
        rig.start()
        eventually(lambda: rig.server.open_streams == 1)
        assert len(rig.watches) == 4
        assert len(rig.lists) == 1
        assert rig.state.failure_status == status

    def test_a_resource_that_went_is_listed_when_it_is_back(self, rig: Rig) -> None:
        rig.put("a")
        rig.synced()
        away(rig, status=404)
        eventually(lambda: rig.state.failure_status == 404)
        rig.server.remove(f"{NODES}/a")
        rig.server.allow()
        eventually(rig.in_step)
        assert rig.sink.calls == ["replace", "replace"]

    @pytest.mark.parametrize(
        "line",
        [
            pytest.param(b"not json", id="not-json"),
            pytest.param(b"[]", id="not-an-event"),
            pytest.param(b'{"type":"MODIFIED","object":{"metadata":{}}}', id="no-version"),
            pytest.param(
                b'{"type":"NEWS","object":{"metadata":{"resourceVersion":"9"}}}', id="unknown-type"
            ),
        ],
    )
    def test_nonsense_leads_to_a_list(self, rig: Rig, line: bytes) -> None:
        rig.synced()
        rig.server.inject(line)
        eventually(lambda: len(rig.lists) == 2 and rig.server.open_streams == 1)
        rig.put("a")
        eventually(rig.in_step)

    def test_a_sink_that_fails_on_one_object_gets_the_next(self, rig: Rig) -> None:
        rig.sink.fail_on = {"bad"}
        with structlog.testing.capture_logs() as logs:
            rig.synced()
            rig.put("bad")
            rig.put("good")
            eventually(lambda: rig.state.events == 2)
        assert rig.sink.calls == ["replace", "apply good"]
        assert rig.state.sink_failures == 1
        assert rig.state.failures == 0
        assert rig.state.watches == 1
        (entry,) = [entry for entry in logs if entry["event"] == "sink failed"]
        assert (entry["change"], entry["reflector"]) == ("ADDED", "nodes")


class TestBackoff:
    def test_grows_to_the_cap(self, rig: Rig) -> None:
        waits = Waits()
        rig.server.refuse(503, times=10)
        rig.start(PATIENT, rng=waits)
        eventually(lambda: rig.reflector.state.synced)
        assert waits.ceilings == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])

    @pytest.mark.parametrize(("asked", "waits"), [(7, 7), (31, 30), (10**9, 30)])
    def test_waits_as_long_as_the_server_asks_up_to_half_a_minute(
        self, rig: Rig, asked: int, waits: int
    ) -> None:
        rig.server.refuse(429, times=None, retry_after=asked)
        with structlog.testing.capture_logs() as logs:
            rig.start(PATIENT, rng=Waits())
            eventually(lambda: rig.state.failures == 1)
            rig.server.allow()
            rig.stop()
        assert [entry["wait_s"] for entry in logs if "wait_s" in entry] == [waits]

    @pytest.mark.parametrize("status", [403, 404])
    def test_for_what_is_optional_and_is_not_there_or_forbidden_minutes(
        self, rig: Rig, status: int
    ) -> None:
        rig.server.refuse(status, times=None)
        with structlog.testing.capture_logs() as logs:
            rig.start(PATIENT, Watched(NODES, optional=True), rng=Waits())
            eventually(lambda: rig.state.failures == 1)
            rig.stop()
        assert [entry["wait_s"] for entry in logs if "wait_s" in entry] == [WHERE_ABSENT]

    def test_starts_afresh_after_a_healthy_watch(self, rig: Rig) -> None:
        waits = Waits()
        rig.server.refuse(503, times=5)
        rig.synced(dataclasses.replace(PATIENT, healthy_s=0.05), rng=waits)
        rig.server.drop_streams()
        eventually(lambda: len(rig.watches) == 2)
        assert waits.ceilings[-1] == 0.2

    def test_goes_on_after_a_watch_that_was_not(self, rig: Rig) -> None:
        waits = Waits()
        rig.server.refuse(503, times=2)
        rig.start(NEVER_HEALTHY, rng=waits)
        eventually(lambda: rig.watching(1))
        rig.server.drop_streams()
        eventually(lambda: len(rig.watches) == 2)
        assert waits.ceilings == [0.2, 0.4, 0.8]

    def test_a_very_long_outage_overflows_nothing(self, rig: Rig) -> None:
        rig.api.close()  # every request fails at once
        reflector = Reflector(rig.api, Watched(NODES), Picture(), rng=Waits(), clock=lambda: 0.0)
        with following(reflector):
            eventually(lambda: reflector.state.failures > 1100)

    def test_the_server_can_be_away_at_first(self, rig: Rig) -> None:
        rig.server.delay(NODES, FOREVER)
        rig.start(dataclasses.replace(QUICK, list_timeout_s=0.3))
        eventually(lambda: rig.state.failures >= 2)
        assert rig.state.failure_status is None
        assert "timed out" in rig.state.last_failure
        rig.server.allow()
        eventually(lambda: rig.reflector.state.synced)


class TestLife:
    def test_stop_ends_a_quiet_watch_at_once(self, rig: Rig) -> None:
        rig.synced()
        assert rig.reflector.stop(PATIENCE)
        eventually(lambda: rig.server.open_streams == 0)

    def test_stop_ends_a_backoff_at_once(self, rig: Rig) -> None:
        rig.server.refuse(503, times=None)
        rig.start(waiting_long(), rng=Halving())
        eventually(lambda: rig.state.failures == 1)
        assert rig.reflector.stop(PATIENCE)

    def test_a_list_under_way_ends_with_the_client(self, rig: Rig) -> None:
        rig.server.delay(NODES, FOREVER)
        rig.start(PATIENT)
        eventually(lambda: len(rig.lists) == 1)
        assert not rig.reflector.stop(0.05)
        rig.api.close()
        assert rig.reflector.stop(PATIENCE)

    def test_stop_before_start(self, rig: Rig) -> None:
        assert Reflector(rig.api, Watched(NODES), rig.sink).stop()

    def test_nothing_reaches_the_sink_after_stop(self, rig: Rig) -> None:
        rig.server.delay(NODES, FOREVER)
        rig.put("a")
        rig.start()
        eventually(lambda: len(rig.lists) == 1)
        assert not rig.reflector.stop(0.0)
        rig.server.allow()
        assert rig.reflector.stop(PATIENCE)
        assert rig.sink.calls == []
        assert not rig.reflector.state.synced

    def test_a_list_that_is_being_taken_ends_with_the_object_in_hand(self, rig: Rig) -> None:
        for name in "abc":
            rig.put(name)
        taken: list[bytes] = []
        first, more = threading.Event(), threading.Event()

        class Slow(Picture):
            def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
                for each in objects:
                    taken.append(bytes(each))
                    first.set()
                    more.wait(FOREVER)

        reflector = Reflector(rig.api, Watched(NODES), Slow())
        reflector.start()
        assert first.wait(PATIENCE)
        assert not reflector.stop(0.0)
        more.set()
        assert reflector.stop(PATIENCE)
        assert len(taken) == 1
        assert not reflector.state.synced


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_picture_comes_right(rig: Rig, seed: int) -> None:
    walk = random.Random(seed)
    server = rig.server
    server.gone_as_event = bool(seed % 2)
    server.bookmark_every_s = 0.05
    for number in range(walk.randrange(12)):
        rig.put(f"n{number}")
    rig.start(stalling(0.2), watched=Watched(NODES, page_limit=3), rng=random.Random(seed))
    eventually(lambda: rig.reflector.state.synced)

    def change() -> None:
        name = f"n{walk.randrange(12)}"
        if walk.random() < 0.3 and any(i["metadata"]["name"] == name for i in server.items(NODES)):
            server.remove(f"{NODES}/{name}")
        else:
            rig.put(name, spec={"value": walk.random()})

    mishaps: list[Callable[[], object]] = [
        server.drop_streams,
        server.end_streams,
        server.expire_history,
        server.stall,
        server.resume,
        server.bookmark,
        lambda: server.refuse(walk.choice([401, 403, 410, 429, 500, 503])),
        lambda: server.inject(walk.choice([b"{", error_line(410), error_line(500)])),
        lambda: time.sleep(0.02),
    ]
    for _ in range(150):
        if walk.random() < 0.7:
            change()
        else:
            walk.choice(mishaps)()
        time.sleep(walk.choice([0.0, 0.0, 0.005]))
    server.allow()
    server.resume()
    eventually(rig.in_step)
    lists = rig.state.lists

    def listed_anew() -> bool:
        server.inject(error_line(410))
        return rig.state.lists > lists

    eventually(listed_anew)
    change()
    eventually(rig.in_step)
    assert rig.reflector.state.synced
    assert rig.state.sink_failures == 0
