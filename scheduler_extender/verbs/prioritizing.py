"""prioritize: a score for each node that passed, by what the placement costs the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from scheduler_extender.annotations import Malformed, parse
from scheduler_extender.state.asking.enquiry import enquire, enquire_at_once, scores
from scheduler_extender.state.asking.groupenquiry import Gathering, gather
from scheduler_extender.state.asking.members import member_of, rack_rooms
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.wire import HostPriority, Pod
from topology.core.devices import PodUid


def prioritize(
    cluster: Cluster,
    pod: Pod,
    names: Sequence[str],
    seconds: float = float("inf"),
    *,
    at_once: bool = False,
) -> list[HostPriority]:
    """A score from 0 to 10 for each offered node, in the order offered.

    A place that is kept for the pod goes before all others. ``seconds`` is for how long scores may
    be worked out; nodes that are left over then are scored as if we knew nothing of them. With
    ``at_once``, for which the caller holds the cluster's lock, :class:`.NotAtOnceError` is raised
    where the answer would take too long for the event loop.
    """
    request = parse(pod, cluster.settings.managed)
    if request is None or isinstance(request, Malformed):
        return list(map(HostPriority, names, repeat(0)))
    if not request.plain and cluster.blind():
        return list(map(HostPriority, names, repeat(0)))
    member = member_of(cluster, pod, request)
    request = request if member is None else member.request
    until = cluster.clock() + seconds
    if at_once:
        answered = enquire_at_once(cluster, request, names, scores=True)
    else:
        answered = enquire(cluster, request, names, seconds=seconds, scores=True)
    membership = None if member is None else member.membership
    found = scores(request, answered, rack_rooms(cluster, request, membership, names))
    if member is not None and member.membership.domain is not None:
        group = gather(
            cluster, member, names, late=lambda: cluster.clock() >= until, at_once=at_once
        )
        found = _by_domain(found, group)
    places = cluster.places_of(PodUid(pod.metadata.uid))
    if places:
        pairs = zip(names, found, strict=True)
        found = [10 if name in places else min(9, score) for name, score in pairs]
    return list(map(HostPriority, names, found))


def _by_domain(found: list[int], group: Gathering) -> list[int]:
    """The scores with the upper half for the best domain, and the lowest third for the others."""
    return [
        5 + score // 2 if domain is not None and domain == group.best else score // 3
        for domain, score in zip(group.domains, found, strict=True)
    ]
