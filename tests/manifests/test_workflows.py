"""The workflows of the repository, by actionlint."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.e2e.building import ACTIONLINT
from tests.e2e.conftest import programs
from tests.manifests.building import ROOT
from tests.waiting import FOREVER

pytestmark = pytest.mark.long
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


def linted(*paths: Path) -> subprocess.CompletedProcess[str]:
    words = [str(programs(ACTIONLINT) / "actionlint"), "-no-color", *map(str, paths)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=FOREVER)


def test_actionlint_finds_no_fault() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yaml", "release.yaml"]
    done = linted(*WORKFLOWS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_actionlint_finds_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(WORKFLOWS[1].read_text().replace("github.ref_name", "github.reference"))
    assert 'property "reference" is not defined' in linted(wrong).stdout


def test_every_action_is_pinned_by_its_commit() -> None:
    """A tag moves where its owner moves it."""
    uses = re.findall(r"uses: (.*)", "".join(path.read_text() for path in WORKFLOWS))
    assert len(uses) == 8
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use) for use in uses)


def test_they_call_targets_and_files_of_ours() -> None:
    makefile = (ROOT / "Makefile").read_text()
    text = "".join(path.read_text() for path in WORKFLOWS)
    matrix = yaml.safe_load(WORKFLOWS[0].read_text())["jobs"]["check"]["strategy"]["matrix"]
    called = {*re.findall(r"run: make ([\w-]+)", text), *matrix["target"]}
    assert called == {"release", "lint", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in called)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    said = re.search(r"sed -n '(s/\^version.*?)' pyproject", text)
    assert said is not None
    done = subprocess.run(
        ["sed", "-n", said[1], "pyproject.toml"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == f"{version}\n"
