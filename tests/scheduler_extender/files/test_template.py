"""The cluster file that people fill in: every command with ``--cluster`` takes it."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scheduler_extender.cli import main
from tests.commands import ROOT, asked

TEMPLATE = "examples/clusters/template.yaml"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nodes"], 0),
        (["node", "train-00"], 0),
        (["map"], 0),
        (["waiting", "-A"], 0),
        (["idle", "-A"], 0),
        (["why", "team-a/train"], 0),
        (["unblock", "team-a/train"], 0),
        (["check", "manifests/samples/pair-nvlink.yaml"], 1),
    ],
)
def test_every_command_reads_it(words: list[str], code: int) -> None:
    done = asked(main, *words, "--cluster", TEMPLATE)
    assert done.returncode == code, done.stderr
    assert "error" not in done.stderr
    assert done.stdout


def test_a_running_pod_without_a_record_is_reported() -> None:
    done = asked(main, "nodes", "--cluster", TEMPLATE)
    assert done.stderr == (
        "note: team-a/notebook counts as assumed, because no status.allocations of a "
        "GPUTopology names "
        "its GPUs\n"
    )


def test_a_pod_that_is_only_bound_is_not_reported(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((ROOT / TEMPLATE).read_text()))
    for each in documents:
        each.pop("status", None)
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    assert asked(main, "nodes", "--cluster", path).stderr == ""


def test_it_may_be_piped_in() -> None:
    with (ROOT / TEMPLATE).open("rb") as file:
        command = [sys.executable, "-m", "scheduler_extender", "nodes", "--cluster", "-"]
        done = subprocess.run(command, stdin=file, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stdout.decode() == asked(main, "nodes", "--cluster", TEMPLATE).stdout
