"""The emulated API server as the shipping binder and settler call it: over paths and JSON."""

from __future__ import annotations

from functools import partial

import msgspec

from benchmarks.promises.pods import PodEntry
from benchmarks.promises.scene import PodStore, Scene
from scheduler_extender.kube.sinks import PODS_PATH
from scheduler_extender.verbs import Binding
from topology.core.devices import NodeName, PodUid
from topology.kubeapi.apiserver import ApiUnreachable, Query, api_error

WRITTEN = 0.8
"""The share of unanswered Bindings that is written after all."""
ETCD = 7.0
"""Seconds for which etcd may go on with what the API server has given up."""


class PodApi:
    """GET of a pod, POST of its Binding, and what may become of an answer.

    A Binding that is not answered raises at once, for a call takes no virtual time; it is written
    later, if ever.
    """

    def __init__(self, scene: Scene, api: PodStore) -> None:
        self._scene = scene
        self._api = api

    def get(self, path: str, query: Query = (), *, timeout: float) -> bytes:
        """The pod as it is now, or of all pods their version. Raises a 404 where there is none."""
        if path == PODS_PATH:
            return msgspec.json.encode({"metadata": {"resourceVersion": str(self._api.version)}})
        return msgspec.json.encode(self._entry(path).manifest)

    def create(self, path: str, body: bytes, query: Query = (), *, timeout: float) -> bytes:
        """Take a Binding. Raises a 404 or 409 as the API server does, or gives no answer."""
        timeline, faults = self._scene.timeline, self._scene.faults
        entry, found = self._entry(path), msgspec.json.decode(body)
        meta = found["metadata"]
        placement = next(iter(meta["annotations"].values()))
        node = NodeName(found["target"]["name"])
        binding = Binding(meta["namespace"], meta["name"], PodUid(meta["uid"]), node, placement)
        fate = timeline.rng.random()
        if fate < faults.late_commits:
            self._scene.tally.late_commits += 1
            if timeline.rng.random() < WRITTEN:
                limit = dict(query).get("timeout", "")
                longest = float(limit.removesuffix("ms")) / 1000 + ETCD if limit else faults.limit
                when = timeline.rng.uniform(0, longest)
                timeline.after(when, partial(self._commit_late, entry, binding))
            raise ApiUnreachable("timed out")
        if entry.record.uid != binding.uid or not self._api.commit(entry, binding):
            raise api_error(409, "Conflict", "pod is already assigned to a node")
        if fate < faults.late_commits + faults.lost_answers:
            raise ApiUnreachable("connection broken")
        return b"{}"

    def patch(self, path: str, body: bytes, *, timeout: float) -> bytes:
        """Nobody wakes a pod in a closed loop: kube-scheduler tries again by itself."""
        raise NotImplementedError(path)

    def _entry(self, path: str) -> PodEntry:
        name = path.removesuffix("/binding").rpartition("/")[2]
        entry = self._api.find(name)
        if entry is None:
            raise api_error(404, "NotFound", f"pods {name} not found")
        return entry

    def _commit_late(self, entry: PodEntry, binding: Binding) -> None:
        """Write a Binding that nobody waits for any more; nobody learns whether it was taken."""
        self._api.commit(entry, binding)
