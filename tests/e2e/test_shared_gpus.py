"""Time-slicing, MPS and MIG on real kubelets with NVIDIA's plugin: what we publish and promise.

Each node's plugin is set up by its own configuration file.
"""

from pathlib import Path

import pytest
import yaml

from tests.e2e.nvidiastack import GPU, MPS, PluginSettings
from tests.e2e.onenode import (
    create,
    phase,
    placement,
    record,
    remove,
    run,
    stays_away,
)
from tests.e2e.playedmachine import PlayedMachine
from tests.e2e.pods import PODS
from tests.e2e.realnodes import RealNode, RealNodes
from tests.fakes.nvml import MigInstance
from topology.core.devices import MIB, GpuResource

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
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


SHARED_SLICES = f"""
version: v1
flags: {{migStrategy: mixed}}
sharing:
  timeSlicing:
    resources: [{{name: {SMALL}, replicas: 2}}]
"""


def instances(gpu: int, small: int, large: int = 0) -> list[MigInstance | None]:
    """So many MIG devices of one of four slices of an A30, and of two."""
    found: list[MigInstance | None] = [
        MigInstance(f"MIG-{gpu}-small-{i}", "1g.6gb", SMALL_MIB * MIB) for i in range(small)
    ]
    found += [MigInstance(f"MIG-{gpu}-large-{i}", "2g.12gb", LARGE_MIB * MIB) for i in range(large)]
    return found


def all_in_slices(silicon: PlayedMachine) -> None:
    """Every GPU has four instances."""
    for gpu in silicon.topology.gpus:
        silicon.nvml.mig(gpu.index, instances(gpu.index, 4))


def first_in_slices(silicon: PlayedMachine) -> None:
    """The first GPU has two small instances and a large one; the others are whole."""
    silicon.nvml.mig(0, instances(0, 2, 1))


