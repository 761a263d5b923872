"""kube-scheduler with gangs in a closed loop.

Members of a gang are tried in one cycle: it asks the policy about each, assumes it, and binds all
of them only when each has a node. Pods of other groups are tried one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

from benchmarks.promises.apiserver import ApiServer
from benchmarks.promises.extender import Extender
from benchmarks.promises.pods import PodEntry
from benchmarks.promises.scene import Scene
from benchmarks.promises.scheduler import LONGEST_BACKOFF, KubeScheduler
from benchmarks.promises.watches import ExtenderWatches
from scheduler_extender.membership import NVLINK_DOMAIN
from topology.core.devices import NodeName, PodUid

NO_ANSWER = "the bind was not written"
"""In the extender's words for a bind that the API server has not answered just now."""


@dataclass(slots=True)
class _Assumed:
    """A member of a gang that the scheduler has found a node for, and all that our answer about it
    depended on: what the nodes of its domain were then, without the gang. ``miscounted``: the
    scheduler took more devices of the node for free than the extender could know."""

    entry: PodEntry
    node: str
    known: Hashable
    miscounted: bool


class GangScheduler(KubeScheduler):
    """kube-scheduler with gangs: see the module."""

    def __init__(self, scene: Scene, api: ApiServer, extender: ExtenderWatches) -> None:
        super().__init__(scene, api, extender)
        self._scene = scene
        self._gangs: dict[str, list[PodEntry]] = {}

    def hear(self, entry: PodEntry) -> None:
        """The watch will bring a new pod; a gang is tried when all of it has come."""
        group = entry.job.group
        if group is None or not group.gang:
            super().hear(entry)
            return
        members = self._gangs.setdefault(group.name, [])
        members.append(entry)
        if len(members) == group.size:
            del self._gangs[group.name]
            self._timeline.about(self._delays.watch, lambda: self._cycle(members, 1.0))

    def _cycle(self, members: list[PodEntry], backoff: float) -> None:
        """Ask about every member that is not bound; bind all of them, or none."""
        waiting = [e for e in members if e.record.node is None and not e.gone]
        assumed: list[_Assumed] = []
        reasons: Counter[str] = Counter()
        for entry in waiting:
            count = entry.request.effective_count
            offered = self._capacity.fitting(count)
            picked = self._policy.pick(entry.pod, offered) if offered else None
            if picked is None or picked.node is None:
                reasons = (picked and picked.reasons) or Counter({"too few free GPUs": 1})
                break
            miscounted = self._miscounts(picked.node, assumed, waiting)
            self._capacity.take(picked.node, count)
            known = self._known(entry, picked.node, members)
            assumed.append(_Assumed(entry, picked.node, known, miscounted))
        if len(assumed) < len(waiting):
            for found in assumed:
                self._capacity.give_back(found.node, found.entry.request.effective_count)
            self._again(members, waiting, backoff, reasons)
            return
        self._timeline.rng.shuffle(assumed)
        refused: list[PodEntry] = []
        left = [len(assumed)]
        for found in assumed:
            bind = partial(self._bind_member, found, members, refused, left, backoff)
            self._timeline.about(self._delays.bind, bind)

    def _bind_member(
        self,
        found: _Assumed,
        members: list[PodEntry],
        refused: list[PodEntry],
        left: list[int],
        backoff: float,
    ) -> None:
        entry, node = found.entry, found.node
        left[0] -= 1
        self._capacity.give_back(node, entry.request.effective_count)
        if entry.record.node is None and not entry.gone:
            entry.decided = self._timeline.now
            entry.blind_for = self._extender.failing_for()
            entry.view = self._extender.last_report(NodeName(node))
            known = self._known(entry, node, members)
            why = self._policy.bind(entry, node)
            self._tally.gang_binds += 1
            if why is not None:
                refused.append(entry)
                self._tally.refused_by_bind += 1
                self._count_refusal(found, known, why)
        if not left[0] and refused:
            self._again(members, refused, backoff, Counter({"a bind was refused": 1}))

    def _count_refusal(self, found: _Assumed, known: Hashable, why: str) -> None:
        """Count a bind that was refused, by what was known when the member passed filter."""
        if found.miscounted:
            reason = "miscounted"
        elif known is not None and known == found.known and NO_ANSWER not in why:
            reason = "known"
            self._tally.broken_jobs.append(f"{found.entry.record.name} on {found.node}: {why}")
        else:
            reason = "changed since"
        self._tally.gang_refusals[reason] += 1

    def _again(
        self,
        members: list[PodEntry],
        waiting: list[PodEntry],
        backoff: float,
        reasons: Counter[str],
    ) -> None:
        """Try those that wait again, or let them give up."""
        self._tally.reasons.update(dict.fromkeys(reasons, 1))
        again_at = self._timeline.now + backoff
        if again_at > max(entry.created + entry.job.patience for entry in members):
            for entry in waiting:
                if entry.record.node is None and not entry.gone:
                    self._tally.gave_up += 1
                    self._api.delete(entry)
            return
        longer = backoff if backoff >= LONGEST_BACKOFF else backoff * 2
        self._timeline.at(again_at, lambda: self._cycle(members, longer))

    def _known(self, entry: PodEntry, node: str, gang: list[PodEntry]) -> Hashable:
        """What the extender knows of the nodes that its answer depends on, without the gang;
        nothing that equals anything else where it has not heard all that the scheduler has."""
        group, policy = entry.job.group, self._policy
        if not isinstance(policy, Extender):
            return None
        nodes = [node]
        if group is not None and group.domain == NVLINK_DOMAIN:
            fabric = self._scene.nodes[NodeName(node)].fabric
            nodes = [n for n, found in self._scene.nodes.items() if found.fabric == fabric]
        names = [NodeName(name) for name in nodes]
        if any(map(self._has_ended, policy.living_on(names))):
            return object()  # the scheduler has news that the extender has not heard
        return policy.known_of(names, frozenset(member.record.uid for member in gang))

    def _has_ended(self, uid: PodUid) -> bool:
        entry = self._api.pods.get(uid)
        return entry is None or entry.ended or entry.gone

    def _miscounts(self, node: str, assumed: list[_Assumed], waiting: list[PodEntry]) -> bool:
        """Whether the scheduler counts more free devices on a node than the extender can know.

        It does where it has heard of a pod's end before the extender, or where a bind had no answer
        and may be written yet. Then it sends more members of a gang to the node than there is room
        for, and the extender, asked about each by itself, cannot see that.
        """
        policy = self._policy
        if not isinstance(policy, Extender):
            return False
        left = policy.counted_free(NodeName(node))
        sent = sum(found.entry.request.count for found in assumed if found.node == node)
        wanted = sum(entry.request.count for entry in waiting)
        return left < wanted and self._capacity.free(node) + sent > left
