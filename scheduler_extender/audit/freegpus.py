"""The free GPUs of nodes that no waiting pod can use."""

from collections import Counter, defaultdict
from typing import Any

from scheduler_extender.audit.evidence import Evidence
from scheduler_extender.audit.finding import Finding
from scheduler_extender.explain.gpustates import Use
from scheduler_extender.explain.wording import NOT_IN_TIME, many

COLUMNS = {"node": "node", "free": "gpus", "most frequent reason": "why"}


def find(evidence: Evidence) -> Finding:
    """Return the nodes with free GPUs that take no waiting pod, and why they do not."""
    reasons = defaultdict[str, Counter[str]](Counter)
    for pods, answers in evidence.waiting:
        for answer in answers or ():
            words = answer.message or (answer.bar and f"not eligible because of {answer.bar}")
            reasons[answer.node][words] += len(pods)  # no words: the node takes these pods
    free = {node.name: node.uses[Use.FREE] + node.uses[Use.STRANDED] for node in evidence.nodes}
    rows: list[dict[str, Any]] = [
        {"node": name, "gpus": gpus, "why": reasons[name].most_common(1)[0][0]}
        for name, gpus in sorted(free.items(), key=lambda each: -each[1])
        if gpus and name in reasons and "" not in reasons[name]
    ]
    useless, every = sum(row["gpus"] for row in rows), sum(free.values())
    taken = f"{useless:,} on nodes that take no waiting pod" if evidence.waiting else "no pod waits"
    words = f"{many(every, 'GPU')} {'is' if every == 1 else 'are'} free; {taken}"
    words += f"; {NOT_IN_TIME}: {many(evidence.late, 'waiting pod')}" if evidence.late else ""
    return Finding(
        "freeGpus", "Free GPUs", words, {"free": every, "useless": useless}, COLUMNS, rows
    )
