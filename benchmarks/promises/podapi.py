"""The API server of a world, as far as the shipping binder and settler ask it about pods."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from scheduler_extender.kube.binder import PODS_PATH
from scheduler_extender.verbs import Binding
from topology.core.devices import NodeName, PodUid
from topology.kubeapi.apiserver import ApiUnreachable, Query, api_error

if TYPE_CHECKING:
    from benchmarks.promises.closed_loop import Entry, World

WRITTEN = 0.8
"""The share of unanswered Bindings that is written after all."""
ETCD = 7.0
"""Seconds for which etcd may go on with what the API server has given up."""


class PodApi:
    """GET of a pod, POST of its Binding, and what may become of an answer.

    A Binding that is not answered raises at once, for a call takes no virtual time; it is written
    later, if ever.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def get(self, path: str, query: Query = (), *, timeout: float) -> bytes:
        """The pod as it is now, or of all pods their version. Raises a 404 where there is none."""
        if path == PODS_PATH:
            return msgspec.json.encode({"metadata": {"resourceVersion": str(self._world.version)}})
        return msgspec.json.encode(self._entry(path).manifest)

    def create(self, path: str, body: bytes, query: Query = (), *, timeout: float) -> bytes:
        """Take a Binding. Raises a 404 or 409 as the API server does, or gives no answer."""
        world, faults = self._world, self._world.faults
        entry, found = self._entry(path), msgspec.json.decode(body)
        meta = found["metadata"]
        placement = next(iter(meta["annotations"].values()))
        node = NodeName(found["target"]["name"])
        binding = Binding(meta["namespace"], meta["name"], PodUid(meta["uid"]), node, placement)
        fate = world.rng.random()
        if fate < faults.late_commits:
            world.tally.late_commits += 1
            if world.rng.random() < WRITTEN:
                limit = dict(query).get("timeout")
                longest = float(limit.removesuffix("s")) + ETCD if limit else faults.limit
                when = world.rng.uniform(0, longest)
                world.after(when, partial(_commit_late, world, entry, binding))
            raise ApiUnreachable("timed out")
        if entry.record.uid != binding.uid or not world.commit(entry, binding):
            raise api_error(409, "Conflict", "pod is already assigned to a node")
        if fate < faults.late_commits + faults.lost_answers:
            raise ApiUnreachable("connection broken")
        return b"{}"

    def patch(self, path: str, body: bytes, *, timeout: float) -> bytes:
        """Nobody is woken in a world: kube-scheduler tries again by itself."""
        raise NotImplementedError(path)

    def _entry(self, path: str) -> Entry:
        name = path.removesuffix("/binding").rpartition("/")[2]
        entry = self._world.named.get(name)
        if entry is None:
            raise api_error(404, "NotFound", f"pods {name} not found")
        return entry


def _commit_late(world: World, entry: Entry, binding: Binding) -> None:
    """Nobody learns what came of it."""
    world.commit(entry, binding)
