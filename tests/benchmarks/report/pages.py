"""A page as a browser would read it, and figures to make one of."""

import copy
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.report.page import page, parse
from benchmarks.simulation import sweep as sweeps
from benchmarks.simulation.figures import Sweep

POLICIES = ("gpu-topology", "MostAllocated")


CLUSTER = "dgx1-v100=2,l40s-4=1"


NASTY = "<script>alert(1)</script>"


LOADING = {"src", "srcset", "href", "xlink:href", "action", "data", "poster", "background", "ping"}


VOID = {"meta", "br", "img", "link", "input", "hr", "wbr"}


class Page(HTMLParser):
    """What a browser would make of a page, as far as these tests ask."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.styles = ""
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append((tag, given))
        self.styles += given.get("style", "") + "\n"
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> and nothing is open"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.styles += data
            return
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    def outside(self) -> list[str]:
        """Everything that would be loaded from elsewhere, or run."""
        found = [
            f"{tag} {name}={value}"
            for tag, given in self.tags
            for name, value in given.items()
            if (name in LOADING and not value.startswith("#")) or name.startswith("on")
        ]
        found += [tag for tag, _ in self.tags if tag in ("script", "link", "iframe", "base")]
        every = [self.styles, *(value for _, given in self.tags for value in given.values())]
        return found + re.findall(
            r"@import[^;]*|url\((?!#)[^)]*|https?:[^\s\"]*|//\w[^\s\"]*", "\n".join(every)
        )

    def figures_of(self, policy: str) -> list[str]:
        """The cells of a policy's column in the only table."""
        head, *rest = self.rows
        return [row[head.index(policy)] for row in rest]


def tiny(**changes: Any) -> Sweep:
    given: dict[str, Any] = {
        "clusters": (CLUSTER,),
        "jobs": "synthetic",
        "count": 60,
        "demand": "nvlink",
        "loads": (0.9,),
        "policies": POLICIES,
        "seeds": 2,
        "communication": 0.05,
        "full_speed": 50,
        "network": 25,
    }
    return Sweep(**{**given, **changes})


def played(sweep: Sweep) -> dict[str, Any]:
    """As it comes out of a file."""
    found: dict[str, Any] = json.loads(json.dumps(sweeps.run(sweep, workers=2).as_json()))
    return found


def page_of(found: dict[str, Any]) -> str:
    """The page of a file with these figures."""
    return page(parse(json.dumps(found)))


def changed(found: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    result = copy.deepcopy(found)
    change(result)
    return result


def refused(file: Path, out: Path) -> str:
    """The one line that is said."""
    result = CliRunner().invoke(app, ["report", str(file), "--out", str(out)])
    assert result.exit_code == 2, result.output
    lines = result.output.strip().splitlines()
    assert [line for line in lines if "Traceback" in line] == []
    assert lines[-1].startswith("Error: ")
    assert len([line for line in lines if not re.match("Usage:|Try |$", line)]) == 1, lines
    return lines[-1]
