"""What the extender is compared with in a closed loop: scores, a simpler rule, and an oracle."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from benchmarks.promises.extender import Extender
from benchmarks.promises.pods import PodEntry, PublishedReport
from benchmarks.promises.scene import Scene
from benchmarks.promises.scheduler import LONGEST_BACKOFF
from scheduler_extender.demo.kubescheduler import Picked
from scheduler_extender.membership import NODE, NVLINK_DOMAIN
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import Pod
from topology.core import scoring
from topology.core.admission import Kubelet, admissions, kubelet_of
from topology.core.availability import Availability
from topology.core.devices import GpuUuid, NodeName, PodUid, base_uuid, subsets
from topology.core.graph import NodeTopology
from topology.core.mig import served_devices
from topology.core.placement import Verdict, assess, satisfies
from topology.core.pools import Pool, count, pack
from topology.core.requests import GpuRequest, Policy


def least_allocated(scene: Scene, names: list[str]) -> dict[str, float]:
    """kube-scheduler's NodeResourcesFit with LeastAllocated, over GPUs: the emptiest node."""
    return {name: -scene.capacity.used_share(name) for name in names}


def most_allocated(scene: Scene, names: list[str]) -> dict[str, float]:
    """kube-scheduler's NodeResourcesFit with MostAllocated, over GPUs: the fullest node."""
    return {name: scene.capacity.used_share(name) for name in names}


class GoodSetFree(Extender):
    """The rule of most topology-aware schedulers: a good set is free, so the node will do.

    It sees what the extender sees, counts binds in flight, and takes no outcome into account.
    """

    def pick(self, pod: Pod, offered: list[str]) -> Picked:
        """Nodes on which a satisfying set is free; the fullest first."""
        request = self._api.pods[PodUid(pod.metadata.uid)].request
        good = [name for name in offered if self._good(name, request)]
        if not good:
            return Picked(None, Counter({"no good set is free": len(offered)}))
        share = self._scene.capacity.used_share
        fullest = max(share(name) for name in good)
        return Picked(self._rng.choice([n for n in good if share(n) == fullest]), Counter())

    def bind(self, entry: PodEntry, node: str) -> str | None:
        """Bind where a good set is free still."""
        if not self._good(node, entry.request):
            return "no good set is free"
        self._api.write_bind(entry, node, "good set free")
        return None

    def _good(self, name: str, request: GpuRequest) -> bool:
        node = NodeName(name)
        now = self.availability(node)
        if now is None or now.devices_left < request.effective_count:
            return False
        if not request.required:
            return True
        shape = self._scene.nodes[node].shape
        sets = subsets(now.free, request.count)
        return any(satisfies(shape, request.constraints, s) for s in sets)


