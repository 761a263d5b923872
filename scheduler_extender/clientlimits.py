"""Limits on what one client, or all clients together, may take of the process.

All such limits are here. kube-scheduler keeps a handful of connections and sends at most a few
dozen MB at a time. A client that sends more, or that sends or reads more slowly than any scheduler,
gets a one-line answer and is cut off.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MIB = 1024 * 1024

MAX_BODY = 64 * MIB  # bytes of a request; 5,000 full nodes are about 40 MB
# Bytes of a bind request, which names a pod and a node, and of a report to the admin port.
MAX_BIND_BODY = 256 * 1024
MAX_REPORT_BODY = 4 * MIB

# The most commas in a body, in its pod and in its list of names. A decoder holds the interpreter
# while it works: 64 MB of ``{},`` would hold it for ten seconds. 5,000 full nodes have about two
# million commas. A body of at most UNCOUNTED_BODY bytes is decoded in a few ms without counting;
# 5,000 names are 140 KB.
UNCOUNTED_BODY = 256 * 1024
MAX_VALUES = 4_000_000
MAX_POD_VALUES = 50_000
MAX_NAMES = 100_000

# The most bytes of the spec and status of a GPUTopology object together, and the most commas in
# them. An agent writes at most 480,000 bytes; the API server adds defaults, and accepts 1.5 MB. A
# larger object is not decoded, since that would hold the interpreter. It is reported as a problem
# of its node.
MAX_RECORD = 700_000
MAX_RECORD_VALUES = 100_000

# Seconds for which one filter, prioritize or preempt may evaluate nodes. The part of an evaluation
# that has begun by then is finished. Its results stay cached; the other nodes are answered as
# undecided.
VERB_SECONDS = 0.15

# Seconds for which ``gpu-topology unblock`` may search for the cheapest plan. Then it returns the
# best plan so far.
UNBLOCK_SECONDS = 4.0

# Seconds for which ``/v1/explain`` may evaluate nodes and try remedies for a waiting pod.
EXPLAIN_SECONDS = 2.0

# The most distinct requests of readers that wait in one queue at one time, and the most streamed
# answers of one queue at one time. Beyond it the answer is 503. Searches (``/v1/explain`` and the
# what-if form) take seconds, so each has a queue of its own.
PEOPLE_WAITING = 32
SEARCHES_WAITING = 8

# Seconds from a bind's request to its write, and from the write to its end. kube-scheduler gives a
# bind up after httpTimeout (10 s). Of these the write may take 4 s, and the look-up after it 2 s.
BIND_STARTS_WITHIN, BIND_ENDS_AFTER = 3.5, 6.0

# The most binds at one time. A third of them may wait for the bind limiter, a third for news of
# their node; the rest is being written (:mod:`.verbs.bindlimiter`). Below it, the most other verbs
# at one time: these share one interpreter with the event loop, so more threads would not be faster.
BIND_THREADS = 96
EVALUATING_THREADS = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one port.

    At most ``handshakes`` of TLS run at one time, each within ``handshake_seconds``; beyond that
    the longest one is cut off. Behind them are at most ``connections`` at one time. Beyond that the
    client for which we have waited longest (for a request, for a body, or to read an answer) is cut
    off. If we owe an answer to all of them, only /healthz and /readyz are answered.

    The headers of one request have at most ``header_bytes``. They must be complete within
    ``header_seconds`` of the first byte, and the body within ``body_seconds`` after that. A client
    may leave an answer unread for ``write_seconds``. All unread answers together have at most
    ``unread`` bytes; beyond that the oldest is cut off.

    An idle connection is closed after ``idle_seconds``. That is longer than the 90 s of Go's
    client, which does not repeat a POST on a connection that we have closed. At most ``pipelined``
    requests wait behind the one that is being answered.
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

# Counts more bytes of a body and returns True; returns False, and counts nothing, without room.
Hold = Callable[[int], bool]


class Bodies:
    """A budget for the bodies that are in memory at one time, over all ports. Event loop only.

    Large bodies must leave ``spare`` bytes of the ``total`` to small ones. So uploads that never
    end do not keep out a scheduler that sends names.
    """

    def __init__(self, total: int = 192 * MIB, spare: int = 32 * MIB, small: int = MIB) -> None:
        self._total = total
        self._spare = spare
        self._small = small
        self.held = 0

    @contextmanager
    def hold(self) -> Iterator[Hold]:
        """Count the bytes of one body until the end of the block."""
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
