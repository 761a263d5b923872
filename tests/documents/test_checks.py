"""The GitHub action and the pre-commit hook, as their files have them."""

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.commands import ROOT

CLUSTER = str(ROOT / "examples" / "clusters" / "mixed.yaml")
GOOD = str(ROOT / "manifests" / "samples" / "pair-nvlink.yaml")
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture
def warned(tmp_path: Path) -> str:
    """A pod whose annotation counts for nothing."""
    pod = yaml.safe_load(Path(GOOD).read_text())
    pod["metadata"]["annotations"]["gpu-topolgy.io/link"] = "nvlink"
    path = tmp_path / "a pod.yaml"
    path.write_text(yaml.safe_dump(pod))
    return str(path)


def act(files: str, strict: str = "true") -> int:
    """The exit code of the action's last step."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    step = action["runs"]["steps"][-1]
    given = {"files": files, "cluster": CLUSTER, "strict": strict}
    assert set(given) == set(action["inputs"])
    environment = {
        key: given[value.strip("${} ").partition(".")[2]] for key, value in step["env"].items()
    }
    # As GitHub starts it: https://docs.github.com/actions, "shell".
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(
        command, env={**ENVIRONMENT, **environment}, cwd=ROOT, check=False
    ).returncode


def test_the_action_checks_what_it_is_given(warned: str) -> None:
    assert act(GOOD) == 0
    assert act(f"{GOOD}\n{warned}\n") == 1
    assert act(f"\n{warned}\n", strict="false") == 0
    assert act(str(ROOT / "docs")) == 2


def test_the_action_installs_an_extra_that_there_is() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "[plugin]" in action["runs"]["steps"][0]["run"]
    assert "plugin" in project["optional-dependencies"]


def test_the_hook_checks_what_its_arguments_name(warned: str) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {each.partition(">")[0] for each in project["optional-dependencies"]["plugin"]}
    assert set(hook["additional_dependencies"]) == names
    for path, code in ((GOOD, 0), (warned, 1)):
        command = [*shlex.split(hook["entry"]), path, "--cluster", CLUSTER]
        assert subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, check=False).returncode == code


def test_the_examples_name_inputs_and_hooks_that_there_are() -> None:
    folder = ROOT / "examples" / "ci"
    workflow = yaml.safe_load((folder / "workflow.yaml").read_text())
    *_, step = workflow["jobs"]["check"]["steps"]
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert set(step["with"]) <= set(action["inputs"])
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (repository,) = yaml.safe_load((folder / "pre-commit-config.yaml").read_text())["repos"]
    assert [each["id"] for each in repository["hooks"]] == [hook["id"]]
