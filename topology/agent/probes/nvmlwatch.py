"""The watch of the driver, in threads of its own, so that a call that hangs delays nothing else.

One thread reads from NVML (:class:`_Session`). Between two readings it waits for Xid events (errors
that the driver reports). It passes an event on at once and then reads again. While there is no
driver or a GPU is missing, it closes NVML and opens it again from time to time, because only an
NVML that was opened later sees a GPU that was reset.

Another thread (:class:`NvmlWatch`) watches for calls that do not return:

* A call about one GPU is left behind with its thread. That GPU counts as hung, and another session
  goes on reading the others. When the call returns at last, its thread ends and the GPU is read
  again. So there is at most one thread for each GPU, and one more.
* A hanging call that is not about one GPU (such as the count of GPUs) stops the session. The state
  says that a call hangs until it returns.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from topology.agent.model.observations import NvmlState, SeenNode, Vitals, Xid
from topology.agent.probes.nvml import EventsFailedError, Nvml, NvmlDownError
from topology.core.devices import GpuUuid

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Cadence:
    """The intervals at which the driver is read, in seconds."""

    vitals: float = 5.0  # between two readings of what changes often
    look: float = 60.0  # between two readings of what rarely changes
    reopen: float = 30.0  # between two openings of NVML
    hung: float = 15.0  # after which a call counts as hung
    # The longest single wait for an event, which is also how long a stop may take. Also the pause
    # between two checks whether a call hangs.
    slice: float = 1.0


class _LeftError(Exception):
    """The end of a session that the watch has left, and that must not ask about another GPU."""


class NvmlWatch:
    """The watch, which runs in daemon threads from :meth:`start` on.

    ``on_news`` may only take a note. The sessions report to the watch, and any thread may read it.
    """

    def __init__(
        self,
        on_news: Callable[[], None],
        clock: Callable[[], float],
        cadence: Cadence = Cadence(),
    ) -> None:
        self._on_news = on_news
        self.clock = clock
        self.cadence = cadence
        self.stopping = threading.Event()
        self.expected = 0  # how many GPUs the driver should show
        self._lock = threading.Lock()
        self._state = NvmlState()
        self._xids: list[Xid] = []
        self._left: dict[int, tuple[str, _Session]] = {}
        self._session = _Session(self, {})
        self._thread = threading.Thread(target=self._guard, name="nvml-guard", daemon=True)

    def start(self) -> None:
        """Start the threads. Call it once."""
        self._session.thread.start()
        self._thread.start()

    def stop(self, patience: float = 3.0) -> None:
        """Stop the threads; those that hang in a call are left behind."""
        self.stopping.set()
        if self._thread.ident is not None:
            self._thread.join(patience)
            self._session.thread.join(patience)

    def state(self) -> NvmlState:
        """Return what was seen last.

        If a call hangs that is not about one GPU, the ``problem`` of the state says so.
        """
        session = self._session
        with self._lock:
            state = self._state
        if session.hangs() and session.asking is None:
            return replace(state, problem="a call hangs", asked=True)
        return state

    def xids(self) -> list[Xid]:
        """Return the errors since the last call."""
        with self._lock:
            found, self._xids = self._xids, []
        return found

    # What the sessions report.

    def tell(
        self, found: Callable[[NvmlState], NvmlState], unless: threading.Event | None = None
    ) -> None:
        """Change the state, unless the event ``unless`` has happened."""
        with self._lock:
            if unless is not None and unless.is_set():
                return
            self._state = found(self._state)
        self._on_news()

    def heard(self, xid: Xid) -> None:
        """Store an error for :meth:`xids`."""
        with self._lock:
            self._xids.append(xid)

    def _guard(self) -> None:
        while not self.stopping.wait(self.cadence.slice):
            returned = [n for n, (_, left) in self._left.items() if not left.thread.is_alive()]
            for index in returned:
                log.warning("a call that hung has returned", gpu=index)
                del self._left[index]
            if returned:
                self._session.leave_out(self._hung())
            asking = self._session.asking
            if self._session.hangs() and asking is not None:
                self._go_on_without(asking)

    def _hung(self) -> dict[int, str]:
        """Return the GPUs over which calls hang, by the driver's numbers, with their UUIDs."""
        return {index: uuid for index, (uuid, _) in self._left.items()}

    def _go_on_without(self, index: int) -> None:
        """Leave the session to its call about this GPU, and read the others in a new session."""
        left = self._session
        uuid = left.leave(index)
        log.warning("a call about a GPU hangs", gpu=index, uuid=uuid)
        self._left[index] = (uuid, left)

        def without(seen: NvmlState) -> NvmlState:
            vitals = tuple(v for v in seen.vitals if v.uuid != uuid)
            vitals += (Vitals(GpuUuid(uuid), hung=True),) if uuid else ()
            more = () if uuid else (index,)
            nameless, hung = (*seen.nameless, *more), (*seen.hung, *more)
            return replace(
                seen, vitals=vitals, nameless=nameless, hung=hung, rounds=seen.rounds + 1
            )

        self.tell(without)
        self._session = _Session(self, self._hung())
        self._session.thread.start()


