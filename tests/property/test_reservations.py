"""No pod whose bind was allowed takes a reservation: a simulated kubelet shows it.

Pods run on a node, ``unblock`` names victims for one that waits, and the place is reserved. Then
pods of all kinds come and are bound by the real verbs, the kubelet admits them sooner or later,
victims go one by one, others end, reports come late. After each step what may follow is played, a
few times at random: in some order the victims go and pods on their way are admitted, or not. Then
the pod comes for which the place is reserved. It has to be admitted, and to get what it asked for.
The kubelet and NVIDIA's plugin are the emulation's, and what the pod asked for is judged here.
"""

import random
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from itertools import combinations
from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import RESERVED
from scheduler_extender.explain.evictions import eviction_advice
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.reservation import value_of
from scheduler_extender.verbs import BindError, bind, filter_nodes
from scheduler_extender.wire import BindingArgs, Pod
from tests.nodes import container, pod, record_of
from tests.scheduler_extender.binding import Written
from topology.core.devices import Bytes, GpuResource, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.requests import GpuRequest
from topology.emulation.kubelet import EmulatedKubelet
from topology.emulation.topologymanager import Refused
from topology.machines import machine

NODE = NodeName("node")
UNTIL = 2000.0
PLAYED = 3  # how often what may follow is played after each step
GIB = 1 << 30


def shared(name: str) -> NodeTopology:
    """GPUs of 40 GiB in two shares each."""
    found = machine(name).topology(NODE)
    gpus = tuple(replace(gpu, memory=Bytes(40 * GIB)) for gpu in found.gpus)
    served = GpuResource("nvidia.com/gpu", "time-slicing", 2, refuses_several=False)
    return replace(found, gpus=gpus, resources=(served,))


NODES = {
    "bridged": lambda: machine("a100-pcie-4-bridged").topology(NODE),
    "DGX-1V": lambda: machine("dgx1-v100").topology(NODE),
    "NVSwitch": lambda: machine("hgx-h100-8").topology(NODE),
    "shared": lambda: shared("a100-pcie-4-bridged"),
}
# What the pod asks for whose place is reserved.
ASKS: dict[str, list[tuple[int, dict[str, str]]]] = {
    "bridged": [(2, {"link": "nvlink"}), (1, {})],
    "DGX-1V": [
        (4, {"link": "nvlink"}),
        (2, {"link": "nvlink"}),
        (2, {"min-nvlinks": "2"}),
        (3, {"same-numa": "true"}),
        (4, {"same-numa": "true"}),
    ],
    "NVSwitch": [(4, {"link": "nvlink"}), (4, {"same-numa": "true"}), (3, {})],
    "shared": [(1, {"gpu-memory": "30Gi"}), (2, {"spread-gpus": "true"}), (2, {})],
}
COMES: tuple[dict[str, str], ...] = (
    {},
    {},
    {"link": "nvlink"},
    {"link": "nvlink", "policy": "preferred"},
    {"same-numa": "true"},
)


