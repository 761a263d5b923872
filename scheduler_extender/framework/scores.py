"""The score of each node that takes a pod: 0 to 10, by the cost of the placement to the cluster.

Scores are computed in this order:

1. The node's own score, relative to the other nodes asked (:func:`.equivalence.scores`).
2. The best domain of the pod's group comes before all others.
3. A node where other pods on their way could spoil the placement gets 0.
4. A node with a reservation for the pod gets 10.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.framework.equivalence import answer, scores
from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.members import rack_rooms
from scheduler_extender.framework.question import Question
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.arrivals import Arrivals, with_arrivals
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Reason
from topology.core.requests import GpuRequest


def scored(
    snapshot: Snapshot, question: Question, names: Sequence[str], deadline: Deadline = NO_DEADLINE
) -> list[int]:
    """Return the score of each of these nodes, in the order asked; 0 for a rejected node."""
    pod = question.pod
    results = evaluate(snapshot, replace(question, scores=True), names, deadline)
    request = results.request
    if not results.answers or (snapshot.is_stale and not request.plain):
        return [0] * len(names)
    by_node, names_asked = list[int](), list[str]()
    for own in results.answers:
        rooms = rack_rooms(snapshot, own.request, own.names, pod.group_ref)
        by_node += scores(own, rooms)
        names_asked += own.names
    if (group := results.group) is not None:
        # The best domain gets the upper half of the scores, the others get the lowest third.
        by_node = [
            5 + score // 2 if domain is not None and domain == group.best else score // 3
            for domain, score in zip(group.domains, by_node, strict=True)
        ]
    if names_asked != names:  # some were rejected, or their claims' devices are unknown
        of = dict(zip(names_asked, by_node, strict=True))
        by_node = [of.get(name, 0) for name in names]
    spoilt = _spoilt_by_others(snapshot, pod.uid, request, names, deadline)
    reserved = snapshot.reserved_nodes(pod.uid)
    if spoilt:
        by_node = [0 if name in spoilt else s for name, s in zip(names, by_node, strict=True)]
    if reserved:
        pairs = zip(names, by_node, strict=True)
        by_node = [10 if name in reserved else min(9, score) for name, score in pairs]
    return by_node


def _spoilt_by_others(
    snapshot: Snapshot,
    uid: PodUid,
    request: GpuRequest,
    names: Sequence[str],
    deadline: Deadline,
) -> Collection[str]:
    """Return the DRA nodes that recently sent pods could spoil for this pod.

    These pods may be on their way to the node (:mod:`.state.cluster.recentsends`). If they came
    first, this pod would get other devices than it requires.

    kube-scheduler has counted these pods before it offers a node. So if too few devices are left
    beside them, they have gone elsewhere. Peers are counted already.
    """
    recent_sends = snapshot.recent_sends
    if not recent_sends.pods or not request.required or request.pods_before:
        return ()
    coming, spoilt = defaultdict[NodeName, list[Arrivals]](list), set[str]()
    for other, sent in recent_sends.sent(snapshot.clock()):
        for name in sent.nodes if other != uid and other not in snapshot.nominated else ():
            coming[name].append(Arrivals(sent.request.without_peers, 1))
    for name in coming.keys() & names if coming else ():
        beside = with_arrivals(snapshot.node_info(name), coming[name])
        why = answer(snapshot, beside, request, deadline).rejection
        if why is not None and why.reason in (Reason.SCATTERED, Reason.NOT_GUARANTEED, Reason.SICK):
            spoilt.add(name)
    return spoilt
