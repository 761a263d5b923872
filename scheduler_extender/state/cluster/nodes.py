"""The known nodes, their domains, and the times at which time alone changes a node."""

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
    """All known nodes. The cache's lock guards it."""

    def __init__(self, settings: Settings) -> None:
        self._nobody = Occupants(complete=settings.all_pods_known)
        self.infos = CopyOnWrite[NodeName, NodeInfo]()
        # by node, the first waiting pod with a reservation there
        self.reservations = CopyOnWrite[NodeName, PodRecord]()
        # The kinds of domains that a pod has named; each move of a node replaces the dict. A pod
        # can name any label, so a kind is listed only while a node has a domain of it.
        self.kinds: dict[str, Domains] = {}
        self.label_keys: frozenset[str] = frozenset()  # the keys of all nodes' labels
        self._labels = Counter[str]()
        self.moves = 0  # counts the moves of nodes between domains
        self._stale_after = settings.stale_after
        self.stale = Due[NodeName]()  # nodes by the time at which their report becomes stale
        self.pausing = Due[NodeName]()  # nodes by the time at which their first pause ends

    def get(self, name: NodeName) -> NodeInfo:
        """Return what is known of a node; an empty NodeInfo if the node is not known."""
        return self.infos.get(name) or NodeInfo(name, pods=self._nobody)

    def put(self, info: NodeInfo) -> tuple[NodeInfo | None, bool]:
        """Store the state of a node; return its former state, and whether domain sums may change.

        The sums of a domain may change if the node is in other domains, or was cordoned or
        uncordoned.
        """
        name = info.name
        before = self.infos.get(name)
        if info.known:
            self.infos.put(name, info)
        elif self.infos.drop(name) is not None:
            self.stale.drop(name)
        if info.reservations:
            self.reservations.put(name, info.reservations[0])
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
        """Update labels and domains for a node that is new, gone, or in other domains."""
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
        """Note the time of a node's last changed report."""
        if self._stale_after is not None:
            self.stale.put(name, at + self._stale_after)

    def note_pauses(self, info: NodeInfo) -> None:
        """Note when the first pause of a node ends (see :mod:`.node.history`)."""
        ends = [end for backoffs in info.history.backoffs.values() for end in backoffs.pauses]
        if ends:
            self.pausing.put(info.name, min(ends))
        else:
            self.pausing.drop(info.name)
