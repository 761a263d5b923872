"""The same gangs on kube-scheduler 1.37 as it comes, with the feature gate off.

The API server then drops ``spec.schedulingGroup``, so nobody, we included, sees a gang: pods are
placed and bound one by one. Each promise holds all the same; a gang may be bound in part.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_extender.state.answers.decision import SIBLINGS
from tests.e2e.cluster import PODS, RealCluster
from tests.e2e.emulated import Kubelets
from tests.e2e.gangcluster import gang_cluster
from tests.e2e.podgroups import bound, member
from tests.e2e.test_gang_cycle import PAIR, on
from tests.e2e.witness import Witness
from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster(
    gang_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RealCluster, Witness]]:
    with gang_cluster(tmp_path_factory.mktemp("off"), gang_binaries, None) as found:
        yield found


@pytest.fixture(scope="module")
def real(cluster: tuple[RealCluster, Witness]) -> RealCluster:
    return cluster[0]


@pytest.fixture(scope="module", autouse=True)
def kubelets(real: RealCluster) -> Iterator[Kubelets]:
    """Two HGX, and a DGX-1V with four GPUs free that hold one pair."""
    nodes = [machine("hgx-h100-8").topology(f"hgx-{i}") for i in range(2)]
    for node in nodes:
        real.add_machine(node)
    half = machine("dgx1-v100").topology("half")
    uid = PodUid(real.add_pod("holder", 4, nodeName="half")["metadata"]["uid"])
    ids = tuple(DeviceId(half.gpus[p].uuid) for p in (0, 5, 6, 7))
    held = Allocation(uid, "default", "holder", "main", "nvidia.com/gpu", ids)
    real.add_machine(half, Report("boot", 1, allocations=(held,)))
    with Kubelets(real, nodes, seed=1370) as found:
        yield found
    assert found.errors == []
    assert found.kept.broken == []
    assert found.kept.refused == []


def create(real: RealCluster, gang: str, size: int, node: str, first: int = 0) -> list[str]:
    names = [f"{gang}-{i}" for i in range(first, size)]
    for name in names:
        real.create(PODS, member(name, gang, 2, PAIR, **on(node)))
    return names


def test_four_pairs_fill_a_machine_one_by_one(
    cluster: tuple[RealCluster, Witness], kubelets: Kubelets
) -> None:
    real, witness = cluster
    pods = create(real, "whole", 1, "hgx-0")
    real.until(lambda: witness.bound(pods), "the first is bound before the others are there")
    pods += create(real, "whole", 4, "hgx-0", first=1)
    assert "schedulingGroup" not in real.pod(pods[0])["spec"]
    assert {real.node_of(name) for name in pods} == {"hgx-0"}
    verbs = [c.verb for c in witness.calls() if c.pod in pods and c.verb in ("filter", "bind")]
    assert verbs.index("bind") < len(verbs) - 1 - verbs[::-1].index("filter")
    real.until(lambda: set(pods) <= set(kubelets.kept.held), "all are admitted")


def test_a_gang_that_does_not_fit_is_bound_in_part_by_the_scheduler(real: RealCluster) -> None:
    pods = create(real, "large", 5, "hgx-1")
    real.until(lambda: len(bound(real, pods)) == 4, "four are bound")
    (left,) = set(pods) - set(bound(real, pods))
    assert "1 Insufficient nvidia.com/gpu" in real.unschedulable(left)


def test_nobody_counts_siblings_that_nobody_sees(real: RealCluster) -> None:
    """One pair of GPUs 1 to 4 is promised and bound; the other waits for what is left of them."""
    pods = create(real, "meshed", 2, "half")
    real.until(lambda: len(bound(real, pods)) == 1, "one is bound")
    (left,) = set(pods) - set(bound(real, pods))
    assert SIBLINGS.reason not in real.unschedulable(left)
