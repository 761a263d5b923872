"""The verdict about a node for a pod, and the pods that would break an earlier promise.

Read the modules in this order. ``constraints`` compiles a pod's constraints for one kind of
machine. ``podoutcomes`` collects all sets that a node may hand out to the pod, and judges them.
``indifference`` finds the pods for which any devices will do. ``rejections`` has the reasons why a
node is refused. ``memory`` adds up the memory that pods use on the GPUs that they share.
``verdict`` combines these. It also checks the promises to unacknowledged pods in the same way.
"""

from topology.core.placement.constraints import always_met, satisfies
from topology.core.placement.memory import GpuMemory, has_memory, short_of_memory, used_memory
from topology.core.placement.rejections import (
    ALL_SICK,
    ALL_SPLIT_BY_MIG,
    BUSY,
    DRIVER_WAITS,
    IN_PROGRESS,
    INIT_UNDER_DRA,
    MAINTENANCE,
    NO_ALLOCATOR,
    NO_REPORT,
    NOT_READY,
    NOT_SERVED,
    NOT_SERVED_BY_DRA,
    OWN_CLAIMS_ONLY,
    SICK,
    SPLIT_BY_MIG,
    STALE,
    TOO_FEW,
    TOO_MUCH,
    UNASKED,
    UNPLACED,
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
    sets_of_verdict,
)

__all__ = [
    "ALL_SICK",
    "ALL_SPLIT_BY_MIG",
    "BUSY",
    "DRIVER_WAITS",
    "INIT_UNDER_DRA",
    "IN_PROGRESS",
    "MAINTENANCE",
    "NOT_READY",
    "NOT_SERVED",
    "NOT_SERVED_BY_DRA",
    "NO_ALLOCATOR",
    "NO_REPORT",
    "OWN_CLAIMS_ONLY",
    "SICK",
    "SPLIT_BY_MIG",
    "STALE",
    "TOO_FEW",
    "TOO_MUCH",
    "UNASKED",
    "UNPLACED",
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
    "sets_of_verdict",
    "short_of_memory",
    "used_memory",
]
