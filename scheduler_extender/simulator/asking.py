"""kube-scheduler's side of the extender's protocol.

kube-scheduler calls filter, then prioritize for the nodes that pass, chooses one node, and binds.
The caller decides how the verbs are reached, which nodes are offered, and how a node is chosen by
the scores.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from scheduler_extender import verbs
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.verbs import Binder, BindError
from scheduler_extender.wire import BindingArgs, FilterResult, ObjectMeta, Pod


class Verbs(Protocol):
    """The extender's verbs, in this process or another."""

    def filter(self, pod: Pod, names: list[str]) -> FilterResult:
        """Return which of these nodes can take the pod."""

    def prioritize(self, pod: Pod, names: list[str]) -> Mapping[str, float]:
        """Return the score of each node."""

    def bind(self, pod: ObjectMeta, node: str) -> str | None:
        """Bind the pod, and return why that is rejected; None if the Binding is written."""


@dataclass(frozen=True, slots=True)
class Picked:
    """The chosen node, or None."""

    node: str | None
    reasons: Counter[str]  # why nodes were rejected, and how many
    for_good: bool = False  # whether no other pod's end would help


def pick(
    extender: Verbs,
    pod: Pod,
    offered: list[str],
    choose: Callable[[Mapping[str, float]], str],
) -> Picked:
    """Choose one of the ``offered`` nodes. ``choose`` gets the scores."""
    answer = extender.filter(pod, offered)
    reasons = Counter([*answer.failed.values(), *answer.unresolvable.values()])
    if not answer.node_names:
        return Picked(None, reasons, for_good=not answer.failed)
    return Picked(choose(extender.prioritize(pod, answer.node_names)), reasons)


class InProcess:
    """The verbs over a cluster, without HTTP."""

    def __init__(self, cluster: Cache, binder: Binder) -> None:
        self._cluster, self._binder = cluster, binder

    def filter(self, pod: Pod, names: list[str]) -> FilterResult:
        """Return which of these nodes can take the pod."""
        return verbs.filter_nodes(self._cluster, pod, names)

    def prioritize(self, pod: Pod, names: list[str]) -> Mapping[str, float]:
        """Return the score of each node."""
        return {row.host: row.score for row in verbs.prioritize(self._cluster, pod, names)}

    def bind(self, pod: ObjectMeta, node: str) -> str | None:
        """Bind the pod, and return why that is rejected; None if the Binding is written."""
        args = BindingArgs(pod.name, pod.namespace, pod.uid, node)
        try:
            verbs.bind(self._cluster, self._binder, args, lambda: "")
        except BindError as error:
            return str(error)
        return None
