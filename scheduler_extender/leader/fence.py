"""How a new leader makes sure that no bind of the one before it comes after its first (ADR 12).

Each Binding names the version of the pod that the writer's watch had shown. So a new leader changes
every pod that could be bound: whatever the former one still sends about them fails. Pods that are
created later cannot be known to a former leader whose watch has not shown it first that a new term
began: the term is written on our own pod before anything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec
import structlog

from scheduler_extender.annotations import TERM, WAKE
from scheduler_extender.kube.bindable import Bindable, Known, OwnPod
from scheduler_extender.kube.binder import SETTLED_AFTER
from scheduler_extender.kube.sinks import metadata_decoder
from topology.core.devices import PodUid
from topology.kubeapi.apiserver import (
    ApiError,
    ApiFailure,
    ConflictError,
    NotFoundError,
    Query,
    path,
)

log = structlog.get_logger(__name__)

AT_ONCE = 16  # pods that are changed at one time
# Seconds for one write, at first; twice as long whenever it is tried again, since a webhook may
# take its time.
TIMEOUT = 2.0
MARKED_WITHIN = 30.0  # seconds for a mark on our own pod to be written and shown by our watch
AGAIN = 0.2  # seconds before a write that failed is tried again
LOOK = 1.0  # seconds for the watch to show something, before we look whether we still lead


class _PatchApi(Protocol):
    """The part of the API server's client that this needs."""

    def get(self, path: str, query: Query = (), *, timeout: float) -> bytes: ...
    def patch(self, path: str, body: bytes, *, timeout: float) -> bytes: ...


class DeposedError(Exception):
    """We lead no more."""


class StuckError(Exception):
    """We cannot take over: our own pod cannot be marked, or our watch does not show it."""


class Fence:
    """Takes over from a former leader. ``identity`` is this process's alone, ``clock`` gives
    seconds, ``sleep`` waits."""

    def __init__(
        self,
        api: _PatchApi,
        bindable: Bindable,
        own: OwnPod,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api = api
        self._bindable = bindable
        self._own = own
        self._identity = identity
        self._clock = clock
        self._sleep = sleep

    def take_over(
        self, term: int, lasts: Callable[[], bool], *, drained: bool, former_for: float = 0.0
    ) -> int:
        """Return once we know of every bind that was written before our term, and no other can be.

        ``lasts`` says whether the term is still ours; :class:`DeposedError` where it is not, and
        :class:`StuckError` where another replica had better try.
        ``drained`` says that whoever led before has written all its binds, ``former_for`` for how
        many seconds it may still count on its Lease: for so much longer time has to do for pods
        that cannot be changed. Returns how many pods were changed.
        """
        began = self._clock()
        ended = began + max(0.0, former_for) + SETTLED_AFTER
        self._mark(f"{term} {self._identity}", lasts)
        if drained:
            return 0
        pods = self._bindable.pods()
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fence") as pool:
            changes = [
                pool.submit(self._change, uid, pod, term, lasts, began + SETTLED_AFTER)
                for uid, pod in pods.items()
            ]
            unchanged = sum(not change.result() for change in changes)
        if unchanged:
            # Nothing but time ends a write about these: what the API server was told to give up
            # after seconds, and etcd some seconds later.
            log.warning("pods cannot be changed; waiting for writes to end", pods=unchanged)
            while self._clock() < ended:
                _still(lasts)
                self._sleep(AGAIN)
        self._mark(f"{term} {self._identity} fenced", lasts)
        return len(pods) - unchanged

    def _mark(self, mark: str, lasts: Callable[[], bool]) -> None:
        """Write the mark on our own pod, and wait until the watch shows it."""
        where = path("/api/v1/namespaces", self._own.namespace, "pods", self._own.name)
        until = self._clock() + MARKED_WITHIN
        try:
            self._written(where, {"annotations": {TERM: mark}}, lasts, until)
        except ApiFailure as error:
            raise StuckError(f"our own pod cannot be marked: {error}") from error
        while not self._bindable.shown(mark, LOOK):
            _still(lasts)
            if self._clock() >= until:
                raise StuckError("our watch on pods does not show the mark on our own pod")

    def _change(
        self, uid: PodUid, pod: Known, term: int, lasts: Callable[[], bool], until: float
    ) -> bool:
        """Change a pod, whatever it is changed to; whether it has changed or is gone."""
        where = path("/api/v1/namespaces", pod.namespace, "pods", pod.name)
        value = f"{term}-{self._identity}"  # one that it bears already would change nothing
        try:
            self._written(where, {"uid": uid, "annotations": {WAKE: value}}, lasts, until)
        except ApiFailure as error:
            # Gone, another of its name, changed by others meanwhile: or a webhook says so.
            answered = isinstance(error, NotFoundError | ConflictError)
            if answered and self._has_changed(where, uid, pod.version):
                return True
            name = f"{pod.namespace}/{pod.name}"
            log.warning("a pod cannot be changed", pod=name, cause=str(error))
            return False
        return True

    def _has_changed(self, where: str, uid: PodUid, version: str) -> bool:
        """Whether a pod is gone or of another version than it was; False where nobody can tell."""
        try:
            found = metadata_decoder.decode(self._api.get(where, timeout=TIMEOUT)).metadata
        except NotFoundError:
            return True
        except (ApiFailure, msgspec.DecodeError):
            return False
        return found.uid != uid or found.resource_version != version

    def _written(
        self, where: str, metadata: object, lasts: Callable[[], bool], until: float
    ) -> None:
        """Patch, again and again until a moment of the clock. Raises :class:`.ApiFailure` where it
        was refused for good or failed to the end, :class:`DeposedError` where we lead no more."""
        body = msgspec.json.encode({"metadata": metadata})
        timeout = TIMEOUT
        while True:
            _still(lasts)
            try:
                self._api.patch(where, body, timeout=timeout)
            except ApiFailure as error:
                refused = isinstance(error, ApiError) and error.status < 500 and error.status != 429
                if refused or self._clock() + AGAIN >= until:
                    raise
                log.info("a write failed, and is tried again", cause=str(error))
            else:
                return
            self._sleep(AGAIN)
            timeout = max(TIMEOUT, min(2 * timeout, until - self._clock()))


def _still(lasts: Callable[[], bool]) -> None:
    if not lasts():
        raise DeposedError
