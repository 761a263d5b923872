"""preempt: which evictions would help.

kube-scheduler's dry run counts GPUs and knows nothing of links, so it may name victims on a node
where the pod would still not be promised what it requires. Such nodes are dropped: nobody is
evicted for nothing. Victims are never changed, nodes never invented.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress

from scheduler_extender.annotations import Malformed, parse
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.decision import undecided
from scheduler_extender.state.enquiry import OutOfTimeError, answer_of, in_time
from scheduler_extender.wire import MetaVictims, PreemptionArgs, PreemptionResult
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest


def preempt(
    cluster: Cluster, args: PreemptionArgs, late: Callable[[], bool] = lambda: False
) -> PreemptionResult:
    """The offered nodes on which the pod would pass filter once their victims have let go.

    Once ``late`` says that the time is up, the nodes that are left over are dropped: nobody is
    evicted for what has not been worked out. A node without victims is dropped: there is
    nothing to evict on it, and kube-scheduler takes an empty list for an error.
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
    flying = cluster.bind_in_flight(PodUid(args.pod.metadata.uid))
    if flying is not None:
        # It may be bound there yet, and is bound nowhere else: no other eviction would help.
        offered = {node: found for node, found in offered.items() if node == flying.node}
    if request.required and cluster.blind():
        return PreemptionResult()
    kept = {}
    known: dict[Hashable, bool] = {}
    with suppress(OutOfTimeError), in_time(late):
        for name, victims in offered.items():
            if late():
                break
            gone = frozenset(PodUid(pod.uid) for pod in victims.pods or ())
            if flying is not None:
                gone |= {flying.uid}
            if _passes_without(cluster, NodeName(name), request, gone, known):
                kept[name] = victims
    return PreemptionResult(kept)


def _passes_without(
    cluster: Cluster,
    name: NodeName,
    request: GpuRequest,
    gone: frozenset[PodUid],
    known: dict[Hashable, bool],
) -> bool:
    """Whether a node would pass without these pods; ``known`` has the answers of this call.

    Nodes that would be in one state share the answer.
    """
    facts = cluster.facts(name)
    try:
        without = facts.without(gone)
        key = without.key(request.resource)
    except OutOfTimeError:
        raise
    except Exception as error:  # noqa: BLE001 (a listener logs it)
        cluster.faults.note(name, error)
        return undecided(facts, request).rejection is None
    if key not in known:
        known[key] = answer_of(cluster, without, request).rejection is None
    return known[key]
