"""Which domain a node is in: by itself, by the NVLink fabric of its trays, or by a label.

A *kind* of domain is what the annotation ``group-domain`` names. The NVLink domain is the fabric
that the node's agent reports; where it reports none, what NVIDIA's feature discovery has written on
the Node.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping

from scheduler_extender.membership import CLIQUE_LABEL, NODE, NVLINK_DOMAIN
from scheduler_extender.state.node.facts import NodeFacts
from topology.core.devices import NodeName

COPIES_KEPT = 16
"""Kinds of domains for which the domain of each node is kept; made anew in O(nodes)."""


def domain_of(facts: NodeFacts, kind: str) -> str | None:
    """The domain that a node is in; None where it is in none of this kind."""
    if kind == NODE:
        return facts.name
    if kind == NVLINK_DOMAIN:
        fabric = facts.topology.fabric if facts.topology is not None else None
        if fabric is not None:
            return f"{fabric.cluster_uuid}.{fabric.clique_id}"
        return facts.node_object.labels.get(CLIQUE_LABEL) or None
    return facts.node_object.labels.get(kind) or None


def same_domains(before: NodeFacts, after: NodeFacts) -> bool:
    """Whether a node is in the same domains of every kind."""
    fabrics = [found.topology.fabric if found.topology else None for found in (before, after)]
    labels, others = before.node_object.labels, after.node_object.labels
    same_labels = labels is others or labels == others
    return fabrics[0] == fabrics[1] and same_labels


class Domains:
    """The domains of the nodes, by kind. The cluster's lock guards it.

    The nodes of each domain of a kind are listed when a pod first names the kind, in O(nodes), and
    kept equal from then on. A kind of which no node has a domain costs nothing: pods can name any
    label, and only the keys of labels that nodes have are ever listed. So a pod's author makes us
    remember no more than a few bytes for each label of a node.
    """

    def __init__(self) -> None:
        self._keys: Counter[str] = Counter()
        self._nodes: dict[str, dict[str, list[NodeName]]] = {}
        self._copies: OrderedDict[str, Mapping[NodeName, str]] = OrderedDict()

    def changed(self, before: NodeFacts | None, after: NodeFacts | None, name: NodeName) -> None:
        """A node has changed, has come or is gone."""
        if before is not None and after is not None and same_domains(before, after):
            return
        if after is not None:
            self._keys.update(after.node_object.labels.keys())
        if before is not None:
            self._keys.subtract(before.node_object.labels.keys())
            for key in before.node_object.labels:
                if not self._keys[key]:
                    del self._keys[key]
                    self._nodes.pop(key, None)
                    self._copies.pop(key, None)
        for kind, nodes in self._nodes.items():
            former = domain_of(before, kind) if before is not None else None
            now = domain_of(after, kind) if after is not None else None
            if former == now:
                continue
            self._copies.pop(kind, None)
            if former is not None:
                names = nodes[former]
                del names[bisect_left(names, name)]
                if not names:
                    del nodes[former]
            if now is not None:
                insort(nodes.setdefault(now, []), name)

    def listed(self, kind: str) -> bool:
        """Whether nothing has to be listed to answer about a kind."""
        return kind in self._nodes or not self._names_a_domain(kind)

    def of(self, kind: str, nodes: Mapping[NodeName, NodeFacts]) -> Mapping[NodeName, str]:
        """The domain of each node that is in one, as it is now; what changes later is in another
        copy."""
        if not self._names_a_domain(kind):
            return {}
        found = self._copies.pop(kind, None)
        if found is None:
            copy: dict[NodeName, str] = {}
            for domain, names in self._listed(kind, nodes).items():
                copy.update(dict.fromkeys(names, domain))
            found = copy
        self._copies[kind] = found
        if len(self._copies) > COPIES_KEPT:
            self._copies.popitem(last=False)
        return found

    def within(
        self, kind: str, domains: Iterable[str], nodes: Mapping[NodeName, NodeFacts]
    ) -> dict[str, list[NodeName]]:
        """The nodes of some domains, each sorted by name."""
        listed = self._listed(kind, nodes)
        return {domain: list(listed.get(domain, ())) for domain in domains}

    def _names_a_domain(self, kind: str) -> bool:
        """Whether a node may be in a domain of this kind."""
        return kind in (NODE, NVLINK_DOMAIN) or kind in self._keys

    def _listed(
        self, kind: str, nodes: Mapping[NodeName, NodeFacts]
    ) -> Mapping[str, list[NodeName]]:
        found = self._nodes.get(kind)
        if found is None:
            found = {}
            if self._names_a_domain(kind):
                for name in sorted(nodes):
                    domain = domain_of(nodes[name], kind)
                    if domain is not None:
                        found.setdefault(domain, []).append(name)
                self._nodes[kind] = found
        return found
