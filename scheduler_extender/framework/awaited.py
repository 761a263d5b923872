"""Rejections of a bind that an event of a watch will soon change: the bind waits for that event."""

from topology.core.placement import IN_PROGRESS, Reason, Rejection

GPU_NOT_PUBLISHED = Rejection(
    "a GPU of the pod's claim is no longer in any ResourceSlice", True, Reason.CLAIMS
)
NO_CLAIM = Rejection(
    "the pod's claim has no devices yet, or the extender has not seen it yet; kube-scheduler "
    "tries again",
    True,
    Reason.CLAIMS,
)
RECORD_WITHOUT_CLAIMS = Rejection(
    "the pod's claim has GPUs on a node whose record shows no claims yet", True, Reason.CLAIMS
)
AWAITED = frozenset({IN_PROGRESS, NO_CLAIM, RECORD_WITHOUT_CLAIMS, GPU_NOT_PUBLISHED})
