"""prioritize: a score for each node that passed, by what the placement costs the cluster."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import compress, repeat

from scheduler_extender.annotations import Asks, OfClaims, of_claims, parse
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.membership import Membership
from scheduler_extender.state.asking.askgroup import ask_group
from scheduler_extender.state.asking.byclaims import ask_by_claims
from scheduler_extender.state.asking.enquiry import answer, ask, scores
from scheduler_extender.state.asking.members import member_of, rack_rooms
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.cluster.lately import MOST_NODES
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.arrivals import Arrivals, with_arrivals
from scheduler_extender.wire import HostPriority, Pod
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Reason
from topology.core.requests import GpuRequest


def prioritize(
    cluster: Cluster,
    pod: Pod,
    names: Sequence[str],
    deadline: Deadline = NO_DEADLINE,
) -> list[HostPriority]:
    """A score from 0 to 10 for each offered node, in the order offered.

    A place that is reserved for the pod goes before all others. Nodes that are not worked out
    by the ``deadline`` are scored as if we knew nothing of them. The event loop holds the cluster's
    lock, and is told with :class:`.NotAtOnceError` where the answer would take too long for it.
    """
    snapshot = cluster.snapshot(deadline)
    managed, uid = snapshot.settings.managed, PodUid(pod.metadata.uid)
    asks = parse(pod, managed) or of_claims(pod, managed)
    if isinstance(asks, OfClaims):
        return _by_claims(snapshot, uid, asks, names, deadline)
    if not isinstance(asks, Asks) or (not asks.request.plain and snapshot.blind):
        return list(map(HostPriority, names, repeat(0)))
    asking = Asking(uid, pod.spec.priority or 0, asks.request, asks.membership)
    by_node = scored(snapshot, asking, names, deadline)
    lately = snapshot.parts.lately
    best = max(by_node, default=0)
    few = by_node.count(best) <= MOST_NODES
    tops = map(NodeName, compress(names, map(best.__eq__, by_node)) if few else ())
    by_dra = [name for name in tops if snapshot.facts(name).by_dra]
    if by_dra or uid in lately.pods:
        lately.note(uid, asks.request, by_dra, snapshot.parts.clock())
    return list(map(HostPriority, names, by_node))


@dataclass(frozen=True, slots=True)
class Asking:
    """A pod that asks for scores, and whether its question counts (:func:`.ask`)."""

    uid: PodUid
    priority: int
    request: GpuRequest
    membership: Membership | None
    counts: bool = True


def scored(
    snapshot: Snapshot, pod: Asking, names: Sequence[str], deadline: Deadline = NO_DEADLINE
) -> list[int]:
    """The scores by which a pod is placed, and which people are told."""
    uid, membership = pod.uid, pod.membership
    member = member_of(snapshot, uid, membership, pod.request)
    request = pod.request if member is None else member.request
    gang = member.gang if member is not None else None
    apart = snapshot.asked_apart(uid, pod.priority, gang)
    deadline.need_quick(quick=not apart or apart.isdisjoint(names))
    for_this_pod = snapshot.with_facts(
        snapshot.facts(name).without(frozenset({uid})).yielding_to(pod.priority, gang)
        for name in apart.intersection(names)
    )
    answered = ask(for_this_pod, request, names, deadline, scores=True, counts=pod.counts)
    by_node = scores(request, answered, rack_rooms(snapshot, request, names, membership))
    if member is not None and member.membership.domain is not None:
        # The upper half for the best domain, and the lowest third for the others.
        group = ask_group(snapshot, member, names, deadline)
        by_node = [
            5 + score // 2 if domain is not None and domain == group.best else score // 3
            for domain, score in zip(group.domains, by_node, strict=True)
        ]
    lately = snapshot.parts.lately
    alone = request.required and not request.in_company  # siblings are counted already
    if (
        lately.pods
        and alone
        and (spoilt := _spoilt_by_others(snapshot, uid, request, names, deadline))
    ):
        by_node = [0 if name in spoilt else s for name, s in zip(names, by_node, strict=True)]
    places = snapshot.places_of(uid)
    if places:
        pairs = zip(names, by_node, strict=True)
        by_node = [10 if name in places else min(9, score) for name, score in pairs]
    return by_node


def _spoilt_by_others(
    snapshot: Snapshot,
    uid: PodUid,
    request: GpuRequest,
    names: Sequence[str],
    deadline: Deadline,
) -> Collection[str]:
    """The nodes with DRA on which the pod would get other devices than it requires if others came
    first that may be on their way there (:mod:`.state.cluster.lately`).

    kube-scheduler has counted these others before it offers a node: so where too few devices are
    left beside them they have gone elsewhere.
    """
    coming, spoilt = defaultdict[NodeName, list[Arrivals]](list), set[str]()
    for other, sent in snapshot.parts.lately.sent(snapshot.parts.clock()):
        for name in sent.nodes if other != uid and other not in snapshot.nominated else ():
            coming[name].append(Arrivals(sent.request.alone, 1))
    for name in coming.keys() & names if coming else ():
        deadline.need_quick(quick=False)
        beside = with_arrivals(snapshot.facts(name), coming[name])
        why = answer(snapshot, beside, request, deadline).rejection
        if why is not None and why.kind in (Reason.SCATTERED, Reason.NOT_GUARANTEED, Reason.SICK):
            spoilt.add(name)
    return spoilt


def _by_claims(
    snapshot: Snapshot, uid: PodUid, wanted: OfClaims, names: Sequence[str], deadline: Deadline
) -> list[HostPriority]:
    """The scores for a pod with claims of its own; 0 where nobody can say what they get."""
    found = ask_by_claims(snapshot, uid, wanted, names, deadline, scores=True)
    of = {
        name: score
        for request, answers, alike in found.answered
        for first, score in zip(answers.names, scores(request, answers), strict=True)
        for name in alike[first]
    }
    return [HostPriority(name, of.get(name, 0)) for name in names]
