"""What people ask the extender through kubectl port-forward: kubectl, the API server, a kubelet
and a runtime are real."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import RealCluster
from tests.e2e.controlplane import KUBECTL
from tests.e2e.forwarding import forwarding_cluster, run_extender_pod
from tests.installation import SYSTEM
from tests.programs import started

pytestmark = pytest.mark.e2e
POD = "gpu-topology-extender-1"
STRANGER = "stranger"


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, node_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """A cluster in which a kubelet runs the extender's pod."""
    folder = tmp_path_factory.mktemp("forwarding")
    users = {STRANGER: ["system:authenticated"]}
    with forwarding_cluster(folder, control_plane_binaries, node_binaries, users) as cluster:
        run_extender_pod(cluster, POD)
        yield cluster


def test_kubectl_reaches_the_port_of_the_pod(real: RealCluster) -> None:
    command = [str(KUBECTL), f"--kubeconfig={real.control_plane.kubeconfig()}"]
    command += ["--namespace", SYSTEM, "port-forward", f"pod/{POD}", ":admin"]
    with started(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        found = re.fullmatch(
            r"Forwarding from 127\.0\.0\.1:(\d+) -> (\d+)\n", child.stdout.readline()
        )
        assert found is not None
        assert int(found[2]) == real.ports[1]
        with real.people(int(found[1])) as people:
            assert people.get("/map").is_success
