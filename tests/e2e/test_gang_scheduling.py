"""kube-scheduler's own gang scheduling in 1.36, where it is alpha.

It filters and places all pods of a PodGroup before it binds the first. Kubelets and agents are
emulated. What 1.37 does with more kinds of gangs is in ``test_gang_cycle.py``.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_extender.framework.rules.gangs import PEERS
from tests.e2e.cluster import RECORDS, RealCluster
from tests.e2e.emulated import Kubelets
from tests.e2e.occupiednode import half_occupied
from tests.e2e.podgroups import Gangs, Stage, bound
from topology.machines import machine

pytestmark = pytest.mark.e2e
ALPHA = Stage("v1alpha2", ("GenericWorkload", "GangScheduling"))
RACKS = {name: [f"{name}-{i:02}" for i in range(9)] for name in ("east", "west")}
NVLINK = {"link": "nvlink"}


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """A cluster whose control plane schedules gangs."""
    cluster = RealCluster(tmp_path_factory.mktemp("gangs"), control_plane_binaries)
    cluster.control_plane.apiserver_flags += [ALPHA.flag, ALPHA.served]
    cluster.control_plane.scheduler_flags += [ALPHA.flag]
    with cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def _kubelets(real: RealCluster) -> Iterator[None]:
    """Two racks of nine trays, and a DGX-1V of which GPUs 1 to 4 are free."""
    trays = [
        machine("gb200-tray").topology(tray, group=name) for name in RACKS for tray in RACKS[name]
    ]
    for node in trays:
        real.add_machine(node)
        # These agents do not say which pods they knew: a pod is gone two reports later.
        real.patch(f"{RECORDS}/{node.name}/status", {"status": {"podsResourceVersion": None}})
    real.add_machine(machine("dgx1-v100").topology("dgx"), half_occupied(real, "dgx"))
    with Kubelets(real, trays, seed=36) as found:
        yield
    assert found.refused == []


def test_a_gang_fills_a_rack_and_no_bind_is_refused(real: RealCluster) -> None:
    before = real.calls("bind")
    rack = {**NVLINK, "group-size": "9", "group-domain": "nvlink-domain"}
    pods = Gangs(real, ALPHA).of("rack", 9, 4, rack)
    assert real.pod(pods[0])["spec"]["schedulingGroup"] == {"podGroupName": "rack"}
    assert {real.node_of(name) for name in pods} in (set(RACKS["east"]), set(RACKS["west"]))
    real.until_bound(*pods)
    assert real.calls("bind") == before + 9
    assert real.control_plane.log("kube-scheduler").count("Failed to bind pod") == 0


def test_pairs_that_may_break_each_other_up_are_not_bound_at_all(real: RealCluster) -> None:
    """GPUs 1 to 4 of a DGX-1V hold one pair for sure, and two of them by luck."""
    wanted = {**NVLINK, "gpu-model": "V100*"}
    pods = Gangs(real, ALPHA).of("cube", 2, 2, {**wanted, "group-size": "2"})
    assert PEERS.message in real.unschedulable(pods[0])
    real.add_pod("alone", 2, wanted)
    assert real.node_of("alone") == "dgx"
    assert bound(real, pods) == {}
