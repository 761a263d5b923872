"""The map's pages over HTTP, and what a page of another site can do there: nothing."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from scheduler_extender.web import live
from scheduler_extender.web.pages import MAX_POD
from scheduler_extender.web.routes import HEADERS
from tests.nodes import pcie, switched, waiting
from tests.scheduler_extender.serving import Running, running
from tests.scheduler_extender.web.test_pages import POD
from tests.waiting import FOREVER
from topology.core.report import Report
from topology.core.requests import gpu_request

ABSENT = ["/map/nobody", "/map/nodes/nobody", "/map/pods/a/nobody"]
PAGES = ["/map", "/map/waiting", "/map/what-if", "/map/nodes/switched", "/map/pods"]


@pytest.fixture
def local() -> Iterator[Running]:
    with running(switched()) as found:
        yield found


@pytest.mark.parametrize("path", [*PAGES, *ABSENT, "/map/static/map.js"])
def test_every_answer_has_the_strict_policy(local: Running, path: str) -> None:
    headers = local.admin.get(path).headers
    assert headers["content-security-policy"] == HEADERS["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    if "static" not in path:
        assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_html(local: Running, path: str) -> None:
    answer = local.admin.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_a_form_of_our_own_is_answered(local: Running) -> None:
    origin = str(local.admin.base_url).rstrip("/")
    headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin"}
    answer = local.admin.post("/map/what-if", data={"pod": POD}, headers=headers)
    assert answer.status_code == 200
    assert "1 of 1 node would take it" in answer.text


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("pod=" + "x" * (MAX_POD + 1), 413, f"larger than {MAX_POD} bytes"),
        ("pod=" + "x" * (MAX_POD + 1), 413, "x" * (MAX_POD + 1)),
        ("pod=" + "x" * (16 * MAX_POD), 413, "Go back in your browser to get your text again"),
        ("pod=a&copies=0", 200, "copies: allowed is 1 to 1,000, not &#39;0&#39;"),
        ("pod=a&copies=²", 400, "the form is unreadable"),
        ("pod=\xff", 400, "the form is unreadable"),
        ("&".join(f"a{n}=1" for n in range(100)), 400, "the form is unreadable"),
        ("", 200, "a Pod is needed"),
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


def test_a_browser_without_a_path_comes_to_the_map(local: Running) -> None:
    """Programs get what any path gets that there is not."""
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    sent = local.admin.get("/", headers=browser)
    assert (sent.status_code, sent.headers["location"]) == (307, "/map")
    assert local.admin.get("/").status_code == 404
    assert local.admin.get("/").json() == {"error": "Not Found"}
    assert local.admin.post("/", headers=browser).status_code == 405
    assert local.admin.get("/nothing", headers=browser).status_code == 404


def test_events_say_that_something_has_changed(
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
        local.cluster.put_record(pcie(), Report("boot", 1))
        after = next(version for version in versions if version != before)
        assert after > before
    assert f'data-version="{after}"' in local.admin.get("/map").text


def test_a_heartbeat_sends_no_event(local: Running) -> None:
    before = local.cluster.version
    local.cluster.put_record(switched(), Report("boot", 2))
    assert local.cluster.version == before


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/map/nodes/swiched", ["/map/nodes/switched"]),
        ("/map/nodes/qqqq", []),
        ("/map/pods/team-a/trian", ["/map/pods/team-a/train"]),
        ("/map/pods/train", []),
    ],
)
def test_an_unknown_name_is_answered_with_similar_ones(
    local: Running, path: str, near: list[str]
) -> None:
    local.cluster.put_pod(replace(waiting(gpu_request(1)), namespace="team-a", name="train"))
    answer = local.admin.get(path)
    assert answer.status_code == 404
    links = re.findall(r'<a class="flag" href="([^"]*)', answer.text)
    assert links == near
    assert all(local.admin.get(link).status_code == 200 for link in links)
