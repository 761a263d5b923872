"""bind: the decision that counts, and when and what is written.

:mod:`.assume` decides, and the pod counts on its node from then on. The API server is written to
afterwards, with no lock held: when it is the bind's turn, and if the node still takes the pod then.
In a cluster :mod:`scheduler_extender.kube.binder` writes, and finds out what became of a bind that
nobody confirms.
"""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Protocol, TypedDict, TypeVar

from scheduler_extender.annotations import Malformed
from scheduler_extender.clientlimits import BIND_ENDS_AFTER
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.groupreference import GroupReference
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.nodeinfo import Offer
from scheduler_extender.state.pods.record import PodRecord, resource_of
from scheduler_extender.verbs.assume import (
    BindError,
    DecidedBind,
    InProgressError,
    assume,
    decide_again,
)
from scheduler_extender.verbs.bindlimiter import KUBELET, WRITE, BindLimiter
from scheduler_extender.wire import BindingArgs
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest
from topology.times import time_text

T = TypeVar("T")

TOO_LATE = "the bind waited too long to be begun: kube-scheduler has given it up, and tries again"
NO_ANSWER = "the node's kubelet has not answered about the pods before: kube-scheduler tries again"
MAX_SETS_WRITTEN = 16


class BindUnknownError(Exception):
    """Whether a bind happened cannot be told now; it has to stay in flight."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One bind to write: the pod by name and UID, its node, and the placement annotation.

    ``placement`` is empty where nothing is promised, in shadow.
    ``term`` is the term of the leader in which it was decided, 0 where there is one replica only.
    ``request`` is what the pod asked for when it was decided, and ``group_ref`` what it said of
    its group: a binder that knows the pod to say something else by now does not write. Without a
    ``request`` nobody decided. ``claims`` are those that the pod may have, none on a node that
    serves none: one with another claim than these is not written. None: it may have any.
    """

    namespace: str
    name: str
    uid: PodUid
    node: NodeName
    placement: str
    term: int = 0
    request: GpuRequest | Malformed | None = None
    group_ref: GroupReference | None = None
    claims: frozenset[str] | None = None


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


def bind(  # noqa: PLR0913 (what is bound, by whom, and what limits the wait for it)
    cluster: Cache,
    binder: Binder,
    args: BindingArgs,
    now: Callable[[], str],
    deadline: Deadline = NO_DEADLINE,
    limiter: BindLimiter | None = None,
    term: int = 0,
) -> None:
    """Bind a pod to a node if the node can still keep its request.

    The same bind twice is success, once written. ``now`` gives the time for the placement
    annotation. After the ``deadline`` nothing is written: what kube-scheduler has given up waiting
    for must not be written behind its back. So it is looked at at the start and right before the
    write. With ``limiter`` the write waits for its turn until then. ``term`` is the one in which we
    lead (see :class:`Binding`). Where the pod is bound here already nothing is done. Raises
    :class:`BindError` with the reason; kube-scheduler then forgets the pod and tries again.
    """
    in_time(deadline)
    node = NodeName(args.node)
    pod = unbound(cluster, binder, args)
    if pod is None:
        return
    decided = _awaiting_news(
        lambda: assume(cluster, pod, node, now), node, deadline.passed, limiter
    )
    if decided is None:
        return
    if pod.uid in cluster.recent_sends.pods:
        cluster.recent_sends.forget(pod.uid)
    try:
        ready = _within_limit(cluster, decided, node, deadline, limiter)
        placed = ready.ours.placed
        time = now() if placed is None else time_text(placed)
        written = json.dumps(placement(ready, pod, time), separators=(",", ":"))
    except Exception:
        cluster.forget(decided.ours, decided.before)  # nothing has been written
        raise
    try:
        who, asked = (pod.namespace, pod.name, pod.uid), (pod.request, pod.group_ref)
        counts = ready.request.required or ready.info.serves_claims is False
        claims = ready.claims if counts else None
        with limiter.timed(WRITE) if limiter is not None else nullcontext():
            binder.write(Binding(*who, node, written, term, *asked, claims))
    except BindError:
        cluster.forget(decided.ours, decided.before)
        raise
    except BindUnknownError as error:
        _await_word(cluster, ready, error, deadline, limiter)
    cluster.tallies.place(ready.decision.verdict if ready.request.required else "")
    if ready.request.required and ready.claims:
        cluster.tallies.keep(1)  # the claim is the proof, and it stays as it is


