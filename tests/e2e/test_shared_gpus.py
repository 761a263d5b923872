"""Time-slicing, MPS, MIG and sick GPUs on real kubelets with NVIDIA's plugin.

What we publish of them, and what we promise.
Each node's plugin is set up by its own configuration file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.building import NEWEST
from tests.e2e.nvidiastack import GPU, MPS, PluginSettings
from tests.e2e.pods import PODS, gpu_pod
from tests.e2e.realnodes import RealNode, RealNodes
from tests.e2e.silicon import Silicon
from tests.fakes.nvml import MigInstance
from topology import codec
from topology.codec import Record
from topology.core.devices import MIB, GpuResource

pytestmark = pytest.mark.e2e
SHARED = "nvidia.com/gpu.shared"
SMALL, LARGE = "nvidia.com/mig-1g.6gb", "nvidia.com/mig-2g.12gb"
XID = 48
VERSION = NEWEST.removeprefix("v")
SMALL_MIB, LARGE_MIB = 5952, 11968


def time_slicing(option: str = "") -> str:
    """The plugin's configuration for two replicas of each GPU."""
    return f"""
version: v1
sharing:
  timeSlicing:
    {f"{option}: true" if option else ""}
    resources: [{{name: {GPU}, replicas: 2}}]
"""


MPS_CONFIG = time_slicing().replace("timeSlicing", "mps")


def mig(strategy: str) -> str:
    """Its configuration for MIG."""
    return f"version: v1\nflags: {{migStrategy: {strategy}}}\n"


def instances(gpu: int, small: int, large: int = 0) -> list[MigInstance | None]:
    """So many MIG devices of one of four slices of an A30, and of two."""
    found: list[MigInstance | None] = [
        MigInstance(f"MIG-{gpu}-small-{i}", "1g.6gb", SMALL_MIB * MIB) for i in range(small)
    ]
    found += [MigInstance(f"MIG-{gpu}-large-{i}", "2g.12gb", LARGE_MIB * MIB) for i in range(large)]
    return found


def all_in_slices(silicon: Silicon) -> None:
    """Every GPU has four instances."""
    for gpu in silicon.topology.gpus:
        silicon.nvml.mig(gpu.index, instances(gpu.index, 4))


def first_in_slices(silicon: Silicon) -> None:
    """The first GPU has two small instances and a large one; the others are whole."""
    silicon.nvml.mig(0, instances(0, 2, 1))


NODES = {
    "sliced": RealNode("t4-4", PluginSettings(config=time_slicing(), serves=((GPU, 8),))),
    "renamed": RealNode(
        "t4-4", PluginSettings(config=time_slicing("renameByDefault"), serves=((SHARED, 8),))
    ),
    "one-each": RealNode(
        "t4-4",
        PluginSettings(config=time_slicing("failRequestsGreaterThanOne"), serves=((GPU, 8),)),
    ),
    "told": RealNode(
        "t4-4",
        PluginSettings(config=time_slicing(), serves=((GPU, 8),)),
        agent=("--fail-requests-greater-than-one=false",),
    ),
    "mps": RealNode("t4-4", PluginSettings(config=MPS_CONFIG, environment=MPS, serves=((GPU, 8),))),
    "single": RealNode(
        "a30-4-bridged",
        PluginSettings(config=mig("single"), serves=((GPU, 16),)),
        prepare=all_in_slices,
    ),
    "mixed": RealNode(
        "a30-4-bridged",
        PluginSettings(config=mig("mixed"), serves=((GPU, 3), (SMALL, 2), (LARGE, 1))),
        prepare=first_in_slices,
    ),
    "sick": RealNode("dgx1-v100"),
    "unwatched": RealNode(
        "dgx1-v100", PluginSettings(environment=(("DP_DISABLE_HEALTHCHECKS", "all"),))
    ),
}


def record(nodes: RealNodes, node: str) -> Record:
    return codec.decode(nodes.cluster.record(node))


