"""kube-scheduler: offers nodes, assumes pods, binds beside its loop, and tries again."""

from __future__ import annotations

from collections import Counter

from benchmarks.promises.apiserver import ApiServer
from benchmarks.promises.pods import PodEntry
from benchmarks.promises.scene import Scene
from benchmarks.promises.watches import ExtenderWatches
from topology.core.devices import NodeName

LONGEST_BACKOFF = 8.0
"""Seconds; a backoff that is so long is not doubled any more."""


class KubeScheduler:
    """Tries each pod until it is bound or its owner gives up."""

    def __init__(self, scene: Scene, api: ApiServer, extender: ExtenderWatches) -> None:
        self._timeline = scene.timeline
        self._capacity = scene.capacity
        self._policy = scene.policy
        self._delays = scene.delays
        self._tally = scene.tally
        self._api = api
        self._extender = extender

    def hear(self, entry: PodEntry) -> None:
        """The watch will bring a new pod."""
        self._timeline.about(self._delays.watch, lambda: self._schedule(entry, 1.0))

    def _schedule(self, entry: PodEntry, backoff: float) -> None:
        if entry.record.node is not None or entry.gone:
            return  # a Binding that nobody answered was written after all
        count = entry.request.effective_count
        offered = self._capacity.fitting(count)
        if not offered:
            self._retry(entry, backoff, Counter({"too few free GPUs": 1}))
            return
        picked = self._policy.pick(entry.pod, offered)
        node = picked.node
        if node is None:
            reasons = picked.reasons or Counter({"too few free GPUs": 1})
            self._retry(entry, backoff, reasons)
            return
        # The scheduler assumes the pod and goes on; the bind runs beside it.
        self._capacity.take(node, count)
        self._timeline.about(self._delays.bind, lambda: self._bind(entry, node, backoff))

    def _bind(self, entry: PodEntry, node: str, backoff: float) -> None:
        self._capacity.give_back(node, entry.request.effective_count)
        if entry.record.node is not None or entry.gone:
            return
        entry.decided = self._timeline.now
        entry.blind_for = self._extender.failing_for()
        entry.view = self._extender.last_report(NodeName(node))
        refusal = self._policy.bind(entry, node)
        if refusal is not None:
            self._tally.refused_by_bind += 1
            self._retry(entry, backoff, Counter({refusal: 1}))

    def _retry(self, entry: PodEntry, backoff: float, reasons: Counter[str]) -> None:
        """Try again after the backoff, or give up where that is later than the pod's patience."""
        self._tally.reasons.update(dict.fromkeys(reasons, 1))
        again_at = self._timeline.now + backoff
        if again_at > entry.created + entry.job.patience:
            if entry.record.node is None and not entry.gone:
                self._tally.gave_up += 1
                self._api.delete(entry)
            return
        longer = backoff if backoff >= LONGEST_BACKOFF else backoff * 2
        self._timeline.at(again_at, lambda: self._schedule(entry, longer))
