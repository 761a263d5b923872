"""What the API server and the kubelet's configuration say of the node, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topology.agent.decides.allocation import NOTHING_KNOWN, KubeletFacts, Plugin
from topology.agent.decides.holdings import NodePod
from topology.agent.decides.observed import CountedDevices, Unseen
from topology.core.devices import PodUid

NODE = "Node"
"""The fact that is unseen where the Node could not be read."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the API server and the kubelet's configuration say, at one moment.

    ``synced`` says whether ``pods`` are all pods of the node. ``has_api_server`` is false where the
    agent runs without one: then no pod's UID will ever be known. The node's pods are known at least
    up to the resourceVersion ``pods_version``. ``deletions`` counts the pods that asked for GPUs
    and have left the API server. ``counted`` is None where the Node could not be asked.
    """

    pods: Mapping[PodUid, NodePod]
    plugin: Plugin | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    kubelet: KubeletFacts = NOTHING_KNOWN
    synced: bool = True
    has_api_server: bool = True
    unseen: tuple[Unseen, ...] = ()
    pods_version: str = ""
    deletions: int = 0
    counted: CountedDevices | None = None

    @property
    def node_unseen(self) -> bool:
        """Whether the Node could not be read, when it was asked for last."""
        return any(unseen.fact == NODE for unseen in self.unseen)
