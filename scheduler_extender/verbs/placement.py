"""The placement annotation, which a bind writes on the pod: what it was promised, and which GPUs it
may get.
"""

from __future__ import annotations

from typing import TypedDict

from scheduler_extender.state.node.facts import Offer
from scheduler_extender.state.pods.record import PodRecord, resource_of
from scheduler_extender.verbs.deciding import DecidedBind

MAX_SETS_WRITTEN = 16


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
    facts, decision = decided.facts, decided.decision
    found = Placement(verdict=decision.verdict, node=facts.name, uid=pod.uid, sets=[], time=time)
    sets, offer = decided.sets, facts.last_offer(resource_of(decided.ours))
    if sets and isinstance(offer, Offer):
        indices = offer.devices.indices
        # MIG instances of several kinds may be on one GPU.
        listed = list(dict.fromkeys(indices(mask) for mask in sets))
        found["sets"] = [list(gpus) for gpus in listed[:MAX_SETS_WRITTEN]]
        if len(listed) > MAX_SETS_WRITTEN:
            found["setsOmitted"] = len(listed) - MAX_SETS_WRITTEN
    return found
