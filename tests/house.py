"""Prints how large the code is, and how many files one decision enters.

``python -m tests.house`` judges nothing. Run it before and after a change that moves
code, and compare.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.simulation.simulation import Speed
from benchmarks.simulation.sources import Workload
from benchmarks.simulation.sweep import Play, play
from scheduler_extender import verbs
from scheduler_extender.annotations import MANAGED
from scheduler_extender.files.binder import FileBinder
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import counting_record
from scheduler_extender.wire import BindingArgs, Pod
from tests.nodes import pod
from topology.core.devices import NodeName
from topology.core.report import Report
from topology.machines import machine

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ("topology", "scheduler_extender", "benchmarks")
OURS = tuple(str(ROOT / folder) for folder in SOURCE)
STATE = "scheduler_extender.state"


def statements(folders: tuple[str, ...]) -> int:
    """``ast.stmt`` nodes of the Python files in these folders."""
    trees = (ast.parse(p.read_text()) for name in folders for p in (ROOT / name).rglob("*.py"))
    return sum(isinstance(node, ast.stmt) for tree in trees for node in ast.walk(tree))


def words(pages: Iterator[Path]) -> int:
    """Words as ``wc -w`` counts them."""
    return sum(len(page.read_text().split()) for page in pages)


def imports_inside(package: str) -> dict[str, set[str]]:
    """The modules of a package, each with those of the package that it imports."""
    folder = ROOT / package.replace(".", "/")
    names = {
        ".".join(p.relative_to(ROOT).with_suffix("").parts): p
        for p in folder.rglob("*.py")
        if p.name != "__init__.py"
    }
    found: dict[str, set[str]] = {}
    for name, path in names.items():
        asked = found.setdefault(name, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                asked |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)} & {*names}
    return found


def longest(graph: dict[str, set[str]]) -> int:
    """The modules on the longest way down."""
    known: dict[str, int] = {}

    def height(name: str) -> int:
        if name not in known:
            known[name] = 1 + max(map(height, graph[name]), default=0)
        return known[name]

    return max(map(height, graph), default=0)


def by_package(graph: dict[str, set[str]], package: str) -> dict[str, set[str]]:
    """The same for the folders, or files, right inside the package."""
    depth = package.count(".") + 2

    def part(name: str) -> str:
        return ".".join(name.split(".")[:depth])

    found: dict[str, set[str]] = {}
    for name, asked in graph.items():
        found.setdefault(part(name), set()).update(map(part, asked))
    return {name: asked - {name} for name, asked in found.items()}


def entered(act: Callable[[], object]) -> tuple[int, int]:
    """How many of our files a call enters, and how often one file calls into another."""
    walked: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            walked.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return len({*walked}), sum(now != then for now, then in pairwise(["", *walked]))


def walks() -> Iterator[tuple[str, tuple[int, int]]]:
    """What one pod, one record and one simulated job enter, each with its name.

    As usual in a cluster, the watch has shown the pod before kube-scheduler asks about it.
    """
    cluster = Cache(lambda: 0.0)
    node = machine("hgx-h100-8").topology(NodeName("hgx"))
    yield "a record", entered(lambda: cluster.put_record(node, Report("boot", 1)))
    manifest = pod(2, {"link": "nvlink"}, uid="p")
    manifest["metadata"] |= {"resourceVersion": "1"}
    asked = msgspec.convert(manifest, Pod)
    record = counting_record(asked, MANAGED)
    assert record is not None
    cluster.put_pod(record)
    yield "a cold filter", entered(lambda: verbs.filter_nodes(cluster, asked, ["hgx"]))
    yield "a warm filter", entered(lambda: verbs.filter_nodes(cluster, asked, ["hgx"]))
    args = BindingArgs(record.name, record.namespace, record.uid, "hgx")
    binder = FileBinder(cluster)
    yield (
        "a bind",
        entered(lambda: verbs.bind(cluster, binder, args, lambda: "2026-01-01T00:00:00Z")),
    )
    job = Play("hgx-h100-8=1", Workload(count=1), None, "gpu-topology", 0, Speed())
    yield "a simulated job", entered(lambda: play(job))


def figures() -> Iterator[tuple[str, int]]:
    """Every row of the table."""
    state = imports_inside(STATE)
    plan = by_package(state, STATE)
    yield "files of the extender's state", len(state)
    yield "  files on its longest way down", longest(state)
    yield "  its packages", len(plan)
    yield "  arrows between them", sum(map(len, plan.values()))
    yield (
        "public methods under the cache's lock",
        sum(not name.startswith("_") for name in dir(Cache)),
    )
    for what, (files, changes) in walks():
        yield f"files that {what} enters", files
        yield "  changes of file", changes
    yield "statements of source", statements(SOURCE)
    yield "statements of tests", statements(("tests",))
    docs, decisions = ROOT / "docs", ROOT / "docs" / "contribute" / "adr"
    pages = {*docs.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"}
    yield (
        "words of README, CONTRIBUTING and docs",
        words(p for p in pages if decisions not in p.parents),
    )
    yield "words of the ADRs", words(decisions.glob("*.md"))
    yield "words of the CHANGELOG", words(iter([ROOT / "CHANGELOG.md"]))


def main() -> None:
    """Print the table."""
    shown = Table("what", "how many", box=None)
    shown.columns[1].justify = "right"
    for what, many in figures():
        shown.add_row(what, f"{many:,}")
    Console().print(shown)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main()
