"""When the kubelet is asked next, and for what; and when sysfs is read again.

The kubelet does not announce changes, so the agent has to ask it. If a pod requests GPUs, its
change is *due* from its bind to this node until the kubelet shows it with all of them. It is due
again from the pod's end until the kubelet no longer shows the pod. While a change is due, the agent
asks often; otherwise rarely.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from topology.agent.model.podentries import Entry, NodePod
from topology.core.devices import DeviceId, PodUid

NEVER = float("-inf")
# Seconds until the second reading. Each later pause is twice the one before, up to the longest.
FIRST_REREADING, LONGEST_REREADING = 10.0, 300.0


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """Seconds between two requests to the kubelet, and how long doubtful answers are held back."""

    # While a change is due: `soon` for the first `hasty` seconds, then `later`, and `seldom` once
    # the change has been due for `patient` seconds.
    soon: float = 0.1
    hasty: float = 5.0
    later: float = 0.3
    patient: float = 60.0
    seldom: float = 2.0
    # While no change is due: `held` if a pod holds devices (a kubelet may release them seconds
    # before the API server knows), else `idle`.
    held: float = 2.0
    idle: float = 10.0
    watchful: float = 1.0  # the longest pause after a kubelet's restart or a GPU's fault
    # How long the agent stays watchful. A living pod that is still not shown then makes the record
    # not Ready.
    restart: float = 10.0
    # How long a list is held back because the pod of some devices is not known.
    unidentified: float = 1.0
    silence: float = 10.0  # how long the kubelet may be silent before the record says so


USUAL_INTERVALS = PollIntervals()


class KubeletPolling:
    """When to ask for the list of pods next, depending on how the requests so far have ended.

    Every time is in seconds of one monotonic clock. ``now`` is the time of the start.
    """

    def __init__(self, intervals: PollIntervals, now: float) -> None:
        self._intervals = intervals
        self._asked = NEVER
        self._not_before = NEVER
        self._at_once = False
        self._watchful_until = now + intervals.restart
        self._due_since = now
        self._silent_since: float | None = None
        # Whether the kubelet does not answer at all. A busy kubelet is silent and not gone.
        self.gone = False
        self._sockets = 0
        self.due: frozenset[PodUid] = frozenset()  # the pods whose change is due
        # Why the kubelet is silent; empty if it answers.
        self.cause = "the kubelet has not answered yet"
        # How often the kubelet has come back after its socket was missing or replaced.
        self.restarts = 0
        # how many requests have failed; an answer that the kubelet is busy is no failure
        self.failures = 0

    @property
    def silent(self) -> bool:
        """Whether the last request was not answered. False before the first one."""
        return self._silent_since is not None

    def silent_too_long(self, now: float) -> bool:
        """Check whether it is time for the record to say that the kubelet does not answer."""
        since = self._silent_since
        return since is not None and now - since > self._intervals.silence

    def watchful(self, now: float) -> bool:
        """Check whether the kubelet has restarted, or a GPU has fallen sick, recently."""
        return now < self._watchful_until

    def next_question(self, now: float, *, doubtful: bool, holders: bool) -> float:
        """Return when the next request is due.

        ``doubtful`` says that part of the last list was not accepted, ``holders`` that a pod holds
        devices.
        """
        pause = self._pause(now, doubtful=doubtful, holders=holders)
        return max(self._asked + pause, self._not_before)

    def _pause(self, now: float, *, doubtful: bool, holders: bool) -> float:
        wait = self._intervals
        if self._at_once:
            return wait.soon / 2
        if self.silent:
            return wait.later
        if self.due or doubtful:
            waited = now - self._due_since
            if waited < wait.hasty:
                return wait.soon
            return wait.later if waited < wait.patient else wait.seldom
        calm = wait.held if holders else wait.idle
        return min(wait.watchful, calm) if self.watchful(now) else calm

    def news(self, now: float) -> None:
        """Make the next request soon, since something has happened that the kubelet may know of."""
        self._due_since = now
        self._at_once = True

    def fault(self, now: float) -> None:
        """Note that a GPU has fallen sick.

        The device plugin notices it, and the kubelet hands out less.
        """
        self._watchful_until = max(self._watchful_until, now + self._intervals.restart)
        self.news(now)

    def restarted(self, sockets: int) -> bool:
        """Check whether an answer now would be the first after a restart of the kubelet."""
        return self.gone or sockets != self._sockets

    def wait_for(self, due: frozenset[PodUid], now: float) -> None:
        """Set the pods whose change is due; a new one among them makes the agent ask often."""
        if due - self.due:
            self._due_since = now
        self.due = due

    def ask(self, now: float) -> None:
        """Note that a request begins. Call :meth:`answered` or :meth:`failed` when it has ended."""
        self._asked = now

    def answered(self, sockets: int) -> None:
        """Note an answer of the kubelet. ``sockets`` counts how often its socket was replaced."""
        self._at_once = False
        if self.restarted(sockets):
            self.gone, self._sockets = False, sockets
            self._watchful_until = self._asked + self._intervals.restart
            self.restarts += 1
        self._silent_since, self.cause = None, ""

    def failed(self, cause: str, *, busy: bool = False) -> bool:
        """Note that the kubelet did not answer, or was ``busy`` and has to be asked later.

        Returns whether its silence begins here.
        """
        if busy:
            self._not_before = self._asked + self._intervals.later
        else:
            self._at_once, self.gone = False, True
            self.failures += 1
        begins, self.cause = self._silent_since is None, cause
        if begins:
            self._silent_since = self._asked
        return begins


class AllocatablePolling:
    """The devices that the kubelet hands out from, and when to ask for them again.

    This is a second request after the list of pods, made when its answer may have changed.
    """

    def __init__(self, intervals: PollIntervals) -> None:
        self._intervals = intervals
        self._asked = NEVER
        self._wanted = False
        self._entries: list[Entry] = []
        # Device ids by resource, the held ones included; None before the first answer.
        self.allocatable: Mapping[str, frozenset[DeviceId]] | None = None
        # What the kubelet advertised before it restarted, until it advertises that again.
        self._awaited: Mapping[str, frozenset[DeviceId]] = {}

    def begin_anew(self) -> None:
        """Note that the kubelet has restarted. It has no devices until plugins have registered."""
        self._awaited = self.allocatable or self._awaited
        self.want()

    def devices_missing(self, *, watchful: bool) -> bool:
        """Check whether a resource from before the kubelet's restart has no device yet.

        ``watchful`` says that the kubelet has restarted recently. After that time the agent no
        longer waits for such a resource.
        """
        now = self.allocatable or {}
        return watchful and any(ids and not now.get(name) for name, ids in self._awaited.items())

    def want(self) -> None:
        """Ask again after the next list, whatever that list says."""
        self._wanted = True

    def is_due(
        self, now: float, entries: list[Entry], waited_for: Iterable[NodePod], *, watchful: bool
    ) -> bool:
        """Check whether to ask after this list of pods.

        ``waited_for`` are the pods whose change is due. A pod that requests a resource that the
        kubelet does not hand out waits for a plugin that has not registered yet.
        """
        since, allocatable = now - self._asked, self.allocatable
        if entries != self._entries or allocatable is None or self._wanted:
            return True
        if since >= self._intervals.idle:
            return True
        unserved = any(
            resource not in allocatable for pod in waited_for for _, resource in pod.wants
        )
        return (unserved or watchful) and since >= self._intervals.watchful

    def answered(self, now: float, allocatable: Mapping[str, frozenset[DeviceId]]) -> None:
        """Store the answer to the request made at ``now``."""
        self.allocatable = allocatable
        self._asked, self._wanted = now, False
        if all(allocatable.get(name) for name in self._awaited):
            self._awaited = {}

    def listed(self, entries: list[Entry]) -> None:
        """Note that all requests that belong to this list of pods were answered."""
        self._entries = entries


class Rereading:
    """When to read one part of sysfs again. Times are in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._pause = FIRST_REREADING
        self._due = float("inf")

    def was_read(self, now: float, *, complete: bool) -> None:
        """Note a reading; ``complete`` says that everything could be read."""
        if complete:
            self._pause, self._due = FIRST_REREADING, float("inf")
        else:
            self._due = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_REREADING)

    def is_due(self, now: float) -> bool:
        """Check whether to read again now, without any other cause."""
        return now >= self._due
