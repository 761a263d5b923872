"""filter: the offered nodes that can meet the pod's request."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat

from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.pods.record import requesting_record
from scheduler_extender.wire import FilterResult, Pod
from topology.core.placement import Rejection

STILL_WORKING = "the gpu-topology extender is still evaluating the nodes for this pod"


@dataclass(frozen=True, slots=True)
class Filtered:
    """filter's answer: the nodes that pass, and the other nodes by their rejection.

    With an ``error`` the answer says nothing about nodes, and kube-scheduler tries the pod again.
    """

    passed: list[str]
    rejected: dict[Rejection, list[str]] = field(default_factory=dict)
    error: str = ""

    def result(self) -> FilterResult:
        """Return the answer in kube-scheduler's format."""
        if self.error:
            return FilterResult(node_names=[], error=self.error)
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for why, names in self.rejected.items():
            by_name = failed if why.resolvable else unresolvable
            by_name.update(zip(names, repeat(why.message)))
        return FilterResult(node_names=self.passed, failed=failed, unresolvable=unresolvable)


def filter_nodes(
    cluster: Cache,
    pod: Pod,
    names: Sequence[str],
    deadline: Deadline = NO_DEADLINE,
) -> FilterResult:
    """Return the offered nodes that can meet the pod's request: :func:`filtered` on the wire."""
    answered = filtered(cluster.snapshot(), pod, names, deadline)
    cluster.tallies.count_rejections(answered.rejected)
    return answered.result()


def filtered(
    snapshot: Snapshot,
    pod: Pod,
    names: Sequence[str],
    deadline: Deadline = NO_DEADLINE,
) -> Filtered:
    """Return the offered nodes that can meet the pod's request.

    If an annotation cannot be read, every node is rejected with the same reason. A pod without GPUs
    passes everywhere. Nodes that are not worked out by the ``deadline`` are answered as undecided.
    If one of them is rejected for that and no other node takes the pod, the whole answer is the
    error :data:`STILL_WORKING`. Then kube-scheduler asks again soon, when more is worked out, and
    evicts no pod meanwhile.
    """
    record = requesting_record(pod, snapshot.settings.managed, snapshot.waiting)
    if record is None:
        return Filtered(list(names))
    results = evaluate(snapshot, Question(record, Purpose.FILTER), names, deadline)
    if results.undecided:
        return Filtered([], error=STILL_WORKING)
    passed = results.passed
    if results.group is not None and record.group_ref is not None:
        # All members of a gang are sent to one domain: the first member that is asked about chooses
        # it.
        snapshot.note_direction(record.group_ref, results.group.best if passed else None)
    rejected = {why: those for why, those in results.by_reason.items() if why is not None and those}
    return Filtered(passed, rejected)
