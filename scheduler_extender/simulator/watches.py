"""Watches on the API server: news comes late but in order, and the extender's may fail."""

from scheduler_extender.simulator.clock import Clock, Event
from scheduler_extender.simulator.pods import PublishedReport
from scheduler_extender.simulator.scene import Actor, Scene
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology

WATCHES = ("pods", "records")  # what the extender watches
# The same where there are nodes with DRA. What it promises does not hang on them: it needs no word
# of theirs to go on.
DRA_WATCHES = ("deviceclasses", "resourceslices", "resourceclaims")


class Watches:
    """Delivers news to whoever watches: each watcher by itself, late by ``delay`` on average."""

    def __init__(self, clock: Clock, delay: float) -> None:
        self._clock = clock
        self._delay = delay
        self._latest: dict[str, float] = {}

    def deliver(self, watcher: str, event: Event) -> None:
        """Let a watcher hear of something, after everything that it was told before."""
        clock = self._clock
        due = clock.now + clock.drawn(self._delay)
        when = max(self._latest.get(watcher, 0.0), due)
        self._latest[watcher] = when
        clock.at(when, event)

    def hold(self, watcher: str, until: float) -> None:
        """Bring a watcher nothing before this time."""
        self._latest[watcher] = max(self._latest.get(watcher, 0.0), until)

    def reopen(self, watcher: str) -> None:
        """Begin anew: a watcher that has just listed waits for no older news."""
        self._latest.pop(watcher, None)


class ExtenderWatches(Actor):
    """The extender's watches.

    What was on its way to an extender that was killed is lost; the next one lists instead.
    """

    def __init__(self, scene: Scene, watches: Watches) -> None:
        super().__init__(scene)
        self._watches = watches
        self._lives = 0
        self.names = WATCHES + (DRA_WATCHES if scene.by_dra else ())
        self.reports: dict[NodeName, PublishedReport] = {}  # the last that the extender knows of

    def tell(self, watch: str, event: Event) -> None:
        """Deliver to the extender that runs now, unless it is killed in the meantime."""
        life = self._lives

        def deliver() -> None:
            if life == self._lives:
                if watch in WATCHES:
                    self._scene.hearing.heard[watch] = self._clock.now
                event()

        self._watches.deliver(watch, deliver)

    def silence(self, watch: str, until: float, *, fails: bool) -> None:
        """Bring nothing until then. Where the watch ``fails``, the extender is told so."""
        self._watches.hold(watch, until)
        if fails and watch in WATCHES:
            self._scene.hearing.failing[watch] = self._clock.now
            self._clock.at(until, lambda: self._scene.hearing.failing.pop(watch, None))

    def show(self, topology: NodeTopology, published: PublishedReport) -> None:
        """The extender learns of a report, unless it knows a later one."""
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
        """For how many seconds some watch has been failing; 0 where none does."""
        now = self._clock.now
        return now - min(self._scene.hearing.failing.values(), default=now)

    def drop_undelivered(self) -> None:
        """The extender is killed: what is on its way reaches nobody."""
        self._lives += 1
        self.reports.clear()

    def reopen(self) -> None:
        """A new extender opens its watches."""
        for watch in self.names:
            self._watches.reopen(watch)
        for watch in WATCHES:
            self._scene.hearing.heard[watch] = self._clock.now
