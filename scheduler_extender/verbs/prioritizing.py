"""prioritize: a score for each node that passed, by the cost of the placement to the cluster."""

from collections.abc import Sequence
from itertools import compress, repeat

from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.framework.scores import scored
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.recentsends import MOST_NODES
from scheduler_extender.state.pods.record import requesting_record
from scheduler_extender.wire import HostPriority, Pod
from topology.core.devices import NodeName
from topology.core.requests import GpuRequest


def prioritize(
    cluster: Cache,
    pod: Pod,
    names: Sequence[str],
    deadline: Deadline = NO_DEADLINE,
) -> list[HostPriority]:
    """Return a score from 0 to 10 for each offered node, in the order offered.

    Nodes that are not worked out by the ``deadline`` are scored as unknown.
    """
    snapshot = cluster.snapshot()
    record = requesting_record(pod, snapshot.settings.managed, snapshot.waiting)
    request = None if record is None else record.request
    if record is None or not isinstance(request, GpuRequest):
        return list(map(HostPriority, names, repeat(0)))
    by_node = scored(snapshot, Question(record, Purpose.SCORE), names, deadline)
    best = max(by_node, default=0)
    few = by_node.count(best) <= MOST_NODES
    tops = map(NodeName, compress(names, map(best.__eq__, by_node)) if few else ())
    if record.claim_constraints is None:
        nodes = map(snapshot.node_info, tops)
        snapshot.recent_sends.note(record.uid, request, nodes, snapshot.clock())
    return list(map(HostPriority, names, by_node))
