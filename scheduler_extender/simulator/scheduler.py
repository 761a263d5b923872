"""The simulated kube-scheduler.

It offers nodes, assumes pods, binds asynchronously, and tries again.

The members of a gang are tried in one cycle. For each of them the extender is called and the pod is
assumed; all are bound only when each has a node. Every other pod has a cycle of its own.
"""

from dataclasses import dataclass, field
from functools import partial

from scheduler_extender.framework.awaited import NO_CLAIM, RECORD_WITHOUT_CLAIMS
from scheduler_extender.simulator.apiserver import ApiServer
from scheduler_extender.simulator.claims import Claims
from scheduler_extender.simulator.extender import Extender
from scheduler_extender.simulator.pods import GPU, PodEntry
from scheduler_extender.simulator.scene import Actor, Scene
from scheduler_extender.simulator.watches import ExtenderWatches
from topology.core.devices import NodeName

LONGEST_BACKOFF = 8.0  # seconds; a longer back-off is not doubled any more
BIND_WAITS = 5.0  # seconds for which the extender's bind waits for news of a claim
LOOKS_EVERY = 0.1  # seconds between two tries of such a bind


@dataclass(frozen=True, slots=True)
class _Assumed:
    """A pod for which the scheduler has chosen a node."""

    entry: PodEntry
    node: str
    on_dra_node: bool = False  # whether the node is one with DRA


@dataclass(slots=True)
class _Cycle:
    """Pods that are bound together or not at all: a gang, or one pod."""

    members: list[PodEntry]
    gang: bool
    backoff: float = 1.0
    assumed: list[_Assumed] = field(default_factory=list)
    refused: list[PodEntry] = field(default_factory=list)

    @property
    def waiting(self) -> list[PodEntry]:
        """The members that have no node, not even by a Binding without an answer."""
        return [e for e in self.members if e.record.node is None and not e.gone]


class KubeScheduler(Actor):
    """A kube-scheduler that tries each pod, or gang, until it is bound or its owner gives up."""

    def __init__(
        self,
        scene: Scene,
        policy: Extender,
        api: ApiServer,
        extender: ExtenderWatches,
        claims: Claims,
    ) -> None:
        super().__init__(scene)
        self._policy = policy
        self._api = api
        self._extender = extender
        self._claims = claims
        self._gangs: dict[str, list[PodEntry]] = {}

    def hear(self, entry: PodEntry) -> None:
        """Take in a new pod. A gang is tried when all its members have come."""
        group, members = entry.job.group, [entry]
        gang = group is not None and group.gang
        if group is not None and gang:
            members = self._gangs.setdefault(group.name, [])
            members.append(entry)
            if len(members) < group.size:
                return
            del self._gangs[group.name]
        self._clock.about(self._delays.watch, lambda: self._try(_Cycle(members, gang)))

    def _try(self, cycle: _Cycle) -> None:
        """Try every waiting member; bind all of them, or none."""
        waiting = cycle.waiting
        for entry in waiting:
            count = entry.request.effective_count
            offered = [*self._capacity.fitting(count), *self._claims.fitting(count)]
            picked = self._policy.pick(entry, offered) if offered else None
            if picked is None or picked.node is None:
                for assumed in cycle.assumed:
                    self._give_back(assumed)
                    if assumed.on_dra_node:
                        self._claims.release(assumed.entry.record.uid)
                self._again(cycle, waiting)
                return
            node = picked.node
            self._capacity.take(node, count)
            on_dra_node = NodeName(node) in self._scene.dra_nodes
            if on_dra_node:
                self._claims.choose(entry, NodeName(node))
            cycle.assumed.append(_Assumed(entry, node, on_dra_node))
        # The scheduler assumes the pods and continues; the binds run asynchronously.
        self._clock.rng.shuffle(cycle.assumed)
        for assumed in cycle.assumed:
            begin = self._nominate if assumed.on_dra_node else self._bind
            self._clock.about(self._delays.bind, partial(begin, assumed, cycle))

    def _give_back(self, assumed: _Assumed) -> None:
        self._capacity.give_back(assumed.node, assumed.entry.request.effective_count)

    def _nominate(self, assumed: _Assumed, cycle: _Cycle) -> None:
        """Write the chosen node to the pod's status, before PreBind."""
        if not (assumed.entry.gone or assumed.entry.ended):
            self._api.say(assumed.entry, nominatedNodeName=assumed.node)
        self._clock.about(self._delays.bind, partial(self._write_claim, assumed, cycle))

    def _write_claim(self, assumed: _Assumed, cycle: _Cycle) -> None:
        """Write the claim with the chosen GPUs, as PreBind does."""
        entry = assumed.entry
        if not (entry.gone or entry.ended):
            self._claims.write(entry)
            mapped = {"requestMappings": [{"resourceName": GPU}]}
            self._api.say(entry, extendedResourceClaimStatus=mapped)
        until = self._clock.now + BIND_WAITS
        self._clock.about(self._delays.bind, partial(self._bind, assumed, cycle, until))

    def _bind(self, assumed: _Assumed, cycle: _Cycle, until: float = 0.0) -> None:
        """Request the bind. Until ``until`` the extender waits for news of a claim."""
        entry, node = assumed.entry, assumed.node
        refusal = None
        if entry.record.node is None and not entry.gone:
            entry.decided = self._clock.now
            entry.stale_for = self._extender.failing_for()
            entry.view = self._extender.reports.get(NodeName(node))
            refusal = self._policy.bind(entry, node)
            if (
                refusal in (NO_CLAIM.message, RECORD_WITHOUT_CLAIMS.message)
                and self._clock.now < until
            ):
                self._clock.after(LOOKS_EVERY, partial(self._bind, assumed, cycle, until))
                return
            self._tally.gang_binds += cycle.gang
            self._tally.claimed += assumed.on_dra_node
            if refusal is not None:
                cycle.refused.append(entry)
                self._tally.gang_refusals += cycle.gang
        elif assumed.on_dra_node and not entry.gone:  # an earlier Binding was written late
            refusal = self._policy.bind(entry, node)
        if refusal is not None and assumed.on_dra_node:
            self._claims.release(entry.record.uid)
            if entry.record.node is None and not entry.gone:
                self._api.say(entry, nominatedNodeName="")
        self._give_back(assumed)
        cycle.assumed.remove(assumed)
        if cycle.refused and not cycle.assumed:
            self._again(cycle, cycle.refused)

    def _again(self, cycle: _Cycle, waiting: list[PodEntry]) -> None:
        """Try again after the back-off, or give up if that is later than the pods' patience."""
        again_at = self._clock.now + cycle.backoff
        if again_at > max(entry.created + entry.job.patience for entry in cycle.members):
            for entry in waiting:
                if entry.record.node is None and not entry.gone:
                    self._api.delete(entry)
            return
        longer = cycle.backoff if cycle.backoff >= LONGEST_BACKOFF else cycle.backoff * 2
        following = _Cycle(cycle.members, cycle.gang, longer)
        self._clock.at(again_at, lambda: self._try(following))
