"""The manifest of the kubectl plugin, which krew reads; tests/e2e/test_krew.py installs by one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from manifests import buildplugin
from tests.commands import asked

ADDRESS = "https://files.example.com/gpu-topology/kubectl-gpu_topology.tar.gz"
DIGEST = "0" * 64


@pytest.mark.parametrize(
    "address",
    [
        "",
        "files.example.com/gpu-topology",
        "http://files.example.com",
        "https://",
        "https://files.example.com/?a=b",
        "https://files.example.com/#a",
        "https://user:word@files.example.com/",
        "https://files.example.com:99999/",
        "https://[files.example.com/",
        "https://files.example.com/a b",
    ],
)
def test_an_address_that_krew_cannot_download_from_is_refused_before_the_build(
    address: str, tmp_path: Path
) -> None:
    folder = tmp_path / "plugin"
    done = asked(buildplugin.main, "--output", folder, "--address", address)
    assert done.returncode == 2
    assert "--address: allowed is an https URL" in done.stderr
    assert repr(address) in done.stderr
    assert not folder.exists()


def test_there_is_no_address_by_default(tmp_path: Path) -> None:
    done = asked(buildplugin.main, "--output", tmp_path)
    assert done.returncode == 2
    assert "--address" in done.stderr


@pytest.mark.parametrize(("below", "why"), [("", "File exists"), ("plugin", "Not a directory")])
def test_a_folder_that_cannot_be_written_is_reported_in_one_line(
    below: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / below
    done = asked(buildplugin.main, "--output", folder, "--address", "https://files.example.com")
    assert done.returncode == 1
    assert done.stderr == f"error: --output: {folder}: {why}\n"


def test_the_manifest_names_every_python_that_runs_it() -> None:
    caveats = buildplugin.manifest("1", ADDRESS, DIGEST, ["3.11", "3.12", "3.13"])["spec"][
        "caveats"
    ]
    assert caveats.startswith("Python 3.11, 3.12 or 3.13 must be on the PATH.")


def test_a_python_that_is_not_there_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--output", str(tmp_path), "--address", "https://a.example", "--python", "python9"]
    monkeypatch.setattr(sys, "argv", ["buildplugin", *words])
    assert buildplugin.main() == 1
    assert capsys.readouterr().err == "error: --python: python9: No such file or directory\n"


def other_pythons() -> list[str]:
    """Newer Pythons of this machine."""
    names = (f"python3.{minor}" for minor in range(sys.version_info.minor + 1, 15))
    return [name for name in names if shutil.which(name) and starts(name)]


def starts(name: str) -> bool:
    return subprocess.run([name, "-c", ""], capture_output=True, check=False).returncode == 0


@pytest.mark.long
def test_one_program_runs_with_several_pythons(tmp_path: Path) -> None:
    others = other_pythons()[:1]
    if not others:
        pytest.skip("there is no other Python here")
    program, pythons = tmp_path / "program", [sys.executable, *others]
    buildplugin.build_program(program, pythons)
    for python in pythons:
        command = [python, str(program), "check", "manifests/samples/pair-nvlink.yaml"]
        command += ["--cluster", "examples/clusters/mixed.yaml"]
        environment = {**os.environ, "PEX_ROOT": str(tmp_path / "root")}
        done = subprocess.run(
            command, env=environment, cwd=buildplugin.ROOT, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
