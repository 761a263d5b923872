"""The health of GPUs and links: faults are remembered until a reset or a reboot.

A fault is not over when it is no longer seen. A GPU that had a critical Xid, fell off the bus or
could not remap a row is sick until it is reset. A link that dropped does not count until then
either, because it may come back and drop again. Two signs show a reset: the GPU's energy counter
starts from zero, or the driver's recovery action goes back to none. A reboot has another boot id,
and nothing of a former boot is remembered.

Some reasons go away without a reset. A GPU over which a call hangs is sick until it answers, since
a call may also be slow without a fault. Other reasons hold for as long as the driver shows them at
each reading: the state of the GPU in its NVLink fabric, links that have not been up since the boot,
and the errors of its SRAM.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from topology.agent.model.hardware import LinkFaults
from topology.agent.model.observations import FabricState, Vitals, Xid
from topology.agent.model.recordlimits import LONGEST_REASON, MOST_HEALTH
from topology.core.devices import GpuUuid
from topology.core.report import (
    FABRIC_MISCONFIGURED,
    FABRIC_NOT_READY,
    FABRIC_ROUTE_UNHEALTHY,
    Health,
)

# Faults of the application, not of the GPU. NVIDIA's device plugin ignores them, too.
HARMLESS_XIDS = frozenset({13, 31, 43, 45, 68, 109})
# A memory row will be remapped at the next reset, and nothing else is wrong. NVIDIA's device plugin
# still marks the GPU unhealthy until the plugin restarts.
REMAP_XIDS = frozenset({63, 94})

LOST = "Lost"
REMAP_FAILED = "RowRemapFailed"
REMAP_PENDING = "RowRemapPending"
LINK_DOWN = "NVLinkDown"
NEVER_UP = "NVLinkNeverUp"
FABRIC_DEGRADED = "FabricDegraded"
FABRIC_RECOVERING = "FabricRecovering"
SRAM = "SramThresholdExceeded"
XID = "Xid"
HANGS = "Hangs"


@dataclass(slots=True)
class _Gpu:
    """The remembered faults of one GPU."""

    reasons: list[str] = field(default_factory=list)  # in the order in which they were found
    since: str = ""
    baseline: int | None = None  # the energy counter when it fell sick
    down: set[int] = field(default_factory=set)  # links that have dropped
    known: frozenset[int] = frozenset()  # links that have been up at some time
    energy: int | None = None  # the energy counter at the last reading
    recovery: str | None = None
    lost: bool = False
    fabric: FabricState | None = None
    wired: int = 0  # the number of links that should be up; 0 if that is not known
    passing: tuple[str, ...] = ()  # reasons that hold only as long as each reading shows them

    @property
    def sick(self) -> bool:
        """Whether one of its reasons makes it sick."""
        return any(map(_makes_sick, self.reasons))


class HealthTracker:
    """The faults of a node's GPUs. Times are texts that are passed on unread."""

    def __init__(self, former: Iterable[Health] = ()) -> None:
        self._gpus: dict[GpuUuid, _Gpu] = {}
        self._unattributed: list[int] = []
        for health in former:
            reasons = [r for r in health.reason.split(", ") if r and r not in SHOWN_ANEW]
            self._gpus[health.uuid] = _Gpu(
                reasons,
                health.since,
                health.energy,
                set(health.links_down),
                lost=LOST in reasons,
            )

    def xid(self, event: Xid, now: str) -> bool:
        """Store an Xid. Returns whether it makes a GPU sick, at least for the device plugin."""
        if event.number in HARMLESS_XIDS:
            return False
        if event.uuid is None:
            self._unattributed.append(event.number)  # the next reading may show which GPU
        else:
            self._blame(self._of(event.uuid), f"{XID}{event.number}", now)
        return True

    def look(
        self, vitals: Iterable[Vitals], now: str, wired: Mapping[GpuUuid, int] | None = None
    ) -> None:
        """Store what the GPUs show; ``wired`` says how many links of each should be up."""
        seen = list(vitals)
        for vital in seen:
            gpu = self._of(vital.uuid)
            gpu.wired = (wired or {}).get(vital.uuid, gpu.wired)
            self._look(gpu, vital, now)
        lost = [v.uuid for v in seen if v.lost]
        for number in self._unattributed:
            for uuid in lost or [v.uuid for v in seen]:
                self._blame(self._of(uuid), f"{XID}{number}", now)
        if seen:
            self._unattributed.clear()

    def gone(self, uuids: Collection[GpuUuid], hung: int, now: str) -> None:
        """Store the GPUs that were there in this boot and that the driver does not name any more.

        Calls hang over ``hung`` GPUs whose UUIDs are unknown, because the agent has started since.
        If ``uuids`` may be among them, they count as hung, not as lost.
        """
        for uuid in uuids:
            gpu = self._of(uuid)
            if len(uuids) <= hung:
                self._blame(gpu, HANGS, now)
                continue
            gpu.lost = True
            self._blame(gpu, LOST, now)

    def link_faults(self) -> LinkFaults:
        """Return the NVLinks that do not count."""
        down = {uuid: frozenset(gpu.down) for uuid, gpu in self._gpus.items() if gpu.down}
        states = {uuid: gpu.fabric for uuid, gpu in self._gpus.items() if gpu.fabric is not None}
        off = frozenset(uuid for uuid, state in states.items() if not state.usable)
        slow = frozenset(uuid for uuid, state in states.items() if state.degraded)
        return LinkFaults(down, off, slow)

    def fabric(self) -> Mapping[GpuUuid, bool]:
        """Return whether each GPU that can be in an NVLink fabric can rely on it."""
        return {u: gpu.fabric.usable for u, gpu in self._gpus.items() if gpu.fabric is not None}

    def expected(self) -> Mapping[GpuUuid, int]:
        """Return how many links of each GPU should be up.

        The number is that of its model, or of the links that it had before, if those are more.
        """
        return {u: max(gpu.wired, len(gpu.known | gpu.down)) for u, gpu in self._gpus.items()}

    def report(self) -> tuple[Health, ...]:
        """Return the health of the GPUs that have a fault."""
        found = [
            Health(
                uuid,
                healthy=not gpu.sick,
                reason=_fitting([*gpu.passing, *gpu.reasons, *([LINK_DOWN] if gpu.down else [])]),
                since=gpu.since,
                links_down=tuple(sorted(gpu.down)),
                energy=gpu.baseline,
            )
            for uuid, gpu in sorted(self._gpus.items())
            if gpu.reasons or gpu.down or gpu.passing
        ]
        # The limit is above the number of GPUs of any node. The sick ones come first.
        kept = sorted(found, key=lambda h: h.healthy)[:MOST_HEALTH]
        return tuple(sorted(kept, key=lambda h: h.uuid))

    def _of(self, uuid: GpuUuid) -> _Gpu:
        return self._gpus.setdefault(uuid, _Gpu())

    def _look(self, gpu: _Gpu, vital: Vitals, now: str) -> None:
        if vital.silent:
            gpu.fabric, gpu.passing = None, ()
            gpu.lost |= vital.lost
            self._blame(gpu, LOST if vital.lost else HANGS, now)
            return
        self._answered(gpu, now)
        if _was_reset(gpu, vital):
            gpu.reasons.clear()
            gpu.down.clear()
            gpu.since, gpu.baseline, gpu.known, gpu.passing = "", None, frozenset(), ()
        gpu.lost = False
        gpu.energy = vital.energy
        gpu.recovery = vital.recovery or gpu.recovery
        if gpu.since and gpu.baseline is None:
            gpu.baseline = gpu.energy
        if vital.remap_failed:
            self._blame(gpu, REMAP_FAILED, now)
        if vital.remap_pending:
            self._blame(gpu, REMAP_PENDING, now)
        if vital.active_links is not None:
            dropped = gpu.known - vital.active_links - gpu.down
            if dropped:
                gpu.down |= dropped
                self._mark(gpu, now)
            gpu.known |= vital.active_links
        gpu.fabric = vital.fabric
        gpu.passing = tuple(_passing(gpu, vital))
        if gpu.passing:
            self._mark(gpu, now)
        elif not (gpu.reasons or gpu.down):
            gpu.since, gpu.baseline = "", None

    def _answered(self, gpu: _Gpu, now: str) -> None:
        if HANGS in gpu.reasons:
            gpu.reasons.remove(HANGS)
            if not gpu.sick:
                gpu.since = now if gpu.reasons or gpu.down else ""
            if not gpu.since:
                gpu.baseline = None

    def _blame(self, gpu: _Gpu, reason: str, now: str) -> None:
        if reason not in gpu.reasons:
            if _makes_sick(reason) and not gpu.sick:
                gpu.since = ""  # its health changes now
            gpu.reasons.append(reason)
            self._mark(gpu, now)

    def _mark(self, gpu: _Gpu, now: str) -> None:
        gpu.since = gpu.since or now
        if gpu.baseline is None:
            gpu.baseline = gpu.energy


