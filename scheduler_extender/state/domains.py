"""Which domain a node is in: by itself, by the NVLink fabric of its trays, or by a label.

A *kind* of domain is what the annotation ``group-domain`` names. The NVLink domain is the fabric
that the node's agent reports; where it reports none, what NVIDIA's feature discovery has written on
the Node.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler_extender.membership import CLIQUE_LABEL, NODE, NVLINK_DOMAIN
from scheduler_extender.state.node import NodeFacts
from topology.core.devices import NodeName

KINDS_KEPT = 16
"""Kinds of domains whose index is kept; pods can name any label."""


def domain_of(facts: NodeFacts, kind: str) -> str | None:
    """The domain that a node is in; None where it is in none of this kind."""
    if kind == NODE:
        return facts.name
    if kind == NVLINK_DOMAIN:
        fabric = facts.topology.fabric if facts.topology is not None else None
        if fabric is not None:
            return f"{fabric.cluster_uuid}.{fabric.clique_id}"
        return facts.labels.get(CLIQUE_LABEL) or None
    return facts.labels.get(kind) or None


def same_domains(before: NodeFacts, after: NodeFacts) -> bool:
    """Whether a node is in the same domains of every kind."""
    fabrics = [found.topology.fabric if found.topology else None for found in (before, after)]
    same_labels = before.labels is after.labels or before.labels == after.labels
    return fabrics[0] == fabrics[1] and same_labels


@dataclass(slots=True)
class _Index:
    """The nodes by domain, and the domain of each node."""

    of: dict[NodeName, str] = field(default_factory=dict)
    nodes: dict[str, set[NodeName]] = field(default_factory=dict)
    copied: Mapping[NodeName, str] | None = None

    def put(self, name: NodeName, domain: str | None) -> None:
        """Note the domain of a node."""
        if self.of.get(name) == domain:
            return
        self.copied = None
        former = self.of.pop(name, None)
        if former is not None:
            self.nodes[former].discard(name)
            if not self.nodes[former]:
                del self.nodes[former]
        if domain is not None:
            self.of[name] = domain
            self.nodes.setdefault(domain, set()).add(name)


class Domains:
    """The domains of the nodes, by kind. The cluster's lock guards it.

    An index is made when a pod first names its kind, in O(nodes), and kept equal from then on.
    """

    def __init__(self) -> None:
        self._indices: OrderedDict[str, _Index] = OrderedDict()

    def changed(self, before: NodeFacts | None, after: NodeFacts | None, name: NodeName) -> None:
        """A node has changed, has come or is gone."""
        if not self._indices:
            return
        if before is not None and after is not None and same_domains(before, after):
            return
        for kind, index in self._indices.items():
            index.put(name, domain_of(after, kind) if after is not None else None)

    def of(self, kind: str, nodes: Mapping[NodeName, NodeFacts]) -> Mapping[NodeName, str]:
        """The domain of each node that is in one, as it is now; what changes later is in another
        copy."""
        index = self._index(kind, nodes)
        if index.copied is None:
            index.copied = dict(index.of)
        return index.copied

    def within(
        self, kind: str, domains: Iterable[str], nodes: Mapping[NodeName, NodeFacts]
    ) -> dict[str, list[NodeName]]:
        """The nodes of some domains, each sorted by name."""
        index = self._index(kind, nodes)
        return {domain: sorted(index.nodes.get(domain, ())) for domain in domains}

    def names(
        self, kind: str, domain: str, nodes: Mapping[NodeName, NodeFacts]
    ) -> frozenset[NodeName]:
        """The nodes of a domain."""
        return frozenset(self._index(kind, nodes).nodes.get(domain, ()))

    def _index(self, kind: str, nodes: Mapping[NodeName, NodeFacts]) -> _Index:
        index = self._indices.get(kind)
        if index is None:
            index = self._indices[kind] = _Index()
            for name, facts in nodes.items():
                index.put(name, domain_of(facts, kind))
            if len(self._indices) > KINDS_KEPT:
                self._indices.popitem(last=False)
        self._indices.move_to_end(kind)
        return index
