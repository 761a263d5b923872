"""preempt: which evictions would help.

kube-scheduler's dry run counts GPUs and knows nothing of links, so it may name victims on a node
where the pod would still not be promised what it requires. Such nodes are dropped: nobody is
evicted for nothing. Victims are never changed, nodes never invented.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from scheduler_extender.annotations import Malformed, parse
from scheduler_extender.cluster import Cluster, Decision
from scheduler_extender.wire import MetaVictims, PreemptionArgs, PreemptionResult
from topology.core.devices import NodeName, PodUid

TURN = 16
"""Nodes after which those who wait for the cluster's lock get it."""


def preempt(
    cluster: Cluster, args: PreemptionArgs, late: Callable[[], bool] = lambda: False
) -> PreemptionResult:
    """The offered nodes on which the pod would pass filter once their victims have let go.

    Once ``late`` says that the time is up, the nodes that are left over are dropped: nobody is
    evicted for what has not been worked out.
    A node without victims is dropped: there is nothing to evict on it, and kube-scheduler takes an
    empty list for an error.
    """
    offered = {
        node: MetaVictims(victims.pods, victims.violations)
        for node, victims in args.by_node().items()
        if victims.pods
    }
    request = parse(args.pod, cluster.settings.managed)
    if request is None:
        return PreemptionResult(offered)
    if isinstance(request, Malformed):
        return PreemptionResult()
    reserved = cluster.reservation(PodUid(args.pod.metadata.uid))
    if reserved is not None:
        # It may be bound there yet, and is bound nowhere else: no other eviction would help.
        offered = {node: found for node, found in offered.items() if node == reserved.node}
    kept = {}
    known: dict[tuple[object, ...], Decision] = {}
    for number, (node, victims) in enumerate(offered.items()):
        if late():
            break
        if number % TURN == TURN - 1:
            time.sleep(0.0005)  # a lock goes to whoever asks first, and that would be us
        gone = frozenset(PodUid(pod.uid) for pod in victims.pods or ())
        if reserved is not None:
            gone |= {reserved.uid}
        if cluster.decide_without(NodeName(node), request, gone, known).rejection is None:
            kept[node] = victims
    return PreemptionResult(kept)
