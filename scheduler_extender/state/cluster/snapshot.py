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

from scheduler_extender.membership import NODE, NVLINK_DOMAIN, Group, Membership
from scheduler_extender.state.answers.answercache import AnswerCache
from scheduler_extender.state.answers.classes import EquivalenceClasses, State
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.answers.tallies import Faults
from scheduler_extender.state.cluster.lately import LatelySent
from scheduler_extender.state.groups.domains import NO_DOMAINS, Domains, domains_of
from scheduler_extender.state.groups.gangdomains import ANYWHERE, Direction, GangDomains
from scheduler_extender.state.groups.groupplaces import GroupPlaces
from scheduler_extender.state.groups.groups import GroupsSeen, GroupStanding
from scheduler_extender.state.node.facts import Foresees, NodeFacts
from scheduler_extender.state.node.occupants import Occupants
from scheduler_extender.state.pods.budgets import Budgets
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.standing import Others
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Verdict
from topology.core.scoring import Mix

KINDS_KEPT = 16
"""Kinds of domains for which the domain of each node is kept; worked out anew in O(nodes)."""


class LastGroupPlaces:
    """The places that are kept for groups, as they were worked out last."""

    def __init__(self, lock: threading.RLock, classes: EquivalenceClasses) -> None:
        self._lock = lock
        self._classes = classes
        # With the moment of which it is known last that none of these nodes had changed.
        self._last: tuple[Hashable, GroupPlaces, Collection[str], int] | None = None

    def get(self, key: Hashable, moment: int) -> GroupPlaces | None:
        """The places, if they were worked out from what ``key`` names, and from nodes as they were
        at this moment."""
        last_key, places, nodes, then = self._last or (None, None, (), 0)
        if places is None or last_key != key:
            return None
        if not self._classes.unchanged(nodes, min(then, moment)):
            return None
        self._last = (key, places, nodes, max(then, moment))
        return places

    def put(self, key: Hashable, places: GroupPlaces, nodes: Collection[str], moment: int) -> None:
        """Remember what was worked out at a moment, until one of these nodes changes."""
        with self._lock:
            if self._classes.unchanged(nodes, moment):
                self._last = (key, places, nodes, moment)

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
    group_places: LastGroupPlaces
    gangs: GangDomains
    lately: LatelySent
    # What is so now.
    by_name: Mapping[NodeName, NodeFacts]
    waiting: Mapping[PodUid, PodRecord]  # the pods that are on no node, as last seen
    in_flight: Mapping[PodUid, PodRecord]  # the binds in flight
    nominated: Mapping[PodUid, PodRecord]  # those of the waiting that kube-scheduler has nominated
    places: Mapping[NodeName, PodRecord]  # the waiting pod for which a place is reserved on a node
    groups: GroupsSeen
    kinds: dict[str, Domains]  # the domains that were asked for, by kind
    label_keys: frozenset[str]  # of the labels that nodes have
    moment: int  # see :mod:`.answers.classes`
    moves: int  # how often nodes have changed their domain
    mix: Mix  # what scores weigh the future by
    blind: bool  # a watch has been silent for so long that all of this may be wrong
    racks_wanted: bool  # whether a pod has asked for its group to share an NVLink domain
    today: float  # seconds since 1970
    budgets: Budgets | None  # PodDisruptionBudgets; None as long as they are not known
    others: Others  # whom to ask about the pods without devices
    foresees: Foresees  # whom to ask what claims will get
    base: Snapshot | None = None  # as it was before some nodes were given other facts
    own: frozenset[NodeName] = frozenset()  # these nodes
    numbers: dict[Hashable, State] = field(default_factory=dict)  # of states that were found in it

    @cached_property
    def nodes(self) -> tuple[NodeFacts, ...]:
        """The facts of every node, by name."""
        return tuple(facts for _, facts in sorted(self.by_name.items()))

    @cached_property
    def unbound(self) -> list[PodRecord]:
        """Pods that are on no node, and of which no bind is in flight; nominated where their claims
        have devices."""
        pods = {**self.waiting, **self.nominated}
        return [pod for uid, pod in pods.items() if uid not in self.in_flight]

    @property
    def unschedulable(self) -> Iterator[PodRecord]:
        """Those of the :attr:`unbound` that kube-scheduler has called unschedulable."""
        return (pod for pod in self.unbound if pod.unschedulable)

    def facts(self, name: NodeName) -> NodeFacts:
        """What is known of a node; empty where nobody told us of it."""
        return self.by_name.get(name) or NodeFacts(
            name, pods=Occupants(complete=self.settings.all_pods_known)
        )

    def with_facts(self, nodes: Iterable[NodeFacts]) -> Snapshot:
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
        for facts in self.by_name.values():
            yield from facts.pods.bound.values()

    # Places that are reserved for waiting pods.

    def places_of(self, uid: PodUid) -> frozenset[NodeName]:
        """The nodes on which a place is reserved for this pod: one by its annotation, one where
        kube-scheduler has nominated it."""
        return frozenset(name for name, pod in self.places.items() if pod.uid == uid)

    def asked_apart(
        self, uid: PodUid, priority: int, gang: Group | None = None
    ) -> frozenset[NodeName]:
        """The nodes that answer this pod otherwise than others that ask the same: a place is
        reserved there for the pod itself, or one that yields to it (:meth:`.NodeFacts.yields_to`);
        or the pod is nominated there."""
        asking = self.nominated.get(uid)
        return frozenset(
            name
            for name, pod in self.places.items()
            if pod.uid == uid or self.by_name[name].yields_to(priority, gang)
        ).union(() if asking is None else (asking.standing.nominated or NodeName(""),))

    # Groups.

    def standing(self, membership: Membership, but: PodUid | None = None) -> GroupStanding:
        """A group without one of its pods."""
        return self.groups.standing(membership.group, but)

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

    def direction_of(self, membership: Membership) -> Direction:
        """Where a member of a gang has to go since its siblings were sent there just now."""
        if not membership.gang:
            return ANYWHERE
        return self.gangs.of(membership, self.clock())

    def note_direction(self, membership: Membership, domain: str | None) -> None:
        """Filter has sent a member of a gang to a domain, or nowhere (None). Of a gang that has
        started nothing is noted: its domain is where its members are."""
        if membership.gang and not self.standing(membership).living:
            self.gangs.answered(membership, domain, self.clock())
