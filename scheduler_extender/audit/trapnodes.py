"""The nodes whose Topology Manager refuses pods of a size that is in use here.

kube-scheduler counts the free GPUs of a node and sends it pods that its kubelet refuses, again and
again. The refusals follow from the same model as every answer of the extender.
"""

from collections import defaultdict
from dataclasses import replace

from scheduler_extender.audit.evidence import Evidence
from scheduler_extender.audit.finding import Finding, many
from scheduler_extender.explain import Struct
from scheduler_extender.explain.wording import listed
from scheduler_extender.state.node.history import kind_of
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.admission import AFFINITY
from topology.core.availability import Availability
from topology.core.placement import Rejection, assess
from topology.core.requests import Exclusive, GpuRequest

ALWAYS = "even when it is empty"
NOW = "now"
MAY = "now, depending on which GPUs its plugin chooses"


class TrapNodes(Struct, frozen=True):
    """Nodes with one policy that refuse one request."""

    policy: str
    asks: str
    pods: int  # the running and waiting pods with this request
    refuses: str
    nodes: list[str]


def find(evidence: Evidence) -> Finding:
    """Return the trap nodes for the requests of all running and waiting pods."""
    kinds: defaultdict[GpuRequest, int] = defaultdict(int)
    for pod in evidence.snapshot.pods:
        if isinstance(pod.request, GpuRequest) and pod.request.effective_count and not pod.ended:
            kinds[kind_of(pod.request)] += 1
    found: defaultdict[tuple[str, GpuRequest, str], list[str]] = defaultdict(list)
    late = False
    for node in evidence.nodes:
        late = late or evidence.deadline.passed()
        for kind in () if late else kinds:
            if node.topology is not None and (when := refuses(node.info, kind)):
                policy = node.topology.allocator.topology_manager_policy
                found[policy, kind, when].append(node.name)
    rows = [
        TrapNodes(policy, kind.text, kinds[kind], when, names)
        for (policy, kind, when), names in sorted(found.items(), key=lambda each: -len(each[1]))
    ]
    traps = len({name for row in rows for name in row.nodes})
    return Finding(
        "trapNodes",
        "Trap nodes",
        f"the Topology Manager of {many(traps, 'node')} would refuse pods of a size that runs or "
        "waits here, although enough GPUs are free"
        + ("; not all nodes were evaluated in time" if late else ""),
        rows,
        (
            ("nodes", lambda row: listed(row.nodes)),
            ("policy", lambda row: row.policy),
            ("refuses pods with", lambda row: row.asks),
            ("when", lambda row: row.refuses),
        ),
        (("nodes", traps),),
    )


def refuses(info: NodeInfo, request: GpuRequest) -> str:
    """Return when the node's Topology Manager refuses a pod although enough GPUs are free.

    Empty if it does not. If too few are free now, the node is judged as if it were empty.
    """
    offer = info.last_offer(request.resource)
    if isinstance(offer, Rejection):
        return ""
    now, kind = offer.available_to(request), kind_of(request)
    empty = Availability(now.widest(endings=True), width=now.width, gone=now.gone)
    alone = assess(offer.kubelet, empty, replace(kind, exclusive=Exclusive.NOTHING))
    if alone.refusal is not None and AFFINITY in alone.hazards:
        return ALWAYS
    found = assess(offer.kubelet, now, kind)
    if not found.fits or AFFINITY not in found.hazards:
        return ""
    return NOW if found.refusal is not None else MAY
