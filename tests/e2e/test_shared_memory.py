"""Memory of shared GPUs on real kubelets with NVIDIA's plugin: what pods say they use is kept free.

NVIDIA's plugin counts shares and no memory, so nobody else keeps it.
"""

from pathlib import Path

import pytest
import yaml

from tests.e2e.nvidiastack import GPU, MPS, PluginSettings
from tests.e2e.onenode import create, phase, placement, remove, run, stays_away, waits
from tests.e2e.pods import PODS
from tests.e2e.realnodes import RealNode, RealNodes

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
SHARED = "nvidia.com/gpu.shared"


def sharing(kind: str, replicas: int, option: str = "") -> str:
    """The plugin's configuration for so many shares of each GPU."""
    return f"""
version: v1
sharing:
  {kind}:
    {f"{option}: true" if option else ""}
    resources: [{{name: {GPU}, replicas: {replicas}}}]
"""


FLAGS_OF_PLUGIN = ("--fail-requests-greater-than-one=false",)
# T4s of 15 GiB: a share is 5 GiB on the first node, 7.5 GiB on the others.
NODES = {
    "sliced": RealNode(
        "t4-4",
        PluginSettings(config=sharing("timeSlicing", 3), serves=((GPU, 12),)),
        agent=FLAGS_OF_PLUGIN,
    ),
    "renamed": RealNode(
        "t4-4",
        PluginSettings(config=sharing("timeSlicing", 2, "renameByDefault"), serves=((SHARED, 8),)),
        agent=FLAGS_OF_PLUGIN,
    ),
    "mps": RealNode(
        "t4-4",
        PluginSettings(config=sharing("mps", 2), environment=MPS, serves=((GPU, 8),)),
    ),
}
LITTLE = "a GPU that the pod may get has too little memory left for"


@pytest.mark.parametrize(("node", "resource"), [("sliced", GPU), ("renamed", SHARED), ("mps", GPU)])
def test_no_pod_lands_where_its_memory_is_not(
    real_nodes: RealNodes, node: str, resource: str
) -> None:
    """Four pods of 10 GiB have a GPU each. The fifth waits, and so does a plain pod where a share's
    part is more than is left; one that needs little does not."""
    names = [f"{node}-{i}" for i in range(4)]
    for name in names:
        ids = run(real_nodes, node, name, 1, {"gpu-memory": "10Gi"}, resource)
        promised = placement(real_nodes.cluster.pod(name))
        assert real_nodes.kubelets[node].positions(ids)[0] in {i for (i,) in promised["sets"]}
    assert {run_on(real_nodes, node, name) for name in names} == {0, 1, 2, 3}
    create(real_nodes, node, "fifth", 1, {"gpu-memory": "10Gi"}, resource)
    stays_away(real_nodes, "fifth", f"{LITTLE} 10Gi")
    create(real_nodes, node, "wish", 1, {"gpu-memory": "6Gi", "policy": "preferred"}, resource)
    stays_away(real_nodes, "wish", f"{LITTLE} 6Gi")
    if node == "sliced":  # a third of 15 GiB is left
        run(real_nodes, node, "plain", 1)
        remove(real_nodes, node, "plain")
    else:
        create(real_nodes, node, "plain", 1, {}, resource)
        stays_away(real_nodes, "plain", f"{LITTLE} the pod's shares")
        real_nodes.cluster.remove_pod("plain")
    run(real_nodes, node, "little", 1, {"gpu-memory": "4Gi"}, resource)
    # Whose memory is free again? The waiting pods are told, and one of them comes.
    remove(real_nodes, node, *names, "little")
    woken = ("fifth", "wish")
    real_nodes.cluster.until(
        lambda: all(phase(real_nodes, name) == "Running" for name in woken), "both run"
    )
    remove(real_nodes, node, "fifth", "wish")


def run_on(nodes: RealNodes, node: str, name: str) -> int:
    """The position of the one GPU that a pod is on."""
    (ids,) = nodes.kubelets[node].pod_resources.holdings()["default", name].values()
    (position,) = nodes.kubelets[node].positions(ids)
    return position


