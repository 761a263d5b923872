"""What can be promised: the verdict about a node, and what would break a promise given before.

To read it from the bottom: ``constraints`` compiles what a pod asks for one kind of machine;
``pod_outcomes`` gathers everything that a node may hand out to the pod and judges it;
``rejections`` names why a node is refused; ``memory`` adds up what pods use of GPUs that they
share; ``verdict`` puts these together, and asks the same of promises that were given to pods which
no report has shown yet.
"""

from topology.core.placement.constraints import always_met, satisfies
from topology.core.placement.memory import GpuMemory, has_memory, short_of_memory, used_memory
from topology.core.placement.rejections import (
    ALL_SICK,
    ALL_SPLIT,
    BUSY,
    BY_CLAIMS_ALONE,
    DRA_ONLY,
    DRIVER_WAITS,
    IN_PROGRESS,
    INIT_UNDER_DRA,
    MAINTENANCE,
    NO_REPORT,
    NOT_READY,
    NOT_SERVED,
    NOT_SERVED_BY_DRA,
    SICK,
    SPLIT,
    STALE,
    TOO_FEW,
    TOO_MUCH,
    UNASKED,
    UNUSABLE,
    Reason,
    Rejection,
    busy,
    device_unit,
)
from topology.core.placement.verdict import (
    Assessment,
    Verdict,
    assess,
    chosen,
    endangers,
    keeps,
    predicted,
    sets_spoken_of,
)

__all__ = [
    "ALL_SICK",
    "ALL_SPLIT",
    "BUSY",
    "BY_CLAIMS_ALONE",
    "DRA_ONLY",
    "DRIVER_WAITS",
    "INIT_UNDER_DRA",
    "IN_PROGRESS",
    "MAINTENANCE",
    "NOT_READY",
    "NOT_SERVED",
    "NOT_SERVED_BY_DRA",
    "NO_REPORT",
    "SICK",
    "SPLIT",
    "STALE",
    "TOO_FEW",
    "TOO_MUCH",
    "UNASKED",
    "UNUSABLE",
    "Assessment",
    "GpuMemory",
    "Reason",
    "Rejection",
    "Verdict",
    "always_met",
    "assess",
    "busy",
    "chosen",
    "device_unit",
    "endangers",
    "has_memory",
    "keeps",
    "predicted",
    "satisfies",
    "sets_spoken_of",
    "short_of_memory",
    "used_memory",
]
