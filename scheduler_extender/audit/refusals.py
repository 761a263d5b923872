"""The pods with GPUs that kubelets have refused, by node and reason."""

from collections import defaultdict

from scheduler_extender.audit.evidence import Evidence, Refused
from scheduler_extender.audit.finding import Finding, many
from scheduler_extender.audit.trapnodes import PERHAPS, refuses
from topology.core.devices import NodeName
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
    groups = defaultdict[tuple[str, str], list[Refused]](list)
    for each in evidence.refused:
        groups[each.node, each.reason].append(each)
    rows, kept, unknown = [], 0, 0
    for (node, reason), pods in sorted(groups.items(), key=lambda each: (-len(each[1]), each[0])):
        info = evidence.snapshot.by_name.get(NodeName(node))
        known = [refuses(info, p.request) for p in pods if p.request and info and info.topology]
        kept_here = sum(when not in ("", PERHAPS) for when in known)
        kept, unknown = kept + kept_here, unknown + len(pods) - len(known)
        last = max((each.at for each in pods if each.at is not None), default=None)
        rows.append(
            {
                "node": node,
                "reason": reason,
                "pods": len(pods),
                "keptOff": kept_here if known else None,
                "last": None if last is None else time_text(int(last)),
                "names": [each.pod for each in pods],
            }
        )
    count, nodes = len(evidence.refused), len({node for node, _ in groups})
    words = f"kubelets refused {many(count, 'pod')} with GPUs on {many(nodes, 'node')}"
    if count:
        words += f"; as the nodes are now, the extender would keep {kept:,} of the pods off"
    words += f", and of {unknown:,} it is not known" if unknown else ""
    if evidence.doubtful:
        words += f"; {many(evidence.doubtful, 'more pod')} may have asked for no GPUs"
    figures = {"pods": count, "keptOff": kept, "unknown": unknown, "doubtful": evidence.doubtful}
    return Finding("refusedPods", "Refused pods", words, figures, COLUMNS, rows)
