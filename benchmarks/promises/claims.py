"""GPUs under Dynamic Resource Allocation (DRA): what drivers publish, and what claims hold.

A node with DRA has no device plugin. Its driver publishes the GPUs in a random order,
kube-scheduler takes the first free ones for a pod, and a ResourceClaim says which. From
kube-scheduler's choice until the claim is written nobody else knows of it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from benchmarks.promises.pods import GPU, PodEntry
from benchmarks.promises.scene import Actor, Scene
from benchmarks.promises.watches import DRA_WATCHES, ExtenderWatches, Watches
from topology.core.devices import Gpu, NodeName, PodUid

DRIVER = "gpu.nvidia.com"
REQUEST = "container-0-request-0"
CLASSES, SLICES, CLAIMS = DRA_WATCHES
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
    """GPUs that kube-scheduler has chosen for a pod; ``name`` is that of the pod's claim."""

    node: NodeName
    gpus: tuple[int, ...]
    name: str


class Claims(Actor):
    """Nodes with DRA: their drivers, their claims, and what kube-scheduler has chosen there."""

    def __init__(self, scene: Scene, watches: Watches, extender: ExtenderWatches) -> None:
        super().__init__(scene)
        self._watches = watches
        self._extender = extender
        self._numbers = count(1)
        self._orders: dict[NodeName, list[int]] = {}  # GPUs as published
        self._tainted: dict[NodeName, frozenset[int]] = {}
        self._chosen: dict[PodUid, _Chosen] = {}
        # By node, the GPUs that are not free, as far as kube-scheduler has heard.
        self._taken: dict[NodeName, set[int]] = {name: set() for name in scene.nodes}
        self._objects: dict[str, dict[str, Object]] = {kind: {} for kind in DRA_WATCHES}

    def start(self) -> None:
        """Every driver publishes its node."""
        if self._scene.by_dra:
            self._write(CLASSES, DEVICE_CLASS)
        for name in sorted(self._scene.by_dra):
            self.publish(name)

    def listed(self) -> Iterator[tuple[str, list[msgspec.Raw]]]:
        """All objects as they are, collection by collection."""
        for kind, objects in self._objects.items():
            yield kind, [_raw(obj) for obj in objects.values()]

    # What drivers do.

    def publish(self, node: NodeName) -> None:
        """A driver starts, and publishes the GPUs in a random order."""
        gpus = range(len(self._scene.nodes[node].gpus))
        self._orders[node] = self._timeline.rng.sample(gpus, len(gpus))
        self._tainted[node] = frozenset()
        self._write_slice(node)

    def withdraw(self, node: NodeName) -> None:
        """A driver is taken away, and its ResourceSlice."""
        del self._orders[node]
        self._delete(SLICES, node)

    def taint(self, node: NodeName, gpus: Iterable[int], *, sick: bool) -> None:
        """A driver calls GPUs sick, or healthy again."""
        if node in self._orders:
            before = self._tainted[node]
            self._tainted[node] = before | {*gpus} if sick else before - {*gpus}
            self._write_slice(node)

    def _write_slice(self, node: NodeName) -> None:
        gpus, tainted = self._scene.nodes[node].gpus, self._tainted[node]
        pool = {"name": node, "generation": next(self._numbers), "resourceSliceCount": 1}
        devices = [device(gpus[p], sick=p in tainted) for p in self._orders[node]]
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
        self._write(SLICES, {"metadata": {"name": node}, "spec": spec})

    # What kube-scheduler does.

    def fitting(self, gpus: int) -> list[str]:
        """The nodes with DRA on which so many GPUs are free."""
        nodes = (node for node in self._orders if not self._capacity.is_cordoned(node))
        return [node for node in nodes if len(self._free(node)) >= gpus]

    def choose(self, entry: PodEntry, node: NodeName) -> None:
        """Choose the first free GPUs for a pod."""
        gpus = tuple(self._free(node)[: entry.request.effective_count])
        name = f"{entry.record.name}-extended-resources-{next(self._numbers)}"
        self._chosen[entry.record.uid] = _Chosen(node, gpus, name)
        self._taken[node] |= {*gpus}

    def write(self, entry: PodEntry) -> None:
        """Write a pod's claim: what it asks for, then what it has."""
        chosen = self._chosen[entry.record.uid]
        asked = {"deviceClassName": DRIVER, "allocationMode": "ExactCount"}
        request = {"name": REQUEST, "exactly": {**asked, "count": len(chosen.gpus)}}
        names = {"namespace": entry.record.namespace, "name": chosen.name, "uid": chosen.name}
        claim: Object = {"metadata": names, "spec": {"devices": {"requests": [request]}}}
        self._write(CLAIMS, claim)
        of = {"request": REQUEST, "driver": DRIVER, "pool": chosen.node}
        gpus = self._scene.nodes[chosen.node].gpus
        results = [{**of, "device": _name(gpus[p])} for p in chosen.gpus]
        pod = {"resource": "pods", "name": entry.record.name, "uid": entry.record.uid}
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": [pod]}
        self._write(CLAIMS, {**claim, "status": status})

    def release(self, uid: PodUid) -> None:
        """Give up what was chosen for a pod, and delete its claim where it is written."""
        chosen = self._chosen.pop(uid, None)
        if chosen is None:
            return

        def free() -> None:
            self._taken[chosen.node] -= {*chosen.gpus}

        if chosen.name in self._objects[CLAIMS]:
            self._delete(CLAIMS, chosen.name)
            self._watches.deliver("kube-scheduler", free)
        else:
            free()

    def release_later(self, uid: PodUid) -> None:
        """A pod has ended, or is gone: its claim will be deleted."""
        if uid in self._chosen:
            self._timeline.about(RELEASED_AFTER, lambda: self.release(uid))

    def held(self, uid: PodUid) -> tuple[int, ...]:
        """The GPUs that the pod's claim has; none where there is no claim."""
        chosen = self._chosen.get(uid)
        if chosen is None or chosen.name not in self._objects[CLAIMS]:
            return ()
        return chosen.gpus

    def _free(self, node: NodeName) -> list[int]:
        barred = self._taken[node] | self._tainted[node]
        return [p for p in self._orders[node] if p not in barred]

    # What the API server keeps.

    def _write(self, kind: str, obj: Object) -> None:
        self._objects[kind][obj["metadata"]["name"]] = obj
        raw = _raw(obj)
        self._extender.tell(kind, lambda: self._scene.policy.put_object(kind, raw))

    def _delete(self, kind: str, name: str) -> None:
        raw = _raw(self._objects[kind].pop(name))
        self._extender.tell(kind, lambda: self._scene.policy.drop_object(kind, raw))


def device(gpu: Gpu, *, sick: bool) -> Object:
    """A GPU as NVIDIA's driver publishes it."""
    device: Object = {"name": _name(gpu), "attributes": {"uuid": {"string": gpu.uuid}}}
    return device | {"taints": [{"effect": "NoSchedule"}]} if sick else device


def _name(gpu: Gpu) -> str:
    return f"gpu-{gpu.index}"


def _raw(obj: Object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(obj))
