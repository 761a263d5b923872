"""What people ask the extender over kubectl port-forward: kubectl, the API server, a kubelet and a
runtime are real."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from scheduler_extender.cli import main
from tests.commands import Done, asked
from tests.e2e.cluster import RealCluster
from tests.e2e.controlplane import KUBECTL
from tests.e2e.forwarding import PODS, forwarding_cluster, is_ready, run_extender_pod
from tests.installation import SYSTEM
from tests.programs import started
from tests.waiting import PATIENCE
from topology.core.report import Report
from topology.machines import machine

pytestmark = pytest.mark.e2e
POD = "gpu-topology-extender-1"
ADA, BOB = "ada", "bob"
NVLINK = {"link": "nvlink"}
BROWSER = """#!/bin/sh
echo "$1" > {folder}/half
mv {folder}/half {folder}/opened
"""


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, node_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """A cluster in which a kubelet runs the extender's pod, and Ada may forward its ports."""
    folder = tmp_path_factory.mktemp("forwarding")
    users = {ADA: ["system:authenticated"], BOB: ["system:authenticated"]}
    with forwarding_cluster(folder, control_plane_binaries, node_binaries, users) as cluster:
        run_extender_pod(cluster, POD)
        cluster.add_machine(machine("a100-pcie-4-bridged").topology("bridged"), Report("boot", 1))
        for name in (ADA, BOB):
            grant(cluster, name, f"{name}-sees-pods", "get,list", "pods")
        grant(cluster, ADA, "ada-forwards", "get,create", "pods/portforward")
        yield cluster


def grant(real: RealCluster, user: str, name: str, verbs: str, resource: str) -> None:
    """A right in the extender's namespace."""
    there = ("--namespace", SYSTEM)
    real.kubectl(*there, "create", "role", name, f"--verb={verbs}", f"--resource={resource}")
    real.kubectl(*there, "create", "rolebinding", name, f"--role={name}", f"--user={user}")


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{KUBECTL.parent}:{os.environ['PATH']}")


def forwarded(real: RealCluster, user: str, *words: str) -> Done:
    return asked(main, *words, "--forward", "--kubeconfig", real.control_plane.kubeconfig(user))


def test_why_and_nodes_are_asked_of_the_extender(real: RealCluster) -> None:
    """Ada may list no nodes, and pods of one namespace: the extender tells all that it knows."""
    real.add_pod("quad", 8, NVLINK)
    real.until(
        lambda: forwarded(real, ADA, "why", "default/quad").returncode == 1, "the extender knows it"
    )
    done = forwarded(real, ADA, "why", "default/quad")
    assert done.stderr == ""
    assert done.stdout.startswith("default/quad\n")
    assert "1 node would take it now" in done.stdout
    done = forwarded(real, ADA, "nodes", "-o", "name")
    assert "node/bridged" in done.stdout.split()
    done = forwarded(real, ADA, "node", "bridged")
    assert (done.returncode, done.stderr) == (0, "")
    assert "gpus: 4" in done.stdout


def test_the_map_opens_in_the_browser(
    real: RealCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(BROWSER.format(folder=tmp_path))
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    command = [sys.executable, "-m", "scheduler_extender", "map", "--open"]
    command += ["--kubeconfig", str(real.control_plane.kubeconfig(ADA))]
    with started(command) as child:
        real.until((tmp_path / "opened").exists, "the browser was started")
        url = (tmp_path / "opened").read_text().strip()
        page = httpx.get(url, trust_env=False, timeout=PATIENCE)
        assert page.status_code == 200
        assert ">bridged</span>" in page.text
        with httpx.stream("GET", f"{url}/events", trust_env=False, timeout=PATIENCE) as events:
            assert any(line.startswith("data: ") for line in events.iter_lines())
        child.terminate()
        assert child.wait(PATIENCE) == 143
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False, timeout=PATIENCE)


def test_a_client_without_the_right_reads_its_name(real: RealCluster) -> None:
    done = forwarded(real, BOB, "why", "default/quad")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: --forward: you need permission to create pods/portforward in the namespace "
        f"{SYSTEM}\n"
    )


def test_a_namespace_without_the_extender_is_named(real: RealCluster) -> None:
    done = forwarded(real, "admin", "nodes", "--system", "default")
    assert done.returncode == 2
    assert done.stderr == (
        "error: --forward: the namespace default has no pod of the extender; give its "
        "namespace with --system\n"
    )


def test_doctor_reads_the_metrics_of_the_pod(real: RealCluster) -> None:
    done = forwarded(real, "admin", "doctor", "-o", "json")
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_a_pod_that_is_not_ready_is_not_asked(real: RealCluster) -> None:
    real.stop_extender()
    try:
        real.until(lambda: not is_ready(real, POD), "the kubelet has found that out")
        done = forwarded(real, ADA, "nodes")
        assert (done.returncode, done.stderr) == (
            2,
            f"error: --forward: no pod of the extender in the namespace {SYSTEM} is ready\n",
        )
    finally:
        real.start_extender()
        real.until(lambda: is_ready(real, POD), "it is ready again")
    assert forwarded(real, ADA, "nodes").returncode == 0
    assert real.api.get(f"{PODS}/{POD}").is_success
