"""The pods with GPUs that kubelets have refused, by node and reason."""

from collections import defaultdict

from scheduler_extender.audit.evidence import Evidence, Refused
from scheduler_extender.audit.finding import Finding, many
from scheduler_extender.audit.trapnodes import refuses
from scheduler_extender.explain import Struct
from scheduler_extender.explain.wording import listed
from topology.core.devices import NodeName
from topology.times import time_text


class Refusals(Struct, frozen=True):
    """The refused pods of one node and one reason."""

    node: str
    reason: str
    pods: int
    kept_off: int  # those that the extender would keep off the node, as it is now
    unknown: int  # those of which that is not known
    last: str | None  # RFC 3339
    names: list[str]


def find(evidence: Evidence) -> Finding:
    """Return the refused pods, and whether the extender would keep them off now."""
    groups: defaultdict[tuple[str, str], list[Refused]] = defaultdict(list)
    for each in evidence.refused:
        groups[each.node, each.reason].append(each)
    rows = [
        _row(evidence, *key, pods)
        for key, pods in sorted(groups.items(), key=lambda each: (-len(each[1]), each[0]))
    ]
    pods, kept = len(evidence.refused), sum(row.kept_off for row in rows)
    nodes, unknown = len({row.node for row in rows}), sum(row.unknown for row in rows)
    words = "kubelets refused no pod with GPUs"
    if pods:
        words = f"kubelets refused {many(pods, 'pod')} with GPUs on {many(nodes, 'node')}"
        words += f"; as these are now, the extender would keep {kept:,} off"
        words += f", and of {unknown:,} it is not known" if unknown else ""
    if evidence.doubtful:
        words += f"; {many(evidence.doubtful, 'more pod')} may have asked for no GPUs"
    return Finding(
        "refusedPods",
        "Refused pods",
        words,
        rows,
        (
            ("node", lambda row: row.node),
            ("reason", lambda row: row.reason),
            ("pods", lambda row: f"{row.pods:,}"),
            ("kept off now", _kept_text),
            ("last (UTC)", lambda row: (row.last or "unknown")[:16].replace("T", " ")),
            ("such as", lambda row: listed(row.names, 1)),
        ),
        (("pods", pods), ("keptOff", kept), ("unknown", unknown), ("doubtful", evidence.doubtful)),
    )


def _kept_text(row: Refusals) -> str:
    if row.unknown == row.pods:
        return "unknown"
    return f"{row.kept_off:,}" + (f" ({row.unknown:,} unknown)" if row.unknown else "")


def _row(evidence: Evidence, node: str, reason: str, pods: list[Refused]) -> Refusals:
    info = evidence.snapshot.by_name.get(NodeName(node))
    known = [
        refuses(info, each.request)
        for each in pods
        if each.request is not None and info is not None and info.topology is not None
    ]
    times = [each.at for each in pods if each.at is not None]
    return Refusals(
        node,
        reason,
        len(pods),
        sum(map(bool, known)),
        len(pods) - len(known),
        time_text(max(times)) if times else None,
        [each.pod for each in pods],
    )