def _await_word(
    cluster: Cache,
    decided: DecidedBind,
    cause: BindUnknownError,
    deadline: Deadline,
    limiter: BindLimiter | None,
) -> None:
    """Wait for the watch to show that the bind was written. Raises :class:`BindError` where it does
    not, and at once where the kubelet allocates: else kube-scheduler, told of an error, deletes the
    claim of a pod that may be bound, and such a pod never starts.
    """
    late = replace(deadline, until=deadline.until + BIND_ENDS_AFTER)

    def ask() -> None:
        pod = cluster.pod(decided.ours.uid)
        if pod is None or pod.node != decided.ours.node:
            raise InProgressError(str(cause)) from cause

    waiting = limiter if decided.info.allocates_before_bind else None
    _awaiting_news(ask, decided.info.name, late.passed, waiting)


def _within_limit(
    cluster: Cache,
    decided: DecidedBind,
    node: NodeName,
    deadline: Deadline,
    limiter: BindLimiter | None,
) -> DecidedBind:
    """What is written, once it is the turn of this bind. Raises :class:`BindError`."""
    assessed = decided.decision.assessment
    hazards = assessed is None or bool(assessed.hazards)
    if limiter is not None and not limiter.wait(decided.ours, deadline, hazards=hazards):
        raise BindError(NO_ANSWER)
    in_time(deadline)
    if limiter is None:
        return decided
    ready = _awaiting_news(
        lambda: decide_again(cluster, decided),
        node,
        # Who else waits may wait for our turn; but a member of a gang that is refused now leaves
        # the gang bound in part.
        lambda: (
            deadline.passed()
            or (bool(limiter.waiting(KUBELET, node)) and decided.ours.gang is None)
        ),
        limiter,
    )
    in_time(deadline)
    return ready


def unbound(cluster: Cache, binder: Binder, args: BindingArgs) -> PodRecord | None:
    """The pod to bind; None where it is bound to that node already.

    Raises :class:`BindError` where it is gone, or bound to another node.
    """
    uid, node = PodUid(args.pod_uid), NodeName(args.node)
    if not cluster.has_node(node):
        raise BindError("this node does not exist")
    pod = cluster.pod(uid)
    if pod is None or (pod.node is not None and pod.node != node):
        try:
            pod = binder.find(args.pod_namespace, args.pod_name, uid)
        except BindUnknownError as error:
            raise BindError(str(error)) from error
    if pod is None:
        raise BindError(f"pod {args.pod_namespace}/{args.pod_name} with this UID is gone")
    if (pod.namespace, pod.name) != (args.pod_namespace, args.pod_name):
        raise BindError("this UID is that of another pod")
    if pod.node is not None:
        if pod.node != node:
            raise BindError(f"pod is bound to {pod.node} already")
        return None
    return pod


def _awaiting_news(
    ask: Callable[[], T], node: NodeName, hopeless: Callable[[], bool], limiter: BindLimiter | None
) -> T:
    """The answer to ``ask``; while it raises :class:`.InProgressError` it awaits news."""
    try:
        return ask()
    except InProgressError:
        if limiter is None:
            raise
    return limiter.await_news(ask, node, hopeless)


def in_time(deadline: Deadline) -> None:
    """Raises :class:`.BindError` where kube-scheduler has given the bind up by now."""
    if deadline.passed():
        raise BindError(TOO_LATE)


class Placement(TypedDict, total=False):
    """The placement annotation's JSON. ``sets`` are sets of GPUs as driver indices."""

    verdict: str
    node: str
    uid: str
    sets: list[list[int]]
    time: str
    setsOmitted: int


def placement(decided: DecidedBind, pod: PodRecord, time: str) -> Placement:
    """The placement annotation: verdict, node, pod UID, possible sets of GPUs as indices, time.

    The UID tells it from one that somebody wrote into a template.
    """
    info, decision = decided.info, decided.decision
    written = Placement(verdict=decision.verdict, node=info.name, uid=pod.uid, sets=[], time=time)
    sets, offer = decided.sets, info.last_offer(resource_of(decided.ours))
    if sets and isinstance(offer, Offer):
        listed = offer.devices.index_sets(sets)
        written["sets"] = listed[:MAX_SETS_WRITTEN]
        if len(listed) > MAX_SETS_WRITTEN:
            written["setsOmitted"] = len(listed) - MAX_SETS_WRITTEN
    return written
