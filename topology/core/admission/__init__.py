"""What a kubelet may do with a pod."""

from topology.core.admission.walk import (
    AFFINITY,
    TOO_FEW,
    TOO_MANY_NODES,
    UNKNOWN_FACTS,
    Admission,
    Admissions,
    Kubelet,
    admissions,
    container_sets,
    numa_nodes,
)

__all__ = [
    "AFFINITY",
    "TOO_FEW",
    "TOO_MANY_NODES",
    "UNKNOWN_FACTS",
    "Admission",
    "Admissions",
    "Kubelet",
    "admissions",
    "container_sets",
    "numa_nodes",
]
