"""What a bind writes, what may come of it, and what is asked of whoever writes it.

In a cluster that is :mod:`scheduler_extender.kube.binder`, in file mode
:mod:`scheduler_extender.files.binder`.
"""

from dataclasses import dataclass
from typing import Protocol

from scheduler_extender.annotations import Malformed
from scheduler_extender.membership import Membership
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest


class BindError(Exception):
    """A bind did not happen, or nobody can tell yet: then it stays in flight, and the message
    says so. kube-scheduler forgets the pod and tries again."""


class InProgressError(BindError):
    """Pods that are on their way keep a node from taking the pod, and their reports may change it:
    it could break one's promise, or they could break the pod's own."""


class BindUnknownError(Exception):
    """Whether a bind happened cannot be told now; it has to stay in flight."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One bind to write: the pod by name and UID, its node, and the placement annotation.

    ``placement`` is empty where nothing is promised, in shadow.
    ``term`` is the term of the leader in which it was decided, 0 where there is one replica only.
    ``request`` is what the pod asked for when it was decided, and ``membership`` what it said of
    its group: a binder that knows the pod to say something else by now does not write. Without a
    ``request`` nobody decided. ``by_plugin`` says that it was promised something on a node with a
    device plugin: one with a claim is not written. ``claims`` are those by which it was promised
    something on a node with DRA: one with another claim than these is not written.
    """

    namespace: str
    name: str
    uid: PodUid
    node: NodeName
    placement: str
    term: int = 0
    request: GpuRequest | Malformed | None = None
    membership: Membership | None = None
    by_plugin: bool = False
    claims: frozenset[str] = frozenset()


class Binder(Protocol):
    """Where binds are written, and pods looked up that no source has shown yet."""

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        """The pod as it is at the source; None where it is gone or has another UID.

        Raises :class:`BindUnknownError` where the source does not answer.
        """
        ...

    def write(self, binding: Binding) -> None:
        """Bind, with the UID as precondition; done already is success.

        Raises :class:`BindError` where it surely did not happen, :class:`BindUnknownError` where
        that cannot be told.
        """
        ...
