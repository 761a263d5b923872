"""Outages of the extender's watches, of agents, kubelets and GPUs."""

from scheduler_extender.simulator.cluster import PlayedCluster
from scheduler_extender.simulator.node import Node
from scheduler_extender.simulator.scene import Actor
from scheduler_extender.simulator.watches import WATCHES

HEARTBEAT = 60.0  # seconds between two reports of an agent without news

BOOKMARKS = 30.0  # seconds between two bookmarks of a watch


class Outages(Actor):
    """The actor that causes the configured outages until the last job has arrived."""

    def __init__(self, cluster: PlayedCluster, until: float) -> None:
        super().__init__(cluster.scene)
        self._nodes = list(cluster.nodes.values())
        self._extender = cluster.extender
        self._claims = cluster.claims
        self._sick = dict.fromkeys(cluster.nodes, 0)
        self._until = until

    def begin(self) -> None:
        """Start the outages that the faults configure."""
        if self._faults.stale_every:
            self._clock.about(self._faults.stale_every, self._silence_watches)
            self._bookmark()
        if self._faults.dies_every:
            self._clock.about(self._faults.dies_every, self._kill_agent)
            for node in self._nodes:
                self._heartbeat(node)
        if self._faults.kubelets_restart:
            self._clock.about(self._faults.kubelets_restart, self._end_kubelet)
        if self._faults.gpus_sicken:
            self._clock.about(self._faults.gpus_sicken, self._sicken)

    @property
    def _over(self) -> bool:
        return self._clock.now > self._until

    def _silence_watches(self) -> None:
        """Silence one watch or all for a while. Their events are delivered at the end."""
        if self._over:
            return
        clock, faults = self._clock, self._faults
        self._tally.happened["silent watches"] += 1
        end = clock.now + clock.rng.uniform(1.0, faults.stale_for)
        fails = clock.happens(faults.failing)
        watches = list(self._extender.names)
        if not clock.happens(faults.both):
            while len(watches) > 1:
                watches.remove(clock.rng.choice(watches))
        for watch in watches:
            self._extender.silence(watch, end, fails=fails)
        clock.at(end + clock.drawn(faults.stale_every), self._silence_watches)

    def _bookmark(self) -> None:
        for watch in WATCHES:
            self._extender.tell(watch, lambda: None)
        if not self._over:
            self._clock.after(BOOKMARKS, self._bookmark)

    def _heartbeat(self, node: Node) -> None:
        node.look()
        if not self._over:
            seconds = HEARTBEAT * self._clock.rng.uniform(0.8, 1.2)
            self._clock.after(seconds, lambda: self._heartbeat(node))

    def _kill_agent(self) -> None:
        if self._over:
            return
        node = self._clock.rng.choice(self._nodes)
        if not node.dead:
            node.die()
            self._clock.about(self._faults.dead_for, node.revive)
        self._clock.about(self._faults.dies_every, self._kill_agent)

    def _end_kubelet(self) -> None:
        if self._over:
            return
        self._clock.rng.choice(self._nodes).end()
        self._clock.about(self._faults.kubelets_restart, self._end_kubelet)

    def _sicken(self) -> None:
        """Make one or two GPUs of a node sick. They heal by themselves."""
        if self._over:
            return
        clock, faults = self._clock, self._faults
        node = clock.rng.choice(self._nodes)
        everything = range(len(node.topology.gpus))
        gpus = clock.rng.sample(everything, clock.rng.randint(1, min(2, len(everything))))
        self._tally.happened["sickened"] += len(gpus)
        if clock.happens(faults.blamed):
            self._blame(node, gpus, clock.drawn(2 * faults.sick_for))
        self._claims.taint(node.name, gpus, sick=True)
        node.sicken(gpus)
        clock.about(faults.sick_for, lambda: self._heal(node, gpus))
        clock.about(faults.gpus_sicken, self._sicken)

    def _heal(self, node: Node, gpus: list[int]) -> None:
        self._claims.taint(node.name, gpus, sick=False)
        node.heal(gpus)

    def _blame(self, node: Node, gpus: list[int], seconds: float) -> None:
        """Let the node's agent report GPUs as sick for so many seconds."""
        before = self._sick[node.name]
        self._sick[node.name] |= sum(1 << p for p in gpus)
        node.blame(self._sick[node.name])

        def forgive() -> None:
            self._sick[node.name] &= before
            node.blame(self._sick[node.name])
            node.look()

        self._clock.after(seconds, forgive)
