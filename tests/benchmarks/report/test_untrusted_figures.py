"""Untrusted files: names that contain markup, and files without figures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from tests.benchmarks.report.pages import NASTY, Page, changed, page_of, refused


def test_names_are_escaped_wherever_they_stand(whole: dict[str, Any]) -> None:
    words = json.dumps(whole).replace("dgx1-v100", NASTY).replace("synthetic", NASTY)
    words = words.replace("MostAllocated", f"{NASTY}\u4e2d")
    shown = Page(page_of(json.loads(words)))
    assert shown.outside() == []
    assert shown.text.count(NASTY) >= 6
    assert f"{NASTY}\u4e2d" in shown.text


def test_files_with_bad_names_come_out_escaped(tmp_path: Path) -> None:
    """Through the whole program: a cluster file and a file of jobs with names like that."""
    folder = tmp_path / "<script>alert(1)<"
    folder.mkdir()
    cluster, jobs = folder / "script>.yaml", folder / "script>.jsonl"
    cluster.write_text("kind: MachineGroup\nmachine: l40s-4\ncount: 2\nnamePrefix: n-\n")
    lines = [
        json.dumps({"name": NASTY, "arrival": i, "gpus": 2, "annotations": {"gpu-model": "L40S*"}})
        for i in range(8)
    ]
    jobs.write_text("\n".join(lines))
    figures, out = tmp_path / "figures.json", tmp_path / "report.html"
    words = ["simulate", "--cluster", str(cluster), "--jobs", str(jobs), "--seeds", "1"]
    at_once = tmp_path / "at-once.html"
    words += ["--policy", "MostAllocated", "--json", str(figures), "--html", str(at_once)]
    assert (error := CliRunner().invoke(app, words)).exit_code == 0, error.output
    error = CliRunner().invoke(app, ["report", str(figures), "--out", str(out)])
    assert error.exit_code == 0, error.output
    assert out.read_text() == at_once.read_text()
    shown = Page(out.read_text())
    assert shown.outside() == []
    assert str(cluster) in shown.text
    assert str(jobs) in shown.text


def without(*path: str) -> Callable[[dict[str, Any]], object]:
    def change(found: Any) -> None:
        for name in path[:-1]:
            found = found[0] if isinstance(found, list) else found
            found = found[name]
        found = found[0] if isinstance(found, list) else found
        del found[path[-1]]

    return change


def first_run(**figures: object) -> Callable[[dict[str, Any]], object]:
    return lambda found: found["runs"][0].update(figures)


BAD: list[tuple[str, str | bytes | Callable[[dict[str, Any]], object], str]] = [
    ("empty", "", "not JSON"),
    ("html", "<html>", "not JSON"),
    ("bytes", b"\xff\xfe\x00", "not UTF-8"),
    ("deep", "[" * 100_000, "not JSON"),
    ("list", "[1]", "not figures of simulate"),
    ("nothing", "{}", "not figures of simulate"),
    ("other", '{"benchmark": "latency", "rows": []}', "not figures of simulate"),
    ("odd", '{"benchmark": ["simulate"]}', "not figures of simulate"),
    ("no parameters", without("parameters"), "parameters:"),
    ("no runs", without("runs"), "runs:"),
    ("no simulation", lambda found: found.update(runs=[]), "runs:"),
    ("no policy", without("runs", "policy"), "runs.0.policy:"),
    ("no source", without("parameters", "jobs"), "parameters.jobs:"),
    ("text", first_run(kept="all"), "runs.0.kept:"),
    ("infinite", first_run(wait=float("inf")), "runs.0.wait:"),
    ("negative", first_run(placed=-1), "runs.0.placed:"),
    ("no number", first_run(completion=float("nan")), "runs.0.completion:"),
    ("endless", first_run(completion=1e300), "runs.0.completion:"),
    ("quantiles", first_run(waits=[1.0] * 52), "runs.0.waits:"),
]


@pytest.mark.parametrize(("content", "error"), [pytest.param(c, s, id=name) for name, c, s in BAD])
def test_a_bad_file_gives_one_line(
    content: str | bytes | Callable[[dict[str, Any]], object],
    error: str,
    whole: dict[str, Any],
    tmp_path: Path,
) -> None:
    file, out = tmp_path / "bad.json", tmp_path / "report.html"
    if callable(content):
        content = json.dumps(changed(whole, content))
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = refused(file, out)
    assert str(file) in line
    assert error in line
    assert "allowed are files that simulate --json writes" in line
    assert not out.exists()


def test_a_file_that_is_not_there_and_a_folder(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "none.json", tmp_path / "report.html")
    assert "Is a directory" in refused(tmp_path, tmp_path / "report.html")


def test_the_page_never_replaces_its_figures(whole: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    file.write_text(before := json.dumps(whole))
    assert "is the input file" in refused(file, file)
    assert file.read_text() == before
    assert "--out" in refused(file, tmp_path)


def test_half_a_character_is_refused_and_the_page_stays(
    tmp_path: Path, whole: dict[str, Any]
) -> None:
    """UTF-8 has no place for it, and JSON may name it all the same."""
    words = json.dumps(whole).replace("MostAllocated", "\\ud800")
    figures, out = tmp_path / "figures.json", tmp_path / "report.html"
    figures.write_text(words)
    out.write_text("the last one")
    error = CliRunner().invoke(app, ["report", str(figures), "--out", str(out)])
    assert error.exit_code == 2
    assert "surrogates not allowed" in error.output
    assert out.read_text() == "the last one"
