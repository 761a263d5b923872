"""``python -m benchmarks simulate``: examples, bad input, and what it writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.commands.simulate import Played
from benchmarks.papers import policies as published
from benchmarks.simulation import policies
from benchmarks.simulation.policies import ALL
from benchmarks.simulation.queues import QUEUES
from benchmarks.simulation.simulation import Moves
from benchmarks.simulation.sources import DEMANDS
from benchmarks.simulation.speed import Speed
from tests.benchmarks.simulation.samples import written

ROOT = Path(__file__).resolve().parents[3]


runner = CliRunner()


@pytest.mark.parametrize("jobs", ["jobs.csv", "jobs.jsonl"])
def test_the_examples_of_the_docs(jobs: str, tmp_path: Path) -> None:
    folder = ROOT / "examples" / "simulation"
    args = ["simulate", "--cluster", str(folder / "cluster.yaml"), "--jobs", str(folder / jobs)]
    args += ["--policy", "gpu-topology", "--policy", f"{folder / 'policy.py'}:Tidy"]
    args += ["--seeds", "1", "--workers", "1", "--json", str(tmp_path / "found.json")]
    done = runner.invoke(app, args)
    assert done.exit_code == 0, done.output
    assert "Tidy" in done.output
    said = " ".join(done.output.split())
    assert "After ± stands the half of the 95 % interval over the seeds." in said
    assert '"Of those asking" is the wait of jobs with annotations.' in said
    found = json.loads((tmp_path / "found.json").read_text())
    ours, tidy = found["runs"]
    assert (ours["jobs"], ours["placed"], ours["kept"]) == (7, 7, 1.0)
    assert tidy["policy"] == "Tidy"


@pytest.mark.parametrize(
    ("command", "names"),
    [("simulate", (*policies.POLICIES, *QUEUES, *DEMANDS)), ("compare", published.POLICIES)],
)
def test_the_help_has_the_names_that_there_are(command: str, names: Iterable[str]) -> None:
    """It is written without the model, which takes seconds to load."""
    said = runner.invoke(app, [command, "--help"]).output
    assert set(names) <= set(re.findall(r"[\w-]+", said))


def test_the_defaults_are_those_of_the_model() -> None:
    rules = Played().sweep().rules
    assert (rules.speed, rules.moves) == (Speed(), Moves())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--cluster", "dgx9=1"], "not in the catalogue"),
        (["--jobs", "none.csv"], "none.csv"),
        (["--policy", "Best"], "allowed are gpu-topology"),
        (["--policy", "FGD", "--policy", "x.py:FGD"], "x.py"),
        (["--queue", "lifo"], "allowed are backfill, fifo, none"),
        (["--demand", "all"], "allowed are none, nvlink, preferred"),
        (["--shard", "3/3"], "PART from 0 to 2"),
        (["--shard", "a/3"], "allowed is PART/PARTS"),
        (["--communication", "2"], "less than or equal to 1"),
        (["--jobs", "openb:nope"], "nope"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(args: list[str], words: str) -> None:
    done = runner.invoke(app, ["simulate", *args], env={"COLUMNS": "400"})
    assert done.exit_code == 2
    (line,) = [line for line in done.output.splitlines() if "Error" in line]
    assert words in line


def test_a_shard_without_simulations_is_no_failure() -> None:
    args = ["simulate", "--cluster", "t4-1=1", "--count", "3", "--seeds", "1"]
    done = runner.invoke(app, [*args, "--policy", "Random", "--shard", "1/2", "--tsv", "-"])
    assert done.exit_code == 0, done.output


def test_the_sweeps_job_runs_what_it_says() -> None:
    folder = ROOT / "manifests" / "sweep"
    job = yaml.safe_load((folder / "job.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    parts = job["spec"]["completions"]
    assert f"--shard=$(JOB_COMPLETION_INDEX)/{parts}" in container["args"]
    args = [
        arg.replace("$(JOB_COMPLETION_INDEX)", "3").replace("/sweep/", f"{folder}/")
        for arg in container["args"]
    ]
    args += ["--count", "10", "--seeds", "1"]
    done = runner.invoke(app, args)
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)  # both outputs, as `kubectl logs` has them
    assert len(found["runs"]) == len(range(3, 3 * len(ALL), parts))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--json", "/proc/none/x.json"], "/proc/none/x.json: No such file"),
        (["--html", "/"], "/: Is a directory"),
        (["--load", "1e-320"], "allowed are 0 and 0.001 to 100"),
        (["--network", "inf"], "--network"),
        (["--shard", "0/0"], "PARTS is 1 or more"),
        (["--cluster", ",".join(["dgx1-v100=1"] * 60)], "is there twice"),
    ],
)
def test_what_would_fail_at_the_end_fails_at_once(args: list[str], words: str) -> None:
    done = runner.invoke(app, ["simulate", "--count", "3", *args], env={"COLUMNS": "2000"})
    assert done.exit_code == 2, done.output
    assert words in done.output


def test_short_jobs_and_jobs_without_gpus(tmp_path: Path) -> None:
    path = written(tmp_path, "j.csv", "arrival,duration,gpus\n0,0.5,1\n1,0.2,2\n")
    none = written(tmp_path, "n.csv", "arrival,duration,gpus\n0,60,0\n1,60,0\n")
    for jobs in (path, none):
        args = ["simulate", "--jobs", str(jobs), "--seeds", "1", "--policy", "gpu-topology"]
        done = runner.invoke(app, [*args, "--json", str(tmp_path / "o.json")])
        assert done.exit_code == 0, done.output
    twice = ["--cluster", "t4-1=1", "--load", "0.5", "--load", "0.5", "--policy", "all"]
    args = ["simulate", *twice, "--cluster", "t4-1=1", "--policy", "FGD", "--seeds", "1"]
    done = runner.invoke(app, [*args, "--count", "3", "--json", str(tmp_path / "t.json")])
    found = json.loads((tmp_path / "t.json").read_text())
    assert len(found["runs"]) == len(ALL)
