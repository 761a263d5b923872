"""A place on a node that is reserved for another pod: by its annotation, or because kube-scheduler
has nominated it."""

from dataclasses import replace

from scheduler_extender.framework.rule import NodeEvaluation, Rule
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from topology.core.availability import coming, unacknowledged_order
from topology.core.placement import NOT_SERVED, Reason, Rejection, keeps, short_of_memory
from topology.core.requests import GpuRequest


class Reservations(Rule):
    """See the module."""

    def check(self, node: NodeEvaluation) -> Rejection | None:
        """Why the pod may not come while the place is reserved."""
        info = node.info
        return None if info.reserved_for is None else reserved_for_another(info, node.alone)


def reserved_for_another(info: NodeInfo, request: GpuRequest) -> Rejection | None:
    """Why a node takes no pod with this request, because a place is reserved there for another one.

    A pod that surely leaves that place whole passes, whether or not the place's victims are still
    here when it comes. A nominated pod's place has no end: where it is not there anyway, as while
    the node does not report, it holds up no pod. Ask the pod itself about the facts without it
    (:meth:`.NodeInfo.without`).
    """
    waiting = info.reserved_for
    if info.for_reservation is None or waiting is None or waiting.reservation is None:
        return None
    if not isinstance(waiting.request, GpuRequest) or waiting.request.resource != request.resource:
        return None
    if info.for_reservation.last_offer(request.resource) is NOT_SERVED:
        return None  # there is nothing of the kind to be kept
    if leaves_whole(info.for_reservation, waiting, request):
        return None
    if waiting.reservation.by_nomination and not leaves_whole(info.for_reservation, waiting):
        return None
    # Not for whom: the answer becomes an Event of a pod that may be another team's.
    words = f"reserved for another pod until {waiting.reservation.until_text}"
    return Rejection(words, False, Reason.RESERVED)


def leaves_whole(
    for_reservation: NodeInfo, waiting: PodRecord, newcomer: GpuRequest | None = None
) -> bool:
    """Whether the place of a waiting pod is there once its victims are gone, whatever they and all
    others do until then, with a ``newcomer`` that may come before it.

    ``for_reservation`` are the facts for the waiting pod (:attr:`.NodeInfo.for_reservation`). What
    is too much to work out is not there.
    """
    request = waiting.request
    if not isinstance(request, GpuRequest):
        return False
    offer = for_reservation.offer(request.resource)
    entry = None if isinstance(offer, Rejection) else offer.ledger.unacknowledged.get(waiting.uid)
    if isinstance(offer, Rejection) or entry is None or for_reservation.pods.too_many_terminated:
        return False
    kubelet, others = offer.kubelet, list(offer.availability.unacknowledged)
    others.remove(entry)
    if newcomer is not None:
        others.append(coming(newcomer, kubelet.replicas))
    now = replace(offer.availability, unacknowledged=unacknowledged_order(others))
    enough = request.effective_count <= now.devices_left
    short = not enough or short_of_memory(kubelet, now, request) is not None
    return not short and keeps(kubelet, now, entry).every
