"""The kubelets: they admit pods in batches, oldest first, container by container.

One that ends forgets what it was about to do. When it has started again it hears of its pods anew,
admits those that had not started, and then goes on.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from benchmarks.promises.agents import Agents
from benchmarks.promises.apiserver import ApiServer
from benchmarks.promises.claims import Claims
from benchmarks.promises.faults import POLL
from benchmarks.promises.judge import LOST_CLAIM, Judge
from benchmarks.promises.pods import PodEntry
from benchmarks.promises.scene import Actor, Scene
from benchmarks.promises.watches import Watches
from topology.core.devices import NodeName
from topology.emulation import PluginCrash, PluginRefusal, Refused

GRACE = 1.0  # seconds, on average, that a deleted pod takes to stop
STARTING = 1.0  # seconds, on average, between a pod's admission and its containers' start
STATUS_PERIOD = 10.0  # seconds between two statuses of a node that its kubelet writes


@dataclass(frozen=True, slots=True)
class _Admission:
    """A pod that is being admitted."""

    entry: PodEntry
    steps: Iterator[str]  # the containers that are left
    life: int  # which of the kubelet's lives it is part of


class Kubelets(Actor):
    """One kubelet on each node, around an emulated device manager.

    A kubelet takes all the pods that it has heard of as one batch. While it admits a batch, others
    wait in its inbox.
    """

    def __init__(
        self,
        scene: Scene,
        watches: Watches,
        api: ApiServer,
        agents: Agents,
        judge: Judge,
        claims: Claims,
    ) -> None:
        super().__init__(scene)
        self._claims = claims
        self._watches = watches
        self._devices = scene.kubelets
        self._api = api
        self._agents = agents
        self._judge = judge
        self._inbox: dict[NodeName, list[PodEntry]] = {name: [] for name in scene.nodes}
        self._busy: set[NodeName] = set()
        self._batch: dict[NodeName, list[PodEntry]] = {name: [] for name in scene.nodes}
        self._starting: dict[NodeName, list[PodEntry]] = {name: [] for name in scene.nodes}
        self._lingering: dict[NodeName, list[PodEntry]] = {name: [] for name in scene.nodes}
        self._lives = dict.fromkeys(scene.nodes, 0)
        self._postponed: defaultdict[NodeName, list[Callable[[], None]]] = defaultdict(list)

    def bound(self, entry: PodEntry) -> None:
        """A kubelet hears of a pod that is bound to its node."""
        node = _node_of(entry)
        self._inbox[node].append(entry)
        if node not in self._busy:
            self._busy.add(node)
            self._admit_soon(node)

    def end(self, node: NodeName) -> None:
        """The node's kubelet ends; it starts again by itself."""
        if not self._devices[node].shows_pods:
            return  # it has just begun
        self._tally.happened["kubelet_restarts"] += 1
        self._lives[node] += 1
        self._devices[node].stop()
        again = [e for e in self._starting[node] if not e.ended]
        self._inbox[node] = [*again, *self._batch[node], *self._inbox[node]]
        self._batch[node], self._starting[node] = [], []
        self._busy.add(node)
        self._judge.disturbed(node)
        self._timeline.about(self._faults.down_for, lambda: self._start(node))
        self._seen_by_agent(node)

    def sicken(self, node: NodeName, gpus: list[int]) -> None:
        """The node's device plugin calls GPUs sick."""
        self._devices[node].sicken(gpus)
        self._claims.taint(node, gpus, sick=True)
        self._judge.disturbed(node)
        self._seen_by_agent(node)

    def heal(self, node: NodeName, gpus: list[int]) -> None:
        """The node's device plugin calls GPUs healthy again."""
        self._devices[node].heal(gpus)
        self._claims.taint(node, gpus, sick=False)
        self._judge.unsettled(node)
        self._seen_by_agent(node)

    def _start(self, node: NodeName) -> None:
        """The kubelet runs; it tells the API server at once that it has no devices."""
        self._devices[node].start()
        self._judge.unsettled(node)
        self._watches.deliver("kube-scheduler", lambda: self._capacity.close(node))
        bare = self._faults.bare_for
        self._timeline.about(bare, lambda: self._hear_of_pods(node))
        self._timeline.about(bare, lambda: self._register(node))
        self._seen_by_agent(node)

    def _register(self, node: NodeName) -> None:
        """The device plugin is back; the kubelet says so with its next status."""
        if self._devices[node].answers and node not in self._scene.by_dra:
            # Where the kubelet does not run another start comes with another plugin.
            self._devices[node].register()
            self._judge.unsettled(node)
            self._seen_by_agent(node)
            late = self._timeline.rng.uniform(0, STATUS_PERIOD)
            self._timeline.after(late, lambda: self._open(node))

    def _open(self, node: NodeName) -> None:
        if self._devices[node].registered:
            self._watches.deliver("kube-scheduler", lambda: self._capacity.open(node))

    def _hear_of_pods(self, node: NodeName) -> None:
        """The kubelet has listed its pods: those that are gone hold nothing any more."""
        self._devices[node].hear_of_pods()
        self._judge.unsettled(node)
        gone = [e for e in self._inbox[node] if e.gone]
        self._inbox[node] = [e for e in self._inbox[node] if not e.gone]
        for entry in (*gone, *self._lingering[node]):
            entry.admitted = True  # it will not be any more
            self._devices[node].end(entry.record.uid)
        for event in self._postponed.pop(node, ()):
            event()
        self._seen_by_agent(node)
        self._admit_soon(node)

    def _when_up(self, node: NodeName, event: Callable[[], None]) -> None:
        """Let something happen now, or once the kubelet runs and knows its pods."""
        if self._devices[node].shows_pods:
            event()
        else:
            self._postponed[node].append(event)

    def _seen_by_agent(self, node: NodeName) -> None:
        """Nobody tells the agent what happens to a kubelet: it asks now and then."""
        self._timeline.about(POLL, lambda: self._agents.look(node))

    def _admit_soon(self, node: NodeName) -> None:
        life = self._lives[node]
        self._timeline.about(self._delays.container, lambda: self._admit_batch(node, life))

    def force_deleted(self, entry: PodEntry) -> None:
        """A kubelet hears that a pod is gone: sooner or later it frees the devices."""
        node = _node_of(entry)
        if entry in self._inbox[node] and not entry.admitted and self._timeline.happens(0.5):
            self._inbox[node].remove(entry)
        else:
            self._lingering[node].append(entry)
            self._timeline.about(self._faults.linger, lambda: self._free(entry))

    def _free(self, entry: PodEntry) -> None:
        node = _node_of(entry)
        shows = self._devices[node].shows_pods
        if not (entry.admitted and shows):  # its admission is under way, or still to come
            self._timeline.about(self._faults.linger, lambda: self._free(entry))
            return
        self._lingering[node].remove(entry)
        self._devices[node].end(entry.record.uid)
        self._agents.look(node)

    def _admit_batch(self, node: NodeName, life: int) -> None:
        """Admit everything that has come in the meantime, oldest first, one after the other."""
        if life == self._lives[node]:
            inbox, self._inbox[node] = self._inbox[node], []
            self._batch[node] = sorted(inbox, key=lambda e: (e.created, e.record.uid))
            self._admit_next(node)

    def _admit_next(self, node: NodeName) -> None:
        """Begin with the pod at the head of the batch; it leaves the batch when it is through."""
        if self._batch[node]:
            entry = self._batch[node][0]
            record = entry.record
            steps = self._devices[node].admission(record.uid, "default", record.name, entry.request)
            if record.by_claim:
                steps = self._prepared(entry)
            self._step(node, _Admission(entry, steps, self._lives[node]))
        elif self._inbox[node]:
            self._admit_soon(node)
        else:
            self._busy.discard(node)

    def _prepared(self, entry: PodEntry) -> Iterator[str]:
        """The admission of a pod with a claim. Raises :class:`Refused` where that is gone."""
        if not self._claims.held(entry.record.uid):
            raise Refused(LOST_CLAIM)
        yield from ()

    def _step(self, node: NodeName, current: _Admission) -> None:
        """Give the next container its devices; after the last one the pod runs."""
        if current.life != self._lives[node]:
            return
        entry = current.entry
        try:
            container = next(current.steps, None)
        except Refused as refusal:
            self._batch[node].remove(entry)
            self._refuse(entry, node, refusal)
            self._admit_next(node)
            return
        self._agents.look(node)
        if container is not None:
            self._timeline.about(self._delays.container, lambda: self._step(node, current))
            return
        self._batch[node].remove(entry)
        if not entry.admitted:  # else it was admitted before the kubelet ended
            uid = entry.record.uid
            held = self._claims.held(uid) or self._devices[node].held(uid)
            self._judge.admitted(entry, node, held)
            self._timeline.after(entry.job.runs, lambda: self._end(entry))
        entry.admitted = True
        if self._faults.kubelets_restart:
            self._starting[node].append(entry)
            self._timeline.about(STARTING, lambda: self._started(entry))
        self._admit_next(node)

    def _started(self, entry: PodEntry) -> None:
        """The pod's containers run: a kubelet that starts again leaves them alone."""
        starting = self._starting[_node_of(entry)]
        if entry in starting:
            starting.remove(entry)

    def _refuse(self, entry: PodEntry, node: NodeName, refusal: Refused) -> None:
        entry.admitted = True
        self._judge.refused(entry, node, _reason(refusal))
        self._api.finish(entry, "Failed")
        self._agents.look(node)

    def _end(self, entry: PodEntry) -> None:
        """The pod's time is over: it stops by itself, or because somebody deletes it."""
        if entry.gone or entry.ended:
            return
        if entry.job.deleted:
            entry.record = replace(entry.record, deleting=True)
            self._api.changed(entry)
        self._timeline.about(GRACE if entry.job.deleted else 0.0, lambda: self._stop(entry))

    def _stop(self, entry: PodEntry) -> None:
        self._when_up(_node_of(entry), lambda: self._free_ended(entry))

    def _free_ended(self, entry: PodEntry) -> None:
        node = _node_of(entry)
        self._devices[node].end(entry.record.uid)
        self._agents.look(node)
        self._timeline.about(self._delays.watch, lambda: self._api.finish(entry, "Succeeded"))


def _reason(refusal: Refused) -> str:
    if isinstance(refusal.__cause__, PluginCrash):
        return "plugin crashed"
    if isinstance(refusal.__cause__, PluginRefusal):
        return "plugin refused"
    return str(refusal)


def _node_of(entry: PodEntry) -> NodeName:
    node = entry.record.node
    assert node is not None
    return node
