"""What a page says in words: parameters, the command, and who did better."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.figures.simulated import Parameters, Simulated
from benchmarks.report import wording
from benchmarks.simulation import sweep as sweeps
from benchmarks.simulation.plays import Sweep
from benchmarks.simulation.simulation import Rules
from benchmarks.simulation.sources import Workload
from benchmarks.simulation.speed import Speed
from tests.benchmarks.report.pages import CLUSTER, POLICIES, Page, page_of, rewritten, tiny


def test_parameters_stand_at_the_end(whole: dict[str, Any]) -> None:
    text = Page(page_of([whole])).text
    given = Parameters.model_validate_json(json.dumps(whole["parameters"]))
    assert wording.simulate(given) in text
    for name, value in wording.flat(whole["parameters"]):
        assert name in text
        assert value in text


@pytest.mark.parametrize("gang", [True, False])
def test_the_command_is_the_same_sweep(gang: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the program itself reads it."""
    sweep = tiny(
        clusters=(CLUSTER, "l40s-4=1"),
        workload=Workload("synthetic", 50, None, "preferred", 4),
        loads=(None, 0.7),
        adds=("l40s-4=2",),
        rules=Rules("fifo", gang, Speed(0.1, 40.0, 12.5)),
    )
    line = wording.simulate(sweep.parameters())
    heard: list[Sweep] = []

    def listen(what: Sweep, **_: object) -> Simulated:
        heard.append(what)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps, "run", listen)
    words = shlex.split(line)
    assert words[:3] == ["python", "-m", "benchmarks"]
    CliRunner().invoke(app, words[3:])
    assert [what.parameters() for what in heard] == [sweep.parameters()]


def test_worse_is_said_as_plainly_as_better(whole: dict[str, Any]) -> None:
    worse = rewritten(whole, POLICIES[0], kept=0.5, completion=4000.0)
    worse = rewritten(worse, POLICIES[1], kept=0.9, completion=2000.0)
    text = page_of([worse])
    assert "gpu-topology kept 50.0 % of the promises to the jobs it placed" in text
    assert "the best other policy 90.0 %." in text
    assert "0.500 times as long under the fastest other policy as under gpu-topology." in text


def test_what_seeds_cannot_tell_is_said(whole: dict[str, Any]) -> None:
    same = rewritten(whole, POLICIES[0], completion=2000.0)
    same = rewritten(same, POLICIES[1], completion=2000.0)
    assert "no difference that the seeds can tell" in page_of([same])


def test_jobs_that_were_never_placed_are_counted(whole: dict[str, Any]) -> None:
    assert "never placed" not in page_of([whole])
    lost = rewritten(whole, POLICIES[1], placed=50)
    shown = Page(page_of([lost]))
    assert "0 of 120 under gpu-topology and 20 under the others" in shown.text
    assert shown.figures_of(0, POLICIES[1])[-1] == "20"
