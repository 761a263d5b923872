"""What follows for a node when its kubelet refuses a pod that was bound to it, or admits one.

This module has the transitions of a node's back-offs (:mod:`.node.history`), and the description of
a refusal for people. ``first_seen`` means that we did not see the pod before it was refused or
admitted, for example at our start. Then the kubelet's own times decide the order, and the refusal
is not announced. Feed such pods in the order of these times: in another order a node may be closed
for longer.
"""

from dataclasses import dataclass, replace
from math import inf

from scheduler_extender.annotations import Malformed
from scheduler_extender.state.answers.decision import Refusals, Settings
from scheduler_extender.state.node.history import (
    Backoff,
    Refused,
    kind_of,
    with_refusal,
    without,
)
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord, resource_of
from topology.core.placement import Rejection, assess
from topology.core.refusal import Refusal
from topology.core.requests import GpuRequest


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """A refusal by a kubelet of a pod that was bound to its node."""

    node: str
    pod: PodRecord
    refusal: Refusal
    # The number of refusals since a pod was last admitted. Only pods with the same request count,
    # or all pods once the node has a back-off of its own. It is 0 if the reason is the pod's own.
    in_a_row: int
    pause: float  # seconds of the pause that it begins; 0 for none
    foreseen: tuple[str, ...]  # hazards of the pod on this node that were known before

    @property
    def words(self) -> str:
        """One line for people."""
        known = ", ".join(self.foreseen)
        foreseen = f"a known hazard ({known})" if known else "no known hazard"
        return (
            f"{self.node} refused {self.pod.namespace}/{self.pod.name} "
            f"({self.refusal.reason}), {foreseen}{self.follows}"
        )

    @property
    def follows(self) -> str:
        """The number of refusals in a row, and the pause that follows; it names no pod."""
        row = f"; {self.in_a_row} refusals in a row" if self.in_a_row > 1 else ""
        pause = f"; the node gets no GPU pods for {self.pause:.0f} s" if self.pause else ""
        return f"{row}{pause}"


def refusal_by(
    before: NodeInfo, after: NodeInfo, pod: PodRecord, refusal: Refusal, settings: Settings
) -> NodeRefusal:
    """Return the description of a refusal.

    ``before`` is the node before the refusal was seen, ``after`` is the node after it.
    """
    in_a_row, pause = 0, 0.0
    if refusal.of_the_node:
        counting = _counting(after, pod)
        in_a_row = next((len(each.refusals) for each in counting if each is not None), 0)
        if settings.refusals is not Refusals.IGNORE:
            pause = _begun(_counting(before, pod), counting)
    foreseen = _foreseen(before, pod)
    return NodeRefusal(before.name, pod, refusal, in_a_row, pause, foreseen)


def _counting(info: NodeInfo, pod: PodRecord) -> tuple[Backoff | None, ...]:
    """Return the back-offs that a refusal of the pod may extend: the node's and its kind's."""
    backoffs = info.history.backoffs.get(resource_of(pod))
    if backoffs is None or not isinstance(pod.request, GpuRequest):
        return (None, None)
    return (backoffs.of_node, backoffs.of_kind.get(kind_of(pod.request)))


def _begun(before: tuple[Backoff | None, ...], after: tuple[Backoff | None, ...]) -> float:
    """Return the seconds of the longest pause that a refusal has begun; 0 if it begins none."""
    return max(
        (
            each.until - each.refusals[-1].at
            for former, each in zip(before, after, strict=True)
            if each is not None and each.paused and (former is None or former.until != each.until)
        ),
        default=0.0,
    )


def _foreseen(before: NodeInfo, pod: PodRecord) -> tuple[str, ...]:
    """Return the hazards of the pod on the node that an evaluation just before would have named."""
    if isinstance(pod.request, Malformed):
        return ()
    info, request = before.without(frozenset({pod.uid})), pod.request.without_peers
    offer = info.offer(request.resource)
    if isinstance(offer, Rejection) or info.pods.too_many_terminated:
        return ()
    return tuple(sorted(assess(offer.kubelet, offer.available_to(request), request).hazards))


def with_pod_refused(
    info: NodeInfo, pod: PodRecord, at: float, now: float, *, first_seen: bool
) -> NodeInfo:
    """Return the node after its kubelet has refused a pod.

    ``at`` and ``now`` are on the cluster's clock.
    """
    request, history = pod.request, info.history
    if pod.refusal is None or not pod.refusal.of_the_node or not isinstance(request, GpuRequest):
        return info
    resource, kind, counts_for_node = request.resource, kind_of(request), True
    admitted = history.admitted_over(resource)
    if first_seen and pod.started is not None:
        if pod.started <= max(history.resumed, admitted.get(kind, -inf)):
            return info
        counts_for_node = pod.started > max(admitted.values(), default=-inf)
    reason = pod.refusal.reason
    refused = Refused(at, pod.started, reason, kind, counts_for_node=counts_for_node)
    after = with_refusal(history.backoffs.get(resource), refused, info.pods.here, now)
    history = history.unproven(info.pods.here).with_backoffs(resource, after)
    return replace(info, history=history)


def with_pod_admitted(
    info: NodeInfo, pod: PodRecord, now: float, *, first_seen: bool = False
) -> NodeInfo:
    """Return the node after its kubelet has admitted a pod, so that back-offs begin anew."""
    request, history = pod.request, info.history
    if not isinstance(request, GpuRequest):
        return info
    resource, kind = request.resource, kind_of(request)
    backoffs = left = history.backoffs.get(resource)
    if backoffs is not None and not first_seen:
        if pod.uid not in backoffs.beside:
            left = without(backoffs, kind, now)
    elif backoffs is not None and pod.started is not None:
        left = without(backoffs, kind, now, pod.started)
    if not first_seen:
        history = history.with_proven(pod.uid, kind)
    history = history.with_backoffs(resource, left).with_admitted(resource, kind, pod.started)
    return info if history is info.history else replace(info, history=history)


def with_resumed(info: NodeInfo, resumed: float, now: float) -> NodeInfo:
    """Return the node after an operator has cleared all refusals up to ``resumed``.

    ``resumed`` is in seconds since 1970. If we have seen the Node before, the operator has cleared
    them just now. Then all refusals are cleared, and the clocks do not matter. So any time that
    differs from the last one counts, even an earlier one: the operator's clock may have been ahead
    the last time.
    """
    history = info.history
    if not resumed or resumed == history.resumed:
        return info
    for resource, backoffs in history.backoffs.items():
        left = None if info.node_object.exists else without(backoffs, None, now, resumed)
        history = history.with_backoffs(resource, left)
    return replace(info, history=replace(history, resumed=resumed))


def with_pauses_ended(info: NodeInfo, now: float) -> NodeInfo:
    """Return the node at a later time, when pauses may have ended."""
    known = info.history.backoffs
    backoffs = {resource: each.at(now) for resource, each in known.items()}
    if all(backoffs[resource] is known[resource] for resource in backoffs):
        return info
    return replace(info, history=replace(info.history, backoffs=backoffs))
