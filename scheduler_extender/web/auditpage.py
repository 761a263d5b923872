"""The audit as one page to print, with two plots."""

from collections.abc import Sequence

from scheduler_extender.audit.evidence import Evidence
from scheduler_extender.audit.finding import Finding, cell
from scheduler_extender.explain.gpustates import USED, Use, totals
from scheduler_extender.web.html import page

BARS = 24  # of the plot of refused pods over time


def audit_page(evidence: Evidence, findings: Sequence[Finding]) -> str:
    """Return the page as HTML, which loads nothing from elsewhere."""
    bars, since = [0] * BARS, evidence.since
    for at in (each.started for each in evidence.refused if each.started is not None):
        bars[min(BARS - 1, int((at - since) * BARS / max(evidence.until - since, 1.0)))] += 1
    uses, rows = totals(evidence.nodes).uses, {each.name: each.rows for each in findings}
    useless = sum(row["gpus"] for row in rows["freeGpus"])
    spread = sum(row["inUse"] for row in rows["spreadPods"])
    used, free = sum(uses[use] for use in USED), uses[Use.FREE] + uses[Use.STRANDED]
    gpus = {
        "in use": used - spread,
        "in use, far apart": spread,
        "free": free - useless,
        "free, but for no waiting pod": useless,
        "assumed, reserved or sick": uses.total() - used - free,
    }
    return page(
        "audit.html",
        "audit",
        evidence=evidence,
        findings=findings,
        cell=cell,
        bars=bars,
        gpus=gpus,
    )
