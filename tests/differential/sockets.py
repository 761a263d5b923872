"""How much we place on two-socket nodes, beside an oracle.

Four nodes with two sockets, eight GPUs and static CPU and Memory Managers, each driven by
Kubernetes' own managers, take one sequence of pods twice: once where the extender says, and once
where an *oracle* puts them, which lets the real managers of node after node admit the pod and takes
back what does not meet its constraints. Pods without GPUs take CPUs on the way, which neither
foresees. Reports reach the extender late.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random

from scheduler_extender.annotations import PodRequest, parse
from scheduler_extender.files.clusterfile import read_pod
from scheduler_extender.framework.equivalence import ask
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from tests.differential.histories import manifest
from tests.differential.managers import Json, Managers, programs
from tests.differential.nodes import RESOURCE, Node, record
from tests.differential.podentries import reserved_cpus, status_of
from topology import codec
from topology.core.devices import NodeName, PodUid
from topology.core.placement import satisfies
from topology.core.requests import GpuRequest
from topology.core.scoring import normalized_scores

GIB = 1 << 30
NODES = 4
CORES = 16  # of each socket, with two threads each
REPORTED = 0.7  # how likely a node's report comes before the next pod
PATIENCE = 5  # pods that come before a waiting one gives up


def two_sockets(policy: str, scope: str) -> Node:
    """A node with two sockets: four GPUs on each, NVLink between all of one socket."""
    threads = 2 * CORES
    numa = [
        {
            "id": i,
            "socket": i,
            "distances": [10, 21] if i == 0 else [21, 10],
            "memory": 256 * GIB,
            "reservedMemory": GIB,
            "cores": [[i * threads + 2 * c, i * threads + 2 * c + 1] for c in range(CORES)],
        }
        for i in range(2)
    ]
    near = [[a // 4 == b // 4 and a != b for b in range(8)] for a in range(8)]
    return {
        "placing": "one",
        "numa": numa,
        "topologyManager": {"policy": policy, "scope": scope, "options": {}},
        "cpuManager": {"policy": "static", "options": {}, "reserved": "2"},
        "memoryManager": {"policy": "Static"},
        "resource": RESOURCE,
        "gpus": [{"uuid": f"GPU-{p}", "numa": [p // 4]} for p in range(8)],
        "devices": [{"id": f"GPU-{p}", "numa": [p // 4]} for p in range(8)],
        "replicas": 1,
        "plugin": {
            "policy": "best-effort",
            "pcie": [
                [0 if a == b else 40 if near[a][b] else 10 for b in range(8)] for a in range(8)
            ],
            "nvlinks": [[4 * near[a][b] for b in range(8)] for a in range(8)],
        },
    }


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod that comes, and how many later ones it outlives."""

    spec: Json
    stays: int


def arrivals(rng: Random, count: int) -> list[Arrival]:
    """Pods of the class Guaranteed: three in four ask for GPUs, most of these for links."""
    found = []
    for n in range(count):
        limits = {"cpu": str(rng.choice((2, 4, 8))), "memory": f"{rng.choice((4, 16))}Gi"}
        wish: dict[str, str] = {}
        if rng.random() < 0.75:
            gpus = rng.choice((1, 1, 2, 2, 4))
            limits = {
                RESOURCE: str(gpus),
                "cpu": str(gpus * rng.choice((4, 6))),
                "memory": f"{gpus * rng.choice((16, 32))}Gi",
            }
            if gpus > 1:
                wish = rng.choice(({"link": "nvlink"}, {"same-numa": "true"}))
            else:
                wish = {"min-gpu-memory": "40Gi"}
        main = {"name": "main", "limits": limits}
        spec = {"uid": f"pod-{n}", "name": f"pod-{n}", "containers": [main], "wish": wish}
        found.append(Arrival(spec, rng.randint(8, 48)))
    return found


