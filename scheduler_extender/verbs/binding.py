"""bind: the final decision, and what is written and when.

:mod:`.assume` decides, and the pod counts on its node from then on. The API server is written to
afterwards, with no lock held, once the bind limiter allows it and if the node still takes the pod
then. In a cluster :mod:`scheduler_extender.kube.binder` writes, and finds out the result of a bind
that is not confirmed.
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
    NotWrittenError,
    assume,
    decide_again,
)
from scheduler_extender.verbs.bindlimiter import KUBELET, WRITE, BindLimiter
from scheduler_extender.wire import BindingArgs
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest
from topology.times import time_text

T = TypeVar("T")

TOO_LATE = "the bind waited until kube-scheduler gave it up; kube-scheduler tries again"
NO_ANSWER = "the node's kubelet has not admitted the earlier pods yet; kube-scheduler tries again"
MAX_SETS_WRITTEN = 16


class BindUnknownError(Exception):
    """It is unknown whether a bind happened, so the pod has to stay assumed."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One Binding to write: the pod by name and UID, its node, and the placement annotation.

    ``placement`` is empty if nothing is promised, in shadow mode. ``term`` is the leader's term in
    which the bind was decided, or 0 with a single replica. ``request`` is the pod's request at the
    decision, and ``group_ref`` its group reference then. A binder that by now knows the pod with
    another request or group does not write. Without a ``request``, no decision was taken.
    ``claims`` are the claims that the pod may have; the set is empty on a node that serves none. A
    pod with another claim is not bound. None means that it may have any claim.
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
    """The writer of Bindings. It also looks up pods that no source has shown yet."""

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        """Return the pod as it is at the source; None if it is gone or has another UID.

        Raises :class:`BindUnknownError` if the source does not answer.
        """
        ...

    def write(self, binding: Binding) -> None:
        """Write the Binding, with the UID as precondition.

        A bind that is done already is a success.

        Raises :class:`NotWrittenError` if the bind surely did not happen, and
        :class:`BindUnknownError` if that is unknown.
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
    """Bind a pod to a node if the node can still meet its request.

    The same bind twice is a success, once it is written. ``now`` returns the time for the placement
    annotation. Nothing is written after the ``deadline``, because a bind that kube-scheduler has
    given up must not be written without its knowledge. So the deadline is checked at the start and
    right before the write. With a ``limiter``, the write waits until the limiter allows it, or
    until the deadline. ``term`` is our term as the leader (see :class:`Binding`). If the pod is
    bound to this node already, nothing is done. Raises :class:`BindError` with the reason;
    kube-scheduler then forgets the pod and tries again.
    """
    check_deadline(deadline)
    node = NodeName(args.node)
    pod = unbound_pod(cluster, binder, args)
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
        cluster.forget(decided.ours, decided.previous_bind)  # nothing has been written
        raise
    try:
        who, asked = (pod.namespace, pod.name, pod.uid), (pod.request, pod.group_ref)
        counts = ready.request.required or ready.info.serves_claims is False
        claims = ready.claims if counts else None
        with limiter.timed(WRITE) if limiter is not None else nullcontext():
            binder.write(Binding(*who, node, written, term, *asked, claims))
    except NotWrittenError:
        cluster.forget(decided.ours, decided.previous_bind)
        raise
    except BindUnknownError as error:
        _await_word(cluster, ready, error, deadline, limiter)
    cluster.tallies.count_bind(ready.decision.verdict if ready.request.required else "")
    if ready.request.required and ready.claims:
        cluster.tallies.count_kept(1)  # the claim is the proof, and it does not change


def _await_word(
    cluster: Cache,
    decided: DecidedBind,
    cause: BindUnknownError,
    deadline: Deadline,
    limiter: BindLimiter | None,
) -> None:
    """Wait for the watch to show that the bind was written.

    Raises :class:`BindError` if the watch does not show it. On a node whose kubelet allocates, it
    raises at once. Under DRA the bind waits, because kube-scheduler answers an error by deleting
    the claim of a pod that may be bound, and such a pod never starts.
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
    """Return the bind to write, once the limiter allows it. Raises :class:`BindError`."""
    assessed = decided.decision.assessment
    hazards = assessed is None or bool(assessed.hazards)
    if limiter is not None and not limiter.wait(decided.ours, deadline, hazards=hazards):
        raise BindError(NO_ANSWER)
    check_deadline(deadline)
    if limiter is None:
        return decided
    ready = _awaiting_news(
        lambda: decide_again(cluster, decided),
        node,
        # Another bind may be waiting for this one to be written, so this one does not wait longer
        # for news. A member of a gang does, because its refusal now would leave the gang bound in
        # part.
        lambda: (
            deadline.passed()
            or (bool(limiter.waiting(KUBELET, node)) and decided.ours.gang is None)
        ),
        limiter,
    )
    check_deadline(deadline)
    return ready


def unbound_pod(cluster: Cache, binder: Binder, args: BindingArgs) -> PodRecord | None:
    """Return the pod to bind; None if it is bound to that node already.

    Raises :class:`BindError` if the pod is gone, or bound to another node.
    """
    uid, node = PodUid(args.pod_uid), NodeName(args.node)
    if not cluster.has_node(node):
        raise BindError("the node does not exist")
    pod = cluster.pod(uid)
    if pod is None or (pod.node is not None and pod.node != node):
        try:
            pod = binder.find(args.pod_namespace, args.pod_name, uid)
        except BindUnknownError as error:
            raise BindError(str(error)) from error
    if pod is None:
        raise BindError(f"pod {args.pod_namespace}/{args.pod_name} with this UID is gone")
    if (pod.namespace, pod.name) != (args.pod_namespace, args.pod_name):
        raise BindError("the UID belongs to another pod")
    if pod.node is not None:
        if pod.node != node:
            raise BindError(f"the pod is already bound to {pod.node}")
        return None
    return pod


def _awaiting_news(
    ask: Callable[[], T], node: NodeName, hopeless: Callable[[], bool], limiter: BindLimiter | None
) -> T:
    """Return the result of ``ask``. While it raises :class:`.InProgressError`, wait for news."""
    try:
        return ask()
    except InProgressError:
        if limiter is None:
            raise
    return limiter.await_news(ask, node, hopeless)


def check_deadline(deadline: Deadline) -> None:
    """Raise :class:`.BindError` if kube-scheduler has given the bind up by now."""
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
    """Return the placement annotation: verdict, node, pod UID, possible sets of GPUs, and time.

    The sets list GPU indices. The UID tells the annotation from one that a user wrote into a
    template.
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