def published(nodes: RealNodes, node: str, pod: str) -> dict[str, list[str]]:
    """Device ids by resource that the record says a pod holds."""
    report = record(nodes, node).report
    return {
        a.resource: sorted(a.device_ids)
        for a in (report.allocations if report else ())
        if a.pod == pod
    }


def create(
    nodes: RealNodes,
    node: str,
    name: str,
    count: int,
    wishes: Mapping[str, str] | None = None,
    resource: str = GPU,
) -> None:
    """A pod for one node; the scheduler and we say whether it may go there."""
    pod = gpu_pod(name, [count], annotations=wishes)
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: str(count)}}
    nodes.cluster.create(PODS, pod)


def placement(pod: dict[str, Any]) -> dict[str, Any]:
    """What was promised to a pod."""
    found: dict[str, Any] = json.loads(pod["metadata"]["annotations"]["gpu-topology.io/placement"])
    return found


def phase(nodes: RealNodes, name: str) -> str:
    return str(nodes.cluster.pod(name)["status"]["phase"])


def run(
    nodes: RealNodes,
    node: str,
    name: str,
    count: int,
    wishes: Mapping[str, str] | None = None,
    resource: str = GPU,
) -> tuple[str, ...]:
    """Create a pod, wait until it runs and the record shows what the kubelet does: its devices."""
    create(nodes, node, name, count, wishes, resource)
    nodes.cluster.until(lambda: phase(nodes, name) == "Running", f"{name} runs")
    shown = nodes.kubelets[node].pod_resources.holdings()["default", name]
    (ids,) = shown.values()
    nodes.cluster.until(
        lambda: published(nodes, node, name) == {resource: sorted(ids)},
        f"the record of {node} shows {name} with {ids}",
    )
    return ids


def remove(nodes: RealNodes, node: str, *names: str) -> None:
    """Delete pods, and wait until the record has forgotten them."""
    for name in names:
        nodes.cluster.remove_pod(name)
    nodes.cluster.until(
        lambda: not any(published(nodes, node, name) for name in names),
        f"{', '.join(names)} hold nothing",
    )


# --- Time-slicing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("node", "resource"), [("sliced", GPU), ("renamed", SHARED)])
def test_replicas_are_published(real_nodes: RealNodes, node: str, resource: str) -> None:
    found = record(real_nodes, node)
    (served,) = found.topology.resources
    assert (served.name, served.strategy, served.replicas) == (resource, "time-slicing", 2)
    assert found.topology.allocator.policy == "distributed"
    assert found.report is not None
    assert found.report.allocatable is not None
    assert len(found.report.allocatable) == 8


@pytest.mark.parametrize(("node", "resource"), [("sliced", GPU), ("renamed", SHARED)])
def test_replicas_lie_on_gpus_that_were_foreseen(
    real_nodes: RealNodes, node: str, resource: str
) -> None:
    """Spread over GPUs with the fewest pods: the second pod gets what the first left."""
    names = [f"{node}-{i}" for i in range(3)]
    for name in names:
        # Whether the plugin takes requests for two shares at all is not known before the first such
        # pod runs: one that requires something waits until then (below), so this one prefers it.
        ids = run(real_nodes, node, name, 2, {"link": "node", "policy": "preferred"}, resource)
        got = real_nodes.kubelets[node].positions(ids)
        promised = placement(real_nodes.cluster.pod(name))
        assert sorted(set(got)) in promised["sets"], promised
    remove(real_nodes, node, *names)


def test_feature_discovery_tells_of_sharing(real_nodes: RealNodes) -> None:
    labels = real_nodes.cluster.api.get("/api/v1/nodes/sliced").json()["metadata"]["labels"]
    assert labels["nvidia.com/gpu.sharing-strategy"] == "time-slicing"
    assert labels["nvidia.com/gpu.replicas"] == "2"
    assert labels["nvidia.com/gpu.product"] == "Tesla-T4-SHARED"


