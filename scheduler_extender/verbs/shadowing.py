"""The verbs in shadow: nothing is refused, and somebody is told what would have been.

filter works out its answer as ever and passes every node all the same, prioritize scores as ever.
preempt leaves kube-scheduler's own victims, and bind writes what it is told to, without a decision
and without a promise. So the shadow never keeps a pod from a node, whatever the extender thinks,
knows or does not know yet.
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
    in_time,
    unbound,
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

# Reasons that :attr:`WouldRefuse.words` names; the others are counted together.
MOST_REASONS_TOLD = 3


@dataclass(frozen=True, slots=True)
class WouldRefuse:
    """What filter would have refused: a pod, and how many of the offered nodes for which reason.

    ``by_words`` counts nodes by the words of the reason, ``reasons`` are their kinds.
    """

    uid: PodUid
    namespace: str
    pod: str
    offered: int
    by_words: Mapping[str, int]
    reasons: frozenset[Reason]

    @property
    def refused(self) -> int:
        """How many of the nodes it would have refused."""
        return sum(self.by_words.values())

    @property
    def none_left(self) -> bool:
        """Whether the pod would have had to wait."""
        return self.refused == self.offered

    @property
    def words(self) -> str:
        """The same for people: the commonest reasons first. It does not depend on the order in
        which the nodes were offered."""
        first = sorted(self.by_words.items(), key=lambda each: (-each[1], each[0]))
        told = [f"{count} × {words}" for words, count in first[:MOST_REASONS_TOLD]]
        if left := sum(count for _, count in first[MOST_REASONS_TOLD:]):
            told.append(f"{left} × other reasons")
        nodes = "node" if self.offered == 1 else "nodes"
        which = f"all {self.offered}" if self.none_left else f"{self.refused} of {self.offered}"
        then = "; the pod would wait" if self.none_left else ""
        return f"in shadow: {which} {nodes} would be refused ({', '.join(told)}){then}"


def filter_in_shadow(
    cluster: Cache,
    pod: Pod,
    names: Sequence[str],
    deadline: Deadline = NO_DEADLINE,
) -> tuple[FilterResult, WouldRefuse | None]:
    """Every offered node, and what :func:`.filtering.filtered` would have refused of them.

    None where it would have refused nothing, or had no answer in time.
    """
    answered = filtered(cluster.snapshot(), pod, names, deadline)
    everything = FilterResult(node_names=list(names))
    by_words: Counter[str] = Counter()
    for why, refused in answered.refused.items():
        by_words[why.reason] += len(refused)
    counted = {words: count for words, count in by_words.items() if count}
    if answered.error or not counted:
        return everything, None
    reasons = frozenset(why.kind for why, refused in answered.refused.items() if refused)
    meta = pod.metadata
    would = WouldRefuse(PodUid(meta.uid), meta.namespace, meta.name, len(names), counted, reasons)
    return everything, would


def preempt_in_shadow(args: PreemptionArgs) -> PreemptionResult:
    """kube-scheduler's own victims, node by node.

    A node without any is left out as in :func:`.preempt`: an empty list would be an error there.
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
    """Bind as kube-scheduler's own binder would, promising nothing.

    Raises :class:`BindError` where it is too late to begin, the node or the pod is gone, or the API
    server refuses; kube-scheduler then tries again.
    """
    in_time(deadline)
    pod = unbound(cluster, binder, args)
    if pod is None:
        return
    try:
        binder.write(Binding(pod.namespace, pod.name, pod.uid, NodeName(args.node), "", term))
    except BindUnknownError as error:
        raise BindError(str(error)) from error
