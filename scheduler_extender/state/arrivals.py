"""What a node would be with pods on it that are not there yet: places, counted one by one.

An *arrival* is a pod that may come to a node: a sibling of a gang, or a member that a group still
waits for. It is counted like a bind in flight, so everything that holds for those holds for it: it
may be admitted before another pod or after it, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from scheduler_extender.state.node import NodeFacts, Unusable
from scheduler_extender.state.pods import PodRecord
from topology.core.devices import PodUid
from topology.core.pools import total
from topology.core.requests import NO_CONSTRAINTS, Constraints, GpuRequest

MOST_PLACES = 16
"""Places of one group on one node that are counted: GPUs that are shared often have more."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """So many pods that ask the same, and what each is promised."""

    request: GpuRequest
    count: int
    promised: Constraints = NO_CONSTRAINTS
    survives_endings: bool = False


def with_arrivals(facts: NodeFacts, arrivals: Iterable[Arrivals]) -> NodeFacts:
    """The facts as if these pods were bound here, and not reported yet."""
    in_flight = dict(facts.in_flight)
    for found in arrivals:
        for _ in range(found.count):
            uid = PodUid(f"arrival {len(in_flight)}")
            in_flight[uid] = PodRecord(
                uid=uid,
                namespace="",
                name=uid,
                node=facts.name,
                request=found.request,
                promised=found.promised,
                survives_endings=found.survives_endings,
            )
    return replace(facts, in_flight=in_flight)


def with_siblings(facts: NodeFacts, request: GpuRequest) -> NodeFacts:
    """The facts as if those siblings had come first that may.

    They are as many as leave the pod its count, by the scheduler's count: that takes the devices of
    a pod that is ending for free, maybe long before a report shows them so. Where ours leaves room
    for fewer the pod does not fit, for the scheduler would send all of them. A promise over these
    facts holds with fewer of them, too: the kubelet may admit any part of the unreported pods
    before it. The very same facts where there is no room for any.
    """
    count = min(request.siblings, _room(facts, request))
    return with_arrivals(facts, (Arrivals(request.alone, count),)) if count else facts


def _room(facts: NodeFacts, request: GpuRequest) -> int:
    """How many pods of this request the scheduler may send beside one that comes last."""
    each = request.effective_count
    if facts.topology is None or facts.report is None or facts.problem is not None or not each:
        return 0
    if facts.topology.resource(request.resource) is None:
        return 0
    available = facts.availability(request.resource)
    if isinstance(available, Unusable):
        return 0
    ending = sum(
        total(holder.shown, available.width) + holder.hidden for holder in available.releasing
    )
    ending += sum(pod.held for pod in available.unreported if pod.ending and not pod.departed)
    return max(0, (available.devices_left + ending) // each - 1)
