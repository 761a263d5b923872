"""Everything that is known now, and the one way in which the facts of a node change.

Whoever calls a method holds the lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf

from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.limits import AT_ONCE_STATES
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.answers.faults import Faults
from scheduler_extender.state.answers.refusing import with_pauses_ended
from scheduler_extender.state.answers.remembered import Remembered
from scheduler_extender.state.cluster.nodes import Nodes
from scheduler_extender.state.cluster.placequeue import KeptPlaces, is_not_scheduled
from scheduler_extender.state.cluster.pods import Pods
from scheduler_extender.state.cluster.snapshot import LastGroupPlaces
from scheduler_extender.state.groups.domains import domain_of
from scheduler_extender.state.groups.groups import Groups
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.node.transitions import with_stale_report
from scheduler_extender.state.pods.keptplace import KeptPlace
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName


class Board:
    """The nodes, pods, groups and kept places that are known, and what is remembered of answers."""

    def __init__(self, clock: Callable[[], float], settings: Settings) -> None:
        self.lock = threading.RLock()
        self.clock = clock
        self.today: Callable[[], float] = time.time  # people say so until when a place is kept
        self.settings = settings
        self.faults = Faults()
        self.nodes = Nodes(settings)
        self.pods = Pods()
        self.groups = Groups()
        self.kept_places = KeptPlaces()
        self.remembered = Remembered(self.lock)
        self.group_places = LastGroupPlaces(self.lock, self.remembered)
        self.node_objects = False  # Node objects are watched
        self.racks_wanted = False  # a pod has asked for its group to share an NVLink domain
        self.version = 0  # see :attr:`.Cluster.version`
        self.on_change: list[Callable[[NodeName], None]] = []

    def expire(self, deadline: Deadline = NO_DEADLINE) -> None:
        """Take note of what time alone has changed: nodes that are stale, pauses and kept places
        that are over."""
        now = self.clock()
        nodes = self.nodes
        deadline.need_quick(quick=nodes.stale.overdue(now) <= AT_ONCE_STATES)
        for name in nodes.stale.take(now):
            if (facts := nodes.get(name)).report is not None:
                self.put(with_stale_report(facts))
        for name in nodes.pausing.take(now):
            before = nodes.get(name)
            facts = with_pauses_ended(before, now)
            if facts is not before:
                self.put(facts)
            nodes.note_pauses(facts)
        for uid in self.kept_places.due.take(now):
            for name in self.kept_places.end(uid):
                self.keep_place(name)

    def put(self, facts: NodeFacts, *, changed: bool = True) -> None:
        """A node's facts are these now; ``changed`` says that its answers may be others."""
        name = facts.name
        before, counts_otherwise = self.nodes.put(facts)
        if changed or counts_otherwise:

            def domains(kind: str) -> Iterable[str | None]:
                return (domain_of(each, kind) for each in (before, facts) if each is not None)

            self.remembered.changed(
                name, domains, answers=changed, counts_otherwise=counts_otherwise
            )
            self.group_places.changed(name)
        if changed:
            self.version += 1
            self.tell(name)

    def tell(self, name: NodeName) -> None:
        """Tell the listeners that what a node can offer may have changed."""
        for listener in self.on_change:
            listener(name)

    def keep_place(self, name: NodeName) -> None:
        """Keep the place on a node that is to be kept there now, or none."""
        facts = self.nodes.get(name)
        pod = self.kept_places.on(name) or self._nominee(facts)
        if _place_of(pod) != _place_of(facts.kept_for):
            self.put(replace(facts, kept_for=pod))

    def _nominee(self, facts: NodeFacts) -> PodRecord | None:
        """The nominated pod for which the node's place is kept: the one of highest priority, with
        its nomination as the place. kube-scheduler keeps a number of GPUs, and not which ones."""
        here = [
            pod
            for pod in self.pods.nominated.now.values()
            if pod.standing.nominated == facts.name
            and not is_not_scheduled(pod)
            and facts.is_open_to(pod)
        ]
        first = min(here, key=lambda pod: (-pod.standing.priority, pod.uid), default=None)
        return first and replace(first, kept_place=KeptPlace(facts.name, inf))


def _place_of(pod: PodRecord | None) -> object:
    """All that a node's answers depend on of the pod for which a place is kept there."""
    return pod and (pod.uid, pod.request, pod.kept_place)
