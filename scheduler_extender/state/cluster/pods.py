"""The pods that are known, and the life of each.

Nobody tells us the whole of it. Sources show pods, and late; our own binds are known before; agents
report which devices a pod holds. :data:`LIFE` says which stage may follow which, and by what.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum

from scheduler_extender.state.groups.copyonwrite import CopyOnWrite
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid


class Stage(Enum):
    """Where a pod is in its life, as far as we know."""

    UNKNOWN = "unknown"  # no source has shown it yet, or it is gone for good
    WAITING = "waiting"  # it is on no node; kube-scheduler asks about it
    IN_FLIGHT = "in flight"  # a node is decided; the bind is being written, or may have been
    BOUND = "bound"  # the API server has it on a node, and no report has shown its devices
    REPORTED = "reported"  # a report has shown them
    ENDING = "ending"  # it is deleted, and its containers may still run
    ENDED = "ended"  # they have ended for good
    LEAVING = "leaving"  # the API server has it no more; its kubelet may hold its devices


_ON_ITS_WAY_OUT = frozenset({Stage.ENDING, Stage.ENDED})
_ON_A_NODE = _ON_ITS_WAY_OUT | {Stage.BOUND, Stage.REPORTED}
_DROPPED = frozenset({Stage.UNKNOWN, Stage.LEAVING})

LIFE: Mapping[Stage, Mapping[str, frozenset[Stage]]] = {
    Stage.UNKNOWN: {
        "put_pod": _ON_A_NODE | {Stage.WAITING},
        "assume": frozenset({Stage.IN_FLIGHT}),
    },
    Stage.WAITING: {
        "assume": frozenset({Stage.IN_FLIGHT}),
        "put_pod": _ON_A_NODE,  # somebody else has bound it
        "drop_pod": frozenset({Stage.UNKNOWN}),
    },
    Stage.IN_FLIGHT: {
        "forget": frozenset({Stage.WAITING, Stage.UNKNOWN}),  # it was surely not written
        "put_pod": _ON_A_NODE,  # the watch confirms it
        "drop_pod": frozenset({Stage.UNKNOWN}),
        "drop_in_flight": _DROPPED,
    },
    Stage.BOUND: {
        "put_pod": _ON_ITS_WAY_OUT,
        "put_report": frozenset({Stage.REPORTED}),
        "drop_pod": _DROPPED,
    },
    Stage.REPORTED: {
        "put_pod": _ON_ITS_WAY_OUT,
        "put_report": frozenset({Stage.BOUND}),  # the node has booted anew
        "drop_pod": _DROPPED,
    },
    Stage.ENDING: {"put_pod": frozenset({Stage.ENDED}), "drop_pod": _DROPPED},
    Stage.ENDED: {"drop_pod": _DROPPED},
    Stage.LEAVING: {"put_report": frozenset({Stage.UNKNOWN})},  # the kubelet has let go
}
"""The stages that may follow, by what is called of :class:`.EventHandlers` and :class:`.Cache`."""


class Pods:
    """All pods that ask for devices. The cluster's lock guards it."""

    def __init__(self) -> None:
        self.known: dict[PodUid, PodRecord] = {}
        self.waiting = CopyOnWrite[PodUid, PodRecord]()  # those that are on no node
        self.in_flight = CopyOnWrite[PodUid, PodRecord]()  # as our bind will have them
        # Those for which a node is in mind, or by whose claims it has been chosen.
        self.nominated = CopyOnWrite[PodUid, PodRecord]()
        self._nominated_to: dict[NodeName, dict[PodUid, PodRecord]] = {}
        self._claimed_on: dict[PodUid, NodeName] = {}
        # Those of the waiting with a reservation by annotation, by its node.
        self._reserved_on: dict[NodeName, dict[PodUid, PodRecord]] = {}

    def get(self, uid: PodUid) -> PodRecord | None:
        """The pod with this UID, as last seen."""
        return self.known.get(uid)

    def put(self, pod: PodRecord) -> list[NodeName]:
        """A pod is as this now. Each node whose nominated pods or reservations have changed."""
        kept = self._keep(self.known.get(pod.uid), pod)
        self.known[pod.uid] = pod
        if pod.node is None:
            self.waiting.put(pod.uid, pod)
        else:
            self.waiting.pop(pod.uid)
        return [*kept, *self._nominate(pod.uid, pod)]

    def drop(self, uid: PodUid) -> list[NodeName]:
        """A pod is gone. Each node whose nominated pods or reservations have changed."""
        kept = self._keep(self.known.pop(uid, None), None)
        self.waiting.pop(uid)
        return [*kept, *self._nominate(uid, None)]

    def claim(self, uid: PodUid, name: NodeName, *, ends: bool = False) -> list[NodeName]:
        """A pod, which may not be known yet, has devices of a node by a claim, or has them no more.

        kube-scheduler writes both that and where it has the pod in mind, and we may hear of either
        first. Each node whose nominated pods have changed.
        """
        if not ends:
            self._claimed_on[uid] = name
        elif self._claimed_on.get(uid) == name:
            del self._claimed_on[uid]
        return self._nominate(uid, self.known.get(uid))

    def _nominate(self, uid: PodUid, pod: PodRecord | None) -> list[NodeName]:
        """kube-scheduler has a node in mind for a pod, or none; None is a pod that is gone."""
        before, names = self.nominated.pop(uid), []
        if before is not None and (name := before.standing.nominated) is not None:
            names.append(name)
            self._nominated_to[name].pop(uid)
            if not self._nominated_to[name]:
                del self._nominated_to[name]
        if pod is None or pod.node is not None:
            return names
        name = self._claimed_on.get(uid) or pod.standing.nominated
        if name is not None:
            pod = replace(pod, standing=replace(pod.standing, nominated=name))
            names.append(name)
            self.nominated.put(uid, pod)
            self._nominated_to.setdefault(name, {})[uid] = pod
        return names

    def _keep(self, before: PodRecord | None, now: PodRecord | None) -> list[NodeName]:
        """A pod has a reservation by its annotation, or has not; each node that this concerns."""
        names = []
        if before is not None and before.node is None and before.reservation is not None:
            name = before.reservation.node
            names.append(name)
            self._reserved_on[name].pop(before.uid)
            if not self._reserved_on[name]:
                del self._reserved_on[name]
        if now is not None and now.node is None and now.reservation is not None:
            name = now.reservation.node
            names.append(name)
            self._reserved_on.setdefault(name, {})[now.uid] = now
        return names

    def reserved_on(self, name: NodeName) -> Iterable[PodRecord]:
        """The waiting pods whose annotation reserves a place on a node."""
        return self._reserved_on.get(name, {}).values()

    def nominated_to(self, name: NodeName) -> Iterable[PodRecord]:
        """The pods for which kube-scheduler has this node in mind."""
        return self._nominated_to.get(name, {}).values()
