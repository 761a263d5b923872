"""The verbs in shadow mode: nothing is rejected, and would-be rejections are reported.

filter works out its answer as always, but passes every node. prioritize scores as always. preempt
returns kube-scheduler's own victims. bind writes what kube-scheduler has decided, without a
decision of its own and without a promise. So shadow mode never keeps a pod from a node, whatever
the extender knows, or does not know yet.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.verbs.assume import BindError
from scheduler_extender.verbs.binding import (
    Binder,
    Binding,
    BindUnknownError,
    check_deadline,
    unbound_pod,
)
from scheduler_extender.verbs.filtering import filtered
from scheduler_extender.wire import (
    BindingArgs,
    FilterResult,
    MetaVictims,
    Pod,
    PreemptionArgs,
    PreemptionResult,
)
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Reason

# The number of reasons that :attr:`WouldReject.words` names. The others are counted together.
MOST_REASONS_TOLD = 3


@dataclass(frozen=True, slots=True)
class WouldReject:
    """What filter would have rejected: a pod, and the number of offered nodes by reason.

    ``by_words`` counts nodes by the text of the reason, ``reasons`` are the kinds of the reasons.
    """

    uid: PodUid
    namespace: str
    pod: str
    offered: int
    by_words: Mapping[str, int]
    reasons: frozenset[Reason]

    @property
    def rejected(self) -> int:
        """The number of nodes that filter would have rejected."""
        return sum(self.by_words.values())

    @property
    def none_left(self) -> bool:
        """Whether the pod would have had to wait."""
        return self.rejected == self.offered

    @property
    def words(self) -> str:
        """A text for people, with the most frequent reasons first.

        It does not depend on the order in which the nodes were offered.
        """
        first = sorted(self.by_words.items(), key=lambda each: (-each[1], each[0]))
        told = [f"{count} × {words}" for words, count in first[:MOST_REASONS_TOLD]]
        if left := sum(count for _, count in first[MOST_REASONS_TOLD:]):
            told.append(f"{left} × other reasons")
        nodes = "node" if self.offered == 1 else "nodes"
        which = f"all {self.offered}" if self.none_left else f"{self.rejected} of {self.offered}"
        then = "; the pod would stay Pending" if self.none_left else ""
        return f"in shadow: {which} {nodes} would be rejected ({', '.join(told)}){then}"


def filter_in_shadow(
    cluster: Cache,
    pod: Pod,
    names: Sequence[str],
    deadline: Deadline = NO_DEADLINE,
) -> tuple[FilterResult, WouldReject | None]:
    """Return every offered node, and what :func:`.filtering.filtered` would have rejected.

    The latter is None if nothing would have been rejected, or if there was no answer in time.
    """
    answered = filtered(cluster.snapshot(), pod, names, deadline)
    everything = FilterResult(node_names=list(names))
    by_words: Counter[str] = Counter()
    for why, rejected in answered.rejected.items():
        by_words[why.message] += len(rejected)
    counted = {words: count for words, count in by_words.items() if count}
    if answered.error or not counted:
        return everything, None
    reasons = frozenset(why.reason for why, rejected in answered.rejected.items() if rejected)
    meta = pod.metadata
    would = WouldReject(PodUid(meta.uid), meta.namespace, meta.name, len(names), counted, reasons)
    return everything, would


def preempt_in_shadow(args: PreemptionArgs) -> PreemptionResult:
    """Return kube-scheduler's own victims, node by node.

    A node without victims is left out, as in :func:`.preempt`: kube-scheduler takes an empty list
    for an error.
    """
    return PreemptionResult(
        {
            node: MetaVictims(victims.pods, victims.violations)
            for node, victims in args.by_node().items()
            if victims.pods
        }
    )


def bind_in_shadow(
    cluster: Cache,
    binder: Binder,
    args: BindingArgs,
    deadline: Deadline = NO_DEADLINE,
    term: int = 0,
) -> None:
    """Bind as kube-scheduler's own binder would, without a promise.

    Raises :class:`BindError` if it is too late to begin, if the node or the pod is gone, or if the
    API server refuses. kube-scheduler then tries again.
    """
    check_deadline(deadline)
    pod = unbound_pod(cluster, binder, args)
    if pod is None:
        return
    try:
        binder.write(Binding(pod.namespace, pod.name, pod.uid, NodeName(args.node), "", term))
    except BindUnknownError as error:
        raise BindError(str(error)) from error
