"""The entries of the kubelet's list of pods that count, and those that are held back.

Three things can be wrong with a list:

* **It shows no pods.** For a short time after its start a kubelet lists no pods and shows all
  devices as free. So after a restart, a living pod that held devices and shows none keeps them. If
  that lasts, the record says that it cannot be relied on.
* **A pod cannot be identified.** The kubelet shows a pod that the API server has not sent to the
  agent yet. The pod may be on its way, so the list is held back for a short time.
* **The node's pods are not known yet.** Then no list counts.
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
    """The pods and what they hold, by the last list that was accepted."""

    by_uid: Holdings = field(default_factory=dict)
    unidentified: tuple[Entry, ...] = ()  # entries with devices whose pod is not known
    observed_at: str = ""  # when the kubelet was asked (RFC 3339)
    # The state of the node's pods at that time, see `NodeContext`.
    pods_version: str = ""
    deletions: int = 0
    exclusive: tuple[Holding, ...] = ()  # exclusive CPUs and memory, also of pods without GPUs

    @property
    def device_ids(self) -> set[DeviceId]:
        """The devices that a pod holds."""
        return device_ids([*self.by_uid.values(), *self.unidentified])

    @property
    def any_held(self) -> bool:
        """Whether a pod holds a device, or has exclusive CPUs or memory."""
        entries = (*self.by_uid.values(), *self.unidentified)
        return bool(self.exclusive) or any(h.device_ids for entry in entries for h in entry.held)


class HoldersTracker:
    """The holders of one node's devices, updated by each list of the kubelet.

    Times are in seconds of one clock.
    """

    def __init__(self, intervals: PollIntervals) -> None:
        self._intervals = intervals
        self._remembered = False
        self._vanished: Mapping[PodUid, Entry] = {}
        self._vanished_since: float | None = None
        self._unidentified_since: Mapping[Entry, float] = {}
        self.holders = Holders()
        self.accepted = False  # whether a list has been accepted

    @property
    def doubtful(self) -> bool:
        """Whether part of the last list was not accepted, or a pod in it is not identified."""
        return bool(self._vanished or self._unidentified_since)

    def pods_missing(self, now: float) -> bool:
        """Check whether the kubelet has hidden living pods for longer than a restart takes."""
        since = self._vanished_since
        return since is not None and now - since > self._intervals.restart

    def remember(self, by_uid: Holdings, exclusive: tuple[Holding, ...] = ()) -> None:
        """Take over what the former agent published."""
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
        """Store a list of the kubelet.

        ``watchful`` says that the kubelet has restarted recently.
        """
        if not context.synced:
            return
        before = self.holders.by_uid if self._remembered or self.accepted else None
        joined = join(entries, context.pods, before)
        self._keep_vanished(joined, context, now, watchful=watchful)
        since = self._unidentified_since
        unidentified = joined.unidentified if context.has_api_server else ()
        self._unidentified_since = {entry: since.get(entry, now) for entry in unidentified}
        if any(now - at < self._intervals.unidentified for at in self._unidentified_since.values()):
            return  # until the API server shows the pods of these entries
        # A kubelet that has just started may show less CPUs and memory than pods have.
        living = {p.key for p in context.pods.values() if not (p.ended or p.terminating)}
        listed = [*entries, *self._vanished.values()]
        self.holders = Holders(
            {**joined.by_uid, **self._vanished},
            joined.unidentified,
            observed_at,
            context.pods_version,
            context.deletions,
            exclusive.holdings(listed, self.holders.exclusive, living if watchful else ()),
        )
        self.accepted = True

    def _keep_vanished(
        self, joined: Joined, context: NodeContext, now: float, *, watchful: bool
    ) -> None:
        """Find the living pods that the list lacks; they keep their devices."""
        known = self.holders.by_uid
        missing: frozenset[PodUid] = frozenset()
        if watchful or self._vanished:
            missing = vanished(joined.by_uid, known, context.pods)
        kept = {uid: known[uid] for uid in missing}
        shown = device_ids([*joined.by_uid.values(), *joined.unidentified])
        if not device_ids(kept.values()).isdisjoint(shown):
            kept = {}  # other pods have their devices, so they are really gone
        self._vanished = kept
        if not kept:
            self._vanished_since = None
        elif self._vanished_since is None:
            self._vanished_since = now
