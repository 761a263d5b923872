"""Time-slicing, MPS and MIG on real kubelets with NVIDIA's plugin: what we publish and promise.

Each node's plugin is set up by its own configuration file.
"""

from __future__ import annotations

import pytest

from tests.e2e.nvidiastack import GPU, MPS, PluginSettings
from tests.e2e.onenode import (
    create,
    phase,
    placement,
    record,
    remove,
    run,
    stays_away,
    waits,
)
from tests.e2e.realnodes import RealNode, RealNodes
from tests.e2e.silicon import Silicon
from tests.fakes.nvml import MigInstance
from topology.core.devices import MIB, GpuResource

pytestmark = pytest.mark.e2e
SHARED = "nvidia.com/gpu.shared"
SMALL, LARGE = "nvidia.com/mig-1g.6gb", "nvidia.com/mig-2g.12gb"
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
}


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
