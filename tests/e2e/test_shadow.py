"""An extender in shadow on a real cluster refuses nothing, and tells what it would refuse."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import RealCluster
from tests.manifests.building import entry_in_shadow
from topology.machines import machine

pytestmark = pytest.mark.e2e

NVLINK = {"link": "nvlink"}


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    cluster = RealCluster(tmp_path_factory.mktemp("shadow"), control_plane_binaries)
    cluster.extender_flags = ("--shadow",)
    cluster.changed_extender = entry_in_shadow()
    with cluster:
        cluster.add_machine(machine("rtx4090-8").topology("no-links"))
        yield cluster


def counted(real: RealCluster, name: str) -> float:
    lines = real.metrics.get("/metrics").text.splitlines()
    (value,) = (line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"{name} "))
    return float(value)


def events(real: RealCluster, pod: str) -> list[dict[str, Any]]:
    found = real.api.get(
        "/api/v1/namespaces/default/events",
        params={"fieldSelector": f"involvedObject.name={pod},reason=GPUPlacementWouldBeRejected"},
    )
    return list(found.json()["items"])


def test_a_pod_that_would_wait_runs_and_is_reported(real: RealCluster) -> None:
    real.add_pod("linked", 2, NVLINK)
    assert real.node_of("linked") == "no-links"
    assert "gpu-topology.io/placement" not in real.pod("linked")["metadata"]["annotations"]
    refused = 'gpu_topology_would_have_rejected_total{reason="links"}'
    assert counted(real, refused) >= 1
    assert counted(real, "gpu_topology_would_have_waited_total") >= 1
    real.until(lambda: events(real, "linked"), "an Event tells what would have been")
    (event,) = events(real, "linked")
    assert event["message"].startswith("in shadow: all 1 node would be rejected (1 × ")
    assert event["type"] == "Normal"


def test_a_pod_that_fits_is_not_reported(real: RealCluster) -> None:
    before = counted(real, "gpu_topology_would_have_waited_total")
    real.add_pod("plain", 1)
    assert real.node_of("plain") == "no-links"
    assert counted(real, "gpu_topology_would_have_waited_total") == before
    assert events(real, "plain") == []


def test_no_pod_waits_for_an_extender_that_is_gone(real: RealCluster) -> None:
    real.stop_extender()
    try:
        real.add_pod("alone", 2, NVLINK)
        assert real.node_of("alone") == "no-links"
    finally:
        real.start_extender()


def test_with_the_shipped_entry_the_extender_binds_and_refuses_nothing(real: RealCluster) -> None:
    real.changed_extender = {}
    real.restart_scheduler()
    before = real.calls("bind")
    real.add_pod("bound-by-us", 2, NVLINK)
    assert real.node_of("bound-by-us") == "no-links"
    real.until_bound("bound-by-us")
    assert real.calls("bind") == before + 1
    assert "gpu-topology.io/placement" not in real.pod("bound-by-us")["metadata"]["annotations"]
