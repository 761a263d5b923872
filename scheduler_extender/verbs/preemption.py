"""preempt: which evictions would help.

kube-scheduler's dry run counts GPUs and knows nothing of links, so it may name victims on a node
where the pod would still not be promised what it requires. There others are named, whose GPUs
complete the set (:func:`.victims.replaced`); a node where none would do is dropped: nobody is
evicted for nothing. Nodes are never invented.
"""

from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from scheduler_extender.annotations import Malformed, OfClaims, of_claims, parse
from scheduler_extender.deadline import NO_DEADLINE, Deadline, OutOfTimeError
from scheduler_extender.state.answers.decision import undecided
from scheduler_extender.state.asking.byclaims import ask_by_claims
from scheduler_extender.state.asking.enquiry import answer
from scheduler_extender.state.asking.members import Member, member_of
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.budgets import violations
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.standing import asks_of
from scheduler_extender.unblocking.victims import Preemptor, after, importance, replaced
from scheduler_extender.verbs.afterwards import Afterwards
from scheduler_extender.verbs.filtering import had_claim
from scheduler_extender.wire import MetaPod, MetaVictims, Pod, PreemptionArgs, PreemptionResult
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest


def preempt(
    cluster: Cluster, args: PreemptionArgs, deadline: Deadline = NO_DEADLINE
) -> PreemptionResult:
    """The offered nodes on which the pod would pass filter once some pods have let go, and which.

    They are kube-scheduler's own victims wherever these will do. Pods that are ending already are
    taken to be gone. The nodes that are left over at the ``deadline`` are
    dropped: nobody is evicted for what has not been worked out. A node without victims is dropped:
    there is nothing to evict on it, and kube-scheduler takes an empty list for an error.
    """
    offered = {
        node: MetaVictims(victims.pods, victims.violations)
        for node, victims in args.by_node().items()
        if victims.pods
    }
    snapshot = cluster.snapshot()
    managed = snapshot.settings.managed
    asks = parse(args.pod, managed) or of_claims(args.pod, managed)
    if asks is None:
        return PreemptionResult(offered)
    if isinstance(asks, Malformed):
        return PreemptionResult()
    uid = PodUid(args.pod.metadata.uid)
    flying = snapshot.in_flight.get(uid)
    if flying is not None:
        # It may be bound there yet, and is bound nowhere else: no other eviction would help.
        offered = {node: named for node, named in offered.items() if node == flying.node}
    if had_claim(args.pod, managed):  # filter would refuse it there
        by_plugin = {node for node in offered if snapshot.facts(NodeName(node)).by_plugin}
        offered = {node: named for node, named in offered.items() if node not in by_plugin}
    if isinstance(asks, OfClaims):
        return _by_claims(snapshot, uid, asks, offered, deadline)
    member = member_of(snapshot, uid, asks.membership, asks.request)
    request = asks.request if member is None else member.request
    if request.required and snapshot.blind:
        return PreemptionResult()
    asking = _Asking(snapshot, preemptor(args.pod, request, managed, member), deadline)
    pod = snapshot.waiting.get(uid)
    afterwards = Afterwards(
        snapshot, member, deadline, lambda facts: pod is None or facts.is_open_to(pod)
    )
    kept = {}
    with suppress(OutOfTimeError), deadline.enforced():
        for name, victims in offered.items():
            if deadline.passed():
                break
            ours = asking.on(NodeName(name), victims)
            if ours is None:
                continue
            gone = frozenset(PodUid(pod.uid) for pod in ours.pods or ())
            facts = snapshot.facts(NodeName(name))
            without = asking.yielding(facts.without(gone | facts.pods.ending | {uid}))
            if afterwards.on(without, gone).rejection is None:
                kept[name] = ours
    return PreemptionResult(kept)


def _by_claims(
    snapshot: Snapshot,
    uid: PodUid,
    wanted: OfClaims,
    offered: Mapping[str, MetaVictims],
    deadline: Deadline,
) -> PreemptionResult:
    """The answer to a pod with claims of its own: the nodes on which filter would let it pass then
    with kube-scheduler's victims."""

    def without(name: str, victims: MetaVictims) -> NodeFacts:
        facts = snapshot.facts(NodeName(name))
        gone = frozenset(PodUid(pod.uid) for pod in victims.pods or ())
        return facts.without(gone | facts.pods.ending)

    then = snapshot.with_facts(without(name, victims) for name, victims in offered.items())
    found = ask_by_claims(then, uid, wanted, list(offered), deadline)
    passing = {name for name, decision in found.each() if decision.rejection is None}
    return PreemptionResult({name: offered[name] for name in offered if name in passing})