class Fleet:
    """The nodes, each with the real managers, and the pods that run on them."""

    def __init__(self, node: Node, managers: Sequence[Managers]) -> None:
        self.nodes = [deepcopy(node) for _ in managers]
        self._managers = managers
        self.running: dict[str, tuple[int, Arrival, int]] = {}
        for one, described in zip(managers, self.nodes, strict=True):
            one.begin(described)
            described["reservedCpus"] = reserved_cpus(described, one.ask(do="look"))

    def has_memory(self, at: int, spec: Json) -> bool:
        """Whether kube-scheduler would count CPUs, memory and GPUs enough."""
        held = Counter[str]()
        for where, arrival, _ in self.running.values():
            if where == at:
                held.update(_amounts(arrival.spec))
        most = Counter(cpu=4 * CORES - 2, memory=2 * 255, gpus=8)
        return all(held[k] + n <= most[k] for k, n in _amounts(spec).items())

    def admit(self, at: int, arrival: Arrival, now: int) -> Json:
        """What the real managers of one node say to a pod."""
        spec = {k: v for k, v in arrival.spec.items() if k != "wish"}
        answer = self._managers[at].ask(do="admit", pod=spec, ends=[])
        if answer.get("admitted"):
            self.running[arrival.spec["uid"]] = (at, arrival, now)
        return answer

    def end(self, uid: str) -> int:
        """A pod ends; the node it was on."""
        at, _, _ = self.running.pop(uid)
        self._managers[at].ask(do="end", uid=uid)
        return at

    def over(self, now: int) -> list[str]:
        """Pods whose time has come."""
        return [uid for uid, (_, a, begun) in self.running.items() if now - begun > a.stays]

    def look(self, at: int) -> Json:
        """What PodResources shows."""
        return self._managers[at].ask(do="look")


@dataclass(slots=True)
class Outcome:
    """What came of one sequence in one world."""

    placed: int = 0
    required: int = 0
    refused: int = 0
    broken: int = 0


def _amounts(spec: Json) -> dict[str, int]:
    limits = spec["containers"][0]["limits"]
    return {
        "cpu": int(limits["cpu"]),
        "memory": int(limits["memory"].removesuffix("Gi")),
        "gpus": int(limits.get(RESOURCE, 0)),
    }


def _request(spec: Json) -> GpuRequest | None:
    found = parse(read_pod(manifest(spec)))
    return found.request if isinstance(found, PodRequest) else None


def _kept(node: Node, request: GpuRequest, answer: Json) -> bool:
    topology = codec.decode(record(node, {})).topology
    mask = sum(1 << int(d.removeprefix("GPU-")) for ids in answer["devices"].values() for d in ids)
    return satisfies(topology.shape, request.constraints, mask)


def by_oracle(fleet: Fleet, pods: Sequence[Arrival]) -> Outcome:
    """The first node whose real managers give the pod what it requires."""
    found = Outcome()
    waiting: list[tuple[int, Arrival]] = []
    for now, arrival in enumerate(pods):
        for uid in fleet.over(now):
            fleet.end(uid)
        waiting = [(since, pod) for since, pod in waiting if now - since < PATIENCE]
        waiting.append((now, arrival))
        waiting = [(since, pod) for since, pod in waiting if not _tried(fleet, pod, now, found)]
    return found


def _tried(fleet: Fleet, arrival: Arrival, now: int, found: Outcome) -> bool:
    """Whether the oracle has placed a pod."""
    request = _request(arrival.spec)
    for at, node in enumerate(fleet.nodes):
        if not fleet.has_memory(at, arrival.spec):
            continue
        answer = fleet.admit(at, arrival, now)
        if not answer.get("admitted"):
            continue
        if request is None or _kept(node, request, answer):
            found.placed += request is not None
            found.required += request is not None and request.required
            return True
        fleet.end(arrival.spec["uid"])
    return False


