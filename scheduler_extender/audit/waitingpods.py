"""The waiting pods, and the extender's answers to them."""

from scheduler_extender.audit.evidence import Evidence
from scheduler_extender.audit.finding import Finding, many
from scheduler_extender.explain import Struct
from scheduler_extender.explain.answers import counts_of
from scheduler_extender.explain.waitingreasons import reason_of
from scheduler_extender.explain.wording import asked_text


class WaitingPods(Struct, frozen=True):
    """Waiting pods with the same request."""

    pods: int
    first: str  # its namespace and name
    asks: str
    nodes: int | None  # the nodes that would take one of them; None if they were not evaluated
    answer: str


def find(evidence: Evidence) -> Finding:
    """Return the waiting pods by request, each with the extender's answer."""
    rows = []
    for pods, answers in evidence.waiting:
        counts = counts_of(answers) if answers else None
        takes = None if counts is None else counts.takes - counts.ineligible
        answer = reason_of(pods[0], counts) if evidence.recorded else "unknown without records"
        rows.append(WaitingPods(len(pods), pods[0].full_name, asked_text(pods[0]), takes, answer))
    waiting, placeable = sum(row.pods for row in rows), sum(row.pods for row in rows if row.nodes)
    words = "no pod waits for GPUs"
    if rows:
        words = f"{many(waiting, 'pod')} {'waits' if waiting == 1 else 'wait'} for GPUs"
        words += f"; the extender has a node for {placeable:,} of them" if evidence.recorded else ""
    return Finding(
        "waitingPods",
        "Waiting pods",
        words,
        rows,
        (
            ("pods", lambda row: f"{row.pods:,}"),
            ("first", lambda row: row.first),
            ("asks for", lambda row: row.asks or "–"),
            ("the extender's answer", lambda row: row.answer),
        ),
        (("pods", waiting), ("placeable", placeable)),
    )
