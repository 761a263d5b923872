"""The map in a real browser without a screen: it draws, obeys the policy, and follows the cluster.

Needs Chromium; without it the tests are skipped.
"""

import re
import subprocess
import threading
from collections.abc import Callable, Hashable, Iterator
from functools import cache, partial
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from scheduler_extender.http.servers import Addresses
from scheduler_extender.serving import in_memory, in_thread
from scheduler_extender.web.html import DASHBOARD_MS
from scheduler_extender.web.pages import MAX_POD, Common, Pages
from tests.scheduler_extender.web.browser import BROWSER, Tab, tab
from tests.scheduler_extender.web.cluster import Building, small
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def made() -> Building:
    return small()


@pytest.fixture(scope="module")
def address(made: Building) -> Iterator[str]:
    service = in_memory(made.cluster)
    with in_thread(service, Addresses()) as serving:
        yield f"http://127.0.0.1:{serving.ports[1]}"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A browser takes a second to start; each test goes to a page of its own in this one."""
    with tab(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def seen(
    address: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[str, str]]:
    """A path as a fresh browser shows it, once."""
    return cache(lambda path: browse(address + path, tmp_path_factory.mktemp("seen"), "--dump-dom"))


def browse(url: str, folder: Path, *options: str) -> tuple[str, str]:
    """What the browser has made of a page (its DOM), and what it complained about."""
    assert BROWSER is not None
    run = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            f"--user-data-dir={folder / 'profile'}",
            f"--timeout={PATIENCE / 2 * 1000:.0f}",
            *options,
            url,
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return run.stdout, run.stderr


@pytest.mark.parametrize(
    "path",
    [
        "/map",
        "/map/nodes",
        "/map/pods",
        "/map/pods/team-a/train-llm",
        "/map/waiting",
        "/map/what-if",
        "/map/nodes/dgx-01",
    ],
)
def test_the_browser_finds_nothing_against_the_policy(
    seen: Callable[[str], tuple[str, str]], path: str
) -> None:
    dom, complaints = seen(path)
    assert "</main>" in dom
    assert "CONSOLE" not in complaints, complaints
    assert "Content Security Policy" not in complaints


def test_the_page_follows_the_cluster_and_keeps_what_the_reader_does(
    page: Tab, address: str, made: Building
) -> None:
    page.open(f"{address}/map")
    eventually(lambda: page.value("document.querySelectorAll('.tiles li').length") == 9)
    page.value("window.same = true")
    page.value("document.querySelector('.legend').open = false")
    page.value("document.querySelector('input[name=name]').value = 'half written'")
    made.node("l40s-4", "new-node")
    eventually(lambda: page.value("document.body.innerText.includes('new-node')"))
    assert page.value("window.same"), "the page was not loaded again"
    assert page.value("document.querySelector('.legend').open") is False
    assert page.value("document.querySelector('input[name=name]').value") == "half written"


class Rests:
    """Shows browsers the first page that was made, as while a page rests, until it is told to end.

    A page over many nodes, or on a slow machine, is shown for a while after something has changed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.over = threading.Event()
        self.looks = 0
        self._first: dict[Hashable, str] = {}
        made = Pages._page

        def shown(pages: Pages, kind: str, key: Hashable, make: Callable[[Common], str]) -> str:
            text = made(pages, kind, key, make)
            self.looks += 1
            return text if self.over.is_set() else self._first.setdefault((kind, key), text)

        monkeypatch.setattr(Pages, "_page", shown)


