"""The domain of a node: the node itself, the NVLink fabric of its trays, or a label's value.

The annotation ``group-domain`` names a *kind* of domain. The NVLink domain is the fabric that the
node's agent reports. If the agent reports none, it is the one that NVIDIA's feature discovery has
written on the Node. A node with a GPU off the fabric is in no NVLink domain.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_extender.groupreference import CLIQUE_LABEL, NODE, NVLINK_DOMAIN
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.devices import NodeName


def domain_of(info: NodeInfo, kind: str) -> str | None:
    """Return the domain of a kind that a node is in; None if it is in none."""
    if kind == NODE:
        return info.name
    if kind == NVLINK_DOMAIN:
        if info.fabric_fault:
            return None
        fabric = info.topology.fabric if info.topology is not None else None
        if fabric is not None:
            return f"{fabric.cluster_uuid}.{fabric.clique_id}"
        return info.node_object.labels.get(CLIQUE_LABEL) or None
    return info.node_object.labels.get(kind) or None


def same_domains(before: NodeInfo, after: NodeInfo) -> bool:
    """Check whether a node is in the same domains of every kind before and after a change."""
    fabrics = [info.topology.fabric if info.topology else None for info in (before, after)]
    labels, others = before.node_object.labels, after.node_object.labels
    same_labels = labels is others or labels == others
    on_fabric = bool(before.fabric_fault) == bool(after.fabric_fault)
    return on_fabric and fabrics[0] == fabrics[1] and same_labels


@dataclass(slots=True, eq=False)
class Domains:
    """All domains of one kind at one generation."""

    nodes: Mapping[str, Sequence[NodeName]]  # the nodes of each domain, sorted by name
    _of: Mapping[str, str] | None = None

    @property
    def of(self) -> Mapping[str, str]:
        """The domain of each node that is in one. O(nodes) if it is not cached."""
        by_node = self._of
        if by_node is None:
            copy: dict[str, str] = {}
            for domain, names in self.nodes.items():
                copy.update(dict.fromkeys(names, domain))
            by_node = self._of = copy
        return by_node

    def forget(self) -> None:
        """Forget the cached domain of each node."""
        self._of = None

    def with_move(self, name: NodeName, former: str | None, now: str | None) -> Domains:
        """Return the domains after a node has moved from one to another; None is no domain."""
        nodes = dict(self.nodes)
        for domain in (each for each in (former, now) if each is not None):
            names = list(nodes.pop(domain, ()))
            if domain == former:
                del names[bisect_left(names, name)]
            else:
                insort(names, name)
            if names:
                nodes[domain] = names
        return Domains(nodes)


NO_DOMAINS = Domains({})


def domains_of(kind: str, nodes: Mapping[NodeName, NodeInfo]) -> Domains:
    """Return the domains of a kind. O(nodes)."""
    inside: dict[str, list[NodeName]] = {}
    for name in sorted(nodes):
        domain = domain_of(nodes[name], kind)
        if domain is not None:
            inside.setdefault(domain, []).append(name)
    return Domains(inside)
