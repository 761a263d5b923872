"""The map in the browser on a real API server: it follows what happens."""

import re
from pathlib import Path

import httpx
import pytest

from tests.e2e.cluster import RealCluster
from tests.scheduler_extender.web.browser import BROWSER, tab
from tests.waiting import eventually
from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine

pytestmark = pytest.mark.e2e
NVLINK = {"link": "nvlink"}
BRIDGED = machine("a100-pcie-4-bridged").topology("bridged")


@pytest.fixture(scope="module", autouse=True)
def _fleet(real: RealCluster) -> None:
    real.add_machine(BRIDGED, Report("boot", 1))


def test_events_name_a_placed_pod_and_the_pages_show_it(real: RealCluster) -> None:
    with (
        real.people() as browser,
        real.people() as other,
        browser.stream("GET", "/map/events") as stream,
    ):
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
                shown = int(version.removeprefix("data: ").split()[0])
                real.until(lambda: version_of(other.get(path).text) >= shown, "it has rested")  # noqa: B023

        assert "<td>not shown yet</td>" not in other.get("/map/nodes/bridged").text
        pod = real.add_pod("pair", 2, NVLINK)
        news("/map/nodes/bridged", "<td>not shown yet</td>")
        gpus = tuple(DeviceId(gpu.uuid) for gpu in BRIDGED.gpus[:2])
        held = Allocation(
            PodUid(pod["metadata"]["uid"]), "default", "pair", "main", "nvidia.com/gpu", gpus
        )
        real.put_report("bridged", Report("boot", 2, allocations=(held,)))
        news("/map/nodes/bridged", "<td>has its GPUs</td>")
        counted = ">2 in use (as requested)</span>"
        real.until(lambda: counted in summary(other), "the map counts its GPUs")
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
def test_the_page_in_a_browser_follows(real: RealCluster, tmp_path: Path) -> None:
    with tab(tmp_path) as page:
        page.open(f"http://127.0.0.1:{real.ports[1]}/map/waiting")
        page.value("window.same = true")
        real.add_pod("later", 8, NVLINK)
        eventually(lambda: page.value("document.body.innerText.includes('default/later')"))
        assert page.value("window.same"), "the page was not loaded again"
