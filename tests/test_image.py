"""The images start: with the files and the packages of the Dockerfile, and nothing else."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.imagefiles import ROOT, Image, Stage, UnknownStepError, build, replay, stages

pytestmark = pytest.mark.long

SERVED = ("topology", "scheduler_extender")
STAGES = ("agent", "extender")

IMPORT_ALL = """
import importlib, pkgutil, sys
def load(name):
    try:
        print(importlib.import_module(name).__file__)
    except ModuleNotFoundError as error:
        print("lacks", name, error.name)
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(package.__path__, f"{name}.", onerror=lambda name: None):
        load(found.name)
"""


@pytest.mark.parametrize(
    ("error", "pushes"), [("", 0), ("0", 0), ("no", 0), ("false", 0), ("1", 2), ("yes", 2)]
)
def test_images_are_pushed_only_on_request(error: str, pushes: int) -> None:
    make = ["make", "-n", "-C", str(ROOT), "images", f"PUSH={error}"]
    done = subprocess.run(make, capture_output=True, text=True, check=True)
    assert done.stdout.count(" push ") == pushes


@pytest.mark.parametrize(("target", "program"), [("images", "DOCKER"), ("chart-package", "HELM")])
def test_a_program_that_is_not_there_is_reported_in_one_line(target: str, program: str) -> None:
    make = ["make", "-C", str(ROOT), target, f"{program}=no-such-program --flag"]
    done = subprocess.run(make, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "error: no-such-program is not here: install it, or name it" in done.stderr
    assert f"make {target} {program}=" in done.stderr


def program(path: Path, *lines: str) -> Path:
    """A program in the place of Docker."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("target", ["images", "lock-base"])
