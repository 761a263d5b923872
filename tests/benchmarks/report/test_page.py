"""Every figure of the file stands in the page, which is complete in itself."""

import json
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.report.page import command
from benchmarks.simulation import sweep as sweeps
from benchmarks.simulation.figures import COLUMNS, Interval, Simulated, Sweep
from tests.benchmarks.report.pages import (
    CLUSTER,
    POLICIES,
    Page,
    changed,
    page_of,
    played,
    tiny,
)


def test_every_policy_and_figure_stands_in_its_row(whole: dict[str, Any]) -> None:
    shown = Page(page_of(whole))
    for row in whole["rows"]:
        written = [column.written(Interval(*row[column.name])) for column in COLUMNS]
        assert shown.figures_of(row["policy"]) == written
    kept = {row["policy"]: f"{100 * row['kept'][0]:.1f} %" for row in whole["rows"]}
    assert f"gpu-topology 100.0 %, MostAllocated {kept['MostAllocated']}." in shown.text


def test_nothing_is_loaded_from_elsewhere(whole: dict[str, Any]) -> None:
    assert Page(page_of(whole)).outside() == []


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param('<img src="//a.example/x.png">', id="image"),
        pytest.param('<p><a href="https://a.example">x</a></p>', id="link"),
        pytest.param("<style>@import 'x.css';</style>", id="import"),
        pytest.param('<p style="background:url(x.png)"></p>', id="style"),
        pytest.param("<script>1</script>", id="script"),
        pytest.param('<p onclick="x()"></p>', id="handler"),
    ],
)
def test_the_test_sees_what_is_loaded(bad: str) -> None:
    assert Page(bad).outside()


def test_each_case_has_a_drawing_of_each_kind() -> None:
    shown = Page(page_of(played(tiny(loads=(0.5, 1.5), seeds=1))))
    labels = [given["aria-label"] for _, given in shown.tags if given.get("role") == "img"]
    assert [label.partition(": ")[0] for label in labels] == [
        f"{title}, {CLUSTER}, load {load}"
        for load in (0.5, 1.5)
        for title in ("Promises kept", "Completion", "Waiting")
    ]
    assert all(policy in label for label in labels for policy in POLICIES)


def test_the_command_is_the_same_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the program itself reads it."""
    sweep = tiny(
        clusters=(CLUSTER, "l40s-4=1"),
        demand="preferred",
        loads=(None, 0.7),
        communication=0.1,
        full_speed=40.0,
        network=12.5,
    )
    received: list[Sweep] = []

    def listen(what: Sweep, **_: object) -> Simulated:
        received.append(what)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps, "run", listen)
    words = shlex.split(command(sweep))
    assert words[:3] == ["python", "-m", "benchmarks"]
    CliRunner().invoke(app, words[3:])
    assert received == [sweep]


def test_jobs_that_never_ran_are_counted(whole: dict[str, Any]) -> None:
    assert "never ran" not in page_of(whole)

    def lose(found: dict[str, Any]) -> None:
        for run in found["runs"]:
            run["placed"] -= 10 * (run["policy"] == POLICIES[1])

    shown = Page(page_of(changed(whole, lose)))
    assert [shown.figures_of(policy)[0] for policy in POLICIES] == ["0 ± n/a", "10 ± n/a"]


def test_the_oddest_figures_are_drawn(whole: dict[str, Any]) -> None:
    def odd(found: dict[str, Any]) -> None:
        for run, completion in zip(found["runs"], (0.0, 1e30, 5e-324, 1e-6), strict=True):
            run |= {"kept": completion, "completion": completion, "waits": [1e30, 0.0]}

    text = page_of(changed(whole, odd))
    assert Page(text).figures_of("gpu-topology")
    assert "nan" not in text
    assert "inf" not in text


def test_a_sweep_in_which_nothing_ran(whole: dict[str, Any]) -> None:
    def stop(found: dict[str, Any]) -> None:
        for run in found["runs"]:
            known = ("kept", "hop", "wait", "wait_asking", "completion", "completion_several")
            run |= dict.fromkeys((*known, "allocated"))
            run |= {"placed": 0, "waits": []}

    shown = Page(page_of(changed(whole, stop)))
    assert shown.figures_of("gpu-topology") == ["60 ± n/a"]


def test_pods_that_kubelets_refused_are_counted_and_drawn(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    def refuse(found: dict[str, Any]) -> None:
        """MostAllocated: 3 under seed 1 and 5 under seed 2."""
        for run in found["runs"]:
            run["refused"] = 0 if run["policy"] == "gpu-topology" else 1 + 2 * run["seed"]

    title = "Pods refused"
    assert title not in page_of(whole)
    some = changed(whole, refuse)
    shown = Page(page_of(some))
    assert [shown.figures_of(policy)[0] for policy in POLICIES] == ["0 ± n/a", "4 ± n/a"]
    labels = [given["aria-label"] for _, given in shown.tags if given.get("role") == "img"]
    (label,) = [label for label in labels if label.startswith(title)]
    assert label.endswith("gpu-topology 0 ± n/a; MostAllocated 4 ± n/a")
    file, out = tmp_path / "found.json", tmp_path / "refused.svg"
    file.write_text(json.dumps(some))
    assert CliRunner().invoke(app, ["report", str(file), "--out", str(out)]).exit_code == 0
    picture = ET.fromstring(out.read_text())
    assert "MostAllocated 4 ± n/a" in "".join(picture.itertext())


def test_a_drawing_without_any_figure_is_left_out(whole: dict[str, Any]) -> None:
    def forget(found: dict[str, Any]) -> None:
        for run in found["runs"]:
            run["kept"] = None

    axis = "promises kept / placed jobs with annotations (%)"
    assert axis in Page(page_of(whole)).text
    assert axis not in Page(page_of(changed(whole, forget))).text
