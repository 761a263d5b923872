"""The pods that are known, as last seen."""

from __future__ import annotations

from scheduler_extender.state.groups.shared import Shared
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid


class Pods:
    """All pods that ask for devices. The cluster's lock guards it."""

    def __init__(self) -> None:
        self.known: dict[PodUid, PodRecord] = {}
        self.waiting = Shared[PodUid, PodRecord]()  # those that are on no node
        self.nominated = Shared[PodUid, PodRecord]()  # those for which a node is in mind

    def get(self, uid: PodUid) -> PodRecord | None:
        """The pod with this UID."""
        return self.known.get(uid)

    def put(self, pod: PodRecord) -> list[NodeName]:
        """A pod is as this now. Each node whose nominated pods have changed."""
        self.known[pod.uid] = pod
        if pod.node is None:
            self.waiting.put(pod.uid, pod)
        else:
            self.waiting.pop(pod.uid)
        return self._nominate(pod.uid, pod)

    def drop(self, uid: PodUid) -> list[NodeName]:
        """A pod is gone. Each node whose nominated pods have changed."""
        self.known.pop(uid, None)
        self.waiting.pop(uid)
        return self._nominate(uid, None)

    def _nominate(self, uid: PodUid, pod: PodRecord | None) -> list[NodeName]:
        """kube-scheduler has a node in mind for a pod, or none; None is a pod that is gone."""
        before = self.nominated.pop(uid)
        names = [] if before is None else [before.standing.nominated]
        if pod is not None and pod.node is None and pod.standing.nominated is not None:
            self.nominated.put(uid, pod)
            names.append(pod.standing.nominated)
        return [name for name in names if name is not None]
