"""Binds as kube-scheduler asks for them: their error, and what they write."""

import json
from typing import Any

from scheduler_extender import verbs
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs import Binder, BindError, Binding
from scheduler_extender.verbs.bindlimiter import BindLimiter
from scheduler_extender.wire import BindingArgs
from topology.core.devices import PodUid


class Written:
    """Takes every Binding at once, and knows no pod that the cluster does not know."""

    def __init__(self) -> None:
        self.bindings: list[Binding] = []

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        return None

    def write(self, binding: Binding) -> None:
        self.bindings.append(binding)

    @property
    def placement(self) -> dict[str, Any]:
        """What the last bind wrote of its placement."""
        found: dict[str, Any] = json.loads(self.bindings[-1].placement)
        return found


def bind_error(
    cluster: Cache,
    binder: Binder,
    args: BindingArgs,
    deadline: Deadline = NO_DEADLINE,
    limiter: BindLimiter | None = None,
) -> str:
    """The error of a bind; empty where it was written."""
    try:
        verbs.bind(cluster, binder, args, lambda: "2026-01-01T00:00:00Z", deadline, limiter)
    except BindError as error:
        return str(error)
    return ""