def test_what_changes_while_a_page_rests_is_shown_when_it_has(
    page: Tab, address: str, made: Building, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one event: a browser that fetches the old page then has to come again."""
    rests = Rests(monkeypatch)
    page.open(f"{address}/map")
    looks = rests.looks
    made.node("l40s-4", "node-of-a-rest")
    eventually(lambda: rests.looks > looks, "the browser has fetched the old page")
    assert not page.value("document.body.innerText.includes('node-of-a-rest')")
    rests.over.set()
    eventually(lambda: page.value("document.body.innerText.includes('node-of-a-rest')"))


def test_the_page_of_a_pod_that_is_deleted_says_so(page: Tab, address: str, made: Building) -> None:
    pod = made.pod("short-lived", 1)
    page.open(f"{address}/map/pods/{pod.full_name}")
    assert page.value("document.querySelector('h1').innerText") == pod.full_name
    made.cluster.drop_pod(pod.uid)
    eventually(lambda: page.value("document.querySelector('h1')?.innerText") == "Unknown pod")


AS_OF = "document.getElementById('as-of').textContent"
STALE_BANNER_SHOWN = "document.getElementById('unheard').checkVisibility()"


def test_the_page_says_of_when_it_is_and_when_the_extender_has_not_answered(
    page: Tab, made: Building
) -> None:
    service = in_memory(made.cluster)
    with in_thread(service, Addresses()) as serving:
        port = serving.ports[1]
        page.open(f"http://127.0.0.1:{port}/map")
        first = page.value(AS_OF)
        eventually(lambda: page.value(AS_OF) > first, "nothing changes, and is so later, too")
        assert not page.value(STALE_BANNER_SHOWN)
    eventually(lambda: page.value(STALE_BANNER_SHOWN), "the extender is gone, and the page says so")
    last = page.value(AS_OF)
    assert page.value("document.getElementById('unheard').innerText").endswith(f"at {last}.")
    with in_thread(in_memory(made.cluster), Addresses(admin_port=port)):
        eventually(lambda: not page.value(STALE_BANNER_SHOWN), "it answers again")
        eventually(lambda: page.value(AS_OF) > last)


@pytest.mark.parametrize(
    "path",
    [
        "/map",
        "/map/nodes",
        "/map/pods",
        "/map/pods/team-a/train-llm",
        "/map/waiting",
        "/map/nodes/dgx-01",
    ],
)
def test_every_page_says_of_when_it_is(seen: Callable[[str], tuple[str, str]], path: str) -> None:
    dom, _ = seen(path)
    assert re.search(r"As of <time [^>]*>20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ</time>", dom)


def test_a_text_that_is_too_long_stays_in_the_form(page: Tab, address: str) -> None:
    area = "document.querySelector('#pod')"
    page.open(f"{address}/map/what-if")
    page.value(f"{area}.value = 'é'.repeat({MAX_POD // 2 + 1})")
    page.value(f"{area}.dispatchEvent(new Event('input'))")
    page.value("document.querySelector('main form button').click()")
    assert "at most 65536 are allowed" in page.value(f"{area}.validationMessage")
    assert page.value(f"{area}.value.length") == MAX_POD // 2 + 1
    assert page.value("location.search + location.hash") == "", "it was not sent"
    page.value(f"{area}.value = 'kind: Pod'")
    page.value(f"{area}.dispatchEvent(new Event('input'))")
    assert page.value(f"{area}.validity.valid")


def test_the_line_at_the_bottom_names_the_pods_of_the_node_in_focus(
    page: Tab, address: str
) -> None:
    shown = "[...document.querySelectorAll('.who')].filter((it) => it.checkVisibility())"
    page.send("Emulation.setFocusEmulationEnabled", enabled=True)
    page.open(f"{address}/map")
    assert page.value(f"{shown}.length") == 0
    page.value("document.querySelector('a[href=\"/map/nodes/dgx-01\"]').focus()")
    text = page.value(f"{shown}.map((it) => it.innerText).join('|')")
    assert text.split() == ["dgx-01", "0-3", "team-a/train-llm", "5", "team-b/notebook-2"]


def test_an_open_row_stays_open_when_the_rows_change_order(
    page: Tab, address: str, made: Building
) -> None:
    opened = "[...document.querySelectorAll('details.queue[open]')].map((it) => it.innerText)"
    page.open(f"{address}/map/waiting")
    page.value("document.querySelectorAll('details.queue').forEach((it) => { it.open = false })")
    page.value(
        "[...document.querySelectorAll('details.queue')]"
        ".find((it) => it.innerText.includes('16 GPUs')).open = true"
    )
    for number in range(5):  # they come first now
        made.pod(f"many-{number}", 12, None)
    eventually(lambda: page.value("document.body.innerText.includes('12 GPUs')"))
    (left,) = [text for text in page.value(opened) if "12 GPUs" not in text]
    assert left.startswith("16 GPUs")


def test_the_pages_fit_a_narrow_screen(page: Tab, address: str) -> None:
    page.look(400, 800)
    for path in (
        "/map",
        "/map/nodes",
        "/map/pods",
        "/map/pods/team-a/wants-0",
        "/map/waiting",
        "/map/what-if",
        "/map/nodes/dgx-01",
    ):
        page.open(address + path)
        if page.value("!!document.querySelector('.legend')"):
            eventually(partial(page.value, "!document.querySelector('.legend').open"))
        assert page.value("document.documentElement.scrollWidth") <= 400, path


@pytest.mark.parametrize("path", ["/map", "/map?namespace=team-b"])
def test_on_a_phone_the_counts_come_first(page: Tab, address: str, path: str) -> None:
    """The filters are one press away, and say what they filter by."""
    page.look(390, 800)
    page.open(address + path)
    numbers = "document.querySelector('.numbers').getBoundingClientRect().bottom"
    assert page.value(numbers) < 300
    words = page.value("document.querySelector('.filtering summary').innerText")
    assert words == ("Filter: team-b" if "=" in path else "Filter")
    assert not page.value("document.querySelector('.filters').checkVisibility()")
    page.value("document.querySelector('.filtering summary').click()")
    assert page.value("document.querySelector('.filters').checkVisibility()")
    page.look(1400)
    page.open(address + path)
    assert page.value("document.querySelector('.filters').checkVisibility()")


def test_the_legend_stays_as_the_reader_has_left_it(page: Tab, address: str) -> None:
    def is_open(path: str) -> bool:
        page.open(address + path)
        return page.value("document.querySelector('.legend').open") is True

    page.look(1400)
    assert is_open("/map")
    page.value("document.querySelector('.legend summary').click()")
    assert not is_open("/map"), "it is the reader's choice"
    assert not is_open("/map/nodes/dgx-01"), "on every page"
    page.value("document.querySelector('.legend summary').click()")
    page.look(390)
    assert is_open("/map"), "also where it would be closed"
    page.value("localStorage.clear()")
    assert not is_open("/map")
    page.look(1400)
    assert is_open("/map")


def test_the_link_to_the_dashboard_follows_the_time(page: Tab, made: Building) -> None:
    service = in_memory(made.cluster)
    where = Addresses(dashboard="https://grafana.example/d/gpus?var-cluster=a")
    with in_thread(service, where) as serving:
        page.open(f"http://127.0.0.1:{serving.ports[1]}/map")
        link = "document.getElementById('dashboard').href"
        first = page.value(link)
        assert first.startswith("https://grafana.example/d/gpus?var-cluster=a&from=")
        eventually(lambda: page.value(link) != first)
        words = dict(parse_qsl(urlsplit(page.value(link)).query))
        assert int(words["to"]) - int(words["from"]) == DASHBOARD_MS
        time = "new Date(document.getElementById('as-of').dateTime.replace(' ', 'T')).getTime()"
        assert abs(int(words["to"]) - page.value(time)) <= 10_000
