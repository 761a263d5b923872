"""Gangs on the real gang cycle of kube-scheduler 1.37 (feature gate GenericWorkload).

Kubelets and agents are emulated; everything between a pod's creation and its Binding is real. A
witness writes down what the scheduler asks the extender.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.framework.rules.gangs import PEERS
from tests.e2e.cluster import PODS, ROOT, RealCluster
from tests.e2e.drakubelet import API, device_class
from tests.e2e.draslices import add_node, claimed, placement
from tests.e2e.emulated import Kubelets
from tests.e2e.gangcluster import gang_cluster
from tests.e2e.occupiednode import half_occupied
from tests.e2e.podgroups import BETA, Gangs, bound, member
from tests.e2e.recordingproxy import Call, RecordingProxy, gang_cycle
from topology.machines import machine

pytestmark = pytest.mark.e2e
PAIR = {"link": "nvlink"}
LOOSE = ["loose-0", "loose-1"]
RACKS = {name: [f"{name}-{i}" for i in range(4)] for name in ("east", "west")}
RACK = {"link": "nvlink", "group-domain": "nvlink-domain", "group-size": "4"}


def on(*nodes: str) -> dict[str, Any]:
    """A node affinity, which kube-scheduler applies before it asks the extender."""
    rule = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return {"affinity": {"nodeAffinity": required}}


@pytest.fixture(scope="module")
def cluster(
    gang_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RealCluster, RecordingProxy]]:
    with gang_cluster(tmp_path_factory.mktemp("gangs"), gang_binaries, BETA) as found:
        found[0].create(f"{API}/deviceclasses", device_class())
        yield found


@pytest.fixture(scope="module")
def gangs(real: RealCluster) -> Gangs:
    return Gangs(real, BETA)


@pytest.fixture(scope="module")
def real(cluster: tuple[RealCluster, RecordingProxy]) -> RealCluster:
    return cluster[0]


@pytest.fixture(scope="module")
def witness(cluster: tuple[RealCluster, RecordingProxy]) -> RecordingProxy:
    return cluster[1]


@pytest.fixture(scope="module")
def kubelets(real: RealCluster) -> Iterator[Kubelets]:
    """An HGX, a DGX-1V, one with four GPUs free that hold one pair, two machines without NVLink,
    and two racks."""
    nodes = [machine("hgx-h100-8").topology("hgx"), machine("dgx1-v100").topology("dgx")]
    nodes += [machine("l40s-4").topology(name) for name in LOOSE]
    nodes += [
        machine("gb200-tray").topology(tray, group=name) for name in RACKS for tray in RACKS[name]
    ]
    for node in nodes:
        real.add_machine(node)
    real.add_machine(machine("dgx1-v100").topology("half"), half_occupied(real, "half"))
    with Kubelets(real, nodes, seed=137) as found:
        yield found
    assert found.refused == []


def about(witness: RecordingProxy, names: list[str], *verbs: str) -> list[Call]:
    """The calls about some pods, in order."""
    return [call for call in witness.calls() if call.pod in names and call.verb in verbs]


def fails_whole(gangs: Gangs, name: str, pods: list[str]) -> str:
    """Wait until the gang cycle has given the gang up; what it says of the first pod."""
    real = gangs.real
    real.until(lambda: gangs.condition(name).get("status") == "False", f"{name} has no place")
    answer = real.unschedulable(pods[0])
    assert bound(real, pods) == {}
    return answer


def removed(real: RealCluster, kubelets: Kubelets, pods: list[str]) -> None:
    """Delete pods, and wait until the extender sees that their GPUs are free."""
    nodes = set(bound(real, pods).values())
    for name in pods:
        real.api.delete(f"{PODS}/{name}", params={"gracePeriodSeconds": 1 if nodes else 0})

    def gone() -> bool:
        for node in nodes:
            kubelets.report_again(node)
        known = [real.admin.get(f"/v1/nodes/{node}").json() for node in nodes]
        return not any(pod["name"] in pods for node in known for pod in node["pods"])

    real.until(gone, f"{pods} have let go")


def test_every_member_is_filtered_before_the_first_is_bound(
    real: RealCluster, gangs: Gangs, witness: RecordingProxy, kubelets: Kubelets
) -> None:
    """Four pairs fill an HGX. What the scheduler asks: filter, member by member, then all binds."""
    pods = gangs.of("whole", 4, 2, PAIR, **on("hgx"))
    assert {real.node_of(name) for name in pods} == {"hgx"}
    real.until(lambda: set(pods) <= set(kubelets.held), "all are admitted")
    real.until(lambda: witness.bound(pods), "every bind is answered")
    calls = gang_cycle(witness.calls(), pods)
    assert [call.error for call in calls[4:]] == [""] * 4
    assert about(witness, pods, "prioritize", "preempt") == [], "one node passes"
    real.until(lambda: gangs.condition("whole").get("status") == "True", "it is said to be placed")
    asked = calls[0].asked.get("Pod") or calls[0].asked["pod"]
    assert asked["spec"]["schedulingGroup"] == {"podGroupName": "whole"}
    removed(real, kubelets, pods)


def test_members_are_scored_one_by_one_and_full_nodes_are_not_offered(
    real: RealCluster, gangs: Gangs, witness: RecordingProxy, kubelets: Kubelets
) -> None:
    """The scheduler counts the members that it has placed, and tells us nothing of where."""
    pods = gangs.of("spread", 8, 2, PAIR, **on("hgx", "dgx"))
    assert sorted(real.node_of(name) for name in pods) == ["dgx"] * 4 + ["hgx"] * 4
    real.until(lambda: witness.bound(pods), "every bind is answered")
    calls = gang_cycle(witness.calls(), pods)
    assert about(witness, pods, "preempt") == []
    assert sorted(calls[0].offered) == ["dgx", "hgx"]
    assert len(calls[7].offered) == 1
    assert all(call.passed == call.offered for call in calls[:8])
    assert about(witness, pods, "prioritize")
    removed(real, kubelets, pods)


def test_a_gang_that_fits_by_count_and_not_by_links_waits_whole_with_our_reason(
    real: RealCluster, gangs: Gangs, witness: RecordingProxy, kubelets: Kubelets
) -> None:
    pods = gangs.of("unlinked", 4, 2, PAIR, **on(*LOOSE))
    answer = fails_whole(gangs, "unlinked", pods)
    assert "2 the hardware has no set of 2 GPUs with link=nvlink" in answer
    removed(real, kubelets, pods)


def test_peers_may_break_up_what_a_cube_mesh_has(
    real: RealCluster, gangs: Gangs, witness: RecordingProxy, kubelets: Kubelets
) -> None:
    """GPUs 1 to 4 of a DGX-1V promise one pair; two GPUs that are not linked may be left then."""
    pods = gangs.of("meshed", 2, 2, PAIR, **on("half"))
    assert f"1 {PEERS.message}" in fails_whole(gangs, "meshed", pods)
    assert about(witness, pods, "bind") == []
    removed(real, kubelets, pods)
    real.add_pod("single-pair", 2, PAIR, **on("half"))
    assert real.node_of("single-pair") == "half"
    real.remove_pod("single-pair")


def test_a_gang_goes_to_one_rack(
    real: RealCluster, gangs: Gangs, witness: RecordingProxy, kubelets: Kubelets
) -> None:
    """Two gangs of four trays at once: each has a rack of its own, and no bind is refused."""
    names = ["red", "blue"]
    for name in names:
        gangs.podgroup(name, 4)
    pods = {name: [f"{name}-{i}" for i in range(4)] for name in names}
    for i in range(4):
        for name in names:
            real.create(PODS, member(f"{name}-{i}", name, 4, RACK))
    homes = {name: {real.node_of(pod) for pod in pods[name]} for name in names}
    assert sorted(map(sorted, homes.values())) == sorted(RACKS.values())
    both = [*pods["red"], *pods["blue"]]
    real.until(lambda: witness.bound(both), "every bind is answered")
    assert [call.error for call in about(witness, both, "bind")] == [""] * 8
    removed(real, kubelets, both)


def test_a_gang_does_not_preempt(
    real: RealCluster, gangs: Gangs, witness: RecordingProxy, kubelets: Kubelets
) -> None:
    """The gang cycle tries filter again as if the victims were gone, and cannot tell us that: we
    still see their GPUs held. So no pod is evicted, with constraints or without."""
    real.add_priority_classes(low=-10, high=10)
    real.add_pod("victim", 8, priorityClassName="low", **on("hgx"))
    assert real.node_of("victim") == "hgx"
    real.until(lambda: "victim" in kubelets.held, "the victim runs")
    gangs.podgroup("urgent", 2, priorityClassName="high")
    pods = ["urgent-0", "urgent-1"]
    for name in pods:
        real.create(PODS, member(name, "urgent", 4, PAIR, priorityClassName="high", **on("hgx")))
    fails_whole(gangs, "urgent", pods)
    assert about(witness, pods, "preempt", "bind") == []
    assert real.pod("victim")["metadata"].get("deletionTimestamp") is None
    removed(real, kubelets, ["victim"])
    assert {real.node_of(name) for name in pods} == {"hgx"}
    removed(real, kubelets, pods)


def test_the_sample_is_placed(
    real: RealCluster, gangs: Gangs, witness: RecordingProxy, kubelets: Kubelets
) -> None:
    """``kubectl apply`` of the manifest that we ship."""
    real.kubectl("apply", "-f", str(ROOT / "manifests" / "samples" / "gangs" / "podgroup.yaml"))
    pods = [f"gang-worker-{i}" for i in range(4)]
    for name in pods:
        real.node_of(name)
    real.until(lambda: witness.bound(pods), "every bind is answered")
    gang_cycle(witness.calls(), pods)
    removed(real, kubelets, pods)


@pytest.mark.parametrize(
    "more", [{}, {"group-domain": "node", "group-size": "2"}], ids=["any", "one node"]
)
def test_a_gang_under_dra_is_bound_whole(
    real: RealCluster, gangs: Gangs, more: dict[str, str]
) -> None:
    """kube-scheduler allocates the devices of all members before it binds the first."""
    name = "one-node" if more else "two-pairs"
    add_node(real, f"dra-{name}", (2, 3, 0, 1))
    pods = gangs.of(name, 2, 2, {**PAIR, **more}, **on(f"dra-{name}"))
    real.until(lambda: len(bound(real, pods)) == 2, "the gang is bound")
    assert sorted(claimed(real, pod) for pod in pods) == [[0, 1], [2, 3]]
    for pod in pods:
        written = placement(real, pod)
        assert (written["verdict"], written["sets"]) == ("guaranteed", [claimed(real, pod)])
