"""The pods with GPUs that kubelets have refused, by node and reason."""

from collections import defaultdict

from scheduler_extender.audit.evidence import Evidence
from scheduler_extender.audit.finding import Finding
from scheduler_extender.audit.trapnodes import EMPTY, NOW, keeps_off
from scheduler_extender.explain.waitingreasons import queues
from scheduler_extender.explain.wording import many
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import PodUid
from topology.times import time_text

COLUMNS = {
    "node": "node",
    "reason": "reason",
    "pods": "pods",
    "kept off now": "keptOff",
    "last": "last",
    "such as": "names",
}


def find(evidence: Evidence) -> Finding:
    """Return the refused pods, and how many the extender would keep off their nodes now."""
    groups = defaultdict[tuple[str, str], list[PodRecord]](list)
    for pod in evidence.refused:
        groups[pod.node or "", pod.refusal.reason if pod.refusal else ""].append(pod)
    kept: dict[PodUid, bool] = {}  # without the pods of which it is not known
    for pods in queues(evidence.refused).values():
        when = keeps_off(evidence, pods[0], {pod.node or "" for pod in pods})
        kept |= {pod.uid: when[pod.node] in (EMPTY, NOW) for pod in pods if pod.node in when}
    rows = [
        {
            "node": node,
            "reason": reason,
            "pods": len(pods),
            "keptOff": sum(known) if known else None,
            "last": None if pods[0].started is None else time_text(int(pods[0].started)),
            "names": [pod.full_name for pod in pods],
        }
        for (node, reason), pods in sorted(
            groups.items(), key=lambda each: (-len(each[1]), each[0])
        )
        for known in ([kept[pod.uid] for pod in pods if pod.uid in kept],)
    ]
    count, nodes, off = len(evidence.refused), len({node for node, _ in groups}), sum(kept.values())
    unknown, doubtful = count - len(kept), evidence.doubtful
    words = f"Kubelets refused {many(count, 'pod')} with GPUs on {many(nodes, 'node')}"
    if count:
        words += f"; as the nodes are now, the extender would keep off {off:,} of them"
    words += f" ({unknown:,} unknown)" if unknown else ""
    words += f"; {many(doubtful, 'more pod')} may have requested no GPUs" if doubtful else ""
    return Finding(
        "refusedPods",
        "Refused pods",
        words,
        {"pods": count, "keptOff": off, "unknown": unknown, "doubtful": doubtful},
        COLUMNS,
        rows,
    )
