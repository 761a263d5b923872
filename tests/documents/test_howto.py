"""docs/tasks/nodes.md and install/kubeadm.md name every file of examples/howto;
tests/e2e/test_howto.py applies the manifests."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.installing.staticpod import read, with_config
from tests.documents.blocks import ROOT, blocks
from tests.documents.test_manifests import contains

PATHS = sorted((ROOT / "examples" / "howto").glob("*.yaml"))
PAGE = ROOT / "docs" / "tasks" / "nodes.md"
NOT_OBJECTS = {"kubeadm", "packing"}  # Files for programs, which nobody applies


def test_the_page_names_each_of_them() -> None:
    named = set(re.findall(r"kubectl apply -f examples/howto/(\S+)\.yaml", PAGE.read_text()))
    assert named == {path.stem for path in PATHS} - NOT_OBJECTS


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_the_end_to_end_test_tries_it(path: Path) -> None:
    source = (ROOT / "tests" / "e2e" / "test_howto.py").read_text()
    tried = f'apply(real, "{path.stem}")' in source or f'"{path.name}"' in source
    assert tried or path.stem == "kubeadm"


def test_the_page_shows_the_whole_profile() -> None:
    whole = yaml.safe_load((ROOT / "examples" / "howto" / "packing.yaml").read_text())
    shown = [b for b in blocks() if b.page == "docs/tasks/nodes.md" and b.language == "yaml"]
    assert whole in [yaml.safe_load(block.text) for block in shown]


def test_the_page_on_installing_names_the_file_for_kubeadm() -> None:
    assert "`examples/howto/kubeadm.yaml`" in (ROOT / "docs" / "install" / "kubeadm.md").read_text()


def test_kubeadm_mounts_what_the_command_mounts() -> None:
    """``kubeadm upgrade`` makes the static pod of this: the same flag, and the same files."""
    config = yaml.safe_load((ROOT / "examples" / "howto" / "kubeadm.yaml").read_text())["scheduler"]
    pod = (ROOT / "tests/scheduler_extender/installing/kube-scheduler.yaml").read_text()
    before = yaml.safe_load(pod)["spec"]
    spec: dict[str, Any] = yaml.safe_load(with_config(read(pod), "0"))["spec"]
    (container,) = spec["containers"]
    flags = [f"--{flag['name']}={flag['value']}" for flag in config["extraArgs"]]
    assert set(flags) <= set(container["command"])
    new = container["volumeMounts"][len(before["containers"][0]["volumeMounts"]) :]
    mounts = {m["name"]: (m["mountPath"], m["readOnly"]) for m in new}
    volumes = spec["volumes"][len(before["volumes"]) :]
    hosts = {v["name"]: (v["hostPath"]["path"], v["hostPath"]["type"]) for v in volumes}
    extra = config["extraVolumes"]
    assert {v["name"]: (v["mountPath"], v["readOnly"]) for v in extra} == mounts
    assert {v["name"]: (v["hostPath"], v["pathType"]) for v in extra} == hosts


@pytest.mark.parametrize(
    ("whole", "part", "is_in"),
    [
        ({"a": [{"b": 1, "c": 2}], "d": 3}, {"a": [{"b": 1}]}, True),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, False),
        ({"a": 1}, {"b": 1}, False),
    ],
)
def test_an_excerpt_is_found(whole: Any, part: Any, is_in: bool) -> None:
    assert contains(whole, part) is is_in
