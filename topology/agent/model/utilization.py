"""The use of GPUs: use that no pod accounts for, and allocations that are not used.

**Use without a pod** means that a process unknown to the kubelet computes on a GPU. A process may
take a moment to end after its pod has gone. So a GPU counts only after several such readings in a
row.

**Idle allocations.** A device counts as *unused* at a reading if the driver says so:

* a whole GPU, shared or not, if its utilisation is 0, of kernels and of memory alike. A process
  that holds memory and computes nothing does not use it. The driver does not show which of several
  pods uses a shared GPU. So it is unused by all of them, or by none.
* a MIG instance, if no process runs on it and almost none of its memory is in use. The driver has
  no utilisation of a MIG instance, so a process that waits counts as use. The count of processes
  alone would not be enough, because the driver may hide the processes of other containers.

A **spell** begins at a reading that shows no use by the pod that holds the device. It ends at a
reading that shows use, or when the pod releases the device. If the driver does not say, the spell
goes on for :data:`LONGEST_GAP` at most. The same holds while an agent restarts.

Spells are timed by a monotonic clock. The time of day at which a spell began is computed back from
now. So a step of the system's clock moves the beginning and makes no spell longer. The published
time is rounded down to :data:`ROUNDED_TO`, and is not changed while it differs by less than
:data:`STEP`. So the record changes rarely.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from topology.agent.model.observations import Vitals
from topology.agent.model.podentries import Holdings
from topology.core.devices import MIB, GpuUuid, PodUid, base_uuid
from topology.core.report import Allocation, IdleAllocation, Report
from topology.times import time_text

# Memory in use on a GPU without a pod above which a process must be computing there.
USED_MEMORY = 256 * MIB
LOOKS = 3  # readings in a row with use without a pod, before it is published
SHORTEST = 600.0  # seconds after which a spell is published
ROUNDED_TO = 600  # seconds to which a published time is rounded down
# Seconds without information after which it is unknown what happened in between.
LONGEST_GAP = 600.0
# Seconds by which the clocks may differ before the beginning of a spell is computed again.
STEP = 60.0
# Memory in use on a MIG instance above which a process must have a context there. An instance
# without processes shows tens of MiB, depending on its size.
INSTANCE_MEMORY = 128 * MIB
Key = tuple[PodUid, GpuUuid]  # a pod, and a GPU or MIG instance that it holds


class UnaccountedUse:
    """The number of readings in a row, for each GPU, that found use without a pod."""

    def __init__(self) -> None:
        self._looks: defaultdict[GpuUuid, int] = defaultdict(int)

    def look(self, vitals: Iterable[Vitals], accounted: Collection[str], *, news_due: bool) -> None:
        """Store a reading. ``accounted`` are GPUs that a pod holds, or that are split by MIG.

        With ``news_due`` nothing is counted, because a pod that starts or ends may use the GPU.
        """
        for vital in vitals:
            busy = bool(vital.processes) or (vital.memory_used or 0) > USED_MEMORY
            if not busy or vital.uuid in accounted:
                self._looks.pop(vital.uuid, None)
            elif not news_due:
                self._looks[vital.uuid] += 1

    def forget(self) -> None:
        """Start counting again from zero, because the holders of GPUs are not known."""
        self._looks.clear()

    def gpus(self) -> frozenset[GpuUuid]:
        """Return the GPUs that are used without a pod."""
        return frozenset(uuid for uuid, looks in self._looks.items() if looks >= LOOKS)


@dataclass(slots=True)
class _Spell:
    """A time without use. All times are in seconds."""

    began: float  # by the monotonic clock
    looked: float  # the last reading that showed no use, by the same clock
    since: float | None = None  # when it began by the time of day; None before that is computed


class IdleTracker:
    """The spells of a node's allocations.

    ``now`` is always in seconds of a monotonic clock, ``text`` is the time of day as RFC 3339.
    """

    def __init__(self) -> None:
        self._spells: dict[Key, _Spell] = {}

    def remember(self, report: Report, now: float, text: str) -> None:
        """Take over what the former agent published in this boot.

        The former agent's last reading was at the report's ``observed_at``. Both times of the
        report are by the system's clock at that time. So a step of the clock since then adds at
        most :data:`LONGEST_GAP`.
        """
        seen, today = _seconds(report.observed_at), _seconds(text)
        if seen is None or today is None or not -STEP <= today - seen <= LONGEST_GAP:
            return
        gap = max(0.0, today - seen)
        devices = {(a.pod_uid, a.container, a.resource): a.device_ids for a in report.allocations}
        for idle in report.idle:
            since = _seconds(idle.since)
            if since is None or since > seen:
                continue
            for device in devices.get((idle.pod_uid, idle.container, idle.resource), ()):
                spell = _Spell(now - gap - (seen - since), now - gap, since)
                self._spells[idle.pod_uid, base_uuid(device)] = spell

    def look(self, vitals: Iterable[Vitals], holders: Holdings, now: float) -> None:
        """Store a reading of the driver; ``holders`` says what each pod holds."""
        unused = dict(_unused(vitals))
        known, self._spells = self._spells, {}
        held = {
            (uid, base_uuid(device))
            for uid, entry in holders.items()
            for part in entry.held
            for device in part.device_ids
        }
        for key in held:
            told, spell = unused.get(key[1]), known.get(key)
            if spell is not None and now - spell.looked > LONGEST_GAP:
                spell = None
            if told:
                spell = spell or _Spell(now, now)
                spell.looked = now
            if spell is not None and told is not False:
                self._spells[key] = spell

    def since(self, now: float, text: str) -> Mapping[Key, str]:
        """Return the times since when devices have been unused.

        Only devices that have been unused for :data:`SHORTEST` are in the result.
        """
        today = _seconds(text)
        if today is None:
            return {}
        return {
            key: time_text(_since(spell, now, today) // ROUNDED_TO * ROUNDED_TO)
            for key, spell in self._spells.items()
            if now - spell.began >= SHORTEST and now - spell.looked <= LONGEST_GAP
        }


def idle_allocations(
    allocations: Sequence[Allocation], since: Mapping[Key, str]
) -> tuple[IdleAllocation, ...]:
    """Return the allocations whose devices are all unused, since the last of them became unused."""
    found = []
    for a in allocations:
        times = [since.get((a.pod_uid, base_uuid(device))) for device in a.device_ids]
        told = [time for time in times if time is not None]
        if a.pod_uid and told and len(told) == len(times):
            found.append(IdleAllocation(a.pod_uid, a.container, a.resource, max(told)))
    return tuple(found)


def _unused(vitals: Iterable[Vitals]) -> Iterator[tuple[GpuUuid, bool]]:
    """Yield whether each GPU and MIG instance is unused, if the driver says so."""
    for vital in vitals:
        if vital.utilisation is not None:
            yield vital.uuid, not (vital.utilisation or vital.memory_utilisation)
        for part in vital.instances:
            runs, used = part.processes, part.memory_used
            if runs or (used is not None and used > INSTANCE_MEMORY):
                yield GpuUuid(part.uuid), False
            elif runs is not None and used is not None:
                yield GpuUuid(part.uuid), True


def _since(spell: _Spell, now: float, today: float) -> float:
    """Return when the spell began by the time of day, which may have been set since."""
    began = today - (now - spell.began)
    if spell.since is None or abs(began - spell.since) > STEP:
        spell.since = began
    return spell.since


def _seconds(text: str) -> float | None:
    """Return the seconds since 1970 of an RFC 3339 time; None if it is invalid or has no zone."""
    try:
        found = datetime.fromisoformat(text)
        return found.timestamp() if found.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
