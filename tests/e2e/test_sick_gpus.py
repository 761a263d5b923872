"""Sick and lost GPUs on real kubelets with NVIDIA's plugin: what is published and refused."""

import pytest

from tests.e2e.building import NEWEST
from tests.e2e.nvidiastack import PluginSettings
from tests.e2e.onenode import create, phase, placement, record, remove, run, stays_away, waits
from tests.e2e.pods import PODS, gpu_pod
from tests.e2e.realnodes import RealNode, RealNodes

pytestmark = pytest.mark.e2e
XID = 48
VERSION = NEWEST.removeprefix("v")
NODES = {
    "sick": RealNode("dgx1-v100"),
    "unwatched": RealNode(
        "dgx1-v100", PluginSettings(environment=(("DP_DISABLE_HEALTHCHECKS", "all"),))
    ),
    "shrinking": RealNode(
        "dgx1-v100", PluginSettings(environment=(("DP_DISABLE_HEALTHCHECKS", "all"),))
    ),
}


def sick(nodes: RealNodes, node: str) -> set[str]:
    """The GPUs that the record calls unhealthy."""
    report = record(nodes, node).report
    return {str(h.uuid) for h in report.health if not h.healthy} if report else set()


def allocatable(nodes: RealNodes, node: str) -> frozenset[str]:
    """What the kubelet hands out from, by the record."""
    report = record(nodes, node).report
    return frozenset(map(str, (report.allocatable if report else None) or ()))


def test_a_gpu_with_an_xid_is_promised_to_no_pod(real_nodes: RealNodes) -> None:
    """Plugin and agent each hear of the Xid; a plugin that is restarted knows nothing of it."""
    kubelet = real_nodes.kubelets["sick"]
    everything = frozenset(str(gpu.uuid) for gpu in kubelet.topology.gpus)
    hit = {str(kubelet.topology.gpus[5].uuid)}
    kubelet.silicon.nvml.xid(5, XID)
    real_nodes.cluster.until(
        lambda: allocatable(real_nodes, "sick") == everything - hit, "it is not handed out"
    )
    real_nodes.cluster.until(lambda: sick(real_nodes, "sick") == hit, "it is called sick")
    ids = run(real_nodes, "sick", "pair", 2, {"link": "nvlink"})
    promised = placement(real_nodes.cluster.pod("pair"))
    assert all(5 not in one for one in promised["sets"])
    assert list(kubelet.positions(ids)) in promised["sets"]
    remove(real_nodes, "sick", "pair")

    kubelet.restart_plugin()
    real_nodes.cluster.until(
        lambda: allocatable(real_nodes, "sick") == everything, "it is handed out again"
    )
    assert sick(real_nodes, "sick") == hit


@pytest.fixture(scope="module")
def lost(real_nodes: RealNodes) -> str:
    """A node that has lost a GPU and whose plugin does not look: the kubelet hands all out."""
    real_nodes.kubelets["unwatched"].silicon.nvml.lose(3)
    real_nodes.cluster.until(lambda: sick(real_nodes, "unwatched"), "the agent has seen it")
    return "unwatched"


def test_a_lost_gpu_makes_the_kubelet_refuse_every_pod(real_nodes: RealNodes, lost: str) -> None:
    """The plugin prefers nothing while one GPU does not answer, whichever are asked about."""
    assert len(allocatable(real_nodes, lost)) == 8
    unscheduled = gpu_pod("refused", [1])
    unscheduled["spec"]["nodeName"] = lost
    real_nodes.cluster.create(PODS, unscheduled)
    real_nodes.cluster.until(lambda: phase(real_nodes, "refused") == "Failed", "it is refused")
    status = real_nodes.cluster.pod("refused")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "GPU is lost" in status["message"]
    real_nodes.cluster.remove_pod("refused")


CONSTRAINTS = {
    "plain": {},
    "preferred": {"link": "nvlink", "policy": "preferred"},
    "required": {"link": "nvlink"},
}


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_no_pod_is_sent_where_all_are_refused(real_nodes: RealNodes, lost: str, kind: str) -> None:
    create(real_nodes, lost, kind, 2, CONSTRAINTS[kind])
    try:
        gpu = real_nodes.kubelets[lost].topology.gpus[3]
        words = (
            f"NVIDIA's device plugin {VERSION} refuses every pod with whole GPUs while {gpu.uuid} "
            "does not answer"
        )
        stays_away(real_nodes, kind, words)
    finally:
        real_nodes.cluster.remove_pod(kind)


def test_a_node_is_open_as_soon_as_its_gpu_answers_again(real_nodes: RealNodes, lost: str) -> None:
    """The GPU goes on being called sick until its reset; a required pod need not wait for that.

    Where the plain pod got the sick GPU, nobody else can get it.
    """
    create(real_nodes, lost, "waiting", 1)
    create(real_nodes, lost, "linked", 2, {"link": "nvlink"})
    both = ("waiting", "linked")
    real_nodes.cluster.until(lambda: all(waits(real_nodes, name) for name in both), "both wait")
    real_nodes.kubelets[lost].silicon.nvml.restore(3)
    real_nodes.cluster.until(
        lambda: phase(real_nodes, "waiting") == "Running", "the plain pod runs"
    )
    assert sick(real_nodes, lost), "and is, until its reset"
    real_nodes.kubelets[lost].silicon.nvml.reset(3)
    real_nodes.cluster.until(lambda: phase(real_nodes, "linked") == "Running", "the other runs")
    real_nodes.cluster.until(lambda: not sick(real_nodes, lost), "the reset is seen")
    remove(real_nodes, lost, *both)


def test_a_plugin_that_looked_anew_in_the_same_container_does_not_miss_a_gpu_that_is_gone(
    real_nodes: RealNodes,
) -> None:
    """A kubelet's restart makes it look: nobody has started it, and it knows seven GPUs now."""
    kubelet = real_nodes.kubelets["shrinking"]
    everything = frozenset(str(gpu.uuid) for gpu in kubelet.topology.gpus)
    gone = str(kubelet.topology.gpus[3].uuid)

    def missing() -> list[tuple[str, bool]]:
        report = record(real_nodes, "shrinking").report
        return [(gpu.name, gpu.counted) for gpu in report.missing] if report else []

    kubelet.silicon.nvml.remove(3)
    real_nodes.cluster.until(lambda: missing() == [(gone, False)], "the agent has seen it")
    kubelet.stop_kubelet()
    kubelet.start_kubelet()
    real_nodes.cluster.until(
        lambda: allocatable(real_nodes, "shrinking") == everything - {gone}, "it is not handed out"
    )
    real_nodes.cluster.until(lambda: missing() == [], "the plugin does not miss it")
    assert sick(real_nodes, "shrinking") == {gone}
    run(real_nodes, "shrinking", "rest", 2, {"link": "nvlink"})
    remove(real_nodes, "shrinking", "rest")