class _Session:
    """A thread that opens NVML and reads, again and again, until the watch stops or leaves it."""

    def __init__(self, watch: NvmlWatch, hung: Mapping[int, str]) -> None:
        self._watch = watch
        self._clock = watch.clock
        self._cadence = watch.cadence
        self._hung = hung
        self._nvml: Nvml | None = None
        self._asked_since: float | None = None
        self._over = threading.Event()
        self._hears = False  # whether the last wait for an event did not fail
        self._listen_anew = False
        self.thread = threading.Thread(target=self._run, name="nvml", daemon=True)

    # What the watch calls, from another thread.

    @property
    def asking(self) -> int | None:
        """The GPU that its present call is about; None if the call is about no GPU or several."""
        nvml = self._nvml
        return None if nvml is None else nvml.asking

    def hangs(self) -> bool:
        """Check whether its present call takes too long."""
        since = self._asked_since
        return since is not None and self._clock() - since > self._cadence.hung

    def leave(self, index: int) -> str:
        """Leave the session to its call. It ends when the call returns, and reports nothing more.

        Returns the UUID of this GPU, empty if that is not known.
        """
        nvml = self._nvml
        self._over.set()
        return nvml.uuid_of(index) if nvml is not None else ""

    def leave_out(self, hung: Mapping[int, str]) -> None:
        """From now on, leave these GPUs out and read all others."""
        self._hung, nvml = hung, self._nvml
        if nvml is not None:
            nvml.hung = hung
        self._listen_anew = True

    # The thread.

    def _ended(self) -> bool:
        return self._over.is_set() or self._watch.stopping.is_set()

    def _run(self) -> None:
        while not self._ended():
            try:
                self._busy()
                with Nvml(self._hung) as nvml:
                    nvml.hung, nvml.on_progress = self._hung, self._goes_on
                    self._nvml = nvml
                    self._look_and_listen(nvml)
                continue  # at once, since Xids are not received in between
            except _LeftError:
                return
            except NvmlDownError as error:
                self._fail(str(error))
            except Exception as error:
                # One bad answer must not end the thread.
                log.exception("reading NVML failed")
                self._fail(f"{type(error).__name__}: {error}")
            finally:
                self._nvml = self._asked_since = None
            if not self._ended():
                self._watch.stopping.wait(self._cadence.vitals)

    def _look_and_listen(self, nvml: Nvml) -> None:
        """Read and listen until NVML fails or has to be opened again."""
        opened = looked = self._clock()
        listening = nvml.listen()  # first, so that events during the reading are received
        began = self._clock()
        seen = nvml.look()
        vitals = nvml.vitals()
        self._see(nvml, seen, vitals, self._clock() - began)
        while not self._ended():
            listening = self._hear(nvml, listening=listening)
            if self._ended():
                return
            self._busy()
            began = self._clock()
            before, vitals = vitals, nvml.vitals()
            if self._listen_anew or not listening:
                self._listen_anew = False
                listening = nvml.listen()
            # NVML might see a missing GPU after it is opened again.
            expected = max(1, self._watch.expected)
            missing = any(vital.lost for vital in vitals) or len(vitals) < expected
            if missing and self._clock() - opened >= self._cadence.reopen:
                return
            if (
                _hardware_of(vitals) != _hardware_of(before)
                or self._clock() - looked >= self._cadence.look
            ):
                seen, looked = nvml.look(), self._clock()
            self._see(nvml, seen, vitals, self._clock() - began)

    def _hear(self, nvml: Nvml, *, listening: bool) -> bool:
        """Listen until an Xid comes or the next reading is due.

        Returns whether listening still works. If waiting fails, a GPU may be lost, so the next
        reading is due soon. A wait that always fails at once must not spin. Then the next reading
        comes at its usual time.
        """
        began = self._clock()
        due = began + self._cadence.vitals
        self._asked_since = None
        while not self._ended() and (left := due - self._clock()) > 0:
            pause = min(left, self._cadence.slice)
            if not listening:
                self._asked_since = None
                self._watch.stopping.wait(pause)
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
                self._watch.heard(xid)
                break
        return listening

    def _goes_on(self) -> None:
        """Note progress before a call about another GPU. Raises if the watch has left this session.

        Otherwise another call that hangs would keep its thread, and the GPU whose call has returned
        would still count as hung.
        """
        if self._over.is_set():
            raise _LeftError
        self._busy()

    def _busy(self) -> None:
        self._asked_since = self._clock()

    def _see(self, nvml: Nvml, seen: SeenNode, vitals: tuple[Vitals, ...], seconds: float) -> None:
        """Report what a reading has shown and how long it took."""

        def looked(before: NvmlState) -> NvmlState:
            rounds = before.rounds + 1
            hung = tuple(index for index in nvml.nameless if index in nvml.hung)
            return NvmlState(
                seen,
                vitals,
                rounds,
                "",
                asked=True,
                nameless=nvml.nameless,
                hung=hung,
                looks=before.looks + 1,
                look_seconds=before.look_seconds + seconds,
            )

        self._watch.tell(looked, unless=self._over)

    def _fail(self, cause: str) -> None:
        self._watch.tell(lambda s: replace(s, problem=cause, asked=True), unless=self._over)


def _hardware_of(vitals: tuple[Vitals, ...]) -> list[tuple[object, ...]]:
    """Return the part of the vitals that belongs to the hardware."""
    return [(v.uuid, v.silent, v.active_links, v.fabric) for v in vitals]
