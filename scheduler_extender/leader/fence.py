"""How a new leader makes sure that the former leader binds nothing any more (ADR 12).

Each Binding names the version of the pod that its writer's watch has shown. So the new leader
changes every pod that could be bound: a Binding that names the old version fails. Before that it
writes its term on its own pod. So a former leader that has seen a newer pod, or a newer version of
one, has seen the term first, and knows that it leads no more.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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
    ApiServer,
    ConflictError,
    NotFoundError,
    path,
)

log = structlog.get_logger(__name__)

AT_ONCE = 16  # pods that are changed at one time
# Seconds for one write, doubled at each further try: a webhook may be slow.
TIMEOUT = 2.0
MARKED_WITHIN = 30.0  # seconds for a mark on our own pod to be written and shown by our watch
AGAIN = 0.2  # seconds before a write that failed is tried again
LOOK = 1.0  # seconds to wait for the watch, before we ask whether we still lead


class DeposedError(Exception):
    """We lead no more."""


class StuckError(Exception):
    """We cannot take over: our own pod cannot be marked, or our watch does not show it."""


class Fence:
    """Takes over from a former leader. ``identity`` names this process alone, ``clock`` gives
    seconds, ``sleep`` waits."""

    def __init__(
        self,
        api: ApiServer,
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
        """Return when the former leader can bind nothing more and we know all that it has bound.

        ``lasts`` says whether the term is still ours. ``drained`` says that the former leader has
        written all its binds. ``former_for`` is for how many seconds it may still count on its
        Lease: for pods that cannot be changed we wait so much longer. Returns how many pods were
        changed. Raises :class:`DeposedError` if the term is no longer ours, :class:`StuckError` if
        another replica should try.
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
            # A Binding of such a pod may still be written, until the API server and etcd have given
            # it up.
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
        """Change a pod, so that it gets another version. Whether it has changed or is gone."""
        where = path("/api/v1/namespaces", pod.namespace, "pods", pod.name)
        value = f"{term}-{self._identity}"  # a new one: an equal value would change nothing
        try:
            self._written(where, {"uid": uid, "annotations": {WAKE: value}}, lasts, until)
        except ApiFailure as error:
            # It is gone, replaced or changed by others; or a webhook only says so.
            answered = isinstance(error, NotFoundError | ConflictError)
            if answered and self._has_changed(where, uid, pod.version):
                return True
            name = f"{pod.namespace}/{pod.name}"
            log.warning("a pod cannot be changed", pod=name, cause=str(error))
            return False
        return True

    def _has_changed(self, where: str, uid: PodUid, version: str) -> bool:
        """Whether a pod is gone or has another version; False if that cannot be read."""
        try:
            now = metadata_decoder.decode(self._api.get(where, timeout=TIMEOUT)).metadata
        except NotFoundError:
            return True
        except (ApiFailure, msgspec.DecodeError):
            return False
        return now.uid != uid or now.resource_version != version

    def _written(
        self, where: str, metadata: object, lasts: Callable[[], bool], until: float
    ) -> None:
        """Patch; try again until ``until`` (of the clock). Raises :class:`.ApiFailure` if the patch
        is refused for good or keeps failing, :class:`DeposedError` if we lead no more."""
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
