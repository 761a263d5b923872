"""Counts clients that were refused, and logs them once in a while."""

import time
from enum import StrEnum

import structlog
from prometheus_client import CollectorRegistry, Counter

from scheduler_extender.ratelimit import LogLimit

log = structlog.get_logger(__name__)

# Seconds between two log lines about clients that lack the same thing; lines a second, at once.
LOG_PAUSE, LOG_RATE, LOG_BURST = 60.0, 1.0, 8
MAX_TOLD = 300  # characters of what a stranger says about itself


class Lack(StrEnum):
    """Why a client was refused, as the metric's label ``why`` says it."""

    HANDSHAKE = "handshake"
    NAME = "name"
    REQUEST = "request"
    PAGE = "page"
    TOKEN = "token"  # noqa: S105 (a label)
    RIGHT = "right"
    JUDGE = "judge"


class Strangers:
    """Counts each client that was refused, and logs one of each kind a minute. Any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counter = Counter(
            "gpu_topology_clients_refused",
            "Clients refused: TLS handshake failed, certificate of another name, no request of "
            "HTTP within the limits, sent by a web page, no valid token, no right to the path, or "
            "nobody could judge the token",
            ["why"],
            registry=registry,
        )
        for lack in Lack:
            self._counter.labels(lack.value)
        self._limit = LogLimit(LOG_PAUSE, LOG_RATE, LOG_BURST)

    def note(self, lack: Lack, told: str, client: str) -> None:
        """Note that a client was refused; ``told`` (more words) and ``client`` (its address) are
        for the log."""
        self._counter.labels(lack.value).inc()
        untold = self._limit.untold(lack, time.monotonic())
        if untold is not None:
            words = told[:MAX_TOLD]
            log.warning("client refused", why=lack.value, client=client, told=words, untold=untold)
