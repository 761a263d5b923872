"""What a cluster loses without the extender, found without touching its scheduler.

``evidence`` collects what the findings are made of. Each finding is a file with a function, and an
entry of :data:`FINDINGS`. Nothing here does I/O.
"""

from dataclasses import replace

from scheduler_extender.audit import freegpus, refusals, spreadpods, trapnodes, waitingpods
from scheduler_extender.audit.evidence import Evidence
from scheduler_extender.audit.finding import Finding

# The findings in their order. The last two may take all the time that is left.
FINDINGS = (refusals.find, trapnodes.find, spreadpods.find, freegpus.find, waitingpods.find)
WITHOUT_RECORDS = ("refusedPods", "waitingPods")  # the findings that need no agents


def audited(evidence: Evidence) -> list[Finding]:
    """Return all findings. Those that need a record, where none is there, are not known."""
    return [
        found
        if evidence.recorded or found.name in WITHOUT_RECORDS
        else replace(found, headline="Not known without records", figures={}, rows=(), known=False)
        for found in (find(evidence) for find in FINDINGS)
    ]
