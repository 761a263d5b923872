"""The free GPUs of nodes that no waiting pod can use."""

from collections import Counter

from scheduler_extender.audit.evidence import Evidence
from scheduler_extender.audit.finding import Finding, many
from scheduler_extender.explain import Struct
from scheduler_extender.explain.gpustates import Use


class UselessGpus(Struct, frozen=True):
    """The free GPUs of one node that takes no waiting pod."""

    node: str
    gpus: int
    why: str  # for the most waiting pods


def find(evidence: Evidence) -> Finding:
    """Return the nodes with free GPUs that take no waiting pod, and why they do not."""
    taking: set[str] = set()
    reasons: dict[str, Counter[str]] = {}
    for pods, answers in evidence.waiting:
        for answer in answers:
            if answer.may_come:
                taking.add(answer.node)
            words = answer.message or f"not eligible because of {answer.bar}"
            reasons.setdefault(answer.node, Counter())[words] += len(pods)
    free = {node.name: node.uses[Use.FREE] + node.uses[Use.STRANDED] for node in evidence.nodes}
    rows = [
        UselessGpus(name, gpus, reasons[name].most_common(1)[0][0])
        for name, gpus in sorted(free.items(), key=lambda each: -each[1])
        if gpus and name in reasons and name not in taking
    ]
    useless, every = sum(row.gpus for row in rows), sum(free.values())
    waiting = sum(len(pods) for pods, _ in evidence.waiting)
    words = f"{many(every, 'GPU')} {'is' if every == 1 else 'are'} free"
    words += f"; {useless:,} on nodes that take no waiting pod" if waiting else "; no pod waits"
    return Finding(
        "freeGpus",
        "Free GPUs",
        words,
        rows,
        (
            ("node", lambda row: row.node),
            ("free", lambda row: f"{row.gpus:,}"),
            ("why the node takes no waiting pod", lambda row: row.why),
        ),
        (("free", every), ("useless", useless)),
    )
