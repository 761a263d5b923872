"""Shell completion: typer's own for ``gpu-topology``, and what kubectl asks of a plugin."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from scheduler_extender.cli import kubectl_completion, kubectl_plugin, main
from scheduler_extender.cli.completion import COLUMNS
from tests.commands import ROOT, asked, refused
from tests.e2e.controlplane import KUBECTL
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod
from tests.programs import started
from tests.scheduler_extender.cli.kubecluster import Cluster
from topology.machines import machine

CLUSTER = "examples/clusters/waiting.yaml"
FORMS = ["json", "name", "table", "wide", "yaml"]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A node and a waiting pod, at the cluster that the environment names."""
    with FakeApiServer() as fake:
        found = Cluster(fake, tmp_path)
        found.node(machine("l40s-4").topology("serve-01"))
        found.pod(pod(2, name="train", uid="train"), "default")
        fake.put("/api/v1/namespaces", {"metadata": {"name": "team-a"}})
        monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig))
        yield found


def offered(*words: str) -> tuple[list[str], str]:
    """What kubectl gets for these words: the choices, sorted, and the directive."""
    done = asked(kubectl_completion, *words)
    assert (done.returncode, done.stderr) == (0, "")
    *choices, directive = done.stdout.splitlines()
    return sorted(choices), directive


def test_commands_and_options() -> None:
    commands, directive = offered("")
    assert directive == ":4"
    assert {"check", "map", "node", "nodes", "unblock", "waiting", "why"} <= set(commands)
    assert offered("wa") == (["waiting"], ":4")
    assert offered("nodes", "--se") == (["--selector"], ":4")
    assert offered("map", "-o", "") == (FORMS, ":4")
    assert offered("node", "-o", "") == (sorted([*FORMS, "graphml"]), ":4")
    assert offered("claim", "-o", "j") == (["json"], ":4")
    assert offered("waiting", "--require", "g") == (["guaranteed"], ":4")


@pytest.mark.parametrize("command", ["check", "idle", "nodes", "pods", "waiting"])
def test_columns_are_offered_and_accepted(command: str) -> None:
    of = {"check": ["manifests/samples/pair-nvlink.yaml", "-o", "wide"], "nodes": []}
    words = [command, *of.get(command, ["-A"]), "--cluster", CLUSTER]
    columns, directive = offered(command, "--sort-by", "")
    assert (columns, directive) == (sorted(COLUMNS[command].split()), ":4")
    said = asked(main, *words, "--sort-by", "nothing").stderr
    allowed = said.partition("allowed are ")[2].partition(", not")[0].split(", ")
    assert {name.replace(" ", "-") for name in allowed} == {*columns}
    for column in columns:
        assert asked(main, *words, "--sort-by", column).returncode < 2


def test_names_are_asked_of_the_cluster(cluster: Cluster) -> None:
    assert offered("node", "se") == (["serve-01"], ":4")
    assert offered("nodes", "train-01", "se") == (["serve-01"], ":4")
    assert offered("pods", "--node", "se") == (["serve-01"], ":4")
    assert offered("why", "") == (["train"], ":4")
    assert offered("waiting", "-n", "te") == (["team-a"], ":4")
    context = json.loads(cluster.kubeconfig.read_text())["current-context"]
    assert offered("map", "--context", "") == ([context], ":4")
    cluster.fake.refuse(403, None, path=".*")
    assert offered("node", "se") == ([], ":4"), "whoever may not ask is offered nothing"


def test_machines_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_GPU_TOPOLOGY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "gpu-topology machines dgx-a100-")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert asked(main).stdout.split() == ["dgx-a100-80"]


def test_files_are_left_to_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    assert offered("check", "") == offered("claim", "") == ([], ":0")
    assert offered("map", "--cluster", "") == ([], ":0")
    assert offered("node", "") == ([], ":4")
    assert offered("map", "--selector", "") == ([], ":4")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_typers_own(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_GPU_TOPOLOGY_COMPLETE", f"source_{shell}")
    done = asked(main)
    assert done.returncode == 0
    assert "_GPU_TOPOLOGY_COMPLETE" in done.stdout


@pytest.mark.parametrize("program", [main, kubectl_plugin])
def test_the_version(program: object) -> None:
    done = asked(program, "--version")  # type: ignore[arg-type]
    assert (done.returncode, done.stdout.split()[0]) == (0, "gpu-topology")


def test_the_hook_is_written_beside_the_plugin_and_kubectl_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As krew installs: the plugin alone is on the PATH."""
    script(tmp_path / "kubectl-gpu_topology", "kubectl_plugin")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hook = tmp_path / "kubectl_complete-gpu_topology"
    for _ in range(2):
        done = asked(kubectl_plugin, "completion")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{hook} was written")
    command = [str(KUBECTL), "__complete", "gpu-topology", "map", "-o", ""]
    with started(command, stdout=PIPE, stderr=PIPE) as child:
        message, _ = child.communicate()
    *choices, directive = message.splitlines()
    assert (sorted(choices), directive) == (FORMS, ":4")
    hook.write_text("of somebody else")
    done = asked(kubectl_plugin, "completion")
    assert (done.returncode, hook.read_text()) == (0, "of somebody else")
    assert done.stdout == f"{hook} exists already and was not changed\n"


def test_without_the_plugin_on_the_path_no_hook_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = asked(kubectl_plugin, "completion")
    refused(done, "kubectl-gpu_topology is not on the PATH")
    assert list(tmp_path.iterdir()) == []


def script(path: Path, function: str) -> None:
    """A console script as the wheel has it."""
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from scheduler_extender.cli import {function}\n{function}()\n"
    )
    path.chmod(0o755)
