"""The GPU sets that the placement annotation names: all that the pod's verdict speaks of."""

from dataclasses import replace
from typing import Any

from scheduler_extender import verbs
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.wire import BindingArgs
from tests.nodes import pod, record_of, shown, switched
from tests.scheduler_extender.binding import Written
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Report
from topology.machines import machine

NVLINK = {"link": "nvlink"}
GPU = "nvidia.com/gpu"


def placement(
    node: NodeTopology, report: Report, bound: list[dict[str, Any]], asks: dict[str, Any]
) -> Any:
    """The annotation of a pod that is bound to a node with this report and these pods."""
    cluster, written = Cache(lambda: 0.0), Written()
    for other in bound:
        cluster.put_pod(record_of(other))
    cluster.put_record(node, report)
    cluster.put_pod(record_of(asks))
    meta = asks["metadata"]
    args = BindingArgs(meta["name"], meta["namespace"], meta["uid"], node.name)
    verbs.bind(cluster, written, args, lambda: "")
    return written.placement


def test_a_pod_that_prefers_what_the_hardware_never_has_gets_its_sets() -> None:
    lonely = replace(switched(name="lonely"), links=())
    constraints = pod(2, {**NVLINK, "policy": "preferred"})
    found = placement(lonely, Report("boot", 1), [], constraints)
    assert found["verdict"] == "never"
    assert found["sets"] == [[0, 1], [0, 2], [1, 2], [0, 3], [1, 3], [2, 3]]


def test_what_is_guaranteed_names_the_gpus_of_a_pod_that_may_have_ended_already() -> None:
    """Its kubelet hears of a deletion before we do, and may hand out what the pod held."""
    node = switched(name="node")
    report = Report("boot", 1, allocations=(shown("old", 0, 1),))
    old = pod(2, name="old", uid="old", node="node")
    found = placement(node, report, [old], pod(2, NVLINK))
    assert found["verdict"] == "guaranteed"
    assert found["sets"][0] == [2, 3], "what may come if nobody has ended stands first"
    assert sorted(found["sets"]) == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]


def test_what_is_expected_names_what_comes_unless_a_pod_ends() -> None:
    """On a DGX-1V with one GPU more the plugin would choose otherwise."""
    node = machine("dgx1-v100").topology("node")
    held = tuple(
        Allocation(
            PodUid(f"old-{p}"), "default", f"old-{p}", "main", GPU, (DeviceId(node.gpus[p].uuid),)
        )
        for p in (3, 5, 6, 7)
    )
    old = [pod(1, name=f"old-{p}", uid=f"old-{p}", node="node") for p in (3, 5, 6, 7)]
    found = placement(node, Report("boot", 1, allocations=held), old, pod(3, NVLINK))
    assert found["verdict"] == "expected"
    assert found["sets"] == [[0, 1, 2]]


def test_a_node_without_a_record_names_no_sets() -> None:
    cluster, written = Cache(lambda: 0.0), Written()
    cluster.put_node(NodeName("new"), NodeObject())
    cluster.put_pod(record_of(pod(1)))
    verbs.bind(cluster, written, BindingArgs("train", "default", "uid-1", "new"), lambda: "")
    assert written.placement["sets"] == []
