"""Which part of the kubelet's list of pods the agent believes, and what it keeps back.

Three things can be wrong with a list:

* **It shows nobody.** For a moment after its start a kubelet lists no pods, with all devices free.
  So after a restart, living pods that held devices and show none go on holding them. If that lasts,
  the record says that it cannot be relied on.
* **Nobody can tell whose devices these are**: the kubelet shows a pod that the API server has not
  sent us yet. It may be on its way, so the list is kept back for a moment.
* **The node's pods are not known yet.** Then no list says anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from topology.agent.model import exclusive
from topology.agent.model.nodecontext import NodeContext
from topology.agent.model.podentries import Entry, Holdings, Joined, device_ids, join, vanished
from topology.agent.model.polling import PollIntervals
from topology.core.devices import DeviceId, PodUid
from topology.core.numa import Holding


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds what, by the last list that was believed."""

    by_uid: Holdings = field(default_factory=dict)
    unidentified: tuple[Entry, ...] = ()  # entries with devices whose pod nobody can tell
    observed_at: str = ""  # when the kubelet was asked (RFC 3339)
    # What was known of the node's pods then, see `NodeContext`.
    pods_version: str = ""
    deletions: int = 0
    exclusive: tuple[Holding, ...] = ()  # exclusive CPUs and memory, also of pods without GPUs

    @property
    def device_ids(self) -> set[DeviceId]:
        """The devices that somebody holds."""
        return device_ids([*self.by_uid.values(), *self.unidentified])

    @property
    def anybody(self) -> bool:
        """Whether a pod holds a device, or has exclusive CPUs or memory."""
        entries = (*self.by_uid.values(), *self.unidentified)
        return bool(self.exclusive) or any(h.device_ids for entry in entries for h in entry.held)


class HoldersTracker:
    """Takes in the kubelet's lists one by one. Times are in seconds of one clock."""

    def __init__(self, intervals: PollIntervals) -> None:
        self._intervals = intervals
        self._remembered = False
        self._vanished: Mapping[PodUid, Entry] = {}
        self._vanished_since: float | None = None
        self._unidentified_since: Mapping[Entry, float] = {}
        self.holders = Holders()
        self.accepted = False  # whether a list has been believed

    @property
    def doubtful(self) -> bool:
        """Whether part of the last list is not believed, or nobody can tell whose it is."""
        return bool(self._vanished or self._unidentified_since)

    def pods_missing(self, now: float) -> bool:
        """Whether the kubelet has not shown living pods for longer than a restart takes."""
        since = self._vanished_since
        return since is not None and now - since > self._intervals.restart

    def remember(self, by_uid: Holdings, exclusive: tuple[Holding, ...] = ()) -> None:
        """Take over what the agent before this one published."""
        self.holders = Holders(by_uid, exclusive=exclusive)
        self._remembered = True

    def take(
        self,
        entries: list[Entry],
        context: NodeContext,
        now: float,
        observed_at: str,
        *,
        watchful: bool,
    ) -> None:
        """Take in a list. ``watchful``: the kubelet has restarted recently."""
        if not context.synced:
            return
        before = self.holders.by_uid if self._remembered or self.accepted else None
        joined = join(entries, context.pods, before)
        self._keep_vanished(joined, context, now, watchful=watchful)
        if self._keep_back(joined.unidentified if context.has_api_server else (), now):
            return
        self.holders = Holders(
            {**joined.by_uid, **self._vanished},
            joined.unidentified,
            observed_at,
            context.pods_version,
            context.deletions,
            self._exclusive(entries, context, watchful=watchful),
        )
        self.accepted = True

    def _exclusive(
        self, entries: list[Entry], context: NodeContext, *, watchful: bool
    ) -> tuple[Holding, ...]:
        """The pods' exclusive CPUs and memory. A kubelet that has just started may show less."""
        alive = {p.key for p in context.pods.values() if not (p.ended or p.terminating)}
        shown = [*entries, *self._vanished.values()]
        return exclusive.holdings(shown, self.holders.exclusive, alive if watchful else ())

    def _keep_vanished(
        self, joined: Joined, context: NodeContext, now: float, *, watchful: bool
    ) -> None:
        """Find the living pods that the list lacks; they go on holding their devices."""
        known = self.holders.by_uid
        missing: frozenset[PodUid] = frozenset()
        if watchful or self._vanished:
            missing = vanished(joined.by_uid, known, context.pods)
        kept = {uid: known[uid] for uid in missing}
        shown = device_ids([*joined.by_uid.values(), *joined.unidentified])
        if not device_ids(kept.values()).isdisjoint(shown):
            kept = {}  # somebody else has their devices: they are gone indeed
        self._vanished = kept
        if not kept:
            self._vanished_since = None
        elif self._vanished_since is None:
            self._vanished_since = now

    def _keep_back(self, unidentified: tuple[Entry, ...], now: float) -> bool:
        """Whether to wait until the API server tells of one of these entries."""
        since = self._unidentified_since
        self._unidentified_since = {entry: since.get(entry, now) for entry in unidentified}
        waited = [now - at for at in self._unidentified_since.values()]
        return any(each < self._intervals.unidentified for each in waited)
