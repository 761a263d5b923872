"""The real extender in a simulated cluster.

All calls of the simulated cluster to the extender go through here: to its verbs over its cluster,
its binder and its settler. The binder talks to the simulated API server through
:class:`~scheduler_extender.simulator.apiserver.PodApi`.
"""

import random
from collections.abc import Mapping

from scheduler_extender.kube.binder import KubeBinder, Settler
from scheduler_extender.kube.dra import DraNodes
from scheduler_extender.simulator.apiserver import ApiServer, PodApi
from scheduler_extender.simulator.asking import InProcess, Picked, Verbs, pick
from scheduler_extender.simulator.faults import STALE_AFTER
from scheduler_extender.simulator.pods import PodEntry
from scheduler_extender.simulator.scene import Hearing, Scene
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.freshness import Watch
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import amounts_of

ROUND = 1.0  # seconds between two rounds of the settler


class Extender:
    """The shipping verbs over the shipping cluster."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.faults: list[str] = []

    def start(self, scene: Scene, api: ApiServer) -> None:
        """Begin a run."""
        self._scene = scene
        self._api = api
        self.restart()

    def restart(self) -> None:
        """Forget everything, as a killed extender does."""
        clock, faults = self._scene.clock, self._scene.faults
        settings = Settings(stale_after=STALE_AFTER if faults.dies_every else None)
        self.cluster = cache = Cache(lambda: clock.now, settings, self._watches)
        cache.faults.on_fault(lambda node, error: self.faults.append(f"{node}: {error!r}"))
        cache.on_misprediction.append(self._scene.observer.mispredicted)
        self._scene.hearing = Hearing(cache, DraNodes(cache))
        for name, node in self._scene.nodes.items():
            given = 0 if name in self._scene.dra_nodes else self._scene.capacity.there(name)
            told = NodeObject(allocatable=amounts_of({node.resources[0].name: given}))
            cache.put_node(name, told)
        self.binder = KubeBinder(PodApi(self._scene, self._api), cache)
        self.verbs: Verbs = InProcess(cache, self.binder)
        self._settler = Settler(cache, self.binder, clock=lambda: clock.now)
        self._in_rounds = False

    def pick(self, entry: PodEntry, offered: list[str]) -> Picked:
        """Call filter, then prioritize; see :meth:`choose`."""
        return pick(self.verbs, entry.pod, offered, self.choose)

    def choose(self, scores: Mapping[str, float]) -> str:
        """Return one of the nodes with the best score, at random, as kube-scheduler does."""
        best = max(scores.values())
        return self._rng.choice([name for name, score in scores.items() if score == best])

    def bind(self, entry: PodEntry, node: str) -> str | None:
        """Call bind, which decides anew, and return why it is rejected; None if it is not."""
        before = self.cluster.tallies.vetoes
        rejection = self.verbs.bind(entry.pod.metadata, node)
        self._scene.tally.vetoes += self.cluster.tallies.vetoes - before
        if not self._in_rounds:
            self._in_rounds = True
            self._round(self._settler)
        return rejection

    def _watches(self) -> list[Watch]:
        now = self._scene.hearing
        return [Watch(name, at, now.failing.get(name)) for name, at in now.heard.items()]

    def _round(self, settler: Settler) -> None:
        """Run the settler's rounds as long as a bind is assumed."""
        if settler is not self._settler:
            return  # the extender of this settler was killed
        settler.round(self._scene.clock.now)
        self._in_rounds = bool(self.cluster.snapshot().assumed)
        if self._in_rounds:
            self._scene.clock.after(ROUND, lambda: self._round(settler))
