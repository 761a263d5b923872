"""The manifests as `kubectl apply -k` would send them, and parts of them."""

import copy
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from scheduler_extender.cli import commands as cli
from tests.waiting import FOREVER

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
BASE = ROOT / "manifests" / "base"
AGENT = ROOT / "manifests" / "agent"
OPTIONS = sorted(p.name for p in (AGENT / "options").iterdir())
SAMPLES = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))
KUBERNETES = "1.36"
NAMESPACE = "gpu-topology-system"

EXTENDER_NAME = "gpu-topology-extender"
AGENT_NAME = "gpu-topology-agent"

Object = dict[str, Any]

every_sample = pytest.mark.parametrize("path", [pytest.param(p, id=p.stem) for p in SAMPLES])


@cache
def _built(folder: Path) -> tuple[Object, ...]:
    kubectl = Path(sys.executable).with_name("kubectl")
    command = [str(kubectl), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FOREVER)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def objects(folder: Path = BASE) -> list[Object]:
    """What `kubectl apply -k` would send for a folder; ours to change."""
    return copy.deepcopy(list(_built(folder)))


def the(kind: str, name: str | None = None) -> Object:
    """The one object of a kind (and name)."""
    found = [o for o in objects() if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    assert len(found) == 1, (kind, name, len(found))
    return found[0]


def pod_spec() -> Object:
    return the("Deployment")["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def container() -> Object:
    (only,) = pod_spec()["containers"]
    return only  # type: ignore[no-any-return]


def scheduler_config() -> Object:
    path = ROOT / "manifests" / "scheduler" / "kube-scheduler-config.yaml"
    return yaml.safe_load(path.read_text())  # type: ignore[no-any-return]


def extender() -> Object:
    (only,) = scheduler_config()["extenders"]
    return only  # type: ignore[no-any-return]


def entry_in_shadow() -> Object:
    """The fields that docs/install/shadow-mode.md changes in the extender's entry."""
    page = (ROOT / "docs" / "install" / "shadow-mode.md").read_text()
    (block,) = re.findall(r"^ *```yaml\n( *extenders:\n.*?)^ *```", page, re.M | re.S)
    (entry,) = yaml.safe_load(block)["extenders"]
    del entry["urlPrefix"]
    return {"bindVerb": None, "preemptVerb": None, **entry}


def sample(path: Path) -> Object:
    (only,) = yaml.safe_load_all(path.read_text())
    return only  # type: ignore[no-any-return]


def arguments(words: list[str] | None = None) -> dict[str, Any]:
    """The extender's arguments, or these, as the command line itself reads them."""
    command, *rest = words or container()["args"]
    group: Any = typer.main.get_command(cli.app)
    return dict(group.commands[command].make_context(command, list(rest)).params)


def daemon_sets(folder: Path = AGENT) -> dict[str, Object]:
    """The agent's DaemonSets by their names."""
    return {o["metadata"]["name"]: o for o in objects(folder) if o["kind"] == "DaemonSet"}


def agent_spec(folder: Path = AGENT, name: str = AGENT_NAME) -> Object:
    return daemon_sets(folder)[name]["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def agent_container(folder: Path = AGENT) -> Object:
    (only,) = agent_spec(folder)["containers"]
    return only  # type: ignore[no-any-return]


def with_option(name: str, folder: Path) -> Path:
    """An overlay of the agent with an option, as docs/reference/agent.md has it."""
    # Kustomize takes relative paths only.
    agent = os.path.relpath(AGENT, folder.resolve())
    overlay = {"resources": [agent], "components": [f"{agent}/options/{name}"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return folder


def crd() -> Object:
    return the("CustomResourceDefinition")["spec"]  # type: ignore[no-any-return]


# The object of the design, with values where it has dots.
EXAMPLE = """
apiVersion: gpu-topology.io/v1alpha1
kind: GPUTopology
metadata: {name: train-01}
spec:
  resources: [{name: nvidia.com/gpu, strategy: none, replicas: 1}]
  allocator: {policy: best-effort, pluginVersion: 0.20.0, topologyManagerPolicy: none,
    topologyManagerScope: container}
  devices:
  - {index: 0, vendor: nvidia, uuid: GPU-5f, product: NVIDIA A100-SXM4-40GB,
     memoryBytes: 42949672960, pciBusId: "0000:07:00.0", numaNode: 0, migMode: disabled}
  - {index: 1, vendor: nvidia, uuid: GPU-77, product: NVIDIA A100-SXM4-40GB,
     memoryBytes: 42949672960, pciBusId: "0000:0b:00.0", numaNode: 1, migMode: disabled}
  links:
  - {a: 0, b: 1, pcie: SYS, nvlinks: 12, via: direct, nvlinkGBps: 25}
  nics:
  - {name: mlx5_0, numaNode: 0, distances: [{index: 0, pcie: PIX}, {index: 1, pcie: NODE}]}
  fabric: {clusterUUID: 3f6d8a52-5c1e-4c44-9a0b-6f0d6c8b9d11, cliqueId: 1}
status:
  bootID: 0c8c2b57-2b5f-4b3c-a2cf-2f0b6a1d0e55
  sequence: 41
  allocatable: [GPU-5f]
  allocations:
  - {podUID: 6c9f, namespace: team-a, pod: train-0, container: main, resource: nvidia.com/gpu,
     deviceIds: [GPU-5f]}
  health:
  - {uuid: GPU-77, healthy: false, reason: Xid79}
  conditions: []
"""


def example() -> Object:
    return yaml.safe_load(EXAMPLE)  # type: ignore[no-any-return]
