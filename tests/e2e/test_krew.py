"""The kubectl plugin's archive, installed by krew itself and called by kubectl."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from manifests import buildplugin
from scheduler_extender.cli.commands import OF, PLUGIN
from tests.e2e import building
from tests.e2e.conftest import programs
from tests.e2e.controlplane import KUBECTL
from tests.waiting import FOREVER

pytestmark = pytest.mark.e2e
ADDRESS = "https://files.example.com/gpu-topology"
BASE = Path(sys.base_prefix) / "bin"  # the Python that is on a user's PATH: without our packages


class Krew:
    """krew and a kubectl that finds what it has installed, in a folder of their own."""

    def __init__(self, program: Path, home: Path) -> None:
        self._program = program
        self._home = home
        (home / "bin").mkdir(parents=True)

    def _environment(self) -> Mapping[str, str]:
        path = [self._home / "bin", BASE, "/usr/bin", "/bin"]
        return {
            "HOME": str(self._home),
            "KREW_ROOT": str(self._home),
            "PATH": os.pathsep.join(map(str, path)),
            "KUBECONFIG": os.devnull,
        }

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """A program's output."""
        return subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=self._home,
            env=dict(self._environment()),
            timeout=FOREVER,
        )

    def install(self, folder: Path) -> subprocess.CompletedProcess[str]:
        """What krew says to the manifest and archive of a folder."""
        (packed,) = folder.glob("*.tar.gz")
        words = (f"--manifest={folder / 'gpu-topology.yaml'}", f"--archive={packed}")
        return self.run(self._program, "install", *words)

    def plugin(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """``kubectl gpu-topology``."""
        return self.run(KUBECTL, "gpu-topology", *words)


@contextmanager
def arguments(*words: str) -> Iterator[None]:
    before, sys.argv = sys.argv, ["buildplugin", *words]
    try:
        yield
    finally:
        sys.argv = before


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    with arguments("--output", str(folder), "--address", ADDRESS):
        assert buildplugin.main() == 0
    return folder


@pytest.fixture(scope="module")
def krew(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Krew:
    found = Krew(programs(building.KREW) / "krew", tmp_path_factory.mktemp("krew"))
    done = found.install(built)
    assert done.returncode == 0, done.stderr
    return found


def test_kubectl_runs_what_krew_has_installed(krew: Krew) -> None:
    project = tomllib.loads((buildplugin.ROOT / "pyproject.toml").read_text())["project"]
    done = krew.plugin("--version")
    assert (done.returncode, done.stdout) == (0, f"gpu-topology {project['version']}\n"), done
    for command in OF[PLUGIN]:
        done = krew.plugin(command, "--help")
        assert done.returncode == 0, done.stderr
        assert "is not installed" not in done.stdout + done.stderr


def test_it_decides_with_nothing_else_installed(krew: Krew, tmp_path: Path) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pair", "annotations": {"gpu-topology.io/link": "nvlink"}},
        "spec": {
            "containers": [
                {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
            ]
        },
    }
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod))
    (cluster, *_) = sorted((buildplugin.ROOT / "examples" / "clusters").glob("*.yaml"))
    done = krew.plugin("check", tmp_path / "pod.yaml", "--cluster", cluster, "--output", "json")
    assert done.returncode in (0, 1), done.stderr
    assert '"nodes"' in done.stdout
    done = krew.plugin("why", "pair")  # kubeconfig: none
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_the_manifest_names_the_archive_at_its_address(built: Path) -> None:
    words = yaml.safe_load((built / "gpu-topology.yaml").read_text())
    (packed,) = built.glob("*.tar.gz")
    (platform,) = words["spec"]["platforms"]
    assert platform["uri"] == f"{ADDRESS}/{packed.name}"


def test_kubectl_completes_the_words_after_one_command(krew: Krew) -> None:
    """krew installs the plugin's program alone; the other one it is told to write."""
    words = (KUBECTL, "__complete", "gpu-topology", "map", "-o", "")
    assert "wide" not in krew.run(*words).stdout.split()
    done = krew.plugin("completion")
    assert done.returncode == 0, done.stderr
    *choices, directive = krew.run(*words).stdout.splitlines()
    assert (sorted(choices), directive) == (["json", "name", "table", "wide", "yaml"], ":4")


def test_krew_refuses_another_archive(krew: Krew, built: Path, tmp_path: Path) -> None:
    """Its check of the checksum is one that our manifest takes part in."""
    words = yaml.safe_load((built / "gpu-topology.yaml").read_text())
    (packed,) = built.glob("*.tar.gz")
    (tmp_path / packed.name).write_bytes(packed.read_bytes()[:-1] + b"x")
    words["metadata"]["name"] = "other"
    (tmp_path / "gpu-topology.yaml").write_text(yaml.safe_dump(words))
    done = krew.install(tmp_path)
    assert done.returncode != 0
    assert "checksum" in done.stderr
