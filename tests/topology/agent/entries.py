"""Pods as the kubelet lists them and as the API server has them, in few words."""

from typing import Any

from topology.agent.model.podentries import Entry, Held, NodePod
from topology.core.devices import DeviceId, PodUid

GPU = "nvidia.com/gpu"


def entry(name: str, *ids: str, container: str = "main") -> Entry:
    """A pod of the kubelet's list, with what its one container holds."""
    held = (Held(container, GPU, tuple(map(DeviceId, ids))),) if ids else ()
    return Entry("ns", name, held)


def pod(uid: str, name: str, count: int = 1, **fields: Any) -> NodePod:
    """A pod of the API server that asks for so many GPUs."""
    return NodePod(PodUid(uid), "ns", name, {("main", GPU): count}, **fields)


def pods(*found: NodePod) -> dict[PodUid, NodePod]:
    """Pods by UID."""
    return {p.uid: p for p in found}
