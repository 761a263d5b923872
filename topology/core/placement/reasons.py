"""The reasons for which a node is refused, as a short list: for counting nodes and for programs."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """What kind of reason a :class:`~.rejections.Rejection` gives; its words say the details.

    The values are stable: programs read them, and Prometheus may have them as a label.
    """

    NOT_SERVED = "not-served"
    """The node does not serve the resource."""
    TOO_FEW = "too-few-gpus"
    """The node has fewer devices than asked for, free or not."""
    SPLIT = "split-by-mig"
    """The node's GPUs are split by MIG."""
    MODEL = "gpu-model"
    MEMORY = "gpu-memory"
    NIC = "nic"
    LINKS = "links"
    """No set of its GPUs is linked as asked for, free or not."""
    HARDWARE = "hardware"
    """No set of its GPUs meets all that is asked for, and links are not among it."""
    SHARES = "shares"
    """Its GPUs are not shared as the pod asks for."""
    BUSY = "busy"
    """Fewer devices are free than asked for."""
    SCATTERED = "scattered"
    """Devices enough are free, and no set of them meets the constraints."""
    NOT_GUARANTEED = "not-guaranteed"
    """A set that meets the constraints is free, and the node may hand out another one."""
    MEMORY_IN_USE = "memory-in-use"
    """Too little memory of a shared GPU is left."""
    IN_PROGRESS = "placement-in-progress"
    """A pod that is bound to the node has to be reported first."""
    KEPT_PLACE = "kept-place"
    """The place is kept for another pod."""
    KUBELET = "kubelet"
    """The node's kubelet or device plugin refuses the pod, or may refuse it."""
    REFUSING = "refusing-pods"
    """The node's kubelet has refused such pods in a row."""
    GROUP = "group"
    """The pod's group or gang is to be elsewhere, or has no room."""
    NO_REPORT = "no-report"
    STALE = "report-stale"
    NOT_READY = "report-not-ready"
    UNUSABLE = "record-unusable"
    DRA_ONLY = "dra-only"
    UNDECIDED = "undecided"
    """The node could not be worked out."""
    MALFORMED = "malformed"
    """What the pod asks for cannot be read."""
    OUT_OF_DATE = "out-of-date"
    """The extender's view of the cluster is out of date."""
    OTHER = "other"
