"""The oracle for groups and gangs: it knows every node and every member of a group beforehand.

It keeps to the rules by which the extender promises: a member is bound only where every outcome
keeps what it requires, members of one group share a domain, and a group begins only where all of
it surely fits. Beyond what the extender knows, it knows

* what every kubelet holds at this very moment;
* where the siblings of a gang's member go, for it has sent them there itself;
* which members of a group come later, and no pod takes a place that it keeps for one of them.

Ties between sets of GPUs fall at random in the allocator, and the oracle does not foresee these.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from benchmarks.promises.pods import PodEntry
from benchmarks.promises.rivals import Oracle
from benchmarks.promises.scene import Pick
from benchmarks.promises.scheduler import LONGEST_BACKOFF
from scheduler_extender.membership import NODE, NVLINK_DOMAIN
from scheduler_extender.wire import Pod
from topology.core import scoring
from topology.core.admission import Kubelet, admissions
from topology.core.availability import Availability
from topology.core.devices import NodeName, PodUid
from topology.core.placement import assess
from topology.core.pools import Pool
from topology.core.requests import GpuRequest, Policy

KEPT_FOR = LONGEST_BACKOFF + 2
"""Seconds for which a place is kept: a member that waits is tried again within the backoff."""


@lru_cache(maxsize=1 << 16)
def sure_members(kubelet: Kubelet, free: Pool, request: GpuRequest) -> int:
    """How many pods with this request a node surely takes, one after the other.

    Each keeps what it requires, whichever devices those before it got. For nodes that do not share
    GPUs: memory is not looked at.
    """
    assessed = assess(kubelet, Availability(free, width=kubelet.width), request)
    if not assessed.fits or (request.required and not assessed.verdict.holds):
        return 0
    sets = admissions(kubelet, free, request.counts).sets
    if not sets:
        return 1
    return 1 + min(sure_members(kubelet, free - taken, request) for taken in sets)


@dataclass(slots=True)
class _Group:
    """What has come of a group, and the ``places`` that are kept for those that are to come."""

    bound: list[PodEntry] = field(default_factory=list)
    request: GpuRequest | None = None
    places: Counter[NodeName] = field(default_factory=Counter)
    until: float = 0.0

    def living_on(self) -> set[NodeName]:
        """The nodes of members that run and are not about to end."""
        alive = (e for e in self.bound if not (e.ended or e.gone or e.record.deleting))
        return {e.record.node for e in alive if e.record.node is not None}


class GroupOracle(Oracle):
    """See the module. Run it in a closed loop without delays."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._groups: defaultdict[str, _Group] = defaultdict(_Group)
        self._waiting: dict[str, _Group] = {}
        self._sent: dict[str, tuple[float, list[NodeName]]] = {}

    def pick(self, pod: Pod, offered: list[str]) -> Pick:
        """The node for a pod; a member's place is part of a plan for all that are to come."""
        entry = self._api.pods[PodUid(pod.metadata.uid)]
        group, request = entry.job.group, entry.request
        if group is None:
            return self._alone(offered, request)
        if not (group.gang or group.domain):
            return self._alone(offered, request)
        if group.gang:
            return self._sibling(entry, offered)
        found = self._groups[group.name]
        wanted = group.size - len(found.bound)
        plan = self._plan(entry, offered, wanted) or self._plan(entry, offered, 1)
        starts = len(plan) < wanted and not found.living_on()
        if not plan or starts:
            self._waiting.pop(group.name, None)
            wish = request.policy is Policy.PREFERRED
            return self._alone(offered, request) if wish else self._nowhere()
        found.request, found.places = request, Counter(plan[1:])
        found.until = self._scene.timeline.now + KEPT_FOR
        self._waiting[group.name] = found
        return Pick(plan[0], Counter())

    def bind(self, entry: PodEntry, node: str) -> str | None:
        """Nothing can have changed."""
        if entry.job.group is not None:
            self._groups[entry.job.group.name].bound.append(entry)
        return super().bind(entry, node)

    def _sibling(self, entry: PodEntry, offered: list[str]) -> Pick:
        """A gang is planned when its first member is asked about; the others come at once."""
        group, now = entry.job.group, self._scene.timeline.now
        assert group is not None
        when, nodes = self._sent.pop(group.name, (now, []))
        if when != now or not nodes:
            nodes = self._plan(entry, offered, group.size - len(self._groups[group.name].bound))
        if not nodes:
            return self._nowhere()
        if len(nodes) > 1:
            self._sent[group.name] = now, nodes[1:]
        return Pick(nodes[0], Counter())

    def _plan(self, entry: PodEntry, offered: list[str], members: int) -> list[NodeName]:
        """A node for each of so many members, in the domain that is left with fewest places.

        Empty where no domain can hold them all.
        """
        request, group = entry.request, entry.job.group
        assert group is not None
        places = {
            name: sure_members(*self.standing(name), request)
            for name in map(NodeName, offered)
            if not self._kept_on(name, group.name)
        }
        best: tuple[int, list[NodeName]] | None = None
        for nodes in self._domains(entry, places):
            there = sum(places[name] for name in nodes)
            if there >= members and (best is None or there < best[0]):
                best = there, nodes
        if best is None:
            return []
        in_order = self._best_first(best[1], request)
        return [name for name in in_order for _ in range(places[name])][:members]

    def _domains(self, entry: PodEntry, places: dict[NodeName, int]) -> Iterator[list[NodeName]]:
        """Nodes with places, domain by domain; the domain of living members alone, if any live."""
        group = entry.job.group
        assert group is not None
        by_domain: defaultdict[Hashable, list[NodeName]] = defaultdict(list)
        for name, count in places.items():
            if count:
                by_domain[self._domain(group.domain, name)].append(name)
        by_domain.pop(None, None)
        chosen = {self._domain(group.domain, n) for n in self._groups[group.name].living_on()}
        for domain, nodes in by_domain.items():
            if not chosen or domain in chosen:
                yield nodes

    def _domain(self, kind: str, name: NodeName) -> Hashable:
        if kind == NODE:
            return name
        if kind == NVLINK_DOMAIN:
            return self._scene.nodes[name].fabric
        return "any"

    def _best_first(self, nodes: list[NodeName], request: GpuRequest) -> list[NodeName]:
        found = ((name, self.merit(name, request)) for name in nodes)
        merits = {name: merit for name, merit in found if merit is not None}
        scores = scoring.scores(request, merits.values())
        return sorted(merits, key=lambda name: (self._rack_room(name), -scores[merits[name]]))

    def _rack_room(self, name: NodeName) -> int:
        """How much of a rack a pod would break into here: none, or the free GPUs of all its nodes.

        Who needs no rack goes elsewhere first, then to the fullest one, so that racks stay whole.
        """
        fabric = self._scene.nodes[name].fabric
        if fabric is None:
            return 0
        rack = (n for n, node in self._scene.nodes.items() if node.fabric == fabric)
        return 1 + sum(len(self._scene.kubelets[n].free_ids()) for n in rack)

    def _alone(self, offered: list[str], request: GpuRequest) -> Pick:
        """A pod that has no plan goes where it takes no place that is kept."""
        open_to: defaultdict[int, list[NodeName]] = defaultdict(list)
        for name in map(NodeName, offered):
            if self._leaves_places(name, request):
                open_to[self._rack_room(name)].append(name)
        for room in sorted(open_to):
            found = self.best_of(open_to[room], request)
            if found.node is not None:
                return found
        return self._nowhere()

    def _leaves_places(self, name: NodeName, request: GpuRequest) -> bool:
        """Whether the members that a node is kept for fit there beside a pod, whatever it gets."""
        kept = self._kept_on(name)
        if not kept:
            return True
        kubelet, free = self.standing(name)
        sets = admissions(kubelet, free, request.counts).sets
        return bool(sets) and all(
            sure_members(kubelet, free - taken, member) >= places
            for taken in sets or ()
            for member, places in kept
        )

    def _kept_on(self, name: NodeName, but: str = "") -> list[tuple[GpuRequest, int]]:
        """What members a node is kept for, and how many; those of one group not counted."""
        now = self._scene.timeline.now
        for group in [g for g, found in self._waiting.items() if found.until < now]:
            del self._waiting[group]
        return [
            (found.request, found.places[name])
            for group, found in self._waiting.items()
            if found.places[name] and group != but and found.request
        ]

    @staticmethod
    def _nowhere() -> Pick:
        return Pick(None, Counter({"no node or domain can hold it": 1}))