def test_a_daemon_that_does_not_answer_is_reported_in_one_line(target: str, tmp_path: Path) -> None:
    docker = program(tmp_path / "docker", 'echo "Cannot connect" >&2; exit 1')
    make = ["make", "-C", str(ROOT), target, f"DOCKER={docker}"]
    done = subprocess.run(make, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    error, makes_own = done.stderr.splitlines()
    assert error.startswith(f"error: {docker} does not answer ({docker} info says why): start its")
    assert re.match(r"make(\[\d+\])?: \*\*\*", makes_own)  # `make test-long` runs this test itself


def test_the_base_is_pinned_by_the_digest_that_its_tag_has(tmp_path: Path) -> None:
    for name in ("Dockerfile", "Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    before = {stage.name: stage.parent for stage in stages(read(tmp_path)).values()}
    base = before["extender"]
    for digest in ("sha256:" + "a" * 64, "sha256:" + "b" * 64):
        docker = program(
            tmp_path / "docker", f'[ "$1" != image ] || echo docker.io/library/python@{digest}'
        )
        make = ["make", "-C", str(tmp_path), "lock-base", f"DOCKER={docker}"]
        subprocess.run(make, capture_output=True, text=True, check=True)
        pinned = {stage.name: stage.parent for stage in stages(read(tmp_path)).values()}
        assert pinned == dict.fromkeys(before, f"{base.partition('@')[0]}@{digest}")
    pinned_text = read(tmp_path)
    docker = program(tmp_path / "docker", "exit 0")
    done = subprocess.run(make, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"error: {docker} knows no digest of {base.partition('@')[0]}" in done.stderr
    assert read(tmp_path) == pinned_text


def read(folder: Path) -> str:
    return (folder / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    return {stage: build(stage, tmp_path_factory.mktemp(stage)) for stage in STAGES}


def modules(folder: Path) -> int:
    """The modules of a source folder, the package itself left out."""
    return sum(1 for _ in folder.rglob("*.py")) - 1


def test_every_stage_that_is_run_is_tried() -> None:
    found = stages((ROOT / "Dockerfile").read_text())
    assert {s.name for s in found.values() if any(w == "ENTRYPOINT" for w, _ in s.steps)} == {
        *STAGES
    }


def imports(image: Image) -> tuple[list[str], dict[str, str]]:
    """The files of our modules that can be imported, and what each other one lacks."""
    done = image.run(["python", "-c", IMPORT_ALL, *SERVED], cwd=image.root)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    lacking = {words[1]: words[2] for words in lines if words[0] == "lacks"}
    return [words[0] for words in lines if words[0] != "lacks"], lacking


def test_every_installed_module_can_be_imported_in_one_of_them(images: dict[str, Image]) -> None:
    files = [file for stage in STAGES for file in imports(images[stage])[0]]
    assert all("site-packages" in file for file in files)
    found = {file.partition("site-packages")[2] for file in files}
    assert len(found) == sum(modules(ROOT / name) for name in SERVED)


def test_the_extenders_image_lacks_what_only_agents_need(images: dict[str, Image]) -> None:
    _, lacking = imports(images["extender"])
    assert not [name for name in lacking if not name.startswith("topology.agent")]
    lacks = {package.partition(".")[0] for package in lacking.values()}
    assert lacks == {"grpc", "google", "pynvml"}


def test_the_agents_image_has_what_an_agent_needs_and_not_what_others_do(
    images: dict[str, Image],
) -> None:
    _, lacking = imports(images["agent"])
    assert not [name for name in lacking if name.startswith(("topology.agent", "topology.codec"))]
    assert {"numpy", "fastapi", "cryptography"} <= set(lacking.values())


SHIPPED = """
from importlib.resources import files
for each in files("scheduler_extender.doctor").joinpath("shipped").iterdir():
    print(each.read_text())
"""


def test_doctor_has_the_manifests_with_which_it_compares(images: dict[str, Image]) -> None:
    done = images["extender"].run(["python", "-c", SHIPPED])
    assert done.returncode == 0, done.stderr
    kinds = {found["kind"] for found in yaml.safe_load_all(done.stdout) if found}
    assert {"CustomResourceDefinition", "ValidatingAdmissionPolicy"} <= kinds


@pytest.mark.parametrize(
    ("stage", "command"),
    [
        ("agent", ["extender", "--cluster", "x.yaml"]),
        ("agent", ["certificates", "--output", "tls"]),
        ("agent", ["doctor"]),
        ("agent", ["check", "pod.yaml", "--cluster", "x.yaml"]),
        ("extender", ["agent", "--once", "--print", "--node-name", "n"]),
    ],
)
def test_a_command_of_the_other_image_says_so_in_a_line(
    images: dict[str, Image], stage: str, command: list[str], tmp_path: Path
) -> None:
    done = images[stage].run(["gpu-topology", *command], cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert "is not installed: pip install '.[agent]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("stage", STAGES)
def test_an_image_lacks_nothing_that_its_packages_ask_for(
    images: dict[str, Image], stage: str
) -> None:
    done = images[stage].run(["python", "-m", "pip", "check"])
    assert (done.returncode, done.stdout) == (0, "No broken requirements found.\n"), done.stderr


def test_the_locks_of_the_images_are_together_what_a_checkout_runs() -> None:
    pins = {lock: set(_pins(lock)) for lock in ("agent", "extender", "run")}
    assert pins["agent"] | pins["extender"] == pins["run"]


@pytest.mark.parametrize("stage", STAGES)
def test_an_image_starts(images: dict[str, Image], stage: str) -> None:
    image = images[stage]
    for command in (image.entrypoint, ("gpu-topology",)):
        done = image.run([*command, "--help"])
        assert done.returncode == 0, done.stderr
        assert "Usage: " in done.stdout


def test_the_installed_wheel_says_its_version_and_has_its_data(
    images: dict[str, Image], tmp_path: Path
) -> None:
    image = images["extender"]
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    for program in ("gpu-topology", "kubectl-gpu_topology"):
        done = image.run([program, "--version"], cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, f"gpu-topology {version}\n"), done.stderr
    done = image.run(["gpu-topology", "demo", "--out", str(tmp_path / "out")], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert any((tmp_path / "out").iterdir())


@pytest.mark.parametrize("kind", ["kubeadm", "k3s"])
def test_the_wheel_alone_connects_the_scheduler_of_a_node(
    images: dict[str, Image], kind: str, tmp_path: Path
) -> None:
    """The wheel is in an empty environment, and no checkout is on the node."""
    image, node, tls = images["extender"], tmp_path / "node", tmp_path / "tls"
    pod = ROOT / "tests" / "scheduler_extender" / "installing" / "kube-scheduler.yaml"
    for path, text in {
        "etc/kubernetes/manifests/kube-scheduler.yaml": pod.read_text(),
        "etc/rancher/k3s/k3s.yaml": "kind: Config\n",
    }.items():
        (node / path).parent.mkdir(parents=True)
        (node / path).write_text(text)
    done = image.run(["gpu-topology", "certificates", "--output", str(tls)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    where = ("--root", str(node), "--tls", str(tls), "--address", "10.96.7.8")
    done = image.run(["gpu-topology", "install", kind, "--dry-run", *where], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "+- urlPrefix: https://10.96.7.8:8888/scheduler" in done.stdout


@pytest.mark.parametrize("stage", ["agent", "extender"])
def test_the_image_has_no_builder(images: dict[str, Image], stage: str) -> None:
    image = images[stage]
    builder = {each.partition("==")[0] for each in _pins("build")} - {
        each.partition("==")[0] for each in _pins("run")
    }
    assert {"hatchling", "editables"} <= builder
    for name in builder:
        done = image.run(["python", "-c", f"import importlib.metadata as m; m.version({name!r})"])
        assert "PackageNotFoundError" in done.stderr, name


def _pins(lock: str) -> list[str]:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    return re.findall(r"^[A-Za-z0-9][^ ]*==\S+", text, re.M)


@pytest.mark.parametrize("step", [("RUN", "apt-get install gcc"), ("ADD", "x y")], ids=str)
def test_a_step_that_is_not_understood_is_no_success(
    images: dict[str, Image], step: tuple[str, str]
) -> None:
    with pytest.raises(UnknownStepError):
        replay(images["extender"], Stage("extender", "base", [step]))
