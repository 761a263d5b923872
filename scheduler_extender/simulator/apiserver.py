"""The simulated API server: its pods, its watches, and the writes that it accepts."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import msgspec

from scheduler_extender.annotations import PLACEMENT
from scheduler_extender.kube.sinks import PODS_PATH
from scheduler_extender.simulator.claims import Claims
from scheduler_extender.simulator.node import Node, Server
from scheduler_extender.simulator.pods import PodEntry, PublishedReport
from scheduler_extender.simulator.scene import Actor, Scene
from scheduler_extender.simulator.watches import ExtenderWatches, Watches
from scheduler_extender.verbs import Binding
from topology.core.devices import NodeName, PodUid
from topology.emulation import Refused
from topology.kubeapi.apiserver import ApiServer as Client
from topology.kubeapi.apiserver import ApiUnreachable, Query, api_error

DELETED_AFTER = 5.0  # seconds, on average, until a pod that has ended is deleted
WRITTEN = 0.8  # the fraction of unanswered Bindings that is written after all
ETCD = 7.0  # seconds for which etcd may continue what the API server has given up


class ApiServer(Actor, Server):
    """An API server that keeps pods and records and tells watchers of every change."""

    nodes: Mapping[NodeName, Node]

    def __init__(
        self, scene: Scene, watches: Watches, extender: ExtenderWatches, claims: Claims
    ) -> None:
        super().__init__(scene)
        self._watches = watches
        self._extender = extender
        self._claims = claims
        self.named: dict[str, PodEntry] = {}
        self.records: dict[NodeName, PublishedReport] = {}
        self.pods: dict[PodUid, PodEntry] = {}
        self.version = 0

    def create(self, entry: PodEntry) -> None:
        """Create a pod. Watchers hear of it only through :meth:`changed`."""
        self.pods[entry.record.uid] = self.named[entry.record.name] = entry

    def changed(self, entry: PodEntry) -> None:
        """Tell the node's agent and the extender of the pod's present state."""
        record = entry.record
        self._next_version(record.node)

        def tell() -> None:
            if record.node is not None:
                entry.seen = min(entry.seen, self._clock.now)
            self._scene.hearing.cache.put_pod(record)

        self._extender.tell("pods", tell)

    def say(self, entry: PodEntry, **status: object) -> None:
        """Write fields of a pod's status."""
        entry.read({**entry.manifest, "status": {**entry.manifest["status"], **status}})
        self.changed(entry)

    def commit(self, entry: PodEntry, binding: Binding) -> bool:
        """Write a Binding, nodeName and annotations at once.

        Return False if that is impossible now.
        """
        if entry.gone or entry.record.node is not None:
            return False
        placement = {PLACEMENT: binding.placement} if binding.placement else {}
        self.bind(entry, binding.node, placement)
        self._tally.placed += 1
        self._tally.placed_by_kind[entry.kind] += 1
        self._observer.placed(entry, binding, self.records[binding.node].looked)
        return True

    def write_bind(self, entry: PodEntry, node: str) -> None:
        """Bind without any fault.

        The placement annotation says that the constraints are guaranteed.
        """
        placement = json.dumps({"verdict": "guaranteed"})
        meta = entry.pod.metadata
        binding = Binding(meta.namespace, meta.name, entry.record.uid, NodeName(node), placement)
        assert self.commit(entry, binding)

    def bind(self, entry: PodEntry, node: NodeName, annotations: dict[str, str]) -> None:
        """Give the pod a node, and tell all watchers. It is no longer nominated."""
        manifest = dict(entry.manifest)
        manifest["status"] = {**manifest["status"], "nominatedNodeName": ""}
        meta = manifest["metadata"]
        notes = {**meta.get("annotations", {}), **annotations}
        manifest["metadata"] = {**meta, "annotations": notes}
        manifest["spec"] = {**manifest["spec"], "nodeName": node}
        entry.read(manifest)
        entry.bound = self._clock.now
        self._capacity.take(node, entry.request.effective_count)
        self.changed(entry)
        self._observer.bound(entry)
        self._watches.deliver(node, partial(self.nodes[node].bound, entry))
        if self._clock.happens(self._faults.forced):
            mean = 1.0 if self._clock.happens(0.5) else entry.job.runs
            self._clock.about(mean, lambda: self._force_delete(entry))

    def finish(self, entry: PodEntry, phase: str, refusal: Refused | None = None) -> None:
        """End the pod, which is deleted soon after."""
        if entry.ended:
            return
        self._ends(entry)
        entry.record = replace(entry.record, phase=phase)
        self.changed(entry)
        self._clock.about(DELETED_AFTER, lambda: self.delete(entry))

    def delete(self, entry: PodEntry) -> None:
        """Delete a pod; the extender hears of it later."""
        entry.gone = True
        uid = entry.record.uid
        self._claims.release_later(uid)
        del self.pods[uid], self.named[entry.record.name]
        version = self._next_version(entry.record.node, left=True)
        self._extender.tell("pods", lambda: self._scene.hearing.cache.drop_pod(uid, version))

    def _force_delete(self, entry: PodEntry) -> None:
        """Delete a bound pod by force, with a grace period of 0."""
        if entry.ended:
            return
        node = self._ends(entry)
        self._tally.happened["forced"] += 1
        self.delete(entry)
        self._watches.deliver(node, partial(self.nodes[node].force_deleted, entry))

    def _ends(self, entry: PodEntry) -> NodeName:
        entry.ended = True
        self._claims.release_later(entry.record.uid)
        self._capacity.give_back(entry.node, entry.request.effective_count)
        return entry.node

    def _next_version(self, node: NodeName | None, *, left: bool = False) -> int:
        """Return the next resourceVersion, of which the node's agent will hear."""
        self.version += 1
        if node is not None:
            heard = partial(self.nodes[node].hear, str(self.version), left=left)
            self._watches.deliver(f"agent of {node}", heard)
        return self.version

    # The nodes' writes and reads.

    def claimed(self, uid: PodUid) -> tuple[int, ...]:
        """Return the GPUs that a pod's claim has; none if there is no claim."""
        return self._claims.held(uid)

    def devices(self, node: NodeName, *, there: bool) -> None:
        """Tell kube-scheduler whether the node has devices."""
        tell = self._capacity.open if there else self._capacity.close
        self._watches.deliver("kube-scheduler", partial(tell, node))

    def terminating(self, entry: PodEntry) -> None:
        """Delete the pod with a grace period, as its owner."""
        entry.record = replace(entry.record, terminating=True)
        self.changed(entry)

    def publish(self, node: NodeName, published: PublishedReport) -> None:
        """Put another report into the node's record.

        The one before it may come once more, as after a broken watch.
        """
        before = self.records.get(node)
        self.records[node] = published
        self._show(node, published)
        same = before is not None and before.record == published.record
        if before is not None and same and self._clock.happens(self._delays.repeated):
            self._show(node, before)

    def _show(self, node: NodeName, published: PublishedReport) -> None:
        topology = self._scene.nodes[node]
        self._extender.tell("records", lambda: self._extender.show(topology, published))

    def drop_record(self, node: NodeName) -> None:
        """Recreate the node's record.

        The extender may miss the deletion of the old one: then a list shows it the new one.
        """
        if self._clock.happens(0.5):
            self._extender.tell("records", lambda: self._scene.hearing.records.drop_record(node))


