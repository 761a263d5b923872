"""A thread that asks NVML, so that a call that hangs does not hold up the rest of the agent.

Between two looks it waits for Xid events (errors that the driver reports). It passes an event on at
once and then looks again. While there is no driver or a GPU is missing, it closes NVML and opens it
again from time to time: only an NVML that was opened later sees a GPU that was reset.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from topology.agent.asks.nvml import EventsFailedError, Nvml, NvmlDownError
from topology.agent.decides.observed import NvmlState, SeenNode, Vitals, Xid

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Cadence:
    """Seconds: between two looks at what moves, at what hardly changes, and between two openings.

    A call is said to hang after ``hung``.
    """

    vitals: float = 5.0
    look: float = 60.0
    reopen: float = 30.0
    hung: float = 15.0
    slice: float = 1.0
    """The longest wait for an event at a time: how long a stop may take."""


class NvmlWatch:
    """Runs in a daemon thread from :meth:`start` on; ``on_news`` may only take a note."""

    def __init__(
        self,
        on_news: Callable[[], None],
        clock: Callable[[], float],
        cadence: Cadence = Cadence(),
        open_nvml: Callable[[], Nvml] = Nvml,
    ) -> None:
        self._on_news = on_news
        self._clock = clock
        self._cadence = cadence
        self._open = open_nvml
        self._lock = threading.Lock()
        self._state = NvmlState()
        self._xids: list[Xid] = []
        self._busy_since: float | None = None
        self._expected = 0
        self._hears = False  # whether the last wait for an event did not fail
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def stop(self, patience: float = 3.0) -> None:
        """Stop the thread; one that hangs in a call is left behind."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(patience)

    def state(self) -> NvmlState:
        """What was seen last, with a call that hangs as the problem."""
        with self._lock:
            state, busy = self._state, self._busy_since
        if busy is not None and self._clock() - busy > self._cadence.hung:
            return replace(state, problem="a call hangs", asked=True)
        return state

    def expect(self, gpus: int) -> None:
        """How many GPUs there ought to be: with fewer, NVML is opened again from time to time."""
        self._expected = gpus

    def xids(self) -> list[Xid]:
        """The errors that came since this was last asked."""
        with self._lock:
            found, self._xids = self._xids, []
        return found

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._busy()
                with self._open() as nvml:
                    self._watch(nvml)
                continue  # at once: no Xid is heard in between
            except NvmlDownError as error:
                self._fail(str(error))
            except Exception as error:
                # One bad answer must not end all later ones.
                log.exception("NVML look failed")
                self._fail(f"{type(error).__name__}: {error}")
            self._busy_since = None
            self._stopping.wait(self._cadence.vitals)

    def _watch(self, nvml: Nvml) -> None:
        """Look and listen until NVML fails or has to be opened anew."""
        opened = looked = self._clock()
        listening = nvml.listen()  # first: what happens during the look is heard
        seen = nvml.look()
        vitals = nvml.vitals()
        self._see(nvml, seen, vitals)
        while not self._stopping.is_set():
            listening = self._hear(nvml, listening=listening)
            if self._stopping.is_set():
                return
            self._busy()
            before, vitals = vitals, nvml.vitals()
            listening = listening or nvml.listen()
            missing = any(v.lost for v in vitals) or len(vitals) < max(1, self._expected)
            if missing and self._clock() - opened >= self._cadence.reopen:
                return
            if (
                _hardware_of(vitals) != _hardware_of(before)
                or self._clock() - looked >= self._cadence.look
            ):
                seen, looked = nvml.look(), self._clock()
            self._see(nvml, seen, vitals)

    def _hear(self, nvml: Nvml, *, listening: bool) -> bool:
        """Listen until an Xid comes or the next look is due; whether there is still to listen.

        Where waiting fails a GPU may be lost, so the next look is due soon. What always fails at
        once must not spin: it is looked at in its usual time.
        """
        began = self._clock()
        due = began + self._cadence.vitals
        self._busy_since = None
        while not self._stopping.is_set() and (left := due - self._clock()) > 0:
            pause = min(left, self._cadence.slice)
            if not listening:
                self._busy_since = None
                self._stopping.wait(pause)
                continue
            self._busy()
            try:
                xid = nvml.wait(pause)
            except EventsFailedError:
                if self._hears:
                    due = min(due, began + self._cadence.slice)
                listening = self._hears = False
                continue
            self._hears = True
            if xid is not None:
                log.warning("Xid", number=xid.number, gpu=xid.uuid)
                with self._lock:
                    self._xids.append(xid)
                break
        return listening

    def _busy(self) -> None:
        self._busy_since = self._clock()

    def _see(self, nvml: Nvml, seen: SeenNode, vitals: tuple[Vitals, ...]) -> None:
        rounds = self._state.rounds + 1
        self._note(NvmlState(seen, vitals, rounds, "", asked=True, nameless=nvml.nameless))

    def _fail(self, cause: str) -> None:
        self._note(replace(self._state, problem=cause, asked=True))

    def _note(self, state: NvmlState) -> None:
        with self._lock:
            self._state = state
        self._on_news()


def _hardware_of(vitals: tuple[Vitals, ...]) -> list[tuple[object, ...]]:
    """What of the vitals belongs to the hardware."""
    return [(v.uuid, v.lost, v.active_links) for v in vitals]
