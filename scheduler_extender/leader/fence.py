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
from scheduler_extender.kube.bindable import Bindable, OwnPod
from scheduler_extender.kube.binder import SETTLED_AFTER
from topology.core.devices import PodUid
from topology.kubeapi.apiserver import ApiError, ApiFailure, ConflictError, NotFoundError
from topology.kubeapi.paths import path

log = structlog.get_logger(__name__)

AT_ONCE = 16
"""Pods that are changed at one time."""
TIMEOUT = 2.0
"""Seconds for one write."""
AGAIN = 0.2
"""Seconds before a write that failed is tried again."""
LOOK = 1.0
"""Seconds for the watch to show something, before we look whether we still lead."""


class _PatchApi(Protocol):
    """The part of the API server's client that this needs."""

    def patch(self, path: str, body: bytes, *, timeout: float) -> bytes: ...


class DeposedError(Exception):
    """We lead no more."""


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

    def take_over(self, term: int, lasts: Callable[[], bool], *, drained: bool) -> int:
        """Return once we know of every bind that was written before our term, and no other can be.

        ``lasts`` says whether the term is still ours; :class:`DeposedError` where it is not.
        ``drained`` says that whoever led before has written all its binds. Returns how many pods
        were changed.
        """
        began = self._clock()
        self._mark(f"{term} {self._identity}", lasts)
        if drained:
            return 0
        pods = self._bindable.pods()
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fence") as pool:
            changes = [
                pool.submit(self._change, uid, *name, term, lasts) for uid, name in pods.items()
            ]
            unchanged = sum(not change.result() for change in changes)
        if unchanged:
            # Nothing but time ends a write about these: what the API server was told to give up
            # after seconds, and etcd some seconds later.
            log.warning("pods cannot be changed; waiting for writes to end", pods=unchanged)
            while self._clock() - began < SETTLED_AFTER:
                _still(lasts)
                self._sleep(AGAIN)
        self._mark(f"{term} {self._identity} fenced", lasts)
        return len(pods) - unchanged

    def _mark(self, mark: str, lasts: Callable[[], bool]) -> None:
        """Write the mark on our own pod, and wait until the watch shows it."""
        where = path("/api/v1/namespaces", self._own.namespace, "pods", self._own.name)
        self._written(where, {"annotations": {TERM: mark}}, lasts)
        while not self._bindable.shown(mark, LOOK):
            _still(lasts)

    def _change(
        self, uid: PodUid, namespace: str, name: str, term: int, lasts: Callable[[], bool]
    ) -> bool:
        """Change a pod, whatever it is changed to; whether that was possible. One that is gone, or
        another of its name, cannot be bound any more."""
        where = path("/api/v1/namespaces", namespace, "pods", name)
        value = f"{term}-{self._identity}"  # one that it bears already would change nothing
        try:
            self._written(where, {"uid": uid, "annotations": {WAKE: value}}, lasts)
        except (NotFoundError, ConflictError):
            return True
        except ApiError as error:
            log.warning("a pod cannot be changed", pod=f"{namespace}/{name}", cause=str(error))
            return False
        return True

    def _written(self, where: str, metadata: object, lasts: Callable[[], bool]) -> None:
        """Patch, as often as it takes. Raises :class:`.ApiError` where the API server refuses it
        for good, :class:`DeposedError` where we lead no more."""
        body = msgspec.json.encode({"metadata": metadata})
        while True:
            _still(lasts)
            try:
                self._api.patch(where, body, timeout=TIMEOUT)
            except ApiError as error:
                if error.status < 500 and error.status != 429:
                    raise
                log.info("a write failed, and is tried again", cause=str(error))
            except ApiFailure as error:
                log.info("a write failed, and is tried again", cause=str(error))
            else:
                return
            self._sleep(AGAIN)


def _still(lasts: Callable[[], bool]) -> None:
    if not lasts():
        raise DeposedError
