"""The nodes that are known, their domains, and when time changes one of them."""

from __future__ import annotations

from collections import Counter

from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.freshness import Due
from scheduler_extender.state.groups.copyonwrite import CopyOnWrite
from scheduler_extender.state.groups.domains import Domains, domain_of, same_domains
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.node.occupants import Occupants
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName


class Nodes:
    """All nodes that are known. The cache's lock guards it."""

    def __init__(self, settings: Settings) -> None:
        self._nobody = Occupants(complete=settings.all_pods_known)
        self.infos = CopyOnWrite[NodeName, NodeInfo]()
        self.reservations = CopyOnWrite[
            NodeName, PodRecord
        ]()  # for whom a place is reserved on a node
        self.kinds: dict[str, Domains] = {}
        """The kinds of domains that a pod has named, replaced by each move. A kind of which no node
        has a domain is none: pods can name any label, and only those that nodes have are listed."""
        self.label_keys: frozenset[str] = frozenset()  # of the labels that nodes have
        self._labels = Counter[str]()
        self.moves = 0  # how often a node has come to another domain
        self._stale_after = settings.stale_after
        self.stale = Due[NodeName]()  # nodes by when they have not reported for too long
        self.pausing = Due[NodeName]()  # nodes by when their first pause ends

    def get(self, name: NodeName) -> NodeInfo:
        """What is known of a node; empty where nobody told us of it."""
        return self.infos.get(name) or NodeInfo(name, pods=self._nobody)

    def put(self, info: NodeInfo) -> tuple[NodeInfo | None, bool]:
        """A node's facts are these now. What they were, and whether the node counts otherwise in
        its domains: it is in others, or cordoned or not."""
        name = info.name
        before = self.infos.get(name)
        if info.known:
            self.infos.put(name, info)
        elif self.infos.drop(name) is not None:
            self.stale.drop(name)
        if info.reserved_for is not None:
            self.reservations.put(name, info.reserved_for)
        else:
            self.reservations.drop(name)
        if before is not None and info.known:
            if info.has_objects_of(before):
                return before, False
            if same_domains(before, info):
                return before, before.node_object.cordoned != info.node_object.cordoned
        if before is not None or info.known:
            self._moved(before, info)
        return before, True

    def _moved(self, before: NodeInfo | None, info: NodeInfo) -> None:
        """A node is in other domains, or has come, or is gone."""
        self.moves += 1
        after = info if info.known else None
        if after is not None:
            self._labels.update(after.node_object.labels.keys())
        if before is not None:
            self._labels.subtract(before.node_object.labels.keys())
        self.label_keys = frozenset(key for key, nodes in self._labels.items() if nodes)
        kinds = {}
        for kind, domains in dict(self.kinds).items():
            former = None if before is None else domain_of(before, kind)
            now = None if after is None else domain_of(after, kind)
            if former != now:
                domains = domains.with_move(info.name, former, now)
            if domains.nodes:
                kinds[kind] = domains
        self.kinds = kinds

    def heard(self, name: NodeName, at: float) -> None:
        """A node's report has changed."""
        if self._stale_after is not None:
            self.stale.put(name, at + self._stale_after)

    def note_pauses(self, info: NodeInfo) -> None:
        """Note when the first pause of a node ends (see :mod:`.node.history`)."""
        ends = [end for backoffs in info.history.backoffs.values() for end in backoffs.pauses]
        if ends:
            self.pausing.put(info.name, min(ends))
        else:
            self.pausing.drop(info.name)
