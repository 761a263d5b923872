"""What fails for a while: the extender's watches, and the agents on the nodes."""

from __future__ import annotations

from benchmarks.promises.agents import Agents
from benchmarks.promises.faults import HEARTBEAT
from benchmarks.promises.scene import Scene
from benchmarks.promises.watches import WATCHES, ExtenderWatches
from topology.core.devices import NodeName

BOOKMARKS = 30.0
"""Seconds between two bookmarks of a watch."""


class Outages:
    """Makes watches blind and agents die, until the last job has come."""

    def __init__(
        self, scene: Scene, extender: ExtenderWatches, agents: Agents, until: float
    ) -> None:
        self._timeline = scene.timeline
        self._nodes = list(scene.nodes)
        self._faults = scene.faults
        self._tally = scene.tally
        self._extender = extender
        self._agents = agents
        self._until = until

    def begin(self) -> None:
        """Start what the faults ask for."""
        if self._faults.blind_every:
            self._timeline.about(self._faults.blind_every, self._blindfold)
            self._bookmark()
        if self._faults.dies_every:
            self._timeline.about(self._faults.dies_every, self._kill_agent)
            for name in self._nodes:
                self._heartbeat(name)

    @property
    def _over(self) -> bool:
        return self._timeline.now > self._until

    def _blindfold(self) -> None:
        """One watch or both bring nothing for a while; what happens meanwhile comes at its end."""
        if self._over:
            return
        timeline, faults = self._timeline, self._faults
        self._tally.blindings += 1
        end = timeline.now + timeline.rng.uniform(1.0, faults.blind_for)
        fails = timeline.happens(faults.failing)
        watches = list(WATCHES)
        if not timeline.happens(faults.both):
            watches.remove(timeline.rng.choice(watches))
        for watch in watches:
            self._extender.silence(watch, end, fails=fails)
        timeline.at(end + timeline.drawn(faults.blind_every), self._blindfold)

    def _bookmark(self) -> None:
        for watch in WATCHES:
            self._extender.tell(watch, lambda: None)
        if not self._over:
            self._timeline.after(BOOKMARKS, self._bookmark)

    def _heartbeat(self, node: NodeName) -> None:
        self._agents.look(node)
        if not self._over:
            seconds = HEARTBEAT * self._timeline.rng.uniform(0.8, 1.2)
            self._timeline.after(seconds, lambda: self._heartbeat(node))

    def _kill_agent(self) -> None:
        if self._over:
            return
        node = self._timeline.rng.choice(self._nodes)
        if not self._agents.is_dead(node):
            self._agents.die(node)
            self._timeline.about(self._faults.dead_for, lambda: self._agents.revive(node))
        self._timeline.about(self._faults.dies_every, self._kill_agent)
