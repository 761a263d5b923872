"""How much of the process one client, or all of them together, may take: the one place for it.

kube-scheduler keeps a handful of connections and sends at most a few dozen MB at a time. Whoever
sends more, or sends and reads more slowly than any scheduler, gets one line and is cut off.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MIB = 1024 * 1024

MAX_BODY = 64 * MIB  # bytes of a request; 5,000 full nodes are about 40 MB
# Bytes of a bind, which names a pod and a node, and of a report to the admin port.
MAX_BIND_BODY = 256 * 1024
MAX_REPORT_BODY = 4 * MIB

# Commas in a body, in its pod and in its list of names. A decoder holds the interpreter while it
# works, and 64 MB of ``{},`` would hold it for ten seconds; 5,000 full nodes have about two
# million. Up to so many bytes a body is decoded uncounted, in a few ms; 5,000 names are 140 KB.
UNCOUNTED_BODY = 256 * 1024
MAX_VALUES = 4_000_000
MAX_POD_VALUES = 50_000
MAX_NAMES = 100_000

# Bytes of the spec and status of a GPUTopology object together, and commas in them. An agent writes
# at most 480,000 bytes; the API server adds defaults, and takes 1.5 MB. What is larger is not
# decoded, for that would hold the interpreter; it is a problem of its node.
MAX_RECORD = 700_000
MAX_RECORD_VALUES = 100_000

# For how long one filter, prioritize or preempt may work nodes out; the part of an evaluation that
# is under way then is finished. What is done by then stays remembered, and the rest is answered as
# not decided.
VERB_SECONDS = 0.15

# For how long ``gpu-topology unblock`` may look for the cheapest plan. The best one so far is the
# answer then.
UNBLOCK_SECONDS = 4.0

# For how long ``/v1/explain`` may ask the nodes, and try out what would help a pod that waits.
EXPLAIN_SECONDS = 2.0

# Different questions of people that wait at one time, each kind for one thread, and answers in
# pieces that are under way; over it 503. Searches (``/v1/explain``, and apart from it the
# what-if box) take seconds.
PEOPLE_WAITING = 32
SEARCHES_WAITING = 8

# Seconds from a bind's request to its write; and from then to its end. kube-scheduler gives a bind
# up after httpTimeout (10 s), of which the write may take 4 s and the look-up after it 2 s.
BIND_STARTS_WITHIN, BIND_ENDS_AFTER = 3.5, 6.0

# Binds at one time: a third may wait for their turn, a third may wait for news of their node, and
# the rest is written (:mod:`.verbs.bindlimiter`). Below it, the other verbs that are answered at
# one time: they share one interpreter with the loop, so more threads would not be faster.
BIND_THREADS = 96
EVALUATING_THREADS = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """What one port allows.

    ``handshakes`` of TLS at one time, each within ``handshake_seconds``; over it the one that has
    taken longest is cut off. ``connections`` behind them at one time; over it the client that has
    kept us waiting longest makes room (for a request, a body, or to read an answer), and if we are
    busy for all of them only /healthz and /readyz are answered. ``header_bytes`` of one request.
    Seconds from the first byte until the headers are complete (``header_seconds``), then until the
    body is (``body_seconds``); seconds in which a client may keep an answer waiting by not reading
    it (``write_seconds``); bytes of all such answers together (``unread``), over which the one that
    has waited longest is cut off; seconds of an idle connection (``idle_seconds``: longer than the
    90 s of Go's client, which does not repeat a POST on a connection that we have closed).
    ``pipelined`` requests wait behind one that is being answered.
    """

    handshakes: int = 128
    handshake_seconds: float = 10.0
    connections: int = 512
    header_bytes: int = 32 * 1024
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    write_seconds: float = 30.0
    unread: int = 64 * MIB
    idle_seconds: float = 120.0
    pipelined: int = 8


DEFAULT = Limits()

# Counts bytes of a body that have come, if there is room for them; whether there is.
Hold = Callable[[int], bool]


class Bodies:
    """A budget for the bodies that are in memory at one time, over all ports. Event loop only.

    Large bodies leave some of it to small ones, so that uploads that never end do not keep out a
    scheduler that sends names. ``total`` and ``spare`` are in bytes.
    """

    def __init__(self, total: int = 192 * MIB, spare: int = 32 * MIB, small: int = MIB) -> None:
        self._total = total
        self._spare = spare
        self._small = small
        self.held = 0

    @contextmanager
    def hold(self) -> Iterator[Hold]:
        """The bytes of one body count until the end of the block."""
        size = 0

        def counted(more: int) -> bool:
            nonlocal size
            room = self._total if size + more <= self._small else self._total - self._spare
            if self.held + more > room:
                return False
            size += more
            self.held += more
            return True

        try:
            yield counted
        finally:
            self.held -= size