class History:
    """One node, its kubelet, and what the extender hears of both."""

    def __init__(self, kind: str, seed: int) -> None:
        self.rng = random.Random(f"{kind} {seed}")
        self.kind = kind
        self.topology = NODES[kind]()
        self.kubelet = EmulatedKubelet(self.topology, self.rng)
        self.cluster = Cache(lambda: 0.0, Settings(stale_after=None))
        self.cluster.budgets, self.cluster.today = (), lambda: 1000.0
        self.pods: dict[PodUid, PodRecord] = {}  # Those that live, as the API server shows them
        self.coming: list[PodUid] = []  # Bound, and not admitted
        self.wants: PodRecord | None = None
        self.victims: list[PodUid] = []
        self.seen: Counter[str] = Counter()

    # What happens.

    def manifest(self, node: str | None = None) -> dict[str, Any]:
        """A pod of any kind."""
        self.seen["made"] += 1
        uid, rng = f"u{self.seen['made']}", self.rng
        count = rng.choice((1, 1, 2, 2, 3))
        says = dict(rng.choice(COMES))
        if self.kind == "shared":
            says = rng.choice(({}, {"gpu-memory": "10Gi"}, {"gpu-memory": "25Gi"}))
        init = [container("init", rng.choice((1, 2, 3)))] if rng.random() < 0.25 else []
        if rng.random() < 0.2:
            init.append(container("proxy", 1, restartPolicy="Always"))
        return pod(count, says, name=uid, uid=uid, init=init, node=node)

    def begin(self) -> bool:
        """Pods run, one waits, and its place is reserved; False where none of these comes about."""
        free = self.kubelet.free()
        self.rng.shuffle(free)
        keep = self.rng.randrange(1, len(free) // 2 + 1)
        while len(free) > keep:
            self.run([free.pop() for _ in range(min(self.rng.choice((1, 2, 2, 3)), len(free)))])
        self.report()
        count, says = self.rng.choice(ASKS[self.kind])
        waits = pod(count, says, name="wants", uid="wants")
        waits["spec"]["priority"] = 1
        self.cluster.put_pod(record_of(waits))
        found = eviction_advice(self.cluster, "default", "wants")
        if found is None or found.plan is None:
            return False
        self.victims = [PodUid(step.uid) for step in found.plan.steps]
        value = value_of(PodUid("wants"), NODE, UNTIL, self.victims)
        waits["metadata"]["annotations"][RESERVED] = value
        self.wants = record_of(waits)
        self.cluster.put_pod(self.wants)
        found = eviction_advice(self.cluster, "default", "wants")
        kept = found.reservation if found is not None else None
        return kept is not None and not kept.problem

    def run(self, devices: list[tuple[int, int]]) -> None:
        """A pod runs with these devices, scattered as they are."""
        self.seen["made"] += 1
        uid = f"u{self.seen['made']}"
        found = record_of(pod(len(devices), name=uid, uid=uid, node=NODE))
        assert isinstance(found.request, GpuRequest)
        given = {"main": devices}
        self.kubelet.restore(found.uid, found.namespace, found.name, found.request, given)
        self.pods[found.uid] = replace(found, phase="Running", admitted=True, started=1.0)
        self.cluster.put_pod(self.pods[found.uid])

    def come(self) -> None:
        """A pod comes; mostly filter is asked first."""
        manifest = self.manifest()
        found = record_of(manifest)
        self.cluster.put_pod(found)
        if self.rng.random() < 0.7:
            asked = filter_nodes(self.cluster, msgspec.convert(manifest, Pod), [NODE])
            if not asked.node_names:
                words = {**asked.failed, **asked.unresolvable}[NODE]
                self.seen["kept" if "reserved" in words else "refused"] += 1
                return self.cluster.drop_pod(found.uid)
        args = BindingArgs(found.name, found.namespace, found.uid, NODE)
        try:
            bind(self.cluster, Written(), args, lambda: "2026-11-23T10:00:00Z")
        except BindError:
            return self.cluster.drop_pod(found.uid)
        self.seen["bound"] += 1
        found = replace(found, node=NODE)
        self.pods[found.uid] = found
        self.coming.append(found.uid)
        if self.rng.random() < 0.7:
            self.cluster.put_pod(found)
        return None

    def admit(self) -> None:
        """The kubelet takes the next pod, or refuses it."""
        if not self.coming:
            return
        uid = self.coming.pop(self.rng.randrange(len(self.coming)))
        if self._admit(self.kubelet, self.pods[uid]):
            if self.rng.random() < 0.5:
                self.pods[uid] = replace(self.pods[uid], phase="Running", admitted=True)
                self.cluster.put_pod(self.pods[uid])
        else:
            self.cluster.put_pod(replace(self.pods.pop(uid), phase="Failed"))

    def evict(self) -> None:
        """A victim is on its way out, ends, or is gone."""
        left = [uid for uid in self.victims if uid in self.pods]
        if left:
            self._end(self.rng.choice(left))

    def end(self) -> None:
        """Another pod ends."""
        left = [uid for uid in self.pods if uid not in self.victims]
        if left and self._survives:
            self._end(self.rng.choice(left))

    def report(self) -> None:
        self.cluster.put_record(self.topology, self.kubelet.report())

    def step(self) -> None:
        come, admit, report = self.come, self.admit, self.report
        self.rng.choice((come, come, come, come, admit, admit, report, self.evict, self.end))()

    # What may follow.

    def play(self) -> None:
        """In some order the victims, and whoever is ending, go, pods are admitted or not, and
        others end; then the pod comes for which the place is reserved."""
        assert self.wants is not None
        kubelet = deepcopy(self.kubelet, {id(self.topology): self.topology})
        kubelet._rng.seed(self.rng.random())
        going = [uid for uid, found in self.pods.items() if found.terminating]
        going += [uid for uid in self.victims if uid not in going]
        others = [uid for uid in self.pods if uid not in (*self.coming, *going)]
        going += [uid for uid in others if self._survives and self.rng.random() < 0.1]
        events = [(uid, "comes") for uid in self.coming if self.rng.random() < 0.7]
        events += [(uid, "goes") for uid in going]
        self.rng.shuffle(events)
        for uid, what in events:
            if what == "goes":
                kubelet.end(uid)
            else:
                self._admit(kubelet, self.pods[uid])
        for uid in going:
            kubelet.end(uid)
        assert self._admit(kubelet, self.wants), f"refused after {events}"
        assert self.suits(kubelet.held(self.wants.uid), kubelet), events

    def suits(self, got: tuple[int, ...], kubelet: EmulatedKubelet) -> bool:
        """Whether these GPUs are what the pod asked for."""
        assert self.wants is not None
        assert isinstance(self.wants.request, GpuRequest)
        asked, gpus = self.wants.request.constraints, self.topology.gpus
        links = {(link.a, link.b): link.nvlinks for link in self.topology.links}
        least = max(asked.min_nvlinks or 0, int(asked.link is not None))
        if any(links.get(pair, 0) < least for pair in combinations(got, 2)):
            return False
        if asked.spread_gpus and len(got) < self.wants.request.count:
            return False
        if asked.gpu_memory:
            for tenants in kubelet.sharing().values():
                used = [r.constraints.gpu_memory or n * 20 * GIB for _, r, n in tenants]
                if sum(used) > 40 * GIB and any(uid == "wants" for uid, _, _ in tenants):
                    return False
        return not asked.same_numa or len({gpus[p].numa_node for p in got}) == 1

    @property
    def _survives(self) -> bool:
        """Whether others may end: what is promised to a plain pod is that it is admitted now."""
        assert self.wants is not None
        assert isinstance(self.wants.request, GpuRequest)
        return self.wants.request.required

    def _end(self, uid: PodUid) -> None:
        """One step of a pod's end: it is being deleted, its kubelet lets go, it is gone."""
        if not self.pods[uid].terminating:
            self.pods[uid] = replace(self.pods[uid], terminating=True)
            self.cluster.put_pod(self.pods[uid])
        elif self.kubelet.holds(uid):
            self.kubelet.end(uid)
        else:
            del self.pods[uid]
            if uid in self.coming:
                self.coming.remove(uid)
            self.cluster.drop_pod(uid)

    @staticmethod
    def _admit(kubelet: EmulatedKubelet, found: PodRecord) -> bool:
        assert isinstance(found.request, GpuRequest)
        try:
            kubelet.admit(found.uid, found.namespace, found.name, found.request)
        except Refused:
            return False
        return True


@pytest.mark.parametrize("kind", NODES)
def test_no_bound_pod_takes_a_reservation(kind: str) -> None:
    seen = Counter[str]()
    for seed in range(34):
        history = History(kind, seed)
        if not history.begin():
            continue
        for _ in range(8):
            history.step()
            for _ in range(PLAYED):
                history.play()
        seen += history.seen
    assert seen["bound"] > 1, seen
    assert seen["kept"] > 5, seen