def test_the_plugin_refuses_two_replicas(real_nodes: RealNodes) -> None:
    """With failRequestsGreaterThanOne one is given, and the kubelet refuses a pod of two."""
    run(real_nodes, "one-each", "one", 1)
    create(real_nodes, "one-each", "two", 2)
    real_nodes.cluster.until(lambda: phase(real_nodes, "two") == "Failed", "two is refused")
    status = real_nodes.cluster.pod("two")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "maximum request size for shared resources is 1" in status["message"]
    real_nodes.cluster.until(
        lambda: refuses_several(real_nodes, "one-each"), "the agent has learnt from it"
    )
    real_nodes.cluster.remove_pod("two")
    remove(real_nodes, "one-each", "one")


def refuses_several(nodes: RealNodes, node: str) -> bool | None:
    """What the record says: whether the plugin refuses a container several shares."""
    return record(nodes, node).topology.resources[0].refuses_several


@pytest.mark.parametrize("wishes", [{}, {"link": "node"}], ids=["plain", "required"])
def test_no_pod_of_two_replicas_is_sent_where_one_was_refused(
    real_nodes: RealNodes, wishes: dict[str, str]
) -> None:
    """The test above has taught the agent what this plugin does."""
    create(real_nodes, "one-each", "another", 2, wishes)
    try:
        stays_away(real_nodes, "another", "gives a container no more than one share of a GPU")
    finally:
        real_nodes.cluster.remove_pod("another")


@pytest.mark.parametrize("node", ["sliced", "told"])
def test_two_replicas_are_promised_where_they_are_given(real_nodes: RealNodes, node: str) -> None:
    """One agent learns it from a pod of no constraints, the other was told."""
    if node == "sliced":
        run(real_nodes, node, "teacher", 2)
        real_nodes.cluster.until(
            lambda: refuses_several(real_nodes, node) is False, "the agent has learnt it"
        )
        remove(real_nodes, node, "teacher")
    assert refuses_several(real_nodes, node) is False
    ids = run(real_nodes, node, "promised", 2, {"link": "node"})
    promised = placement(real_nodes.cluster.pod("promised"))
    assert promised["verdict"] == "guaranteed"
    assert sorted(set(real_nodes.kubelets[node].positions(ids))) in promised["sets"]
    remove(real_nodes, node, "promised")


def stays_away(nodes: RealNodes, name: str, reason: str) -> None:
    """A pod waits for this reason, and no kubelet has refused it."""
    nodes.cluster.until(
        lambda: phase(nodes, name) == "Failed" or waits(nodes, name),
        "the pod waits, or its kubelet refuses it",
    )
    assert reason in waits(nodes, name)


def waits(nodes: RealNodes, name: str) -> str:
    """Why kube-scheduler has found no node for a pod; empty where it has, or not looked yet."""
    for found in nodes.cluster.pod(name)["status"].get("conditions", []):
        if found["type"] == "PodScheduled" and found.get("reason") == "Unschedulable":
            return str(found["message"])
    return ""


def test_mps_gives_a_container_one_share(real_nodes: RealNodes) -> None:
    """Of this version of the plugin that is known without a pod that was refused."""
    (served,) = record(real_nodes, "mps").topology.resources
    assert (served.strategy, served.replicas, served.refuses_several) == ("mps", 2, None)
    (share,) = run(real_nodes, "mps", "share", 1, {"link": "node"})
    assert "::" in share
    assert placement(real_nodes.cluster.pod("share"))["verdict"] == "guaranteed"
    create(real_nodes, "mps", "shares", 2)
    try:
        stays_away(real_nodes, "shares", "gives a container no more than one share of a GPU")
    finally:
        real_nodes.cluster.remove_pod("shares")
    remove(real_nodes, "mps", "share")


# --- MIG ------------------------------------------------------------------------------------------