class Extender:
    """The extender's own state beside a fleet, fed with what agents would report."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._cluster = Cache(lambda: 0.0, Settings(stale_after=None))
        self._sequence = 0
        self._records: dict[str, PodRecord] = {}
        for at in range(len(fleet.nodes)):
            self.report(at)

    def report(self, at: int) -> None:
        """One agent's next report."""
        self._sequence += 1
        node, shown = self._fleet.nodes[at], self._fleet.look(at)
        written = record(node, status_of(shown, self._sequence, static=True))
        written["metadata"]["name"] = f"node-{at}"
        decoded = codec.decode(written)
        self._cluster.put_record(decoded.topology, decoded.report)

    def choose(self, request: GpuRequest, rooms: Sequence[bool]) -> int | None:
        """The node with the highest score of those that pass."""
        names = [f"node-{at}" for at, room in enumerate(rooms) if room]
        answered = ask(self._cluster.snapshot(), request, names, scores=True)
        ranked = normalized_scores(request, answered.node_scores.values())
        passing = [
            (ranked.get(answered.node_scores[state], 0), name)
            for name, state in zip(names, answered.class_ids, strict=True)
            if state is not None and state in answered.node_scores
        ]
        return int(max(passing)[1].removeprefix("node-")) if passing else None

    def bind(self, at: int, spec: Json, request: GpuRequest) -> None:
        """The pod is bound there."""
        found = PodRecord(
            PodUid(spec["uid"]),
            "default",
            spec["name"],
            NodeName(f"node-{at}"),
            request,
            promised=request.constraints,
        )
        self._records[spec["uid"]] = found
        self._cluster.put_pod(found)

    def gone(self, uid: str) -> None:
        """The pod has ended."""
        if uid in self._records:
            self._cluster.drop_pod(PodUid(uid))


def by_extender(fleet: Fleet, pods: Sequence[Arrival], rng: Random) -> Outcome:
    """Where the extender says; pods without GPUs go where their CPUs have room."""
    extender, found = Extender(fleet), Outcome()
    waiting: list[tuple[int, Arrival]] = []
    for now, arrival in enumerate(pods):
        for uid in fleet.over(now):
            at = fleet.end(uid)
            extender.gone(uid)
            if rng.random() < REPORTED:
                extender.report(at)
        waiting = [(since, pod) for since, pod in waiting if now - since < PATIENCE]
        waiting.append((now, arrival))
        left = []
        for since, pod in waiting:
            chosen = _placed(extender, fleet, pod, now, found)
            if chosen is None:
                left.append((since, pod))
            elif rng.random() < REPORTED:
                extender.report(chosen)
        waiting = left
    return found


def _placed(
    extender: Extender, fleet: Fleet, arrival: Arrival, now: int, found: Outcome
) -> int | None:
    """The node on which a pod was tried; None where it waits."""
    request = _request(arrival.spec)
    rooms = [fleet.has_memory(at, arrival.spec) for at in range(len(fleet.nodes))]
    if request is None:
        for at, room in enumerate(rooms):
            if room and fleet.admit(at, arrival, now).get("admitted"):
                return at
        return None
    chosen = extender.choose(request, rooms)
    if chosen is None:
        return None
    extender.bind(chosen, arrival.spec, request)
    answer = fleet.admit(chosen, arrival, now)
    if not answer.get("admitted"):
        found.refused += 1
        extender.gone(arrival.spec["uid"])
        return chosen
    found.placed += 1
    found.required += request.required
    found.broken += not _kept(fleet.nodes[chosen], request, answer)
    return chosen


@contextlib.contextmanager
def fleet_of(node: Node) -> Iterator[Fleet]:
    """A fleet of such nodes, while the context is open."""
    with contextlib.ExitStack() as stack:
        built = programs()
        managers = [stack.enter_context(Managers(built)) for _ in range(NODES)]
        yield Fleet(node, managers)


def compare(policy: str, scope: str, seed: int, count: int) -> tuple[Outcome, Outcome]:
    """What extender and oracle make of one sequence of pods."""
    node, pods = two_sockets(policy, scope), arrivals(Random(seed), count)
    with fleet_of(node) as fleet:
        ours = by_extender(fleet, pods, Random(seed))
    with fleet_of(node) as fleet:
        best = by_oracle(fleet, pods)
    return ours, best
