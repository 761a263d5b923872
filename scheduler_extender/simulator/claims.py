"""GPUs under Dynamic Resource Allocation (DRA): ResourceSlices of drivers, and ResourceClaims.

A node with DRA has no device plugin. Its driver publishes the GPUs in a random order.
kube-scheduler takes the first free ones for a pod, and a ResourceClaim says which. Until the claim
is written, only kube-scheduler knows its choice.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from scheduler_extender.kube.drasinks import CLAIMS_PATH, CLASSES_PATH, SLICES_PATH
from scheduler_extender.simulator.pods import GPU, PodEntry
from scheduler_extender.simulator.scene import Actor, Scene
from scheduler_extender.simulator.watches import DRA_WATCHES, ExtenderWatches, Watches
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.dra import DRIVER
from topology.core.graph import NodeTopology

REQUEST = "container-0-request-0"
RELEASED_AFTER = 0.5  # seconds, on average, from a pod's end until its claim is deleted

Object = dict[str, Any]

DEVICE_CLASS: Object = {
    "metadata": {"name": DRIVER},
    "spec": {
        "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}],
        "extendedResourceName": GPU,
    },
}


@dataclass(frozen=True, slots=True)
class _Chosen:
    """GPUs that kube-scheduler has chosen for a pod. ``name`` is the name of the pod's claim."""

    node: NodeName
    gpus: tuple[int, ...]
    name: str


class Claims(Actor):
    """Nodes with DRA, with their drivers, their claims, and kube-scheduler's choices."""

    def __init__(self, scene: Scene, watches: Watches, extender: ExtenderWatches) -> None:
        super().__init__(scene)
        self._watches = watches
        self._extender = extender
        self._numbers = count(1)
        self._orders: dict[NodeName, list[int]] = {}  # GPUs as published
        self._tainted: dict[NodeName, frozenset[int]] = {}
        self._chosen: dict[PodUid, _Chosen] = {}
        # By node, the GPUs that are not free, as far as kube-scheduler knows.
        self._taken: dict[NodeName, set[int]] = {name: set() for name in scene.nodes}
        self._objects: dict[str, dict[str, Object]] = {kind: {} for kind in DRA_WATCHES}

    def start(self) -> None:
        """Let every driver publish the GPUs of its node in a random order."""
        if self._scene.dra_nodes:
            self._write(CLASSES_PATH, DEVICE_CLASS)
        for name in sorted(self._scene.dra_nodes):
            gpus = range(len(self._scene.nodes[name].gpus))
            self._orders[name] = self._clock.rng.sample(gpus, len(gpus))
            self._tainted[name] = frozenset()
            self._write_slice(name)

    def listed(self) -> Iterator[tuple[str, list[msgspec.Raw]]]:
        """Yield all objects as they are, collection by collection."""
        for kind, objects in self._objects.items():
            yield kind, [raw(obj) for obj in objects.values()]

    # The drivers.

    def taint(self, node: NodeName, gpus: Iterable[int], *, sick: bool) -> None:
        """Let a driver report GPUs as sick, or as healthy again."""
        if node in self._orders:
            before = self._tainted[node]
            self._tainted[node] = before | {*gpus} if sick else before - {*gpus}
            self._write_slice(node)

    def _write_slice(self, node: NodeName) -> None:
        topology, order, generation = (
            self._scene.nodes[node],
            self._orders[node],
            next(self._numbers),
        )
        self._write(SLICES_PATH, slice_of(topology, order, self._tainted[node], generation))

    # kube-scheduler.

    def fitting(self, gpus: int) -> list[str]:
        """Return the nodes with DRA on which so many GPUs are free."""
        return [node for node in self._orders if len(self._free(node)) >= gpus]

    def choose(self, entry: PodEntry, node: NodeName) -> None:
        """Choose the first free GPUs for a pod."""
        gpus = tuple(self._free(node)[: entry.request.effective_count])
        name = f"{entry.record.name}-extended-resources-{next(self._numbers)}"
        self._chosen[entry.record.uid] = _Chosen(node, gpus, name)
        self._taken[node] |= {*gpus}

    def write(self, entry: PodEntry) -> None:
        """Write a pod's claim, first without devices, then with them."""
        chosen = self._chosen[entry.record.uid]
        claim = claim_of(chosen.name, entry.record, self._scene.nodes[chosen.node], chosen.gpus)
        self._write(CLAIMS_PATH, {**claim, "status": {}})
        self._write(CLAIMS_PATH, claim)

    def release(self, uid: PodUid) -> None:
        """Release what was chosen for a pod, and delete its claim if it is written."""
        chosen = self._chosen.pop(uid, None)
        if chosen is None:
            return

        def free() -> None:
            self._taken[chosen.node] -= {*chosen.gpus}

        if chosen.name in self._objects[CLAIMS_PATH]:
            gone = raw(self._objects[CLAIMS_PATH].pop(chosen.name))
            self._extender.tell(
                CLAIMS_PATH, lambda: self._scene.hearing.records.sinks[CLAIMS_PATH].delete(gone)
            )
            self._watches.deliver("kube-scheduler", free)
        else:
            free()

    def release_later(self, uid: PodUid) -> None:
        """Let the claim of a pod that has ended, or is gone, be deleted soon."""
        if uid in self._chosen:
            self._clock.about(RELEASED_AFTER, lambda: self.release(uid))

    def held(self, uid: PodUid) -> tuple[int, ...]:
        """Return the GPUs that the pod's claim has; none if there is no claim."""
        chosen = self._chosen.get(uid)
        if chosen is None or chosen.name not in self._objects[CLAIMS_PATH]:
            return ()
        return chosen.gpus

    def _free(self, node: NodeName) -> list[int]:
        barred = self._taken[node] | self._tainted[node]
        return [p for p in self._orders[node] if p not in barred]

    # The API server.

    def _write(self, kind: str, obj: Object) -> None:
        self._objects[kind][obj["metadata"]["name"]] = obj
        written = raw(obj)
        self._extender.tell(kind, lambda: self._scene.hearing.records.sinks[kind].apply(written))


def slice_of(
    node: NodeTopology, order: Iterable[int], sick: Container[int] = (), generation: int = 1
) -> Object:
    """Return a node's GPUs in this order, as NVIDIA's driver publishes them."""
    pool = {"name": node.name, "generation": generation, "resourceSliceCount": 1}
    devices: list[Object] = [
        {
            "name": f"gpu-{node.gpus[p].index}",
            "attributes": {"uuid": {"string": node.gpus[p].uuid}},
            "taints": [{"effect": "NoSchedule"}] if p in sick else [],
        }
        for p in order
    ]
    spec = {"driver": DRIVER, "nodeName": node.name, "pool": pool, "devices": devices}
    return {"metadata": {"name": node.name}, "spec": spec}


def claim_of(name: str, pod: PodRecord, node: NodeTopology, gpus: Sequence[int]) -> Object:
    """Return a pod's ResourceClaim with these GPUs of a node."""
    exactly = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": len(gpus)}
    of = {"request": REQUEST, "driver": DRIVER, "pool": node.name}
    results = [{**of, "device": f"gpu-{node.gpus[p].index}"} for p in gpus]
    return {
        "metadata": {"namespace": pod.namespace, "name": name, "uid": name},
        "spec": {"devices": {"requests": [{"name": REQUEST, "exactly": exactly}]}},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": pod.name, "uid": pod.uid}],
        },
    }


def raw(obj: Object) -> msgspec.Raw:
    """Return an object as JSON."""
    return msgspec.Raw(msgspec.json.encode(obj))
