"""One of two replicas, which takes part in the election and takes over when it is elected."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from uuid import uuid4

import msgspec
import structlog

from scheduler_extender.kube.bindable import Bindable, OwnPod
from scheduler_extender.leader.address import Address, AddressWriter
from scheduler_extender.leader.election import Election, Step
from scheduler_extender.leader.fence import DeposedError, Fence, StuckError
from scheduler_extender.leader.lease import LeaseStore
from scheduler_extender.verbs import NotWrittenError
from topology.kubeapi.apiserver import ApiFailure, ApiServer, ConflictError

log = structlog.get_logger(__name__)

RENEWALS = 5  # renewals by the leader within one duration of the Lease
# Seconds until the next read of the Lease, if the replica does not hold it or the last step failed.
LOOK = 0.5
DRAINS_WITHIN = 6.0  # seconds for which a resigning replica waits for the binds being written
# A replica that could not take over leaves the Lease to others for this many of its durations.
STANDS_BACK = 2.0
GIVEN_UP = "could not take over; the Lease is left to other replicas"
NOT_LEADING = "this replica does not lead"


def boot_clock() -> float:
    """Return the seconds of a clock that runs on while the process or the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class Replication:
    """The settings with which a replica takes part in the election."""

    own: OwnPod  # the pod that it runs in
    lease: str = "gpu-topology"  # the name of the Lease, in that pod's namespace
    seconds: float = 10.0  # the Lease's duration
    address: Address | None = None  # what the leader writes into the Service
    renews: tuple[str, ...] = ()  # the Secrets whose certificates the leader renews


