"""A model of several replicas, one API server, and everything that may happen between them.

Each replica takes one small step at a time, and may stop for any time between two of them. Its
watch shows it changes in their order, as late as it likes. What it writes is done at any later
moment, or never, and the answer may be lost. Its clock runs as it likes, or stands still. There is
one node with one GPU, and every pod wants it.

The election and the order of the watch (:class:`.Election`, :class:`.Bindable`) are the product's.
The steps are written down here once more, from ADR 12; ``without`` leaves one of them out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from scheduler_extender.annotations import TERM
from scheduler_extender.kube.bindable import Bindable, OwnPod
from scheduler_extender.leader.election import Election, Lease, Step
from scheduler_extender.wire import ObjectMeta, Pod, PodSpec, PodStatus
from topology.core.devices import PodUid

NAMESPACE = "ours"
NODE = "node"
LASTS = 10.0
# What a replica does beyond asking its Lease, and a seed with which a GPU is given twice if it
# leaves this out.
RULES = {
    "the version of the pod": 6,
    "the version before the check": 545,
    "the mark": 601,
    "the wait for the mark": 1897,
    "the changed pods": 6,
    "the wait for the changed pods": 1538,
}


@dataclass(frozen=True, slots=True)
class Object:
    """A pod: its version, its node, whether it has ended, and the mark on ours."""

    name: str
    namespace: str
    version: int
    node: str = ""
    mark: str = ""
    ended: bool = False

    @property
    def read(self) -> Pod:
        """As a watch brings it."""
        annotations = {TERM: self.mark} if self.mark else None
        return Pod(
            metadata=ObjectMeta(
                name=self.name,
                namespace=self.namespace,
                uid=self.name,
                annotations=annotations,
                resource_version=str(self.version),
            ),
            spec=PodSpec(node_name=self.node or None),
            status=PodStatus(phase="Succeeded" if self.ended else "Pending"),
        )


@dataclass
class Server:
    """The API server: pods, the history of their changes, and the Lease."""

    pods: dict[str, Object] = field(default_factory=dict)
    history: list[Object] = field(default_factory=list)
    lease: Lease = field(default_factory=Lease)
    version: int = 0

    def put(self, pod: Object) -> Object:
        self.version += 1
        stored = replace(pod, version=self.version)
        self.pods[pod.name] = stored
        self.history.append(stored)
        return stored

    def bind(self, name: str, version: int | None) -> bool:
        pod = self.pods[name]
        if pod.node or (version is not None and version != pod.version):
            return False
        self.put(replace(pod, node=NODE))
        return True

    def write_lease(self, lease: Lease) -> Lease | None:
        if lease.version != self.lease.version:
            return None
        self.version += 1
        self.lease = replace(lease, version=str(self.version))
        return self.lease

    @property
    def given(self) -> int:
        """To how many pods the one GPU is given."""
        return sum(bool(pod.node) and not pod.ended for pod in self.pods.values())


class Replica:
    """One replica; :meth:`step` takes one of its steps."""

    def __init__(self, world: World, name: str, rate: float) -> None:
        self._world = world
        self._rng = world.rng
        self._server = world.server
        self._without = world.without
        self.name = name
        self._rate = rate
        self._shown = 0
        self._bindable = Bindable(OwnPod(NAMESPACE, name), name)
        self._holders: set[str] = set()
        self._election = Election(name, LASTS)
        self._fenced = -1
        self._taking: Iterator[None] | None = None
        self._binding: list[Iterator[None]] = []
        self.paused = self.deaf = 0
        world.server.put(Object(name, NAMESPACE, 0))

    def step(self) -> None:
        """The watch shows something, the Lease is looked at, the takeover goes on, or a bind."""
        if self.paused:
            self.paused -= 1
            return
        what = self._rng.randrange(6)
        if what <= 1:
            self._watch()
        elif what == 2:
            self._elect()
            if self._taking is not None:
                self._taking = self._going(self._taking)
        elif what <= 4 and self._binding:
            at = self._rng.randrange(len(self._binding))
            if self._going(self._binding[at]) is None:
                del self._binding[at]
        elif what == 5 and len(self._binding) < 2:
            self._binding.append(self._bind())

    @staticmethod
    def _going(steps: Iterator[None]) -> Iterator[None] | None:
        return steps if next(steps, "over") is None else None

    @property
    def _now(self) -> float:
        return self._world.now * self._rate

    def _watch(self) -> None:
        if self.deaf:
            self.deaf -= 1
            return
        for pod in self._server.history[self._shown : self._shown + self._rng.randint(1, 3)]:
            self._shown += 1
            if pod.ended:
                self._holders.discard(pod.name)
            elif pod.node:
                self._holders.add(pod.name)
            self._bindable.take(pod.read, managed=pod.namespace != NAMESPACE)

    def _elect(self) -> None:
        election, server = self._election, self._server
        if not election.holds or self._rng.random() < 0.2:
            election.saw(server.lease, self._now)
        election.heard_of(self._bindable.term, others=self._bindable.others_term)
        step = election.step(self._now)
        if step is Step.NOTHING:
            return
        asked = self._now
        written = server.write_lease(election.wanted(step))
        if written is None:
            election.saw(server.lease, self._now)
        elif self._rng.random() < 0.8:  # else the answer is lost
            election.wrote(written, asked, self._now)
        if election.holds and election.term != self._fenced and self._taking is None:
            self._taking = self._take_over(election.term)

    def _owns(self, term: int) -> bool:
        received = 0 if "the mark" in self._without else self._bindable.others_term
        return self._election.holds and self._election.term == term and received < term

    def _leads(self) -> bool:
        return self._owns(self._fenced) and self._election.leads(self._now)

    def _marked(self, mark: str) -> None:
        self._server.put(replace(self._server.pods[self.name], mark=mark))

    def _take_over(self, term: int) -> Iterator[None]:
        mark = f"{term} {self.name}"
        if "the mark" not in self._without:
            self._marked(mark)
        if not self._without & {"the mark", "the wait for the mark"}:
            while not self._bindable.shown(mark, 0):
                if not self._owns(term):
                    return
                yield
        for uid in self._bindable.pods():
            if "the changed pods" in self._without:
                break
            yield
            if not self._owns(term):
                return
            self._server.put(self._server.pods[uid])
        if "the wait for the changed pods" not in self._without:
            self._marked(f"{mark} fenced")
            while not self._bindable.shown(f"{mark} fenced", 0):
                if not self._owns(term):
                    return
                yield
        if self._owns(term):
            self._fenced = term

    def _bind(self) -> Iterator[None]:
        """Decide, begin the bind, look at the version, ask whether we lead, send; a step each."""
        waiting = [uid for uid in self._bindable.pods() if uid not in self._holders]
        if not waiting or self._holders or not self._leads():
            return
        uid = self._rng.choice(sorted(waiting))
        self._holders.add(uid)
        yield
        version = self._version(uid)
        yield
        if not self._leads():
            self._holders.discard(uid)
            return
        if "the version before the check" in self._without:
            yield
            version = self._version(uid)
        yield
        if "the version of the pod" in self._without:
            version = None
        elif version is None:
            self._holders.discard(uid)
            return
        self._world.sent.append(Write(self, uid, version, self._rng.random() < 0.3))

    def _version(self, uid: PodUid) -> int | None:
        found = self._bindable.version(uid)
        return int(found) if found is not None else None

    def void(self, uid: str) -> None:
        """A Binding of ours has failed."""
        self._holders.discard(uid)


@dataclass(frozen=True, slots=True)
class Write:
    """A Binding under way."""

    by: Replica
    uid: PodUid
    version: int | None
    held: bool  # whether it takes long


class World:
    """A server and its replicas; each :meth:`step` is the smallest thing that can happen."""

    def __init__(self, seed: int, without: frozenset[str] = frozenset()) -> None:
        self.rng = random.Random(seed)
        self.without = without
        self.now = 0.0
        self.server = Server()
        self.sent: list[Write] = []
        rates = (0.0, 0.5, 1.0, 1.0, 1.05, 3.0)
        self._replicas = [Replica(self, name, self.rng.choice(rates)) for name in ("a", "b", "c")]
        self._created = self.ended = 0

    def step(self) -> None:
        """Anything happens."""
        rng = self.rng
        self.now += 5.0 if rng.random() < 0.01 else 0.03
        what = rng.random()
        if what < 0.02 and self._waiting() < 4:
            self._created += 1
            self.server.put(Object(f"pod{self._created}", "default", 0))
        elif what < 0.03:
            self._end()
        elif what < 0.034:
            rng.choice(self._replicas).paused = rng.choice((10, 100, 300))
        elif what < 0.037:
            rng.choice(self._replicas).deaf = rng.choice((10, 50))
        elif what < 0.038:
            self.server.lease = Lease(version=str(self.server.version))  # somebody deletes it
        elif what < 0.12 and self.sent:
            at = rng.randrange(len(self.sent))
            if self.sent[at].held and rng.random() < 0.9:
                return
            write = self.sent.pop(at)
            if not self.server.bind(write.uid, write.version):
                write.by.void(write.uid)
        else:
            rng.choice(self._replicas).step()

    def _waiting(self) -> int:
        return sum(not p.node and p.namespace == "default" for p in self.server.pods.values())

    def _end(self) -> None:
        """The pod that has the GPU ends."""
        for pod in list(self.server.pods.values()):
            if pod.node and not pod.ended:
                self.server.put(replace(pod, ended=True))
                self.ended += 1


def gives_twice(seed: int, steps: int, without: frozenset[str] = frozenset()) -> bool:
    """Whether the one GPU is given to two pods within so many steps."""
    world = World(seed, without)
    for _ in range(steps):
        world.step()
        if world.server.given > 1:
            return True
    return False


def served(seed: int, steps: int) -> int:
    """How many pods have had the GPU, one after the other."""
    world = World(seed)
    for _ in range(steps):
        world.step()
    return world.ended
