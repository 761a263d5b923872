"""The waiting pods by reason: of one pod for its Event, of all of them for Prometheus.

Nodes reject a pod for several reasons, but it counts for one (:func:`main_reason`). Pods with the
same request are evaluated together. However many pods wait, one pass over all of them takes about
:data:`SECONDS`. A pod that the pass does not reach keeps its previous reason, or has none yet.
"""

import threading
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from scheduler_extender.annotations import UNASKED, Malformed
from scheduler_extender.deadline import Deadline, within
from scheduler_extender.explain import Struct
from scheduler_extender.explain.answers import Counts, by_reason
from scheduler_extender.explain.wording import NOT_IN_TIME
from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.question import Purpose, Question, alike
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName
from topology.core.placement import Reason

# The time for working out answers in one pass over all waiting pods. Most answers are cached, since
# kube-scheduler asks for them, too.
SECONDS = 0.2
LATER = 60.0  # seconds after which the reason of a request is worked out again
# Stands for a reason if some node would take the pod. CPU, memory or another rule of kube-scheduler
# is missing there, or kube-scheduler has not tried again yet.
NONE = "none"
UNKNOWN = "unknown"  # stands for a reason if the pod has not been evaluated yet
NEVER = UNKNOWN, float("-inf")
NO_WORDS = " because of its own rules, or has not tried again yet"
LABELS = (*(reason.value for reason in Reason), NONE, UNKNOWN)
# Reasons that do not change when pods end: the node's hardware, or how its GPUs are served.
LASTING = frozenset(
    {
        Reason.NOT_SERVED,
        Reason.TOO_FEW,
        Reason.SPLIT_BY_MIG,
        Reason.MODEL,
        Reason.MEMORY,
        Reason.NIC,
        Reason.LINKS,
        Reason.HARDWARE,
        Reason.SHARES,
        Reason.NO_ALLOCATOR,
    }
)


class WaitingPod(Struct, frozen=True):
    """A pod that waits for GPUs, and why."""

    pod: str
    request: str  # empty if that cannot be read
    since: str | None  # when it was created (RFC 3339), if known
    gated: bool  # it has scheduling gates
    reason: str
    nodes: int | None  # those that were asked; None if none was
    takes: int | None  # those that would take it, and to which kube-scheduler may send it
    rejections: dict[str, int]

    @property
    def hopeless(self) -> bool:
        """Whether no node would take it."""
        return self.takes == 0 or not self.request


def waiting_pods(snapshot: Snapshot) -> list[PodRecord]:
    """Return the pods that wait for a node, by namespace and name."""
    pods = (pod for pod in snapshot.unbound if not pod.terminating and not pod.ended)
    return sorted(pods, key=lambda pod: (pod.namespace, pod.name))


def queues(pods: Iterable[PodRecord]) -> dict[Hashable, list[PodRecord]]:
    """Return the pods by request (:func:`alike`), the most numerous first."""
    together: dict[Hashable, list[PodRecord]] = {}
    for pod in pods:
        together.setdefault(alike(pod), []).append(pod)
    return dict(sorted(together.items(), key=lambda each: -len(each[1])))


def rejection_counts(snapshot: Snapshot, pod: PodRecord, deadline: Deadline) -> Counts:
    """Return how many nodes reject a pod or are ineligible, as far as there is time.

    Nodes for which there was no time count as undecided, and nodes without GPUs do not count. The
    counts are empty if some node would take the pod, or if the pod's annotations cannot be read:
    kube-scheduler's Event gives that reason.
    """
    if isinstance(pod.request, Malformed):
        return Counts(0)
    names = [info.name for info in snapshot.nodes if not info.serves_nothing]
    results = evaluate(snapshot, Question(pod, Purpose.EXPLAIN), names, deadline)
    if results.passed:
        return Counts(0)
    rejected = {why: len(some) for why, some in results.by_reason.items() if why is not None}
    ineligible = [snapshot.node_info(NodeName(name)) for name in results.by_reason.get(None, ())]
    wanted = pod.attributes
    bars = Counter(info.bar(wanted.eligible_nodes, wanted.requests) for info in ineligible)
    return Counts(len(names), len(ineligible), len(ineligible), rejected, bars=bars)


def reason_of(pod: PodRecord, counts: Counts | None) -> str:
    """Return why a pod waits, in a line.

    ``counts`` has the nodes' answers. It is None if there was no time to work out whether some node
    would take the pod.
    """
    if isinstance(pod.request, Malformed):
        return pod.request.reason
    ask = f"{NOT_IN_TIME}: run gpu-topology why {pod.full_name}"
    said = ask if counts is None else counts.headline
    if pod.unasked:
        said = f"{UNASKED}; {said}"
    if pod.gated:
        return f"held back by its scheduling gates; {said}"
    if counts is not None and counts.takes > counts.ineligible and pod.unschedulable:
        return f"{said}; kube-scheduler finds no node{f': {pod.said}' if pod.said else NO_WORDS}"
    return said


def main_reason(counts: Mapping[Reason, int]) -> Reason:
    """Return the most frequent reason of the nodes whose hardware could take the pod.

    If there is no such node, it is a :data:`LASTING` one. Raises :class:`ValueError` if nothing is
    counted.

    >>> main_reason({Reason.LINKS: 90, Reason.BUSY: 2, Reason.SCATTERED: 5})
    <Reason.SCATTERED: 'scattered'>
    >>> main_reason({Reason.LINKS: 90, Reason.TOO_FEW: 3})
    <Reason.LINKS: 'links'>
    """
    order = {reason: position for position, reason in enumerate(Reason)}

    def weight(reason: Reason) -> tuple[bool, bool, int, int]:
        lasting, undecided = reason in LASTING, reason is Reason.UNDECIDED
        return lasting, undecided, -counts[reason], order[reason]

    return min(counts, key=weight)


class WaitingReasons:
    """Counts the waiting pods by reason. Any thread may call it; calls run one at a time."""

    def __init__(self, cluster: Cache) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._known: dict[Hashable, tuple[str, float]] = {}  # a label, and when it was worked out

    def count(self) -> dict[str, int]:
        """Return the number of pods that kube-scheduler has called unschedulable, by label.

        Every one of :data:`LABELS` is present.
        """
        with self._lock:
            snapshot = self._cluster.snapshot()
            waiting = queues(snapshot.unschedulable)
            self._known = {key: found for key, found in self._known.items() if key in waiting}
            now, deadline = self._cluster.clock(), within(self._cluster.clock, SECONDS)
            # The requests that were evaluated longest ago come first.
            for key in sorted(waiting, key=lambda key: self._known.get(key, NEVER)[1]):
                if deadline.passed() or self._known.get(key, NEVER)[1] > now - LATER:
                    break
                pod, label = waiting[key][0], Reason.MALFORMED.value
                if not isinstance(pod.request, Malformed):
                    counts = rejection_counts(snapshot, pod, deadline).rejected
                    label = main_reason(by_reason(counts)).value if counts else NONE
                self._known[key] = label, now
            counted = dict.fromkeys(LABELS, 0)
            for key, pods in waiting.items():
                counted[self._known.get(key, NEVER)[0]] += len(pods)
            return counted
