"""``python -m benchmarks simulate``: examples, bad input, and what it writes."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.commands.simulate import Played
from benchmarks.simulation.simulation import Speed
from benchmarks.simulation.sources import DEMANDS
from benchmarks.simulation.sweep import POLICIES
from tests.benchmarks.simulation.samples import written

ROOT = Path(__file__).resolve().parents[3]


runner = CliRunner()


@pytest.mark.parametrize("jobs", ["jobs.csv", "jobs.jsonl"])
def test_the_examples_of_the_docs(jobs: str, tmp_path: Path) -> None:
    folder = ROOT / "examples" / "simulation"
    args = ["simulate", "--cluster", str(folder / "cluster.yaml"), "--jobs", str(folder / jobs)]
    args += ["--seeds", "1", "--workers", "1", "--json", str(tmp_path / "found.json")]
    done = runner.invoke(app, args)
    assert done.exit_code == 0, done.output
    message = " ".join(done.output.split())
    assert "± is half of the 95 % confidence interval, for at least three seeds." in message
    assert '"× gpu-topology" is the completion time divided by' in message
    found = json.loads((tmp_path / "found.json").read_text())
    assert [run["policy"] for run in found["runs"]] == list(POLICIES)
    ours = found["runs"][0]
    assert (ours["jobs"], ours["placed"], ours["kept"]) == (6, 6, 1.0)


def test_the_help_has_the_names_that_there_are() -> None:
    """It is written without the model, which takes seconds to load."""
    message = runner.invoke(app, ["simulate", "--help"]).output
    assert {*POLICIES, *DEMANDS} <= set(re.findall(r"[\w-]+", message))


def test_the_defaults_are_those_of_the_model() -> None:
    given = Played().sweep()
    assert Speed(given.communication, given.full_speed, given.network) == Speed()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--cluster", "dgx9=1"], "not in the catalogue"),
        (["--jobs", "none.csv"], "none.csv"),
        (["--policy", "Best"], "allowed are gpu-topology, LeastAllocated, MostAllocated"),
        (["--demand", "all"], "allowed are none, nvlink, preferred"),
        (["--communication", "2"], "less than or equal to 1"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(args: list[str], words: str) -> None:
    done = runner.invoke(app, ["simulate", *args], env={"COLUMNS": "400"})
    assert done.exit_code == 2
    (line,) = [line for line in done.output.splitlines() if "Error" in line]
    assert words in line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--json", "/proc/none/x.json"], "/proc/none/x.json: No such file"),
        (["--html", "/"], "/: Is a directory"),
        (["--load", "1e-320"], "allowed are 0 and 0.001 to 100"),
        (["--network", "inf"], "--network"),
        (["--cluster", ",".join(["dgx1-v100=1"] * 60)], "is listed twice"),
    ],
)
def test_what_would_fail_at_the_end_fails_at_once(args: list[str], words: str) -> None:
    done = runner.invoke(app, ["simulate", "--count", "3", *args], env={"COLUMNS": "2000"})
    assert done.exit_code == 2, done.output
    assert words in done.output


def test_figures_on_standard_output_come_alone() -> None:
    args = ["simulate", "--cluster", "t4-1=1", "--count", "3", "--seeds", "1", "--json", "-"]
    done = runner.invoke(app, args)
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["runs"]) == len(POLICIES)


def test_short_jobs_and_jobs_without_gpus(tmp_path: Path) -> None:
    path = written(tmp_path, "j.csv", "arrival,duration,gpus\n0,0.5,1\n1,0.2,2\n")
    none = written(tmp_path, "n.csv", "arrival,duration,gpus\n0,60,0\n1,60,0\n")
    for jobs in (path, none):
        args = ["simulate", "--jobs", str(jobs), "--seeds", "1", "--policy", "gpu-topology"]
        done = runner.invoke(app, [*args, "--json", str(tmp_path / "o.json")])
        assert done.exit_code == 0, done.output


def test_what_is_named_twice_is_played_once(tmp_path: Path) -> None:
    twice = ["--cluster", "t4-1=1", "--load", "0.5", "--policy", "LeastAllocated"] * 2
    args = ["simulate", *twice, "--seeds", "1", "--count", "3", "--json", str(tmp_path / "t.json")]
    assert runner.invoke(app, args).exit_code == 0
    assert len(json.loads((tmp_path / "t.json").read_text())["runs"]) == 1
