"""Record the versions of the pods that could be bound, and the latest term, from one watch.

The order of the watch on pods makes a bind of a former leader fail (ADR 12). A replica that finds a
pod's version here, and no later term, knows that the version is older than that term.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scheduler_extender.annotations import TERM
from scheduler_extender.podlimits import exceeded_limit
from scheduler_extender.state.pods.record import ENDED
from scheduler_extender.wire import Pod
from topology.core.devices import PodUid

# A Lease counts its holders in 32 bits. A mark with a higher term would keep every replica from
# leading.
HIGHEST_TERM = 2**31 - 2


@dataclass(frozen=True, slots=True)
class OwnPod:
    """The pod that this replica runs in."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Known:
    """A pod that could be bound, and its resourceVersion."""

    namespace: str
    name: str
    version: str


class Bindable:
    """The pods that could be bound, and the terms.

    The watch's thread feeds it; any thread may read it.

    ``own`` is the pod that we run in. Marks count only in its namespace, since in others the author
    of a pod may write anything. ``identity`` belongs to this process alone: a mark with another
    identity comes from another replica, on whatever pod it is.
    """

    def __init__(self, own: OwnPod, identity: str) -> None:
        self._own = own
        self._identity = identity
        self._changed = threading.Condition()
        self._known: dict[PodUid, Known] = {}
        self._anew: dict[PodUid, Known] | None = None
        self._mark = self._mark_anew = ""
        self.term = 0  # the latest that any replica has begun; 0 before the first
        self.others_term = 0  # the latest that another replica has begun

    def take(self, pod: Pod, *, managed: bool) -> None:
        """Take in a pod that is new or changed. ``managed`` says that it asks for GPUs."""
        metadata = pod.metadata
        mark = (metadata.annotations or {}).get(TERM)
        if mark is not None and metadata.namespace == self._own.namespace:
            self._note(metadata.name, mark)
        if not managed:
            return
        with self._changed:
            into = self._known if self._anew is None else self._anew
            if _bindable(pod):
                into[PodUid(metadata.uid)] = Known(
                    metadata.namespace, metadata.name, metadata.resource_version
                )
            else:
                into.pop(PodUid(metadata.uid), None)
            self._changed.notify_all()

    def drop(self, uid: PodUid) -> None:
        """Take in that a pod is gone."""
        with self._changed:
            self._known.pop(uid, None)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Take in a complete list of pods inside the block.

        In a list, a later term may come after a pod, and a pod after our own mark. So neither a
        version nor our mark is shown before the end of the block.
        """
        self._anew, self._mark_anew = {}, self._mark
        try:
            yield
            with self._changed:
                self._known, self._mark = self._anew, self._mark_anew
                self._changed.notify_all()
        finally:
            self._anew = None

    def version(self, uid: PodUid, *, other_than: str = "", within: float = 0.0) -> str | None:
        """Return the resourceVersion of a pod that could be bound.

        Return None if there is none but ``other_than`` within so many seconds.
        """

        def found() -> str | None:
            known = self._known.get(uid)
            return known.version if known is not None and known.version != other_than else None

        with self._changed:
            return self._changed.wait_for(found, within) if within else found()

    def shown(self, mark: str, within: float) -> bool:
        """Wait until the watch shows ``mark`` on our own pod.

        Return False after ``within`` seconds.

        The watch has then also shown all that was written before the mark.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._mark == mark, within)

    def pods(self) -> dict[PodUid, Known]:
        """Return every pod that could be bound."""
        with self._changed:
            return dict(self._known)

    def _note(self, name: str, mark: str) -> None:
        with self._changed:
            term, _, writer = mark.partition(" ")
            if term.isdecimal() and len(term) <= 10 and int(term) <= HIGHEST_TERM:
                self.term = max(self.term, int(term))
                if writer.partition(" ")[0] != self._identity:
                    self.others_term = max(self.others_term, int(term))
            if name == self._own.name:
                if self._anew is None:
                    self._mark = mark
                else:
                    self._mark_anew = mark
            self._changed.notify_all()


def _bindable(pod: Pod) -> bool:
    """Check whether the API server would bind the pod, and a replica would request that.

    A scheduling gate that is removed never comes back. No replica binds a pod that exceeds a limit
    (:func:`.exceeded_limit`).
    """
    return not (
        pod.spec.node_name
        or pod.spec.scheduling_gates
        or pod.metadata.deletion_timestamp
        or pod.status.phase in ENDED
        or exceeded_limit(pod)
    )
