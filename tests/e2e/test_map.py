"""The map in the browser on a real API server: who may see it, and that it follows what happens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.adminport import outside, token
from tests.e2e.cluster import RealCluster
from tests.scheduler_extender.web.browser import BROWSER, tab
from tests.waiting import eventually
from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine

pytestmark = pytest.mark.e2e
NVLINK = {"link": "nvlink"}
BRIDGED = machine("a100-pcie-4-bridged").topology("bridged")
NAMESPACE = ("-n", "gpu-topology-system")


@pytest.fixture(scope="module", autouse=True)
def _fleet(real: RealCluster) -> None:
    real.add_machine(BRIDGED, Report("boot", 1))


@pytest.fixture(scope="module")
def people(real: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with outside(real, tmp_path_factory.mktemp("outside")) as found:
        yield found


@contextmanager
def somebody(real: RealCluster, people: httpx.Client) -> Iterator[httpx.Client]:
    """A browser that has no session yet."""
    with real.people(people.base_url.port) as found:
        yield found


def sign_in(browser: httpx.Client, shown: str) -> httpx.Response:
    return browser.post("/map/login", data={"token": shown, "next": "/map/waiting"})


def test_whose_account_has_the_right_signs_in(real: RealCluster, people: httpx.Client) -> None:
    with somebody(real, people) as browser:
        asked = browser.get("/map")
        assert (asked.status_code, asked.headers["location"]) == (303, "/map/login?next=%2Fmap")
        assert browser.get("/map/events").status_code == 401
        answer = sign_in(browser, token(real))
        assert (answer.status_code, answer.headers["location"]) == (303, "/map/waiting")
        assert {"Secure", "HttpOnly"} <= set(answer.headers["set-cookie"].split("; "))
        assert ">bridged</span>" in browser.get("/map").text
        asks = {"pod": "kind: Pod\nmetadata: {name: a}\nspec: {containers: []}"}
        assert "asks for no GPU" in browser.post("/map/what-if", data=asks).text
        assert browser.post("/map/logout").status_code == 303
        assert browser.get("/map").status_code == 303


def test_whose_account_lacks_the_right_does_not(real: RealCluster, people: httpx.Client) -> None:
    real.kubectl(*NAMESPACE, "create", "serviceaccount", "stranger")
    stranger = real.kubectl(*NAMESPACE, "create", "token", "stranger").strip()
    with somebody(real, people) as browser:
        answer = sign_in(browser, stranger)
        assert answer.status_code == 403
        assert "gpu-topology-reader" in answer.text
        assert not browser.cookies
        told = {"Authorization": f"Bearer {stranger}"}
        for path in ("/map", "/map/waiting", "/map/nodes/bridged", "/map/events"):
            assert browser.get(path, headers=told).status_code == 403
        assert sign_in(browser, "nobody's").status_code == 401
        # The right alone makes the difference.
        real.kubectl(
            *("create", "clusterrolebinding", "stranger", "--clusterrole=gpu-topology-reader"),
            "--serviceaccount=gpu-topology-system:stranger",
        )
        real.until(lambda: sign_in(browser, stranger).status_code == 303, "the right is known")
        real.until(lambda: browser.get("/map").status_code == 200, "for this page, too")
        real.kubectl("delete", "clusterrolebinding", "stranger")
        real.until(lambda: browser.get("/map").status_code == 403, "the right is gone")
        # A session whose token is no longer good has to begin anew.
        real.kubectl(*NAMESPACE, "delete", "serviceaccount", "stranger")
        real.until(lambda: browser.get("/map").status_code == 303, "the token is no longer good")


def test_events_tell_of_a_pod_that_is_placed_and_the_pages_show_it(
    real: RealCluster, people: httpx.Client
) -> None:
    with somebody(real, people) as browser, somebody(real, people) as other:
        for each in (browser, other):
            assert sign_in(each, token(real)).status_code == 303
        with browser.stream("GET", "/map/events") as stream:
            versions = (line for line in stream.iter_lines() if line.startswith("data: "))
            last = next(versions)

            def news(path: str, words: str) -> None:
                """The stream tells of a version in which the page says so. A page is shown for a
                moment after something has changed."""
                nonlocal last
                while words not in other.get(path).text:
                    version = next(versions)
                    assert version != last
                    last = version
                    told = int(version.removeprefix("data: ").split()[0])
                    real.until(lambda: version_of(other.get(path).text) >= told, "it has rested")  # noqa: B023

            assert "<td>on its way</td>" not in other.get("/map/nodes/bridged").text
            pod = real.add_pod("pair", 2, NVLINK)
            news("/map/nodes/bridged", "<td>on its way</td>")
            gpus = tuple(DeviceId(gpu.uuid) for gpu in BRIDGED.gpus[:2])
            held = Allocation(
                PodUid(pod["metadata"]["uid"]), "default", "pair", "main", "nvidia.com/gpu", gpus
            )
            real.put_report("bridged", Report("boot", 2, allocations=(held,)))
            news("/map/nodes/bridged", "<td>has its GPUs</td>")
            real.until(lambda: ">2 kept</span>" in summary(other), "the map counts its GPUs")
            real.add_pod("quad", 4, NVLINK)
            news("/map/waiting", "default/quad")


def version_of(page: str) -> int:
    """As of which version of the cluster a page was made."""
    found = re.search(r'data-version="(\d+)"', page)
    assert found is not None
    return int(found[1])


def summary(browser: httpx.Client) -> str:
    """The map's text, without what stands between a colour and its number."""
    return " ".join(browser.get("/map").text.split()).replace("</i>2", ">2")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_signs_in_and_its_page_follows(
    real: RealCluster, people: httpx.Client, tmp_path: Path
) -> None:
    with tab(tmp_path, "--ignore-certificate-errors") as page:
        page.open(f"{people.base_url}/map/waiting".replace("//map", "/map"))
        assert page.value("location.pathname") == "/map/login"
        page.write("#token", token(real))
        page.click("main form button")
        assert page.value("location.pathname") == "/map/waiting"
        page.value("window.same = true")
        real.add_pod("later", 8, NVLINK)
        eventually(lambda: page.value("document.body.innerText.includes('default/later')"))
        assert page.value("window.same"), "the page was not loaded again"
        page.click("header form button")
        assert page.value("location.pathname") == "/map/login"
