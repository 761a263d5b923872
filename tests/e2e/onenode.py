"""Pods for one node of a real cluster: made, followed into the node's record, and removed."""

import json
from collections.abc import Mapping
from typing import Any

from tests.e2e.nvidiastack import GPU
from tests.e2e.pods import PODS, gpu_pod
from tests.e2e.realnodes import RealNodes
from topology import codec
from topology.codec import Record


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
    constraints: Mapping[str, str] | None = None,
    resource: str = GPU,
) -> None:
    """Create a pod for one node, once the extender has the node's record as it is now."""
    nodes.cluster.until_heard(node)
    pod = gpu_pod(name, [count], annotations=constraints)
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
    constraints: Mapping[str, str] | None = None,
    resource: str = GPU,
) -> tuple[str, ...]:
    """Create a pod, wait until it runs and the record shows what the kubelet does: its devices."""
    create(nodes, node, name, count, constraints, resource)
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
