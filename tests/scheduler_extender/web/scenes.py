"""Every page that people look at, served as it is in use: for screenshots, and for tests that judge
how it can be read."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler_extender.http.servers import Addresses
from scheduler_extender.serving import in_memory, in_thread
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.web.examples import EXAMPLES
from tests.benchmarks.report.pages import page_of, played, tiny
from tests.scheduler_extender.web.browser import Tab
from tests.scheduler_extender.web.cluster import large, small

PAIR = """\
kind: Pod
metadata:
  name: try
  annotations:
    gpu-topology.io/link: nvlink
spec:
  containers:
  - name: main
    resources: {limits: {nvidia.com/gpu: 2}}
"""
EIGHT = PAIR.replace("nvidia.com/gpu: 2", "nvidia.com/gpu: 8")
MISSPELT = PAIR.replace("link: nvlink", "link: nvswitch")
DASHBOARD = "https://grafana.example/d/gpu-topology-cluster"
CROWD = 600  # nodes of the large cluster


@dataclass(frozen=True, slots=True)
class Served:
    """Where the pages are. ``plain`` asks for no token, and so does ``crowded``, which has
    :data:`CROWD` nodes; ``guarded`` asks for one. ``report`` is a file."""

    plain: str
    crowded: str
    report: str


@contextmanager
def served(folder: Path, figures: dict[str, Any] | None = None) -> Iterator[Served]:
    """Serve all pages inside the block. ``figures`` of the report are those of a small simulation
    where none are given."""
    report = folder / "report.html"
    report.write_text(page_of(figures or played(tiny())))
    with ExitStack() as stack:
        yield Served(
            stack.enter_context(_loopback(small().cluster)),
            stack.enter_context(_loopback(large(CROWD).cluster)),
            report.as_uri(),
        )


@contextmanager
def _loopback(cluster: Cache) -> Iterator[str]:
    service = in_memory(cluster)
    with in_thread(service, Addresses(dashboard=DASHBOARD)) as serving:
        yield f"http://127.0.0.1:{serving.ports[1]}"


def _at(path: str) -> Callable[[Tab, Served], None]:
    return lambda tab, served: tab.open(served.plain + path)


def _asked(text: str) -> Callable[[Tab, Served], None]:
    def ask(tab: Tab, served: Served) -> None:
        tab.open(f"{served.plain}/map/what-if")
        tab.write("#pod", text)
        tab.click("main form button")

    return ask


# How to get to each page.
SCENES: dict[str, Callable[[Tab, Served], None]] = {
    "map": _at("/map"),
    "map-filtered": _at("/map?use=in-use-mismatched&name=volta"),
    "map-pod": _at("/map?name=notebook"),
    "map-nothing-found": _at("/map?name=nobody"),
    "map-similar": _at("/map?name=volt-01"),
    "map-namespace": _at("/map?namespace=team-b"),
    "map-crowded": lambda tab, served: tab.open(f"{served.crowded}/map"),
    "nodes": _at("/map/nodes"),
    "nodes-sorted": _at("/map/nodes?sort=-gpus"),
    "nodes-crowded": lambda tab, served: tab.open(f"{served.crowded}/map/nodes?page=2"),
    "node": _at("/map/nodes/volta-01"),
    "node-sorted": _at("/map/nodes/volta-01?sort=-name"),
    "node-switched": _at("/map/nodes/dgx-01"),
    "node-unusable": _at("/map/nodes/odd"),
    "node-unknown": _at("/map/nodes/nobody"),
    "pods": _at("/map/pods"),
    "pods-sorted": _at("/map/pods?sort=-idle"),
    "pods-crowded": lambda tab, served: tab.open(f"{served.crowded}/map/pods"),
    "pod": _at("/map/pods/team-a/train-llm"),
    "pod-idle": _at("/map/pods/team-b/notebook-2"),
    "pod-mismatched": _at("/map/pods/team-a/wrong"),
    "pod-waiting": _at("/map/pods/team-a/wants-0"),
    "pod-unknown": _at("/map/pods/team-a/train-lm"),
    "waiting": _at("/map/waiting"),
    "waiting-found": _at("/map/waiting?name=wants-16"),
    "waiting-crowded": lambda tab, served: tab.open(f"{served.crowded}/map/waiting"),
    "what-if": _at("/map/what-if"),
    "what-if-example": _at("/map/what-if?example=a+Deployment+of+six"),
    "what-if-copies": _asked(EXAMPLES["a Deployment of six"]),
    "what-if-taken": _asked(PAIR),
    "what-if-refused": _asked(EIGHT),
    "what-if-misspelt": _asked(MISSPELT),
    "report": lambda tab, served: tab.open(served.report),
}