def preemptor(
    pod: Pod, request: GpuRequest, managed: Iterable[str], member: Member | None = None
) -> Preemptor:
    """The pod as one that asks for evictions."""
    spec = pod.spec
    affinity = spec.affinity or {}
    ports = [port for c in spec.containers or () for port in c.ports or () if port.host_port]
    particular = bool(affinity.get("podAntiAffinity") or spec.topology_spread_constraints or ports)
    return Preemptor(
        PodUid(pod.metadata.uid),
        request,
        spec.priority or 0,
        asks_of(pod, managed),
        particular,
        None if member is None else member.membership.group,
        None if member is None else member.gang,
    )


@dataclass(slots=True)
class _Asking:
    """One call. ``known`` has its answers: nodes that would be in one state share one.

    ``promised`` are the nodes on which others were evicted for a pod of no lower priority that is
    still to come; looked up once.
    """

    snapshot: Snapshot
    pod: Preemptor
    deadline: Deadline
    known: dict[Hashable, bool] = field(default_factory=dict)
    promised: frozenset[str | None] | None = None

    def on(self, name: NodeName, chosen: MetaVictims) -> MetaVictims | None:
        """The victims on a node that was offered with those ``chosen``; None where none would do.

        Whom we know nothing of (a pod without GPUs, evicted for its CPUs) stays a victim.
        """
        facts = self.snapshot.facts(name)
        uids = [PodUid(pod.uid) for pod in chosen.pods or ()]
        ours = [pod for uid in uids if (pod := facts.pods.bound.alive.get(uid)) is not None]
        try:
            # kube-scheduler knows no groups, and may choose the pod's own siblings.
            may_go = not any(map(self.pod.shares_group, ours))
            if may_go and self._passes(facts.without(frozenset(uids)), ours):
                return chosen
            others = self._others(facts, ours)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self.snapshot.parts.faults.note(name, error)
            return chosen if undecided(facts, self.pod.request).rejection is None else None
        if others is None:
            return None
        known = {each.uid for each in ours}
        rest = [uid for uid in uids if uid not in known]
        budgets = self.snapshot.budgets or ()
        by_others = max(0, chosen.violations - violations(sorted(ours, key=importance), budgets))
        pods = [*(victim.uid for victim in others), *rest]
        violated = violations(others, budgets) + (by_others if rest else 0)
        return MetaVictims([MetaPod(uid) for uid in pods], violated)

    def yielding(self, facts: NodeFacts) -> NodeFacts:
        """The facts without a place that is not kept from the pod."""
        return facts.yielding_to(self.pod.priority, self.pod.gang)

    def _others(self, facts: NodeFacts, chosen: list[PodRecord]) -> tuple[PodRecord, ...] | None:
        """Other victims that will do. None are looked for where budgets are not known, nor where
        kube-scheduler has promised the node to a pod that comes first."""
        budgets = self.snapshot.budgets
        if budgets is None or self._is_promised(facts.name):
            return None
        return replaced(
            facts,
            self.pod,
            chosen,
            budgets,
            lambda victims: self._passes(facts, victims),
            self.deadline,
        )

    def _is_promised(self, name: NodeName) -> bool:
        """Whether others were evicted here for a pod of no lower priority that is still to come."""
        if self.promised is None:
            self.promised = frozenset(
                pod.standing.nominated
                for pod in self.snapshot.nominated.values()
                if not (pod.deleting or pod.ended or pod.uid in self.snapshot.in_flight)
                and pod.standing.priority >= self.pod.priority
                and pod.uid != self.pod.uid
            )
        return name in self.promised

    def _passes(self, facts: NodeFacts, victims: Iterable[PodRecord]) -> bool:
        """Whether the node passes once these, and whoever is ending, have let go."""
        without = self.yielding(after(facts, victims, self.pod.uid))
        key = without.key(self.pod.request.resource)
        if key not in self.known:
            rejection = answer(self.snapshot, without, self.pod.request).rejection
            self.known[key] = rejection is None
        return self.known[key]