def test_a_pod_that_wants_gpus_alone_gets_every_share_of_them(real_nodes: RealNodes) -> None:
    """Twelve shares are all of four GPUs. Three may be of three GPUs: the plugin distributes."""
    create(real_nodes, "sliced", "three", 3, {"sharing": "exclusive"})
    stays_away(real_nodes, "three", "sharing=exclusive")
    real_nodes.cluster.remove_pod("three")
    create(real_nodes, "sliced", "two", 2, {"sharing": "exclusive"})
    stays_away(
        real_nodes, "two", "GPUs have 3 shares each, and the pod must request all shares of each"
    )
    real_nodes.cluster.remove_pod("two")
    ids = run(real_nodes, "sliced", "all", 12, {"sharing": "exclusive"})
    assert len(ids) == 12
    assert placement(real_nodes.cluster.pod("all"))["verdict"] == "guaranteed"
    remove(real_nodes, "sliced", "all")


def test_two_shares_are_of_two_gpus_where_that_is_asked(real_nodes: RealNodes) -> None:
    constraints = {"spread-gpus": "true", "gpu-memory": "4Gi"}
    ids = run(real_nodes, "sliced", "apart", 2, constraints)
    assert len(set(real_nodes.kubelets["sliced"].positions(ids))) == 2
    assert placement(real_nodes.cluster.pod("apart"))["verdict"] == "guaranteed"
    create(real_nodes, "sliced", "five-apart", 5, constraints)
    stays_away(real_nodes, "five-apart", "")
    assert waits(real_nodes, "five-apart")
    real_nodes.cluster.remove_pod("five-apart")
    remove(real_nodes, "sliced", "apart")


def test_a_burst_of_pods_never_exceeds_a_gpus_memory(real_nodes: RealNodes) -> None:
    """Ten at once, of which no report shows any when the first are placed: of 10, 4 and 5 GiB."""
    kinds = [{"gpu-memory": "10Gi"}] * 3 + [{"gpu-memory": "4Gi"}] * 4 + [dict[str, str]()] * 3
    wants = {f"burst-{i}": constraints for i, constraints in enumerate(kinds)}
    for name, constraints in wants.items():
        create(real_nodes, "sliced", name, 1, constraints)
    real_nodes.cluster.until(
        lambda: all(runs_or_waits(real_nodes, name) for name in wants),
        "every pod runs, or kube-scheduler has found no place for it",
    )
    used = [0.0] * 4
    for (_, name), held in real_nodes.kubelets["sliced"].pod_resources.holdings().items():
        if name in wants:
            (ids,) = held.values()
            # A pod that waited may just be on its way, and hold nothing yet.
            for position in real_nodes.kubelets["sliced"].positions(ids):
                used[position] += float(wants[name].get("gpu-memory", "5Gi").removesuffix("Gi"))
    assert max(used) <= 15
    assert sum(used) >= 30
    for name in wants:
        real_nodes.cluster.remove_pod(name)


def runs_or_waits(nodes: RealNodes, name: str) -> bool:
    """Whether a pod runs, or has no node because kube-scheduler found none.

    What kube-scheduler said of an earlier look stays on a pod that has a node by now.
    """
    if phase(nodes, name) == "Running":
        return True
    return bool(waits(nodes, name)) and "nodeName" not in nodes.cluster.pod(name)["spec"]


def test_the_sample_runs(real_nodes: RealNodes) -> None:
    """As it stands in manifests/samples. Its GPU has 3 GiB left, so a second one goes elsewhere."""
    sample = yaml.safe_load((ROOT / "manifests/samples/shared-memory.yaml").read_text())
    names = [f"shared-memory-{i}" for i in range(2)]
    for name in names:
        metadata = {**sample["metadata"], "name": name}
        place = {"nodeSelector": {"kubernetes.io/hostname": "sliced"}}
        real_nodes.cluster.create(
            PODS, {**sample, "metadata": metadata, "spec": {**sample["spec"], **place}}
        )
    real_nodes.cluster.until(
        lambda: all(placed(real_nodes, name) for name in names), "both have shares"
    )
    assert run_on(real_nodes, "sliced", names[0]) != run_on(real_nodes, "sliced", names[1])
    for name in names:
        assert placement(real_nodes.cluster.pod(name))["verdict"] in ("guaranteed", "expected")
    remove(real_nodes, "sliced", *names)


def placed(nodes: RealNodes, name: str) -> bool:
    """Whether the kubelet has given a pod its shares. It shows a pod a moment before its shares."""
    found = nodes.kubelets["sliced"].pod_resources.holdings().get(("default", name), {})
    return any(found.values())
