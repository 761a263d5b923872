"""The real control plane, or the reason why there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import controlplane, kubelet, realnodes
from tests.e2e.cluster import RealCluster
from tests.e2e.controlplane import ControlPlaneUnavailable
from tests.e2e.realnodes import RealNodes


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> None:
    """Not judged here: what a module starts outlives its tests, and may start threads in any."""


@pytest.fixture(scope="session")
def control_plane_binaries() -> Path:
    """etcd, kube-apiserver and kube-scheduler. Without them CI fails and a user's run skips."""
    try:
        return controlplane.binaries()
    except ControlPlaneUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(f"no control plane: {error}")
        pytest.skip(f"no control plane: {error}")


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """A cluster of the module's own, with the extender plugged in."""
    with RealCluster(tmp_path_factory.mktemp("e2e"), control_plane_binaries) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def node_binaries() -> Path:
    """Kubelet, runtime and device plugin. CI has them always, others when they ask for them."""
    if os.environ.get("CI") == "true":
        if reason := kubelet.why_not():
            pytest.fail(reason)
    elif not os.environ.get("GPU_TOPOLOGY_REAL_KUBELET"):
        pytest.skip("real kubelets run with GPU_TOPOLOGY_REAL_KUBELET=1 (they need root)")
    elif reason := kubelet.why_not():
        pytest.skip(reason)
    try:
        return controlplane.node_binaries()
    except ControlPlaneUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(f"no kubelet: {error}")
        pytest.skip(f"no kubelet: {error}")


@pytest.fixture(scope="module")
def real_nodes(
    request: pytest.FixtureRequest,
    control_plane_binaries: Path,
    node_binaries: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RealNodes]:
    """A cluster of the module's own with the extender and real kubelets.

    Its machines are the module's ``MACHINES``: node name to catalogue name.
    """
    machines = request.module.MACHINES
    folder = tmp_path_factory.mktemp("realnodes")
    with realnodes.real_nodes(folder, control_plane_binaries, node_binaries, machines) as found:
        yield found