class Oracle(Extender):
    """Knows what every node holds at this very moment, and binds by the same outcome rules.

    Run it in a closed loop without delays: there is nothing that it could be wrong about.
    """

    def pick(self, pod: Pod, offered: list[str]) -> Picked:
        """Nodes whose every outcome satisfies the pod, for least damage."""
        request = self._api.pods[PodUid(pod.metadata.uid)].request
        return self.best_of(offered, request)

    def best_of(self, names: Iterable[str], request: GpuRequest) -> Picked:
        """The best of these nodes; ties are broken at random."""
        found = ((name, self.merit(NodeName(name), request)) for name in names)
        merits = {name: merit for name, merit in found if merit is not None}
        if not merits:
            return Picked(None, Counter({"no node can keep it": 1}))
        scores = scoring.scores(request, merits.values())
        best = max(scores.values())
        chosen = self._rng.choice([n for n, m in merits.items() if scores[m] == best])
        return Picked(chosen, Counter())

    def merit(self, name: NodeName, request: GpuRequest) -> scoring.Merit | None:
        """What a node is worth to a pod; None where it does not fit or may not keep its promise."""
        topology, (kubelet, free) = self._scene.nodes[name], self.standing(name)
        now = Availability(free, width=kubelet.width)
        assessed = assess(kubelet, now, request)
        kept = assessed.verdict.holds or not request.required
        if not (assessed.fits and kept and self._memory_suffices(topology, kubelet, free, request)):
            return None
        return scoring.merit(kubelet, now, request, assessed, scoring.PRIOR)

    def standing(self, name: NodeName) -> tuple[Kubelet, Pool]:
        """How a node hands out devices, and which of them nobody holds at this moment."""
        topology = self._scene.nodes[name]
        served = topology.resources[0]
        kubelet = kubelet_of(topology, served)
        position_of = served_devices(topology, served).position_of
        free = self._scene.kubelets[name].free_ids()
        places = Counter(position_of[base_uuid(device)] for device in free)
        return kubelet, pack((places[p] for p in range(kubelet.shape.size)), kubelet.width)

    def _memory_suffices(
        self, topology: NodeTopology, kubelet: Kubelet, free: Pool, request: GpuRequest
    ) -> bool:
        """Whether the pods on every GPU that may come use no more memory than it has."""
        if kubelet.replicas == 1:
            return True
        position_of = served_devices(topology, topology.resources[0]).position_of
        replicas, memory = kubelet.replicas, kubelet.shape.memory
        used = [0] * kubelet.shape.size
        for unit, pods in self._scene.kubelets[topology.name].sharing().items():
            p = position_of[GpuUuid(unit)]
            for _, other, devices in pods:
                declared = other.constraints.gpu_memory
                used[p] += declared * replicas if declared else devices * memory[p]
        sets = admissions(kubelet, free, request.counts).sets
        declared = request.constraints.gpu_memory
        return sets is not None and all(
            used[p] + (declared * replicas if declared else devices * memory[p])
            <= memory[p] * replicas
            for pool in sets
            for p in range(kubelet.shape.size)
            if (devices := count(pool, p, kubelet.width))
        )

    def put_pod(self, record: PodRecord) -> None:
        """It knows all pods at every moment."""

    def drop_pod(self, uid: PodUid, version: int) -> None:
        """It knows that."""

    def put_report(self, topology: NodeTopology, published: PublishedReport) -> None:
        """It asks the kubelets themselves."""

    def bind(self, entry: PodEntry, node: str) -> str | None:
        """Nothing can have changed."""
        self._api.write_bind(entry, node, Verdict.GUARANTEED.value)
        return None


# Seconds for which a place is kept: a member that waits is tried again within the backoff.
KEPT_FOR = LONGEST_BACKOFF + 2


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
    """The oracle for groups and gangs: it knows every member of a group beforehand, too.

    It keeps to the rules by which the extender promises: a member is bound only where every outcome
    keeps what it requires, members of one group share a domain, and a group begins only where all
    of it surely fits. Beyond what the extender knows, it knows

    * what every kubelet holds at this very moment;
    * where the siblings of a gang's member go, for it has sent them there itself;
    * which members of a group come later, and no pod takes a place that it keeps for one of them.

    Ties between sets of GPUs fall at random in the allocator; the oracle does not foresee these.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._groups: defaultdict[str, _Group] = defaultdict(_Group)
        self._waiting: dict[str, _Group] = {}
        self._sent: dict[str, tuple[float, list[NodeName]]] = {}

    def pick(self, pod: Pod, offered: list[str]) -> Picked:
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
        return Picked(plan[0], Counter())

    def bind(self, entry: PodEntry, node: str) -> str | None:
        """Nothing can have changed."""
        if entry.job.group is not None:
            self._groups[entry.job.group.name].bound.append(entry)
        return super().bind(entry, node)

    def _sibling(self, entry: PodEntry, offered: list[str]) -> Picked:
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
        return Picked(nodes[0], Counter())

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
        for name, many in places.items():
            if many:
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

    def _alone(self, offered: list[str], request: GpuRequest) -> Picked:
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
    def _nowhere() -> Picked:
        return Picked(None, Counter({"no node or domain can hold it": 1}))
