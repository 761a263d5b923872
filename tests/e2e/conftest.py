"""The real control plane, or the reason why there is none."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e import building, privatemounts, realnodes
from tests.e2e.building import ProgramSet, ProgramsUnavailable, Source
from tests.e2e.cluster import RealCluster
from tests.e2e.gangcluster import together
from tests.e2e.helm import Helm
from tests.e2e.realnodes import RealNode, RealNodes


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> None:
    """Not judged here: what a module starts outlives its tests, and may start threads in any."""


def programs(wanted: ProgramSet | Source) -> Path:
    """The folder of what is wanted. Without them CI fails and a user's run skips."""
    try:
        return wanted.folder()
    except ProgramsUnavailable as error:
        reason = f"no {wanted.text}: {error}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def cert_manager_source() -> Path:
    """The folder of cert-manager's sources."""
    return programs(building.CERT_MANAGER)


@pytest.fixture(scope="session")
def control_plane_binaries() -> Path:
    """etcd, kube-apiserver, kube-scheduler and kube-controller-manager."""
    return programs(building.CONTROL_PLANE)


@pytest.fixture(scope="session")
def gang_binaries(control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same programs, kube-apiserver and kube-scheduler of the release that places gangs."""
    folder = tmp_path_factory.mktemp("programs") / "gangs"
    built = programs(building.GANGS)
    return together(
        folder, [(control_plane_binaries, building.CONTROL_PLANE), (built, building.GANGS)]
    )


OLDER_DRA = os.environ.get("GPU_TOPOLOGY_DRA_RELEASE") == "1.36"
# Device taint rules are off there, and kube-scheduler 1.36.3 does not try a pod again whose former
# claim it has deleted, until another claim changes or five minutes have passed.
NEWER_DRA = pytest.mark.skipif(OLDER_DRA, reason="Kubernetes 1.36 lacks it")


@pytest.fixture(scope="session")
def dra_binaries(
    control_plane_binaries: Path,
    gang_binaries: Path,
    node_binaries: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Control plane and node of that release, and a DRA driver; etcd and runtime as elsewhere. Only
    the driver is of that release with ``GPU_TOPOLOGY_DRA_RELEASE=1.36``."""
    folder = tmp_path_factory.mktemp("programs") / "dra"
    driver, gangs = programs(building.DRA), (gang_binaries, building.CONTROL_PLANE)
    node = (node_binaries, building.NODE)
    if OLDER_DRA:
        return together(
            folder, [(driver, building.DRA), (control_plane_binaries, building.CONTROL_PLANE), node]
        )
    return together(folder, [gangs, node, (driver, building.DRA)])


@pytest.fixture(scope="session")
def kueue_program() -> Path:
    """Kueue's manager."""
    return programs(building.KUEUE) / "kueue"


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm."""
    return Helm(programs(building.HELM) / "helm", tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """A cluster of the module's own, with the extender plugged in."""
    with RealCluster(tmp_path_factory.mktemp("e2e"), control_plane_binaries) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def private_mounts() -> None:
    """A node's processes can have folders of their own. CI has that, others when they ask."""
    if os.environ.get("CI") == "true":
        if reason := privatemounts.why_not():
            pytest.fail(reason)
    elif not os.environ.get("GPU_TOPOLOGY_REAL_KUBELET"):
        pytest.skip("nodes' programs run with GPU_TOPOLOGY_REAL_KUBELET=1 (they need root)")
    elif reason := privatemounts.why_not():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def nvidia_programs(private_mounts: None) -> Callable[[str], Path]:
    """Finds NVIDIA's programs of a version of their device plugin."""
    return lambda version: programs(building.nvidia(version))


@pytest.fixture(scope="session")
def node_binaries(nvidia_programs: Callable[[str], Path]) -> Path:
    """Kubelet and runtime; NVIDIA's newest programs are there, too."""
    nvidia_programs(building.NEWEST)
    return programs(building.NODE)


@pytest.fixture(scope="module")
def real_nodes(
    request: pytest.FixtureRequest,
    control_plane_binaries: Path,
    node_binaries: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RealNodes]:
    """A cluster of the module's own with the extender and real kubelets.

    Its nodes are the module's ``NODES``, or one for each of its ``MACHINES``: node name to
    catalogue name. Those of ``LATER``, where it has any, may join later.
    """
    module, folder = request.module, tmp_path_factory.mktemp("realnodes")
    nodes = getattr(module, "NODES", None) or {
        name: RealNode(kind) for name, kind in module.MACHINES.items()
    }
    later = getattr(module, "LATER", ())
    with realnodes.real_nodes(folder, control_plane_binaries, node_binaries, nodes, later) as found:
        yield found
