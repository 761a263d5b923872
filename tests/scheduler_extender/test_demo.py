"""`make run`: what it prints and draws, and the stock scheduler that it plays beside ours."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from scheduler_extender.cli import main
from scheduler_extender.demo import (
    CLUSTER_FILE,
    COMPARISON,
    PICTURE,
    STOCK_PICTURE,
    run_demo,
    workload,
)
from scheduler_extender.demo.placing import Placing, Stock
from scheduler_extender.explain.gpustates import Use
from tests.commands import ROOT, Done, asked
from topology.machines import machine


def run(*words: str | Path) -> Done:
    return asked(main, "demo", *words)


def dots(drawing: str, use: Use) -> int:
    """How many GPUs of a picture stand so; the legend has it once."""
    return max(0, len(re.findall(rf'class="dot {use.value}"', drawing)) - 1)


def test_every_promise_is_kept_and_the_stock_scheduler_stands_beside(tmp_path: Path) -> None:
    done = run("--pods", "60", "--seed", "7", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "broken: 0" in done.stdout
    assert "annotation gpu-topology.io/link" in done.stdout
    assert "got unsuitable GPUs" in done.stdout
    assert "notebook-0" not in done.stdout
    ours, stock = (tmp_path / name for name in (PICTURE, STOCK_PICTURE))
    drawing = ours.read_text()
    head, _, rest = drawing.partition(">")
    assert 'role="img"' in head
    assert re.match(r"\s*<title>gpu-topology: \d+ of 60 pods placed</title>", rest)
    assert drawing.count("<title>NVSwitch</title>") == 30
    assert dots(drawing, Use.AS_ASKED) > 20
    assert dots(drawing, Use.MISMATCHED) == 0
    assert dots(stock.read_text(), Use.MISMATCHED) > 0


def test_the_picture_of_the_readme_is_that_of_make_run(tmp_path: Path) -> None:
    done = run("--out", tmp_path)
    assert done.returncode == 0, done.stderr
    drawing = (tmp_path / COMPARISON).read_text()
    assert drawing == (ROOT / "docs/images" / COMPARISON).read_text()
    above, _, below = drawing.partition("with gpu-topology")
    mismatched = f'class="dot {Use.MISMATCHED.value}"'
    assert above.count(mismatched) == 4 * 4
    assert below.count(mismatched) == 1, "the legend's"
    assert re.findall(r">(bridged-\d+)<", above) == re.findall(r">(bridged-\d+)<", below)


def test_nothing_is_compared_where_stock_does_no_wrong(tmp_path: Path) -> None:
    done = run("--pods", "1", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / COMPARISON).exists()


def test_the_cluster_that_it_leaves_is_there_for_the_other_commands(tmp_path: Path) -> None:
    done = run("--pods", "60", "--seed", "7", "--out", tmp_path)
    [placed] = map(int, re.findall(r"(\d+) of 60 pods", done.stdout))
    left = tmp_path / CLUSTER_FILE
    assert f"map --cluster {left}" in done.stdout
    named = asked(main, "waiting", "-A", "-o", "json", "--cluster", left)
    assert len(json.loads(named.stdout)["pods"]) == 60 - placed > 0
    assert "nvlnk" in named.stdout
    printed = "".join(done.stdout.split())
    counted = json.loads(asked(main, "nodes", "-o", "json", "--cluster", left).stdout)["nodes"]
    held, total = (sum(node["gpus"][what] for node in counted) for what in ("inUse", "total"))
    assert f"GPUs in use {held} of {total}" in " ".join(done.stdout.split()), "one count"
    reasons = {pod["reason"] for pod in json.loads(named.stdout)["pods"]}
    assert all("".join(reason.split()) in printed for reason in reasons), "they say the same"
    kinds = re.findall(r'"kind": ?"(\w+)", ?"controller"', left.read_text())
    assert {"Job", "ReplicaSet"} <= set(kinds)
    cells = asked(main, "map", "-o", "wide", "--cluster", left).stdout
    kept, plain = (len(re.findall(rf"\b\d+{letter}\b", cells)) for letter in "AU")
    drawing = (tmp_path / PICTURE).read_text()
    assert kept == dots(drawing, Use.AS_ASKED) > 0
    assert plain == dots(drawing, Use.IN_USE) > 0


def test_no_line_is_wider_than_80_columns(tmp_path: Path) -> None:
    out = io.StringIO()
    assert run_demo(Console(file=out, width=80), tmp_path, 40, 1, None) == 0
    text = out.getvalue().replace(str(tmp_path), "out")
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def stock(*machines: str) -> Placing:
    nodes = [machine(name).topology(f"n{i}") for i, name in enumerate(machines)]
    return Placing(nodes, 1, Stock(1))


def a_pod(gpus: int, annotations: dict[str, str]) -> dict[str, object]:
    (found,) = workload.pods(1, 1)
    limits = {"nvidia.com/gpu": str(gpus)}
    found["metadata"]["annotations"] = {f"gpu-topology.io/{k}": v for k, v in annotations.items()}
    found["spec"]["containers"][0]["resources"]["limits"] = limits
    return found


@pytest.mark.parametrize(
    ("machines", "gpus", "annotations", "node", "met"),
    [
        pytest.param(["l40s-4"], 2, {"link": "nvlink"}, "n0", False, id="links count for nothing"),
        pytest.param(["hgx-h100-8"], 2, {"link": "nvlink"}, "n0", True, id="and may come"),
        pytest.param(["l40s-4"], 8, {}, None, None, id="the count holds"),
        pytest.param(["l40s-4"], 1, {"gpu-model": "H100*"}, None, None, id="the model by label"),
        pytest.param(
            ["dgx1-v100"], 1, {"min-gpu-memory": "40Gi"}, None, None, id="the memory, too"
        ),
        pytest.param(["l40s-4"], 1, {"link": "nvlnk"}, "n0", None, id="a typo is not noticed"),
    ],
)
def test_what_the_stock_scheduler_knows(
    machines: list[str], gpus: int, annotations: dict[str, str], node: str | None, met: bool | None
) -> None:
    found = stock(*machines).place(a_pod(gpus, annotations))
    assert (found.node, found.met) == (node, met)


def test_it_spreads_pods() -> None:
    play = stock("l40s-4", "l40s-4")
    placed = []
    for name in ("a", "b"):
        one = a_pod(1, {})
        one["metadata"] = {**one["metadata"], "name": name, "uid": name}  # type: ignore[dict-item]
        placed.append(play.place(one).node)
    assert sorted(filter(None, placed)) == ["n0", "n1"]
