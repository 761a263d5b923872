"""The nodes whose Topology Manager refuses pods of a size that is in use here.

kube-scheduler counts the free GPUs of a node and sends it pods that its kubelet refuses, again and
again. The refusals follow from the same model as every answer of the extender.
"""

from collections import Counter, defaultdict
from dataclasses import replace

from scheduler_extender.audit.evidence import Evidence
from scheduler_extender.audit.finding import Finding, many
from scheduler_extender.state.node.history import kind_of
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.admission import AFFINITY
from topology.core.availability import Availability
from topology.core.placement import Rejection, assess
from topology.core.requests import Exclusive, GpuRequest

PERHAPS = "now, depending on which GPUs its plugin chooses"
"""When a node refuses a pod that the extender lets in, unless its constraints are required."""
COLUMNS = {"nodes": "nodes", "policy": "policy", "refuses pods with": "request", "when": "refuses"}


def find(evidence: Evidence) -> Finding:
    """Return the trap nodes for the requests of all running and waiting pods."""
    requests = [pod.request for pod in evidence.snapshot.pods if not pod.ended]
    kinds = Counter(kind_of(each) for each in requests if isinstance(each, GpuRequest))
    found = defaultdict[tuple[str, GpuRequest, str], list[str]](list)
    for node in evidence.nodes:
        for kind in kinds if node.topology and not evidence.deadline.passed() else ():
            if (when := refuses(node.info, kind)) and node.topology:
                policy = node.topology.allocator.topology_manager_policy
                found[policy, kind, when].append(node.name)
    rows = [
        {
            "nodes": names,
            "policy": policy,
            "request": kind.text,
            "pods": kinds[kind],
            "refuses": when,
        }
        for (policy, kind, when), names in sorted(found.items(), key=lambda each: -len(each[1]))
    ]
    traps = len({name for names in found.values() for name in names})
    words = (
        f"the Topology Manager of {many(traps, 'node')} would refuse pods of a size that runs or "
        "waits here, although enough GPUs are free"
    )
    if not traps:
        words = "no node's Topology Manager would refuse a pod of a size that runs or waits here"
    words += "; not all nodes were evaluated in time" if evidence.deadline.passed() else ""
    return Finding("trapNodes", "Trap nodes", words, {"nodes": traps}, COLUMNS, rows)


def refuses(info: NodeInfo, request: GpuRequest) -> str:
    """Return when the node's Topology Manager refuses a pod although enough GPUs are free.

    Empty if it does not. If too few are free now, the node is judged as if it were empty.
    """
    offer, kind = info.last_offer(request.resource), kind_of(request)
    if isinstance(offer, Rejection) or not request.effective_count:
        return ""
    now = offer.available_to(request)
    empty = Availability(now.widest(endings=True), width=now.width, gone=now.gone)
    alone = assess(offer.kubelet, empty, replace(kind, exclusive=Exclusive.NOTHING))
    if alone.refusal is not None and AFFINITY in alone.hazards:
        return "even when it is empty"
    found = assess(offer.kubelet, now, kind)
    if not found.fits or AFFINITY not in found.hazards:
        return ""
    return "now" if found.refusal else PERHAPS
