"""A reservation on a node for another pod, by its annotation or by kube-scheduler's nomination."""

from dataclasses import replace

from scheduler_extender.framework.rule import NodeEvaluation
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord, resource_of
from topology.core.availability import coming, unacknowledged_order
from topology.core.placement import NOT_SERVED, Reason, Rejection, keeps, short_of_memory
from topology.core.requests import GpuRequest


def check(node: NodeEvaluation) -> Rejection | None:
    """Return why the pod may not come while the reservation stands."""
    return reserved_for_another(node.info, node.without_peers)


def reserved_for_another(info: NodeInfo, request: GpuRequest) -> Rejection | None:
    """Return why a node takes no pod with this request because of another pod's reservation.

    A pod passes if it surely leaves each reservation whole, whether or not its victims are still on
    the node when the pod comes. The reservation of a nominated pod has no end. If it cannot be met
    anyway, for example while the node does not report, or because of the pods with earlier
    reservations, it delays no pod, and the reservations behind it count without it. To ask about a
    pod with a reservation, use the info without the pod (:meth:`.NodeInfo.without`).
    """
    for waiting, then in info.for_reservations:
        if waiting.reservation is None or resource_of(waiting) != request.resource:
            continue
        if then.last_offer(request.resource) is NOT_SERVED:
            continue  # there is no such device to reserve
        if leaves_whole(then, waiting, request):
            continue
        if waiting.reservation.by_nomination and not leaves_whole(then, waiting):
            left = tuple(pod for pod in info.reservations if pod is not waiting)
            return reserved_for_another(replace(info, reservations=left), request)
        # The text does not name the other pod, because the answer becomes an Event of this pod,
        # which may belong to another team.
        words = f"reserved for another pod until {waiting.reservation.until_text}"
        return Rejection(words, False, Reason.RESERVED)
    return None


def leaves_whole(
    for_reservation: NodeInfo, waiting: PodRecord, newcomer: GpuRequest | None = None
) -> bool:
    """Check whether a waiting pod can use its reservation once its victims are gone.

    The answer covers everything that the victims and all other pods may do until then, with a
    ``newcomer`` that may come before the waiting pod. ``for_reservation`` is the info for the
    waiting pod (:attr:`.NodeInfo.for_reservations`). Returns False if this is too much to work out.
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
