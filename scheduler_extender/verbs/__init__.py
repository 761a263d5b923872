"""filter, prioritize, bind and preempt as plain functions over the cluster.

filter notes the domain to which it sends a gang, and prioritize notes the best nodes with DRA
(:mod:`.state.cluster.recentsends`). Both notes are hints. Apart from them, filter, prioritize and
preempt change nothing, because kube-scheduler may call them for pods that are never bound. The
decision that counts is bind's.
"""

from scheduler_extender.verbs.assume import BindError, NotWrittenError
from scheduler_extender.verbs.binding import (
    TOO_LATE,
    Binder,
    Binding,
    BindUnknownError,
    bind,
)
from scheduler_extender.verbs.bindlimiter import BindLimiter
from scheduler_extender.verbs.filtering import STILL_WORKING, filter_nodes
from scheduler_extender.verbs.preemption import preempt
from scheduler_extender.verbs.prioritizing import prioritize
from scheduler_extender.verbs.shadowing import (
    WouldReject,
    bind_in_shadow,
    filter_in_shadow,
    preempt_in_shadow,
)

NOT_SYNCED = "the gpu-topology extender has not read the cluster from the API server yet"

__all__ = [
    "NOT_SYNCED",
    "STILL_WORKING",
    "TOO_LATE",
    "BindError",
    "BindLimiter",
    "BindUnknownError",
    "Binder",
    "Binding",
    "NotWrittenError",
    "WouldReject",
    "bind",
    "bind_in_shadow",
    "filter_in_shadow",
    "filter_nodes",
    "preempt",
    "preempt_in_shadow",
    "prioritize",
]