def test_a_node_all_of_mig_devices(real_nodes: RealNodes) -> None:
    found = record(real_nodes, "single")
    assert found.topology.resources == (GpuResource(GPU, "mig"),)
    assert all(gpu.mig_mode == "enabled" for gpu in found.topology.gpus)
    (one,) = run(real_nodes, "single", "mig", 1)
    assert one.startswith("MIG-")
    remove(real_nodes, "single", "mig")


def test_mig_devices_are_promised_nothing(real_nodes: RealNodes) -> None:
    create(real_nodes, "single", "linked", 2, {"link": "nvlink"})
    real_nodes.cluster.until(lambda: waits(real_nodes, "linked"), "linked fits nowhere")
    assert "MIG" in waits(real_nodes, "linked")
    real_nodes.cluster.remove_pod("linked")


def test_a_node_of_mig_devices_and_whole_gpus(real_nodes: RealNodes) -> None:
    found = record(real_nodes, "mixed")
    assert found.topology.resources == (
        GpuResource(GPU),
        GpuResource(SMALL, "mig"),
        GpuResource(LARGE, "mig"),
    )
    names = ("small", "large", "whole")
    (small,) = run(real_nodes, "mixed", "small", 1, resource=SMALL)
    (large,) = run(real_nodes, "mixed", "large", 1, resource=LARGE)
    assert small.startswith("MIG-0-small")
    assert large == "MIG-0-large-0"
    ids = run(real_nodes, "mixed", "whole", 2)
    assert 0 not in real_nodes.kubelets["mixed"].positions(ids)
    remove(real_nodes, "mixed", *names)


# --- Health ---------------------------------------------------------------------------------------


def sick(nodes: RealNodes, node: str) -> set[str]:
    """The GPUs that the record calls unhealthy."""
    report = record(nodes, node).report
    return {str(h.uuid) for h in report.health if not h.healthy} if report else set()


def allocatable(nodes: RealNodes, node: str) -> frozenset[str]:
    """What the kubelet hands out from, by the record."""
    report = record(nodes, node).report
    return frozenset(map(str, (report.allocatable if report else None) or ()))


def test_a_gpu_that_an_xid_has_hit_is_promised_to_nobody(real_nodes: RealNodes) -> None:
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


WISHES = {
    "plain": {},
    "preferred": {"link": "nvlink", "policy": "preferred"},
    "required": {"link": "nvlink"},
}


@pytest.mark.parametrize("kind", WISHES)
def test_no_pod_is_sent_where_all_are_refused(real_nodes: RealNodes, lost: str, kind: str) -> None:
    create(real_nodes, lost, kind, 2, WISHES[kind])
    try:
        gpu = real_nodes.kubelets[lost].topology.gpus[3]
        words = f"NVIDIA's device plugin {VERSION} refuses every pod while {gpu.uuid} is lost"
        stays_away(real_nodes, kind, words)
    finally:
        real_nodes.cluster.remove_pod(kind)


def test_a_node_is_open_as_soon_as_its_gpu_answers_again(real_nodes: RealNodes, lost: str) -> None:
    """The GPU goes on being called sick: nothing tells of a reset."""
    create(real_nodes, lost, "waiting", 1)
    create(real_nodes, lost, "linked", 2, {"link": "nvlink"})
    both = ("waiting", "linked")
    real_nodes.cluster.until(lambda: all(waits(real_nodes, name) for name in both), "both wait")
    real_nodes.kubelets[lost].silicon.nvml.restore(3)
    real_nodes.cluster.until(
        lambda: phase(real_nodes, "waiting") == "Running", "the plain pod runs"
    )
    assert sick(real_nodes, lost), "and is, until its reset"
    silicon = real_nodes.kubelets[lost].silicon
    silicon.nvml.reset(3)
    real_nodes.cluster.until(lambda: phase(real_nodes, "linked") == "Running", "the other runs")
    assert not sick(real_nodes, lost)
    remove(real_nodes, lost, *both)
