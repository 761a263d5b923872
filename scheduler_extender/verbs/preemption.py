"""preempt: the evictions that would help.

kube-scheduler's dry run counts GPUs and knows nothing of links. So it may name victims on a node
where the pod would still not be promised what it requires. On such a node, other victims are named
whose GPUs complete the set (:func:`.victims.replaced`). If no victims would do, the node is
dropped, so that no pod is evicted in vain. preempt never adds nodes.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from scheduler_extender.annotations import Malformed
from scheduler_extender.deadline import NO_DEADLINE, Deadline, OutOfTimeError
from scheduler_extender.evictions.victims import Preemptor, after, importance, replaced
from scheduler_extender.framework.afterwards import Afterwards
from scheduler_extender.framework.evaluator import evaluate, rejected_by_name
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.framework.trials import Trials
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.attributes import requests_of
from scheduler_extender.state.pods.budgets import violations
from scheduler_extender.state.pods.record import PodRecord, requesting_record
from scheduler_extender.wire import MetaPod, MetaVictims, Pod, PreemptionArgs, PreemptionResult
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest


def preempt(
    cluster: Cache, args: PreemptionArgs, deadline: Deadline = NO_DEADLINE
) -> PreemptionResult:
    """Return the offered nodes on which the pod would pass filter after evictions.

    Each node comes with its victims. These are kube-scheduler's own if they will do. Terminating
    pods count as gone. Nodes that are not reached by the ``deadline`` are dropped: no pod is
    evicted without a complete check. A node without victims is dropped, because there is nothing to
    evict on it, and kube-scheduler takes an empty list for an error.
    """
    offered = {
        node: MetaVictims(victims.pods, victims.violations)
        for node, victims in args.by_node().items()
        if victims.pods
    }
    snapshot = cluster.snapshot()
    managed = snapshot.settings.managed
    record = requesting_record(args.pod, managed, snapshot.waiting)
    if record is None:
        return PreemptionResult(offered)
    gone = {NodeName(name): _gone(snapshot, name, victims) for name, victims in offered.items()}
    question = Question(record, Purpose.PREEMPT, gone=gone)
    if isinstance(record.request, Malformed) or record.claim_constraints is not None:
        passed = set(evaluate(snapshot, question, list(offered), deadline).passed)
        return PreemptionResult({name: each for name, each in offered.items() if name in passed})
    # filter would reject the other nodes whichever pods were evicted.
    _, names = rejected_by_name(snapshot, question, list(offered))
    if record.request.required and snapshot.is_stale:
        return PreemptionResult()
    afterwards = Afterwards(snapshot, replace(question, gone={}), deadline)
    asking = _Asking(
        snapshot,
        preemptor(args.pod, record, afterwards.request, managed),
        deadline,
        Trials(snapshot),
    )
    kept = {}
    with suppress(OutOfTimeError), deadline.enforced():
        for name in map(NodeName, names):
            if deadline.passed():
                break
            ours = asking.on(name, offered[name])
            if ours is None:
                continue
            gone_here = _gone(snapshot, name, ours)
            then = replace(question, gone={name: gone_here}).on(snapshot.node_info(name))
            victims = frozenset(PodUid(pod.uid) for pod in ours.pods or ())
            if afterwards.on(then, victims).rejection is None:
                kept[str(name)] = ours
    return PreemptionResult(kept)


def _gone(snapshot: Snapshot, name: str, victims: MetaVictims) -> frozenset[PodUid]:
    """Return the pods that will have released their devices: the victims, and terminating pods."""
    uids = (PodUid(pod.uid) for pod in victims.pods or ())
    return snapshot.node_info(NodeName(name)).pods.terminating.union(uids)


def preemptor(
    pod: Pod, record: PodRecord, request: GpuRequest, managed: Iterable[str]
) -> Preemptor:
    """Return the pod as a preemptor, for the search for victims."""
    spec = pod.spec
    affinity = spec.affinity or {}
    ports = [port for c in spec.containers or () for port in c.ports or () if port.host_port]
    particular = bool(affinity.get("podAntiAffinity") or spec.topology_spread_constraints or ports)
    return Preemptor(
        PodUid(pod.metadata.uid),
        request,
        spec.priority or 0,
        requests_of(pod, managed),
        particular,
        None if record.group_ref is None else record.group_ref.group,
        record.gang,
    )


@dataclass
class _Asking:
    """One call of :func:`preempt`.

    ``promised`` are the nodes on which pods were evicted for another pod that has not come yet and
    whose priority is not lower. They are looked up once.
    """

    snapshot: Snapshot
    pod: Preemptor
    deadline: Deadline
    trials: Trials

    def on(self, name: NodeName, chosen: MetaVictims) -> MetaVictims | None:
        """Return the victims on a node, for which kube-scheduler has ``chosen`` some.

        Returns None if no victims would do.

        A victim of kube-scheduler's that is unknown here (a pod without GPUs, evicted for its CPUs)
        stays a victim.
        """
        info = self.snapshot.node_info(name)
        uids = [PodUid(pod.uid) for pod in chosen.pods or ()]
        ours = [pod for uid in uids if (pod := info.pods.bound.alive.get(uid)) is not None]
        try:
            # kube-scheduler knows no groups, and may choose the pod's own peers.
            may_go = not any(map(self.pod.shares_group, ours))
            if may_go and self._passes(info.without(frozenset(uids)), ours):
                return chosen
            if self.snapshot.budgets is None or name in self.promised:
                return None
            others = replaced(
                info,
                self.pod,
                ours,
                self.snapshot.budgets,
                lambda victims: self._passes(info, victims),
                self.deadline,
            )
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self.snapshot.faults.note(name, error)
            return chosen if self.trials.takes_unseen(info, self.pod.request) else None
        if others is None:
            return None
        known = {each.uid for each in ours}
        rest = [uid for uid in uids if uid not in known]
        budgets = self.snapshot.budgets or ()
        by_others = max(0, chosen.violations - violations(sorted(ours, key=importance), budgets))
        pods = [*(victim.uid for victim in others), *rest]
        violated = violations(others, budgets) + (by_others if rest else 0)
        return MetaVictims([MetaPod(uid) for uid in pods], violated)

    @cached_property
    def promised(self) -> frozenset[str | None]:
        """Return the nodes on which pods were evicted for another pod that comes first.

        That pod has not come yet, and its priority is not lower.
        """
        return frozenset(
            pod.attributes.nominated
            for pod in self.snapshot.nominated.values()
            if not (pod.terminating or pod.ended or pod.uid in self.snapshot.assumed)
            and pod.attributes.priority >= self.pod.priority
            and pod.uid != self.pod.uid
        )

    def _passes(self, info: NodeInfo, victims: Iterable[PodRecord]) -> bool:
        """Check whether the node passes once these pods and terminating pods have released it."""
        without = after(info, victims, self.pod.uid).yielding_to(self.pod.priority, self.pod.gang)
        return self.trials.answer(without, self.pod.request).rejection is None
