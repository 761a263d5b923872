"""The audit as one page to print, with two plots."""

from collections.abc import Mapping, Sequence

from scheduler_extender.audit.evidence import Evidence
from scheduler_extender.audit.finding import Finding
from scheduler_extender.explain.gpustates import USED, Use, totals
from scheduler_extender.web.html import page

BARS = 24
"""The bars of the plot of refused pods over time."""
SHOWN = 5
"""The rows of each finding that are printed."""


def audit_page(evidence: Evidence, findings: Sequence[Finding]) -> str:
    """Return the page as HTML, which loads nothing from elsewhere."""
    times = [each.at for each in evidence.refused if each.at is not None]
    wide = max(evidence.until - evidence.since, 1.0) / BARS
    bars = [0] * BARS
    for at in times:
        bars[min(BARS - 1, max(0, int((at - evidence.since) / wide)))] += 1
    return page(
        "audit.html",
        "audit",
        evidence=evidence,
        findings=findings,
        shown=SHOWN,
        bars=bars,
        gpus=_gpus(evidence, {finding.name: finding for finding in findings}),
    )


def _gpus(evidence: Evidence, findings: Mapping[str, Finding]) -> dict[str, int]:
    """Return the number of GPUs by what they are to the audit, all of them together."""
    uses = totals(evidence.nodes).uses
    spread = sum(len(row.gpus) for row in findings["spreadPods"].rows)
    useless = dict(findings["freeGpus"].figures).get("useless", 0)
    used, free = sum(uses[use] for use in USED), uses[Use.FREE] + uses[Use.STRANDED]
    return {
        "in use": used - spread,
        "in use, far apart": spread,
        "free": free - useless,
        "free, but for no waiting pod": useless,
        "others": uses.total() - used - free,
    }