def first_in_three(silicon: PlayedMachine) -> None:
    """The first GPU, an A100, has an instance of three slices and two of two."""
    half = MigInstance("MIG-0-half", "3g.40gb", 40192 * MIB)
    parts = [MigInstance(f"MIG-0-part-{i}", "2g.20gb", 19968 * MIB) for i in range(2)]
    silicon.nvml.mig(0, [half, *parts])


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
    "as-in-the-sample": RealNode(
        "a100-pcie-4-bridged",
        PluginSettings(
            config=mig("mixed"),
            serves=((GPU, 3), ("nvidia.com/mig-2g.20gb", 2), ("nvidia.com/mig-3g.40gb", 1)),
        ),
        prepare=first_in_three,
    ),
    "slices-of-slices": RealNode(
        "a30-4-bridged",
        PluginSettings(config=SHARED_SLICES, serves=((GPU, 3), (SMALL, 4), (LARGE, 1))),
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
def test_replicas_lie_on_gpus_that_were_predicted(
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


def test_feature_discovery_labels_say_that_gpus_are_shared(real_nodes: RealNodes) -> None:
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


@pytest.mark.parametrize("constraints", [{}, {"link": "node"}], ids=["plain", "required"])
def test_no_pod_of_two_replicas_is_sent_where_one_was_refused(
    real_nodes: RealNodes, constraints: dict[str, str]
) -> None:
    """The test above has taught the agent what this plugin does."""
    create(real_nodes, "one-each", "another", 2, constraints)
    try:
        stays_away(real_nodes, "another", "refuses a container that requests more than one share")
    finally:
        real_nodes.cluster.remove_pod("another")


@pytest.mark.parametrize("node", ["sliced", "told"])
def test_two_replicas_are_promised_where_they_are_given(real_nodes: RealNodes, node: str) -> None:
    """One agent learns it from a pod without constraints, the other from a flag."""
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
        stays_away(real_nodes, "shares", "refuses a container that requests more than one share")
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


@pytest.mark.parametrize(
    ("count", "constraints", "reason"),
    [
        (2, {"link": "nvlink"}, "MIG instances have no links, and the pod requires link=nvlink"),
        (1, {"min-gpu-memory": "8Gi"}, "MIG instance memory is less than 8Gi"),
        (1, {"gpu-model": "A30"}, "GPU model is a30-mig-1g.6gb, not a30"),
        (5, {"spread-gpus": "true"}, "has no set of 5 MIG instances with spread-gpus"),
        (2, {"same-gpu": "true"}, "may hand out MIG instances without same-gpu"),
    ],
    ids=["links", "memory", "whole-gpu", "more-than-gpus", "any-may-come"],
)
def test_mig_devices_are_refused_what_they_cannot_be(
    real_nodes: RealNodes, count: int, constraints: dict[str, str], reason: str
) -> None:
    create(real_nodes, "single", "refused", count, constraints)
    try:
        stays_away(real_nodes, "refused", reason)
    finally:
        real_nodes.cluster.remove_pod("refused")


def test_mig_devices_of_the_single_strategy_are_promised(real_nodes: RealNodes) -> None:
    """Two at once, of whichever GPUs: NVIDIA's plugin has no preference."""
    constraints = {"min-gpu-memory": "5Gi", "gpu-model": "A30-MIG-1g.6gb"}
    got = set()
    for i in range(3):
        ids = run(real_nodes, "single", f"two-{i}", 2, constraints)
        promised = placement(real_nodes.cluster.pod(f"two-{i}"))
        assert promised["verdict"] == "guaranteed"
        assert sorted({gpu_of(device) for device in ids}) in promised["sets"]
        got |= set(ids)
    assert len(got) == 6
    remove(real_nodes, "single", *(f"two-{i}" for i in range(3)))


def test_two_of_one_gpu_are_promised_where_no_other_gpu_has_any_free(
    real_nodes: RealNodes,
) -> None:
    """Fourteen of sixteen are held; once the last two are of one GPU, or not."""
    names = [f"held-{i}" for i in range(14)]
    for name in names:
        run(real_nodes, "single", name, 1)
    report = record(real_nodes, "single").report
    assert report is not None
    held = {device for a in report.allocations for device in a.device_ids}
    left = [gpu_of(device) for device in report.allocatable or () if device not in held]
    constraints = {"same-gpu": "true"} if left[0] == left[1] else {"spread-gpus": "true"}
    other = {"spread-gpus": "true"} if left[0] == left[1] else {"same-gpu": "true"}
    create(real_nodes, "single", "other", 2, other)
    stays_away(real_nodes, "other", "no set of 2 free MIG instances with")
    real_nodes.cluster.remove_pod("other")
    ids = run(real_nodes, "single", "last", 2, constraints)
    assert sorted(gpu_of(device) for device in ids) == sorted(left)
    assert placement(real_nodes.cluster.pod("last"))["verdict"] == "expected"  # a pod may end
    remove(real_nodes, "single", "last", *names)


def gpu_of(device: str) -> int:
    """The GPU's number in an id of :func:`instances`."""
    return int(device.split("-")[1])


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


def test_mig_devices_of_a_profile_are_promised_beside_whole_gpus(real_nodes: RealNodes) -> None:
    """Both small instances are on GPU 0, so two are of one GPU whatever comes."""
    constraints = {"same-gpu": "true", "min-gpu-memory": "5Gi", "same-numa": "true"}
    ids = run(real_nodes, "mixed", "both", 2, constraints, resource=SMALL)
    assert set(ids) == {"MIG-0-small-0", "MIG-0-small-1"}
    promised = placement(real_nodes.cluster.pod("both"))
    assert (promised["verdict"], promised["sets"]) == ("guaranteed", [[0]])
    (large,) = run(real_nodes, "mixed", "big", 1, {"min-gpu-memory": "10Gi"}, resource=LARGE)
    assert placement(real_nodes.cluster.pod("big"))["verdict"] == "guaranteed"
    assert large == "MIG-0-large-0"
    pair = run(real_nodes, "mixed", "pair", 2, {"link": "nvlink"})
    assert real_nodes.kubelets["mixed"].positions(pair) == (2, 3)
    assert placement(real_nodes.cluster.pod("pair"))["verdict"] == "guaranteed"
    remove(real_nodes, "mixed", "both", "big", "pair")


@pytest.mark.parametrize(
    ("count", "constraints", "resource", "reason"),
    [
        (1, {"min-gpu-memory": "10Gi"}, SMALL, "MIG instance memory is less than 10Gi"),
        (2, {"spread-gpus": "true"}, SMALL, "has no set of 2 MIG instances with spread-gpus"),
        (2, {"link": "nvlink"}, SMALL, "MIG instances have no links"),
        (2, {"same-gpu": "true"}, GPU, "no set of 2 GPUs is on one GPU (same-gpu)"),
    ],
    ids=["memory", "spread", "links", "whole"],
)
def test_mig_devices_of_a_profile_are_refused_what_they_cannot_be(
    real_nodes: RealNodes, count: int, constraints: dict[str, str], resource: str, reason: str
) -> None:
    create(real_nodes, "mixed", "refused", count, constraints, resource)
    try:
        stays_away(real_nodes, "refused", reason)
    finally:
        real_nodes.cluster.remove_pod("refused")


def test_time_sliced_mig_devices_are_promised_once_it_is_known_that_several_are_given(
    real_nodes: RealNodes,
) -> None:
    node = "slices-of-slices"
    assert record(real_nodes, node).topology.resource(SMALL) == GpuResource(SMALL, "mig", 2)
    run(real_nodes, node, "first", 2, resource=SMALL)
    known = GpuResource(SMALL, "mig", 2, refuses_several=False)
    real_nodes.cluster.until(
        lambda: record(real_nodes, node).topology.resource(SMALL) == known,
        "the agent has learnt it",
    )
    ids = run(real_nodes, node, "second", 2, {"same-gpu": "true"}, resource=SMALL)
    assert all("::" in device for device in ids)
    promised = placement(real_nodes.cluster.pod("second"))
    assert (promised["verdict"], promised["sets"]) == ("guaranteed", [[0]])
    remove(real_nodes, node, "first", "second")


def test_the_sample_runs_on_a_real_kubelet(real_nodes: RealNodes) -> None:
    """No other node serves what it asks for."""
    pod = yaml.safe_load((ROOT / "manifests/samples/mig-slices.yaml").read_text())
    real_nodes.cluster.create(PODS, pod)
    real_nodes.cluster.until(lambda: phase(real_nodes, "mig-slices") == "Running", "it runs")
    node = "as-in-the-sample"
    shown = real_nodes.kubelets[node].pod_resources.holdings()["default", "mig-slices"]
    assert {device for ids in shown.values() for device in ids} == {
        "MIG-0-part-0",
        "MIG-0-part-1",
    }
    promised = placement(real_nodes.cluster.pod("mig-slices"))
    assert (promised["verdict"], promised["sets"]) == ("guaranteed", [[0]])
    remove(real_nodes, node, "mig-slices")
