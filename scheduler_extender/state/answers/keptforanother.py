"""Whether a node still has the place that is kept on it, and which other pods must stay away."""

from dataclasses import replace
from enum import Enum

from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.record import PodRecord
from topology.core.availability import coming, unreported_order
from topology.core.placement import (
    NOT_SERVED,
    Reason,
    Rejection,
    has_memory,
    keeps,
    short_of_memory,
)
from topology.core.requests import GpuRequest


class Place(Enum):
    """Whether a kept place is there."""

    THERE = "there"  # once its victims are gone, whatever they and all others do until then
    UNCERTAIN = "uncertain"  # it may be: news of the node will tell
    LOST = "lost"  # unless others end: a GPU has fallen sick, or somebody bound a pod by hand


def kept_for_another(facts: NodeFacts, request: GpuRequest) -> Rejection | None:
    """Why a node takes no pod with this request, because a place is kept there for another one.

    A pod that surely leaves that place whole passes, whether or not the place's victims are still
    here when it comes. While it is not certain that the place is there, no other pod passes, if the
    place ends at some time. A lost place holds up nobody. Ask the pod itself about the facts
    without it (:meth:`.NodeFacts.without`).
    """
    waiting = facts.kept_for
    if facts.kept is None or waiting is None or waiting.kept_place is None:
        return None
    if not isinstance(waiting.request, GpuRequest) or waiting.request.resource != request.resource:
        return None
    if place_of(facts.kept, waiting, request) is Place.THERE:
        return None
    place = place_of(facts.kept, waiting)
    if place is Place.LOST or (place is Place.UNCERTAIN and waiting.kept_place.by_nomination):
        return None
    # Not for whom: the answer becomes an Event of a pod that may be another team's.
    words = f"a place is kept for another pod until {waiting.kept_place.until_text}"
    return Rejection(words, False, Reason.KEPT_PLACE)


def place_of(kept: NodeFacts, waiting: PodRecord, newcomer: GpuRequest | None = None) -> Place:
    """Whether the place of a waiting pod is there, with a ``newcomer`` that may come before it.

    ``kept`` are the facts for the waiting pod (:attr:`.NodeFacts.kept`). What is too much to work
    out is uncertain.
    """
    request = waiting.request
    if not isinstance(request, GpuRequest) or kept.last_offer(request.resource) is NOT_SERVED:
        return Place.LOST
    offer = kept.offer(request.resource)
    entry = None if isinstance(offer, Rejection) else offer.ledger.unreported.get(waiting.uid)
    if isinstance(offer, Rejection) or entry is None or kept.pods.too_many_departed:
        return Place.UNCERTAIN
    kubelet, others = offer.kubelet, list(offer.availability.unreported)
    others.remove(entry)
    if newcomer is not None:
        others.append(coming(newcomer, kubelet.replicas))
    now = replace(offer.availability, unreported=unreported_order(others))
    short = short_of_memory(kubelet, now, request)
    enough = request.effective_count <= now.devices_left and short is None
    if enough and keeps(kubelet, now, entry).every:
        return Place.THERE
    if short is not None and not has_memory(kubelet, now, request):
        return Place.LOST
    somewhere = keeps(kubelet, now, replace(entry, survives_endings=False)).some
    return Place.UNCERTAIN if somewhere else Place.LOST
