"""Breaks things at random, and mends them: each fault is one row of a table.

A fault lasts for some seconds; two may overlap. What is broken, when
and for how long follows from the seed alone, what the programs then do does not.
"""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.history import Fault
from tests.e2e.chaos.replicas import Replica
from tests.e2e.chaos.worlds import World

AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: how often beside others, and how long it lasts, from and to.

    Of a ``part`` one thing is broken at a time; each replica is a part of its own.
    """

    name: str
    weight: int
    part: str
    seconds: tuple[float, float]


KINDS = (
    Kind("kill the leader", 3, "replica", (0.5, 2.0)),
    Kind("kill the standby", 1, "replica", (0.5, 2.0)),
    Kind("end the leader politely", 2, "replica", (0.5, 2.0)),
    Kind("pause the leader", 3, "replica", (1.0, 7.0)),
    Kind("pause the standby", 1, "replica", (1.0, 7.0)),
    Kind("cut the leader off", 2, "replica", (1.0, 7.0)),
    Kind("hold what the leader sends", 3, "replica", (1.0, 7.0)),
    Kind("cut the scheduler off", 1, "service", (0.5, 2.0)),
    Kind("hold what the scheduler asks", 1, "service", (0.5, 4.0)),
    Kind("kill the API server", 1, "store", (0.5, 2.0)),
    Kind("pause the API server", 2, "store", (0.5, 4.0)),
    Kind("kill etcd", 1, "store", (0.5, 2.0)),
    Kind("pause etcd", 2, "store", (0.5, 4.0)),
    Kind("silence agents", 4, "agents", (1.0, 5.0)),
)


@dataclass(frozen=True, slots=True)
class _Broken:
    part: str
    until: float
    mend: Callable[[], None]


class Faults:
    """Breaks a world's parts. :meth:`step` is called now and then by the thread that has started
    its programs: they would end with any other one."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = random.Random(seed)
        self._broken: list[_Broken] = []
        self._next = time.monotonic() + 2.0
        self.has_ended_a_leader = False  # whether somebody has had to begin a term since

    def step(self) -> None:
        """Mend what is due, and break something if it is time."""
        for broken in list(self._broken):
            if time.monotonic() >= broken.until:
                self._mend(broken)
        if time.monotonic() >= self._next and len(self._broken) < AT_ONCE:
            self._break()

    def mend_all(self) -> None:
        """All is well again."""
        for broken in list(self._broken):
            self._mend(broken)

    @property
    def all_well(self) -> bool:
        """Whether nothing is broken now."""
        return not self._broken

    def _break(self) -> None:
        rng, cluster = self._rng, self._world.cluster
        # Whichever parts are broken already, the same numbers are drawn.
        kind = rng.choices(KINDS, [kind.weight for kind in KINDS])[0]
        seconds, pause, some = rng.uniform(*kind.seconds), rng.uniform(0.5, 3.0), rng.random()
        self._next = time.monotonic() + pause
        replica = cluster.standby() if kind.name.endswith("standby") else cluster.leader()
        part = replica.pod if kind.part == "replica" else kind.part
        if part in {broken.part for broken in self._broken}:
            return
        mend = self._do(kind.name, replica, some)
        self._world.history.add(Fault(self._world.history.now, f"{kind.name}: {seconds:.1f} s"))
        self._broken.append(_Broken(part, time.monotonic() + seconds, mend))

    def _mend(self, broken: _Broken) -> None:
        self._broken.remove(broken)
        broken.mend()

    def _do(self, name: str, replica: Replica, some: float) -> Callable[[], None]:
        """Break it; what mends it. ``some`` in [0, 1) picks among many."""
        cluster = self._world.cluster
        plane, service = cluster.control_plane, cluster.service
        match name:
            case "kill the standby":
                return self._ended(replica, signal.SIGKILL)
            case "kill the leader":
                self.has_ended_a_leader = True
                return self._ended(replica, signal.SIGKILL)
            case "end the leader politely":
                self.has_ended_a_leader = True
                return self._ended(replica, signal.SIGTERM)
            case "pause the leader" | "pause the standby":
                replica.pause()
                return replica.resume
            case "cut the leader off":
                replica.uplink.cut()
                return replica.uplink.mend
            case "hold what the leader sends":
                replica.uplink.hold()
                return replica.uplink.mend
            case "cut the scheduler off":
                service.cut()
                return service.mend
            case "hold what the scheduler asks":
                service.hold()
                return service.mend
            case "kill the API server":
                plane.stop_apiserver()
                return plane.start_apiserver
            case "kill etcd":
                plane.stop_etcd()
                return plane.start_etcd
            case "pause the API server" | "pause etcd":
                part = "etcd" if name.endswith("etcd") else "kube-apiserver"
                plane.signal(part, signal.SIGSTOP)
                return lambda: plane.signal(part, signal.SIGCONT)
            case _:
                return self._silenced(some)

    def _ended(self, replica: Replica, number: int) -> Callable[[], None]:
        assert replica.process is not None
        replica.process.signal(number)

        def again() -> None:
            assert replica.process is not None
            replica.process.stop(signal.SIGKILL)
            self._world.cluster.start(replica)

        return again

    def _silenced(self, some: float) -> Callable[[], None]:
        clock, nodes = self._world.kubelets.clock, list(self._world.kubelets.nodes.values())
        first = int(some * len(nodes))
        chosen = [nodes[(first + i) % len(nodes)] for i in range(max(1, len(nodes) // 2))]
        for node in chosen:
            clock.post(node.die)

        def again() -> None:
            for node in chosen:
                clock.post(node.revive)

        return again
