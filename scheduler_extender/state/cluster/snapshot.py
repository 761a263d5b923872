"""A snapshot of the whole state, which readers use without a lock and which never changes.

The caches that it shares with the cluster are filled without the lock (``kinds``, and the
directions of the gangs).

A snapshot costs almost nothing if nothing has changed. Otherwise it costs a copy of the parts that
have changed (:mod:`.groups.copyonwrite`): the nodes, the waiting pods, the groups. The NodeInfo
values in it are shared, not copied.
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
from scheduler_extender.state.node.nodeinfo import Foresees, NodeInfo, gives_way
from scheduler_extender.state.node.occupants import Occupants
from scheduler_extender.state.pods.attributes import Others
from scheduler_extender.state.pods.budgets import Budgets
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Verdict
from topology.core.scoring import RequestMix

# Kinds of domains for which the domain of each node is cached. Computing it again takes O(nodes).
KINDS_KEPT = 16


class LastGroupReservations:
    """The group reservations that were computed last."""

    def __init__(self, lock: threading.RLock, classes: EquivalenceClasses) -> None:
        self._lock = lock
        self._classes = classes
        # The last number is the latest generation at which none of these nodes was known to have
        # changed.
        self._last: tuple[Hashable, GroupReservations, Collection[str], int] | None = None

    def get(self, key: Hashable, generation: int) -> GroupReservations | None:
        """Return the cached reservations; None if ``key`` or one of their nodes has changed.

        ``generation`` is the generation of the nodes that the caller sees.
        """
        last = self._last
        if last is None or last[0] != key:
            return None
        _, reservations, nodes, then = last
        if not self._classes.unchanged(nodes, min(then, generation)):
            return None
        with self._lock:
            if self._last is last:  # not replaced or cleared meanwhile
                self._last = (key, reservations, nodes, max(then, generation))
        return reservations

    def put(
        self,
        key: Hashable,
        reservations: GroupReservations,
        nodes: Collection[str],
        generation: int,
    ) -> None:
        """Cache reservations of a generation until one of these nodes changes."""
        with self._lock:
            if self._classes.unchanged(nodes, generation):
                self._last = (key, reservations, nodes, generation)

    def clear(self) -> None:
        """Forget the cached reservations."""
        self._last = None


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The whole state at one generation."""

    # Shared with the cache: safe for many threads, or never changed.
    settings: Settings
    clock: Callable[[], float]
    faults: Faults
    classes: EquivalenceClasses
    answers: AnswerCache
    group_reservations: LastGroupReservations
    gangs: GangDomains
    recent_sends: RecentSends
    # The current values.
    by_name: Mapping[NodeName, NodeInfo]
    waiting: Mapping[PodUid, PodRecord]  # the pods on no node, as last seen
    assumed: Mapping[PodUid, PodRecord]  # the assumed pods
    nominated: Mapping[PodUid, PodRecord]  # the waiting pods that are nominated to a node
    reservations: Mapping[NodeName, PodRecord]  # by node, the waiting pod with a reservation there
    groups: GroupsSeen
    kinds: dict[str, Domains]  # the domains that were asked for, by kind
    label_keys: frozenset[str]  # the keys of all nodes' labels
    generation: int  # see :mod:`.answers.classes`
    moves: int  # counts the moves of nodes between domains
    mix: RequestMix  # the expected mix of future requests, for scores
    is_stale: bool  # whether a watch has been silent for so long that this state may be wrong
    racks_wanted: bool  # whether a pod has asked for its group to share an NVLink domain
    today: float  # seconds since 1970
    budgets: Budgets | None  # PodDisruptionBudgets; None until they are known
    others: Others  # returns the requests of pods without devices
    foresees: Foresees  # predicts the devices of claims
    base: Snapshot | None = None  # the snapshot before some nodes were replaced
    replaced: frozenset[NodeName] = frozenset()  # the names of the replaced nodes
    # The class ids that were assigned within this snapshot.
    numbers: dict[Hashable, ClassId] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """All nodes, sorted by name."""
        return tuple(info for _, info in sorted(self.by_name.items()))

    @cached_property
    def unbound(self) -> list[PodRecord]:
        """The pods that are neither on a node nor assumed.

        A pod whose claims have devices is nominated.
        """
        pods = {**self.waiting, **self.nominated}
        return [pod for uid, pod in pods.items() if uid not in self.assumed]

    @property
    def unschedulable(self) -> Iterator[PodRecord]:
        """The :attr:`unbound` pods that kube-scheduler has called unschedulable."""
        return (pod for pod in self.unbound if pod.unschedulable)

    def node_info(self, name: NodeName) -> NodeInfo:
        """Return what is known of a node; an empty NodeInfo if the node is not known."""
        return self.by_name.get(name) or NodeInfo(
            name, pods=Occupants(complete=self.settings.all_pods_known)
        )

    def with_node_infos(self, nodes: Iterable[NodeInfo]) -> Snapshot:
        """Return the snapshot with these nodes in place of the ones of the same name."""
        instead = {f.name: f for f in nodes if f is not self.by_name.get(f.name)}
        if not instead:
            return self
        by_name, replaced = {**self.by_name, **instead}, self.replaced | instead.keys()
        return replace(self, base=self.base or self, by_name=by_name, replaced=replaced, numbers={})

    def requiring_guarantees(self) -> Snapshot:
        """Return the snapshot for a pod that passes only on a guaranteed placement.

        Use it only for :func:`.answer`, which caches nothing.
        """
        return replace(self, settings=replace(self.settings, require=Verdict.GUARANTEED))

    def pod_named(self, namespace: str, name: str) -> PodRecord | None:
        """Return the pod of this name, as last seen; None if there is none. O(pods)."""
        return next(
            (pod for pod in self.pods if (pod.namespace, pod.name) == (namespace, name)), None
        )

    @property
    def pods(self) -> Iterable[PodRecord]:
        """Every pod on a node or waiting, as last seen."""
        yield from self.waiting.values()
        for info in self.by_name.values():
            yield from info.pods.bound.values()

    # Reservations for waiting pods.

    def reserved_nodes(self, uid: PodUid) -> frozenset[NodeName]:
        """Return the nodes with a reservation for this pod.

        There may be two: one by its annotation, and one by its nomination.
        """
        return frozenset(n for n in self.reservations if self.by_name[n].is_reserved_for(uid))

    def evaluated_apart(
        self, uid: PodUid, priority: int, gang: Group | None = None
    ) -> frozenset[NodeName]:
        """Return the nodes that may answer this pod and others with the same request differently.

        On each of them there is a reservation for this pod, or one that gives way to it
        (:func:`.gives_way`), or the pod is nominated to the node.
        """
        asking = self.nominated.get(uid)
        return frozenset(
            name
            for name in self.reservations
            if any(
                pod.uid == uid or gives_way(pod, priority, gang)
                for pod in self.by_name[name].reservations
            )
        ).union(() if asking is None else (asking.attributes.nominated or NodeName(""),))

    # Groups.

    def group_status(self, group_ref: GroupReference, but: PodUid | None = None) -> GroupStatus:
        """Return the status of a group, without the pod ``but`` if one is given."""
        return self.groups.group_status(group_ref.group, but)

    def domains(self, kind: str) -> Domains:
        """Return the domains of a kind."""
        if kind not in self.label_keys and kind not in (NODE, NVLINK_DOMAIN):
            return NO_DOMAINS
        # Threads share this dict without a lock: each step is atomic, all of them would put equal
        # domains, and a kind that is missing for a moment is only computed once more.
        domains = self.kinds.pop(kind, None)
        if domains is None:
            domains = domains_of(kind, self.by_name)
        self.kinds[kind] = domains
        for former in list(self.kinds.values())[:-KINDS_KEPT]:
            former.forget()
        return domains

    def direction_of(self, group_ref: GroupReference) -> Direction:
        """Return the domain that a gang member must follow its peers to."""
        if not group_ref.gang:
            return ANY_DOMAIN
        return self.gangs.of(group_ref, self.clock())

    def note_direction(self, group_ref: GroupReference, domain: str | None) -> None:
        """Note that filter sent a gang member to a domain, or found none for it (None).

        Nothing is noted for a gang that has started: its members already decide its domain.
        """
        if group_ref.gang and not self.group_status(group_ref).living:
            self.gangs.answered(group_ref, domain, self.clock())
