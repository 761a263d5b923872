"""Who may see the map, and what a page of somebody else can do with a person's browser: nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from scheduler_extender.http import gate
from scheduler_extender.http.addresses import Addresses
from scheduler_extender.kube import reviews
from scheduler_extender.kube.reviews import Reviews
from scheduler_extender.web import live, sessions
from scheduler_extender.web.guard import POLICY
from scheduler_extender.web.pages import MAX_POD
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pcie, switched
from tests.scheduler_extender.serving import Running, running
from tests.scheduler_extender.web.test_pages import POD
from tests.waiting import FOREVER, PATIENCE, eventually
from topology.core.report import Report
from topology.kubeapi.apiserver import ApiServer

ADA, BOB = "the-token-of-ada", "the-token-of-bob"
PAGES = ["/map", "/map/waiting", "/map/what-if", "/map/nodes/switched"]


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reviews, "REVIEW_TIMEOUT", PATIENCE)


@pytest.fixture
def fake() -> Iterator[FakeApiServer]:
    with FakeApiServer() as found:
        found.identities.add(ADA, "ada", "readers")
        found.identities.add(BOB, "bob")
        found.identities.grant("readers", "get", "/map")
        found.identities.grant("readers", "get", "/map/*")
        found.identities.grant("readers", "post", "/map/what-if")
        yield found


@pytest.fixture
def outside(fake: FakeApiServer, tmp_path: Path) -> Iterator[Running]:
    """As in a cluster: not on loopback, so a token is asked for."""
    api = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
    try:
        with running(switched(), where=Addresses("0.0.0.0"), reviews=Reviews(api)) as found:
            yield found
    finally:
        api.close()


@pytest.fixture
def local() -> Iterator[Running]:
    with running(switched()) as found:
        yield found


def sign_in(service: Running, token: str, following: str = "/map/waiting") -> httpx.Response:
    return service.admin.post("/map/login", data={"token": token, "next": following})


@pytest.mark.parametrize("path", [*PAGES, "/map/static/map.js", "/map/nobody", "/map/nodes/nobody"])
def test_every_answer_has_the_strict_policy(local: Running, path: str) -> None:
    headers = local.admin.get(path).headers
    assert headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert headers["x-content-type-options"] == "nosniff"
    if "static" not in path:
        assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", PAGES)
def test_on_loopback_nothing_is_asked(local: Running, path: str) -> None:
    answer = local.admin.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8889", "[", "", "localhost.x"])
def test_on_loopback_another_name_is_refused(local: Running, host: str) -> None:
    answer = local.admin.get("/map", headers={"Host": host})
    assert answer.status_code == 403
    assert "is neither localhost nor an IP address" in answer.json()["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/map/what-if", "/map/login", "/map/logout"])
def test_a_form_of_another_origin_is_refused(
    outside: Running, headers: dict[str, str], path: str
) -> None:
    answer = outside.admin.post(path, data={"pod": POD, "token": ADA}, headers=headers)
    assert answer.status_code == 403
    assert re.search("may not ask here|a page of another", answer.json()["error"])


def test_a_form_of_our_own_is_answered(local: Running) -> None:
    origin = str(local.admin.base_url).rstrip("/")
    headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
    answer = local.admin.post("/map/what-if", data={"pod": POD}, headers=headers)
    assert answer.status_code == 200
    assert "1 of 1 node would take it" in answer.text


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("pod=" + "x" * (MAX_POD + 1), 413, f"at most {MAX_POD} bytes"),
        ("pod=" + "x" * (MAX_POD + 1), 413, "x" * (MAX_POD + 1)),
        ("pod=" + "x" * (16 * MAX_POD), 413, "Go back: your browser still has the text"),
        ("pod=a&copies=0", 200, "copies: allowed is 1 to 1,000, not &#39;0&#39;"),
        ("pod=a&copies=²", 400, "the form cannot be read"),
        ("pod=\xff", 400, "the form cannot be read"),
        ("&".join(f"a{n}=1" for n in range(100)), 400, "the form cannot be read"),
        ("", 200, "one Pod is needed"),
        ("pod=a: [", 200, "not YAML"),
    ],
    ids=["long", "kept", "longer", "none", "square", "bytes", "fields", "empty", "yaml"],
)
def test_what_cannot_be_asked_is_one_clear_error(
    local: Running, body: str, status: int, words: str
) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = local.admin.post("/map/what-if", content=body.encode("latin-1"), headers=headers)
    assert answer.status_code == status
    assert words in answer.text


@pytest.mark.parametrize("path", PAGES)
def test_outside_a_browser_is_sent_to_sign_in(outside: Running, path: str) -> None:
    answer = outside.admin.get(path)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/map/login?next=%2Fmap")
    assert "switched" not in outside.admin.get(answer.headers["location"]).text.replace(path, "")


@pytest.mark.parametrize(("method", "path"), [("GET", "/map/events"), ("POST", "/map/what-if")])
def test_outside_nothing_else_is_answered(outside: Running, method: str, path: str) -> None:
    assert outside.admin.request(method, path).status_code == 401


def test_who_signs_in_sees_the_pages_and_can_ask(outside: Running) -> None:
    answer = sign_in(outside, ADA)
    assert (answer.status_code, answer.headers["location"]) == (303, "/map/waiting")
    cookie = answer.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=strict", "Path=/map"):
        assert part in cookie
    assert ADA not in cookie
    for path in PAGES:
        page = outside.admin.get(path)
        assert page.status_code == 200
        assert "Sign out" in page.text
    assert outside.admin.post("/map/what-if", data={"pod": POD}).status_code == 200


def test_the_cookie_is_good_for_the_map_alone(outside: Running) -> None:
    sign_in(outside, ADA)
    outside.admin.cookies = httpx.Cookies(dict(outside.admin.cookies.items()))
    assert outside.admin.get("/map").status_code == 200
    assert outside.admin.get("/v1/nodes").status_code == 401
    assert outside.admin.get("/map/../v1/nodes").status_code in (401, 404)


def test_who_signs_out_is_out(outside: Running) -> None:
    sign_in(outside, ADA)
    number = outside.admin.cookies[sessions.COOKIE]
    assert outside.admin.post("/map/logout").status_code == 303
    again = outside.admin.get("/map", headers={"Cookie": f"{sessions.COOKIE}={number}"})
    assert again.status_code == 303


def test_a_token_that_is_taken_away_ends_the_session(
    outside: Running, fake: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate.Remembered, "get", lambda self, key, now: None)
    sign_in(outside, ADA)
    assert outside.admin.get("/map").status_code == 200
    fake.identities.remove(ADA)
    assert outside.admin.get("/map").status_code == 303


@pytest.mark.parametrize(
    ("token", "status", "words"),
    [
        ("wrong", 401, "does not accept this token"),
        ("", 401, "does not accept this token"),
        ("tök\nen", 401, "characters that none has"),
        (BOB, 403, "may not see the map"),
    ],
)
def test_who_may_not_see_it_is_told_why(
    outside: Running, token: str, status: int, words: str
) -> None:
    answer = sign_in(outside, token)
    assert answer.status_code == status
    assert words in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("wanted", ["//evil.example", "https://evil.example", "/v1/nodes", "/mapx"])
def test_signing_in_leads_nowhere_else(outside: Running, wanted: str) -> None:
    assert sign_in(outside, ADA, wanted).headers["location"] == "/map"


def test_a_token_in_the_header_will_do(outside: Running) -> None:
    assert outside.admin.get("/map", headers={"Authorization": f"Bearer {ADA}"}).status_code == 200


def test_sessions_are_bounded(outside: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS", 1)
    sign_in(outside, ADA)
    first = outside.admin.cookies[sessions.COOKIE]
    outside.admin.cookies.clear()
    sign_in(outside, ADA)
    assert outside.admin.get("/map").status_code == 200
    outside.admin.cookies.clear()
    gone = outside.admin.get("/map", headers={"Cookie": f"{sessions.COOKIE}={first}"})
    assert gone.status_code == 303


def test_a_browser_without_a_path_comes_to_the_map(outside: Running, local: Running) -> None:
    """Programs get what any path gets that there is not."""
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for served in (outside, local):
        sent = served.admin.get("/", headers=browser)
        assert (sent.status_code, sent.headers["location"]) == (307, "/map")
    assert local.admin.get("/").status_code == 404
    assert local.admin.get("/").json() == {"error": "Not Found"}
    assert local.admin.post("/", headers=browser).status_code == 404
    assert local.admin.get("/nothing", headers=browser).status_code == 404
    assert outside.admin.get("/").status_code == 401


def test_events_tell_that_something_has_changed(
    local: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EVERY", 0.01)
    monkeypatch.setattr(live, "LIFE", FOREVER)
    monkeypatch.setattr(live, "range", lambda life: iter(int, 1), raising=False)
    with local.admin.stream("GET", "/map/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        data = (line for line in stream.iter_lines() if line.startswith("data:"))
        versions = (int(line.removeprefix("data:").split()[0]) for line in data)
        before = next(versions)
        local.cluster.feed.put_record(pcie(), Report("boot", 1))
        after = next(version for version in versions if version != before)
        assert after > before
    assert f'data-version="{after}"' in local.admin.get("/map").text


def test_a_heartbeat_is_no_news(local: Running) -> None:
    before = local.cluster.version
    local.cluster.feed.put_record(switched(), Report("boot", 2))
    assert local.cluster.version == before


def test_listeners_are_bounded_and_leave_room_again(
    local: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EVERY", 0.01)
    monkeypatch.setattr(live, "LISTENERS", 1)
    monkeypatch.setattr(live, "range", lambda life: iter(int, 1), raising=False)
    with local.admin.stream("GET", "/map/events") as stream:
        lines = stream.iter_lines()  # to let go of it is to close the stream
        next(lines)
        other = httpx.get(
            local.admin.base_url.join("/map/events"), trust_env=False, timeout=PATIENCE
        )
        assert other.status_code == 503
        assert "too many browsers" in other.json()["error"]

    def room() -> bool:
        with local.admin.stream("GET", "/map/events") as again:
            return again.status_code == 200

    eventually(room)
