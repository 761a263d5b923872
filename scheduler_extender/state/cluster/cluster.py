"""The cluster as we know it now: what sources feed, from their own threads, and snapshots of it.

One lock guards a few plain parts::

    Cluster           the snapshot, and who is told of a change
      EventHandlers   take in records, Node objects and pods
        Cache         nodes, pods, groups, reservations, remembered answers; assume, forget, confirm

Nothing under it does I/O, and no answer is worked out under it: who asks
takes a :class:`.Snapshot`. The exception is the last try of a bind on a node that changes all the
time.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from scheduler_extender.state.answers.answercache import Size
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.answers.tallies import Tallies
from scheduler_extender.state.cluster import freshness
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.eventhandlers import EventHandlers
from scheduler_extender.state.cluster.freshness import Watch
from scheduler_extender.state.cluster.lately import LatelySent
from scheduler_extender.state.cluster.snapshot import Parts, Snapshot
from scheduler_extender.state.groups.gangdomains import GangDomains
from scheduler_extender.state.node.facts import Foresees, NodeFacts, nobody_foresees
from scheduler_extender.state.pods.budgets import Budgets
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.standing import Others, nobody_knows
from topology.core.devices import NodeName, PodUid


class Cluster:
    """What is known of all nodes and pods. Methods may be called from any thread.

    ``feed`` takes in what sources tell; what is known, and which pods are assumed, is in the
    ``cache``.
    """

    def __init__(
        self,
        clock: Callable[[], float],  # seconds; only has to run forward
        settings: Settings = Settings(),
        watches: Callable[[], Iterable[Watch]] = tuple,  # that feed it, as they are now
    ) -> None:
        self.cache = Cache(clock, settings)
        self.tallies = Tallies()
        self.feed = EventHandlers(self.cache, self.tallies)
        self.watches = watches
        self.budgets: Budgets | None = None
        self.others: Others = nobody_knows  # asked about pods without devices; with no lock held
        self.foresees: Foresees = nobody_foresees  # what claims will get; with no lock held
        # Whether all claims of a pod that asks for a number of GPUs, its own among them, have
        # devices, and the facts of a node with DRA say so; with no lock held.
        self.claims_known: Callable[[PodRecord, int, NodeName], bool] = lambda *_: True
        self.faults = self.cache.faults
        # Called whenever what a node can offer may have changed: under the lock, to take a note.
        self.on_change = self.cache.on_change
        self._lock = self.cache.lock
        self._gangs = GangDomains()
        self.lately = LatelySent()

    @property
    def settings(self) -> Settings:
        """What the operator has chosen."""
        return self.cache.settings

    @property
    def version(self) -> int:
        """Grows whenever what people are shown may have changed: a node, or a pod. Read it without
        the lock; heartbeats that say nothing new do not count."""
        return self.cache.version

    def clock(self) -> float:
        """Seconds; only differences mean something."""
        return self.cache.clock()

    def today(self) -> float:
        """The time of day, in seconds since 1970."""
        return self.cache.today()

    def snapshot(self) -> Snapshot:
        """All that is known now."""
        with self._lock:
            cache = self.cache
            cache.expire()
            nodes, pods = cache.nodes, cache.pods
            return Snapshot(
                Parts(
                    cache.settings,
                    cache.clock,
                    cache.faults,
                    cache.classes,
                    cache.answers,
                    cache.group_places,
                    self._gangs,
                    self.lately,
                ),
                nodes.facts.copy(),
                pods.waiting.copy(),
                pods.in_flight.copy(),
                pods.nominated.copy(),
                nodes.places.copy(),
                cache.groups.seen(),
                nodes.kinds,
                nodes.label_keys,
                cache.classes.moment,
                nodes.moves,
                cache.answers.mix,
                self.blind(),
                cache.racks_wanted,
                cache.today(),
                self.budgets,
                self.others,
                self.foresees,
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Several steps as one. Nothing inside may wait for anything."""
        with self._lock:
            yield

    # What is known now, piece by piece.

    def facts(self, name: NodeName) -> NodeFacts:
        """What is known of a node now; empty where nobody told us of it."""
        with self._lock:
            self.cache.expire()
            return self.cache.nodes.get(name)

    def pod(self, uid: PodUid) -> PodRecord | None:
        """The pod with this UID, as last seen."""
        with self._lock:
            return self.cache.pods.get(uid)

    def has_node(self, name: NodeName) -> bool:
        """Whether the node exists, as far as we know: where Node objects are watched, one does."""
        with self._lock:
            facts = self.cache.nodes.facts.get(name)
            return facts is not None and (facts.node_object.exists or not self.cache.node_objects)

    def blind(self) -> bool:
        """Whether a watch has told us nothing for so long that our picture may be wrong."""
        return bool(freshness.blind(self.watches(), self.clock()))

    def unready(self) -> tuple[str, ...]:
        """The watches that have been blind for too long to go on answering."""
        return freshness.unready(self.watches(), self.clock())

    def remembered(self) -> Size:
        """How much is remembered."""
        return self.cache.answers.size()

    def forget_answers(self) -> None:
        """Forget every remembered answer; the next ones are worked out anew."""
        with self._lock:
            self.cache.answers.clear()
            self.cache.group_places.clear()

    def tell_of_all_nodes(self) -> None:
        """Tell the listeners of every node: any of them may be news, as after a time in which a
        watch was blind."""
        with self._lock:
            self.tell_of(self.cache.nodes.facts.now)

    def tell_of(self, names: Iterable[NodeName]) -> None:
        """Tell the listeners of these nodes."""
        with self._lock:
            for name in names:
                self.cache.tell(name)

    def expire(self) -> None:
        """Take note of what time alone has changed: nodes that are stale, pauses and reservations
        that are over."""
        with self._lock:
            self.cache.expire()