def _was_reset(gpu: _Gpu, vital: Vitals) -> bool:
    """Check whether the GPU has been reset since the last reading, or since it fell sick."""
    earlier = gpu.energy if gpu.energy is not None else gpu.baseline
    if earlier is not None and vital.energy is not None:
        if vital.energy < earlier:
            return True
    elif gpu.lost:
        return True  # only a reset brings a lost GPU back, and this one has no counter to show it
    return gpu.recovery not in (None, "none") and vital.recovery == "none"


def _passing(gpu: _Gpu, vital: Vitals) -> Iterator[str]:
    """Yield the reasons that hold for as long as the driver shows them."""
    if (fabric := vital.fabric) is not None:
        for reason, told in (
            (FABRIC_NOT_READY, not fabric.registered),
            (FABRIC_MISCONFIGURED, fabric.misconfigured),
            (FABRIC_ROUTE_UNHEALTHY, fabric.route_unhealthy),
            (FABRIC_DEGRADED, fabric.degraded),
            (FABRIC_RECOVERING, fabric.recovering),
        ):
            if told:
                yield reason
    if vital.active_links is not None and len(gpu.known | gpu.down) < gpu.wired:
        yield NEVER_UP
    if vital.sram_exceeded:
        yield SRAM


# Reasons that no tracker takes over from the record, because the first reading shows them.
SHOWN_ANEW = frozenset(
    {
        LINK_DOWN,
        NEVER_UP,
        FABRIC_NOT_READY,
        FABRIC_MISCONFIGURED,
        FABRIC_ROUTE_UNHEALTHY,
        FABRIC_DEGRADED,
        FABRIC_RECOVERING,
        SRAM,
    }
)


def _fitting(reasons: list[str]) -> str:
    """Return the reasons that fit into a record, the earlier ones first."""
    text = ""
    for reason in reasons:
        longer = f"{text}, {reason}" if text else reason
        if len(longer) > LONGEST_REASON:
            break
        text = longer
    return text


def _makes_sick(reason: str) -> bool:
    harmless = {f"{XID}{number}" for number in REMAP_XIDS}
    told = reason.startswith(XID) and reason not in harmless
    return told or reason in (LOST, HANGS, REMAP_FAILED)