class Leader:
    """The election as the rest of a replica sees it. Threads of its own read and write the Lease.

    ``synced`` returns whether the state is complete; until then the replica does not lead. ``sees``
    returns whether the watches are fresh; a leader whose watches stay stale offers its Lease. The
    functions in ``on_lost`` are called in the election's thread when the replica stops leading.
    """

    def __init__(
        self,
        api: ApiServer,
        replication: Replication,
        synced: Callable[[], bool],
        sees: Callable[[], bool],
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        own, seconds = replication.own, replication.seconds
        identity = f"{own.name}_{uuid4().hex[:8]}"
        self.bindable = Bindable(own, identity)
        self._election = Election(identity, seconds)
        self._store = LeaseStore(api, own.namespace, replication.lease)
        self._fence = Fence(api, self.bindable, own, identity)
        address = replication.address
        self._address_writer = (
            None if address is None else AddressWriter(api, own, address, self.leads)
        )
        self.version = self.bindable.version  # the binder calls it (kube.binder.Fence)
        self._synced = synced
        self._sees = sees
        self._clock = clock
        self._seconds = seconds
        self._renew = seconds / RENEWALS
        self.on_lost: list[Callable[[], None]] = []
        self._fenced = -1
        self._back_until = float("-inf")
        self._resigning = False
        self._led = False
        self._stopping = threading.Event()
        self._writes = _Writes()
        self._taking: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="election", daemon=True)

    # For the rest of the replica.

    def leads(self) -> bool:
        """Check whether this replica may answer and write now."""
        return (
            not self._resigning
            and self._owns_term(self._fenced)
            and self._election.leads(self._clock())
        )

    def standby(self) -> str | None:
        """Return why this replica answers no verbs; None if it leads."""
        return None if self.leads() else NOT_LEADING

    @property
    def term(self) -> int:
        """The term in which this replica leads; 0 if it does not lead."""
        return self._fenced if self.leads() else 0

    # For the binder, as is ``version``.

    @contextmanager
    def writing(self, term: int) -> Iterator[None]:
        """Open a context in which a bind may be written.

        The bind was decided in this ``term``, and the caller has looked up the pod's version
        before. Raises :class:`.NotWrittenError` if this replica does not lead in the term.
        """
        with self._writes:
            # The write is counted first, so that :meth:`_release` waits for it.
            if not self.leads() or self._fenced != term:
                raise NotWrittenError(f"{NOT_LEADING} any more")
            yield

    # Start and stop.

    def start(self) -> None:
        """Start to take part in the election."""
        self._thread.start()
        if self._address_writer is not None:
            self._address_writer.start()

    def resign(self) -> None:
        """Stop answering verbs. Another replica may lead once the binds being written have ended.

        This returns at once; :meth:`stop` waits.
        """
        self._resigning = True
        self._stopping.set()
        if self._address_writer is not None:
            self._address_writer.stop()

    def stop(self) -> None:
        """Resign, and wait until the Lease is released, at most ``DRAINS_WITHIN + 3`` seconds."""
        self.resign()
        if self._thread.ident is not None:
            self._thread.join(DRAINS_WITHIN + 3)

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause * random.uniform(0.9, 1.1)):  # noqa: S311
            pause = LOOK
            try:
                if self._turn():
                    pause = self._renew
            except (ApiFailure, msgspec.DecodeError) as error:
                log.info("the Lease cannot be read or written", cause=str(error))
            except Exception:
                # A failed step must not end this thread.
                log.exception("a step of the election failed")
            self._watch_loss()
        try:
            self._release()
        except (ApiFailure, msgspec.DecodeError) as error:
            log.info("the Lease could not be released; another replica leads once it expires")
            log.debug("cause", cause=str(error))
        self._watch_loss()

    def _turn(self) -> bool:
        """Read or write the Lease once. Returns whether this replica holds it afterwards."""
        election = self._election
        if not self._synced():
            return False  # a replica that cannot answer does not lead
        if self._clock() < self._back_until:
            if election.holds:
                self._let_go(drained=False)
            return False
        if not election.holds:
            election.saw(self._store.read(), self._clock())
        election.heard_of(self.bindable.term, others=self.bindable.others_term)
        election.looked(sees=self._sees())
        step = election.step(self._clock())
        if step is not Step.NOTHING:
            wanted, asked = election.wanted(step), self._clock()
            if wanted.offered and election.lease is not None and not election.lease.offered:
                log.warning("this replica's watches are stale; it offers the Lease to another")
            try:
                written = self._store.write(wanted, takes=step is Step.TAKE)
            except ApiFailure as error:
                # The write may have succeeded all the same: only a read shows that. The Lease may
                # also be gone.
                log.info("the Lease was not written", step=step.value, cause=str(error))
                with suppress(ApiFailure):
                    election.saw(self._store.read(), self._clock())
                return False
            election.wrote(written, asked, self._clock())
        if not election.holds:
            return False
        self._take_over_if_due()
        return True

    def _owns_term(self, term: int) -> bool:
        """Check whether a term is ours and no other replica has begun the same or a later one."""
        election = self._election
        return election.holds and election.term == term and self.bindable.others_term < term

    # The beginning and the end of a term.

    def _take_over_if_due(self) -> None:
        term = self._election.term
        if self._fenced == term or (self._taking is not None and self._taking.is_alive()):
            return
        # The takeover has a thread of its own, because this thread must renew the Lease meanwhile.
        self._taking = threading.Thread(
            target=self._take_over, args=(term,), name="takeover", daemon=True
        )
        self._taking.start()

    def _take_over(self, term: int) -> None:
        def lasts() -> bool:
            return not self._resigning and self._owns_term(term)

        began, drained = self._clock(), self._election.after_drained
        former_for = self._election.others_count_on_it(began)
        try:
            changed = self._fence.take_over(term, lasts, drained=drained, former_for=former_for)
        except DeposedError:
            log.info("another replica leads now", term=term)
            return
        except Exception as error:
            # The log has a traceback only if our own code is at fault.
            fault = None if isinstance(error, StuckError) else error
            log.error(GIVEN_UP, term=term, cause=str(error), exc_info=fault)  # noqa: TRY400
            self._back_until = self._clock() + STANDS_BACK * self._seconds
            return
        self._fenced = term
        self._led = True
        seconds = round(self._clock() - began, 3)
        log.info("this replica leads", term=term, pods_changed=changed, seconds=seconds)
        if self._address_writer is not None:
            self._address_writer.soon()

    def _watch_loss(self) -> None:
        if self._led and not self.leads():
            self._led = False
            lease = self._election.lease
            log.info(
                "this replica no longer leads", lease=lease.holder if lease is not None else ""
            )
            for listener in self.on_lost:
                listener()

    def _release(self) -> None:
        """Give up the Lease if this replica holds it and all its writes have ended."""
        ended = self._writes.end_within(DRAINS_WITHIN)
        if self._taking is not None:
            self._taking.join(DRAINS_WITHIN)
        if not self._election.holds or not ended:
            return
        self._let_go(drained=self._fenced == self._election.term and self._writes.all_answered)

    def _let_go(self, *, drained: bool) -> None:
        """Remove the holder from the Lease.

        ``drained`` is true if the API server has answered every bind that this replica has written.
        """
        released = self._election.released(drained=drained)
        with suppress(ConflictError):  # another replica holds it already
            self._election.wrote(self._store.write(released), self._clock(), self._clock())
        log.info("the Lease is released", drained=drained)


class _Writes:
    """A count of the binds that are being written, and whether any write got no answer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = 0
        self.all_answered = True

    def __enter__(self) -> None:
        with self._changed:
            self._open += 1

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        with self._changed:
            self._open -= 1
            # After an exception of our own code the write counts as unanswered, too.
            if error is not None and not isinstance(error, NotWrittenError):
                self.all_answered = False
            self._changed.notify_all()

    def end_within(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, seconds)
