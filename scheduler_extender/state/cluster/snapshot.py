"""All that is known at one moment, for whoever asks: no lock, and nothing of it changes. The caches
that it shares with the cluster are filled without the lock (``kinds``, the gangs' directions).

Taking one costs next to nothing if nothing has changed, and else a copy of the parts that have
(:mod:`.groups.copyonwrite`): the nodes, the pods that wait, the groups. The facts in it are shared.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from scheduler_extender.groupreference import NODE, NVLINK_DOMAIN, Group, GroupReference
from scheduler_extender.state.answers.answercache import AnswerCache
from scheduler_extender.state.answers.classes import ClassId, EquivalenceClasses
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.answers.tallies import Faults
from scheduler_extender.state.cluster.recentsends import RecentSends
from scheduler_extender.state.groups.domains import NO_DOMAINS, Domains, domains_of
from scheduler_extender.state.groups.gangdomains import ANY_DOMAIN, Direction, GangDomains
from scheduler_extender.state.groups.groupreservations import GroupReservations
from scheduler_extender.state.groups.groups import GroupsSeen, GroupStatus
from scheduler_extender.state.node.nodeinfo import Foresees, NodeInfo
from scheduler_extender.state.node.occupants import Occupants
from scheduler_extender.state.pods.attributes import Others
from scheduler_extender.state.pods.budgets import Budgets
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Verdict
from topology.core.scoring import RequestMix

KINDS_KEPT = 16
"""Kinds of domains for which the domain of each node is kept; worked out anew in O(nodes)."""


class LastGroupReservations:
    """The reservations for groups, as they were worked out last."""

    def __init__(self, lock: threading.RLock, classes: EquivalenceClasses) -> None:
        self._lock = lock
        self._classes = classes
        # With the moment of which it is known last that none of these nodes had changed.
        self._last: tuple[Hashable, GroupReservations, Collection[str], int] | None = None

    def get(self, key: Hashable, generation: int) -> GroupReservations | None:
        """The places, if they were worked out from what ``key`` names, and from nodes as they were
        at this moment."""
        last_key, reservations, nodes, then = self._last or (None, None, (), 0)
        if reservations is None or last_key != key:
            return None
        if not self._classes.unchanged(nodes, min(then, generation)):
            return None
        self._last = (key, reservations, nodes, max(then, generation))
        return reservations

    def put(
        self,
        key: Hashable,
        reservations: GroupReservations,
        nodes: Collection[str],
        generation: int,
    ) -> None:
        """Remember what was worked out at a moment, until one of these nodes changes."""
        with self._lock:
            if self._classes.unchanged(nodes, generation):
                self._last = (key, reservations, nodes, generation)

    def clear(self) -> None:
        """Forget the places."""
        self._last = None


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All that is known at one moment."""

    # What it shares with the cache: safe for many threads, or never changed.
    settings: Settings
    clock: Callable[[], float]
    faults: Faults
    classes: EquivalenceClasses
    answers: AnswerCache
    group_reservations: LastGroupReservations
    gangs: GangDomains
    recent_sends: RecentSends
    # What is so now.
    by_name: Mapping[NodeName, NodeInfo]
    waiting: Mapping[PodUid, PodRecord]  # the pods that are on no node, as last seen
    assumed: Mapping[PodUid, PodRecord]  # the binds in flight
    nominated: Mapping[PodUid, PodRecord]  # those of the waiting that kube-scheduler has nominated
    reservations: Mapping[NodeName, PodRecord]  # the waiting pod with a reservation on a node
    groups: GroupsSeen
    kinds: dict[str, Domains]  # the domains that were asked for, by kind
    label_keys: frozenset[str]  # of the labels that nodes have
    generation: int  # see :mod:`.answers.classes`
    moves: int  # how often nodes have changed their domain
    mix: RequestMix  # what scores weigh the future by
    is_stale: bool  # a watch has been silent for so long that all of this may be wrong
    racks_wanted: bool  # whether a pod has asked for its group to share an NVLink domain
    today: float  # seconds since 1970
    budgets: Budgets | None  # PodDisruptionBudgets; None as long as they are not known
    others: Others  # whom to ask about the pods without devices
    foresees: Foresees  # whom to ask what claims will get
    base: Snapshot | None = None  # as it was before some nodes were given other facts
    own: frozenset[NodeName] = frozenset()  # these nodes
    # of states that were found in it
    numbers: dict[Hashable, ClassId] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """The facts of every node, by name."""
        return tuple(info for _, info in sorted(self.by_name.items()))

    @cached_property
    def unbound(self) -> list[PodRecord]:
        """Pods that are on no node, and of which no bind is in flight; nominated where their claims
        have devices."""
        pods = {**self.waiting, **self.nominated}
        return [pod for uid, pod in pods.items() if uid not in self.assumed]

    @property
    def unschedulable(self) -> Iterator[PodRecord]:
        """Those of the :attr:`unbound` that kube-scheduler has called unschedulable."""
        return (pod for pod in self.unbound if pod.unschedulable)

    def node_info(self, name: NodeName) -> NodeInfo:
        """What is known of a node; empty where nobody told us of it."""
        return self.by_name.get(name) or NodeInfo(
            name, pods=Occupants(complete=self.settings.all_pods_known)
        )

    def with_node_infos(self, nodes: Iterable[NodeInfo]) -> Snapshot:
        """The same if these nodes had other facts."""
        instead = {f.name: f for f in nodes if f is not self.by_name.get(f.name)}
        if not instead:
            return self
        by_name, own = {**self.by_name, **instead}, self.own | instead.keys()
        return replace(self, base=self.base or self, by_name=by_name, own=own, numbers={})

    def requiring(self, weakest: Verdict) -> Snapshot:
        """The same for a pod that passes on no weaker verdict; for :func:`.answer` only, which
        remembers nothing."""
        return replace(self, settings=replace(self.settings, require=weakest))

    def pod_named(self, namespace: str, name: str) -> PodRecord | None:
        """The pod of this name, as last seen. O(pods)."""
        return next(
            (pod for pod in self.pods if (pod.namespace, pod.name) == (namespace, name)), None
        )

    @property
    def pods(self) -> Iterable[PodRecord]:
        """Every pod, as last seen."""
        yield from self.waiting.values()
        for info in self.by_name.values():
            yield from info.pods.bound.values()

    # Reservations for waiting pods.

    def reserved_nodes(self, uid: PodUid) -> frozenset[NodeName]:
        """The nodes with a reservation for this pod: one by its annotation, one where
        kube-scheduler has nominated it."""
        return frozenset(name for name, pod in self.reservations.items() if pod.uid == uid)

    def evaluated_apart(
        self, uid: PodUid, priority: int, gang: Group | None = None
    ) -> frozenset[NodeName]:
        """The nodes that answer this pod otherwise than others that ask the same: a place is
        reserved there for the pod itself, or one that yields to it (:meth:`.NodeInfo.yields_to`);
        or the pod is nominated there."""
        asking = self.nominated.get(uid)
        return frozenset(
            name
            for name, pod in self.reservations.items()
            if pod.uid == uid or self.by_name[name].yields_to(priority, gang)
        ).union(() if asking is None else (asking.attributes.nominated or NodeName(""),))

    # Groups.

    def group_status(self, group_ref: GroupReference, but: PodUid | None = None) -> GroupStatus:
        """A group without one of its pods."""
        return self.groups.group_status(group_ref.group, but)

    def domains(self, kind: str) -> Domains:
        """The domains of a kind."""
        if kind not in self.label_keys and kind not in (NODE, NVLINK_DOMAIN):
            return NO_DOMAINS
        domains = self.kinds.pop(kind, None)
        if domains is None:
            domains = domains_of(kind, self.by_name)
        self.kinds[kind] = domains
        for former in list(self.kinds.values())[:-KINDS_KEPT]:
            former.forget()
        return domains

    def direction_of(self, group_ref: GroupReference) -> Direction:
        """Where a member of a gang has to go since its siblings were sent there just now."""
        if not group_ref.gang:
            return ANY_DOMAIN
        return self.gangs.of(group_ref, self.clock())

    def note_direction(self, group_ref: GroupReference, domain: str | None) -> None:
        """Filter has sent a member of a gang to a domain, or nowhere (None). Of a gang that has
        started nothing is noted: its domain is where its members are."""
        if group_ref.gang and not self.group_status(group_ref).living:
            self.gangs.answered(group_ref, domain, self.clock())
