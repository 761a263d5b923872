"""kube-scheduler's own gang scheduling, with its feature gates on.

It filters and places all pods of a PodGroup before it binds the first.

Kubelets and agents are emulated. What may not happen is a gang that is bound in part.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.state.answers.decision import SIBLINGS
from scheduler_extender.state.groups.groups import NEVER
from tests.e2e.cluster import PODS, RECORDS, RealCluster
from tests.e2e.emulated import Kubelets
from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine

pytestmark = pytest.mark.e2e
GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"
PODGROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
TRAYS = {name: [f"{name}-{i:02}" for i in range(9)] for name in ("east", "west")}
NVLINK = {"link": "nvlink"}
QUIET = 5.0


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """A cluster whose control plane schedules gangs."""
    cluster = RealCluster(tmp_path_factory.mktemp("gangs"), control_plane_binaries)
    plane = cluster.control_plane
    plane.apiserver_flags += [GATES, "--runtime-config=scheduling.k8s.io/v1alpha2=true"]
    plane.scheduler_flags += [GATES]
    with cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def kubelets(real: RealCluster) -> Iterator[Kubelets]:
    """Two racks of nine trays, two machines whose GPUs are all linked, and a DGX-1V of which GPUs 1
    to 4 are free."""
    trays = [
        machine("gb200-tray").topology(tray, group=name)
        for name, names in TRAYS.items()
        for tray in names
    ]
    nodes = [*trays, *(machine("hgx-h100-8").topology(f"hgx-{i}") for i in range(2))]
    for node in nodes:
        real.add_machine(node)
        # These agents do not say which pods they knew: a pod is gone two reports later.
        real.patch(f"{RECORDS}/{node.name}/status", {"status": {"podsResourceVersion": None}})
    dgx = machine("dgx1-v100").topology("dgx")
    uid = PodUid(real.add_pod("holder", 4, nodeName="dgx")["metadata"]["uid"])
    ids = tuple(DeviceId(dgx.gpus[p].uuid) for p in (0, 5, 6, 7))
    held = Allocation(uid, "default", "holder", "main", "nvidia.com/gpu", ids)
    real.add_machine(dgx, Report("boot", 1, allocations=(held,)))
    with Kubelets(real, nodes, seed=36) as found:
        yield found
    assert found.errors == []
    assert found.kept.broken == []
    assert found.kept.refused == []


def gang(
    real: RealCluster, name: str, size: int, gpus: int, annotations: Mapping[str, str]
) -> list[str]:
    """The names of a gang's pods, all of which have to be placed at once."""
    policy = {"schedulingPolicy": {"gang": {"minCount": size}}}
    real.create(PODGROUPS, {"metadata": {"name": name}, "spec": policy})
    ours = {f"gpu-topology.io/{k}": v for k, v in annotations.items()}
    names = [f"{name}-{i}" for i in range(size)]
    for each in names:
        limits = {"limits": {"nvidia.com/gpu": str(gpus)}}
        container: dict[str, Any] = {"name": "main", "image": "example/work", "resources": limits}
        spec = {"containers": [container], "schedulingGroup": {"podGroupName": name}}
        metadata = {"name": each, "annotations": ours}
        pod = real.create(PODS, {"metadata": metadata, "spec": spec})
        assert pod["spec"]["schedulingGroup"] == {"podGroupName": name}, "the feature is off"
    return names


def bound(real: RealCluster, names: list[str]) -> list[str]:
    return [name for name in names if real.pod(name)["spec"].get("nodeName")]


def refused_binds(real: RealCluster) -> int:
    """How many binds the scheduler says have failed."""
    return real.control_plane.log("kube-scheduler").count("Failed to bind pod")


def test_a_gang_fills_a_rack_and_no_bind_is_refused(real: RealCluster) -> None:
    before = real.calls("bind")
    names = gang(real, "rack", 9, 4, {**NVLINK, "group-size": "9", "group-domain": "nvlink-domain"})
    nodes = {real.node_of(name) for name in names}
    assert nodes in (set(TRAYS["east"]), set(TRAYS["west"]))
    real.told(*names)
    assert real.calls("bind") == before + 9
    assert refused_binds(real) == 0


def test_a_gang_that_no_rack_holds_is_not_bound_in_part(real: RealCluster) -> None:
    ours = {**NVLINK, "group-size": "10", "group-domain": "nvlink-domain"}
    names = gang(real, "large", 10, 4, ours)
    message = real.unschedulable(names[0])
    assert NEVER.reason in message
    time.sleep(QUIET)
    assert bound(real, names) == []


@pytest.mark.parametrize("size", [2, 4])
def test_pairs_share_a_machine_on_which_all_gpus_are_linked(real: RealCluster, size: int) -> None:
    before = real.calls("bind")
    ours = {**NVLINK, "gpu-model": "H100*", "group-size": str(size)}
    names = gang(real, f"pairs-{size}", size, 2, ours)
    for name in names:
        real.node_of(name)
    real.told(*names)
    assert real.calls("bind") == before + size
    assert refused_binds(real) == 0


def test_pairs_that_may_break_each_other_up_are_not_bound_at_all(real: RealCluster) -> None:
    """GPUs 1 to 4 of a DGX-1V hold one pair for sure, and two of them by luck."""
    names = gang(real, "cube", 2, 2, {**NVLINK, "gpu-model": "V100*", "group-size": "2"})
    assert SIBLINGS.reason in real.unschedulable(names[0])
    time.sleep(QUIET)
    assert bound(real, names) == []
    real.add_pod("alone", 2, {**NVLINK, "gpu-model": "V100*"})
    assert real.node_of("alone") == "dgx"