class PodApi(Actor, Client):
    """The API server as the shipping binder and settler call it, by paths and JSON.

    An unanswered Binding raises at once, since a call takes no simulated time. It is written later,
    if ever.
    """

    def __init__(self, scene: Scene, api: ApiServer) -> None:
        super().__init__(scene)
        self._api = api

    def get(self, path: str, query: Query = (), *, timeout: float) -> bytes:
        """Return the pod as it is now, or the version of the list of pods.

        Raises a 404 if there is none.
        """
        if path == PODS_PATH:
            return msgspec.json.encode({"metadata": {"resourceVersion": str(self._api.version)}})
        return msgspec.json.encode(self._entry(path).manifest)

    def create(self, path: str, body: bytes, query: Query = (), *, timeout: float) -> bytes:
        """Take a Binding.

        Raises a 404 or 409 as the API server does, or :class:`.ApiUnreachable`.
        """
        clock, faults = self._clock, self._faults
        entry, found = self._entry(path), msgspec.json.decode(body)
        meta = found["metadata"]
        placement = meta.get("annotations", {}).get(PLACEMENT, "")
        node = NodeName(found["target"]["name"])
        binding = Binding(meta["namespace"], meta["name"], PodUid(meta["uid"]), node, placement)
        fate = clock.rng.random()
        if fate < faults.late_commits:
            self._tally.happened["late_commits"] += 1
            if clock.rng.random() < WRITTEN:
                limit = dict(query).get("timeout", "")
                longest = float(limit.removesuffix("ms")) / 1000 + ETCD if limit else faults.limit
                when = clock.rng.uniform(0, longest)
                # No request waits for it any more, and its result is not reported.
                clock.after(when, partial(self._api.commit, entry, binding))
            raise ApiUnreachable("timed out")
        if entry.record.uid != binding.uid or not self._api.commit(entry, binding):
            raise api_error(409, "Conflict", "pod is already assigned to a node")
        if fate < faults.late_commits + faults.lost_answers:
            raise ApiUnreachable("connection broken")
        return b"{}"

    def _entry(self, path: str) -> PodEntry:
        name = path.removesuffix("/binding").rpartition("/")[2]
        entry = self._api.named.get(name)
        if entry is None:
            raise api_error(404, "NotFound", f"pods {name} not found")
        return entry
