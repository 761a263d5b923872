"""What the routes of all ports need of the service."""

from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler_extender.http.metrics import Metrics
from scheduler_extender.limits import Bodies
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.verbs import Binder, Turns, WouldRefuse
from scheduler_extender.wire import Pod


@dataclass(frozen=True, slots=True)
class Service:
    """The cluster, who writes binds, and what the routes count."""

    cluster: Cache
    binder: Binder
    unready: Callable[[], str | None]  # the reason why we cannot answer yet, or None
    metrics: Metrics
    standby: Callable[[], str | None] = lambda: None  # why another replica answers verbs, or None
    term: Callable[[], int] = int  # the term in which this replica leads; 0 of the only one
    saw: Callable[[Pod], None] = lambda pod: None  # is told each pod that filter is asked about
    turns: Turns | None = None  # when a bind may be written; None if no kubelet answers us
    # If set nothing is refused, and it is told what would have been.
    shadow: Callable[[WouldRefuse], None] | None = None
    file_mode: bool = False  # opens POST /v1/reports
    bodies: Bodies = field(default_factory=Bodies)  # the memory that all ports share

    def not_ready(self) -> str | None:
        """Why this replica is not Ready; verbs go on answering while a watch is blind."""
        blind = self.cluster.unready()
        return self.unready() or (f"blind watches: {', '.join(blind)}" if blind else None)
