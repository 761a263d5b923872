"""The waiting pods, and the extender's answers to them."""

from scheduler_extender.audit.evidence import Evidence
from scheduler_extender.audit.finding import Finding
from scheduler_extender.explain.answers import counts_of
from scheduler_extender.explain.waitingreasons import reason_of
from scheduler_extender.explain.wording import NOT_IN_TIME, asked_text, many

COLUMNS = {
    "pods": "pods",
    "first": "first",
    "request": "request",
    "the extender's answer": "answer",
}


def find(evidence: Evidence) -> Finding:
    """Return the waiting pods by request, each with the extender's answer."""
    rows = [
        {
            "pods": len(pods),
            "first": pods[0].full_name,
            "request": asked_text(pods[0]) or "unreadable",
            "answer": reason_of(pods[0], counts_of(answers) if answers else None)
            if evidence.recorded
            else "unknown without records",
        }
        for pods, answers in evidence.waiting
    ]
    placeable = sum(
        len(pods) * any(answer.may_come for answer in answers or ())
        for pods, answers in evidence.waiting
    )
    waiting = sum(len(pods) for pods, _ in evidence.waiting)
    words = f"{many(waiting, 'pod')} {'waits' if waiting == 1 else 'wait'} for GPUs"
    words += f"; the extender has a node for {placeable:,} of them" if evidence.recorded else ""
    words += f"; {NOT_IN_TIME}: {evidence.late:,}" if evidence.late else ""
    return Finding(
        "waitingPods",
        "Waiting pods",
        words,
        {"pods": waiting, "placeable": placeable, "notEvaluated": evidence.late},
        COLUMNS,
        rows,
    )
