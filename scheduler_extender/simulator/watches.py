"""Watches on the API server.

Events arrive late but in order, and the extender's watches may fail.
"""

from scheduler_extender.kube.drasinks import CLAIMS_PATH, CLASSES_PATH, SLICES_PATH
from scheduler_extender.simulator.clock import Clock, Event
from scheduler_extender.simulator.pods import PublishedReport
from scheduler_extender.simulator.scene import Actor, Scene
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology

WATCHES = ("pods", "records")  # the extender's watches
# More watches if there are nodes with DRA. The extender's promises do not depend on them: it needs
# no event of theirs to continue.
DRA_WATCHES = (CLASSES_PATH, SLICES_PATH, CLAIMS_PATH)


class Watches:
    """Watches that deliver events to each watcher, on average ``delay`` seconds late."""

    def __init__(self, clock: Clock, delay: float) -> None:
        self._clock = clock
        self._delay = delay
        self._latest: dict[str, float] = {}

    def deliver(self, watcher: str, event: Event) -> None:
        """Deliver an event to a watcher, after all earlier ones."""
        clock = self._clock
        due = clock.now + clock.drawn(self._delay)
        when = max(self._latest.get(watcher, 0.0), due)
        self._latest[watcher] = when
        clock.at(when, event)

    def hold(self, watcher: str, until: float) -> None:
        """Deliver nothing to a watcher before this time."""
        self._latest[watcher] = max(self._latest.get(watcher, 0.0), until)

    def reopen(self, watcher: str) -> None:
        """Start a watch anew: a watcher that has just listed waits for no older events."""
        self._latest.pop(watcher, None)


class ExtenderWatches(Actor):
    """The extender's watches.

    Undelivered events of an extender that was killed are lost. The next extender lists instead.
    """

    def __init__(self, scene: Scene, watches: Watches) -> None:
        super().__init__(scene)
        self._watches = watches
        self._lives = 0
        self.names = WATCHES + (DRA_WATCHES if scene.dra_nodes else ())
        self.reports: dict[NodeName, PublishedReport] = {}  # the last ones that the extender knows

    def tell(self, watch: str, event: Event) -> None:
        """Deliver an event to the extender that runs now, unless it is killed before."""
        life = self._lives

        def deliver() -> None:
            if life == self._lives:
                if watch in WATCHES:
                    self._scene.hearing.heard[watch] = self._clock.now
                event()

        self._watches.deliver(watch, deliver)

    def silence(self, watch: str, until: float, *, fails: bool) -> None:
        """Deliver nothing until then. If the watch ``fails``, the extender knows it."""
        self._watches.hold(watch, until)
        if fails and watch in WATCHES:
            self._scene.hearing.failing[watch] = self._clock.now
            self._clock.at(until, lambda: self._scene.hearing.failing.pop(watch, None))

    def show(self, topology: NodeTopology, published: PublishedReport) -> None:
        """Show the extender a report; it keeps a later one if it knows one."""
        known = self.reports.get(topology.name)
        if known is None or published.looked >= known.looked:
            self.reports[topology.name] = published
        self._scene.hearing.records.put_record(
            topology,
            published.report,
            uid=published.record,
            age=self._clock.now - published.looked,
        )

    def failing_for(self) -> float:
        """Return for how many seconds some watch has been failing; 0 if none is."""
        now = self._clock.now
        return now - min(self._scene.hearing.failing.values(), default=now)

    def reopen(self) -> None:
        """Open the watches of a new extender. Undelivered events of the killed one are lost."""
        self._lives += 1
        self.reports.clear()
        for watch in self.names:
            self._watches.reopen(watch)
        for watch in WATCHES:
            self._scene.hearing.heard[watch] = self._clock.now
