"""The fence: a new leader ensures that the former leader can bind no further pod (ADR 12).

Each Binding names the version of the pod that its writer's watch has shown. The new leader changes
every pod that could be bound, so a Binding that names an old version fails. Before these changes
the new leader writes its term on its own pod. So a former leader that sees a newer pod, or a newer
version of a pod, has seen the new term before, and knows that it no longer leads.
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

AT_ONCE = 16  # pods that are changed at the same time
# Seconds for one write. Each retry doubles this time, because an admission webhook may be slow.
TIMEOUT = 2.0
MARKED_WITHIN = 30.0  # seconds for a mark on our own pod to be written and shown by our watch
AGAIN = 0.2  # seconds before a failed write is retried
LOOK = 1.0  # seconds to wait for the watch before each check that the term is still ours


class DeposedError(Exception):
    """This replica no longer leads."""


class StuckError(Exception):
    """This replica cannot take over: it cannot mark its own pod, or its watch shows no mark."""


class Fence:
    """The takeover from a former leader.

    ``identity`` is unique to this process. ``clock`` returns seconds, and ``sleep`` waits for
    seconds.
    """

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
        """Block until the former leader can bind no further pod, and return how many pods changed.

        After the return our watch has shown every bind of the former leader. ``lasts`` returns
        whether the term is still ours. ``drained`` is true if the former leader has declared that
        all its binds are written; then no pod is changed. ``former_for`` is the time, in seconds,
        for which the former leader may still rely on its Lease. If some pods cannot be changed, we
        wait that much longer. Raises :class:`DeposedError` if the term is no longer ours, and
        :class:`StuckError` if another replica should try.
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
            # The former leader may still write a Binding of such a pod, until the API server and
            # etcd have given up the request.
            log.warning(
                "pods could not be changed; waiting until the former leader's writes end",
                pods=unchanged,
            )
            while self._clock() < ended:
                _still(lasts)
                self._sleep(AGAIN)
        self._mark(f"{term} {self._identity} fenced", lasts)
        return len(pods) - unchanged

    def _mark(self, mark: str, lasts: Callable[[], bool]) -> None:
        """Write the mark on our own pod, and wait until our watch shows the mark."""
        where = path("/api/v1/namespaces", self._own.namespace, "pods", self._own.name)
        until = self._clock() + MARKED_WITHIN
        try:
            self._written(where, {"annotations": {TERM: mark}}, lasts, until)
        except ApiFailure as error:
            raise StuckError(f"this replica's own pod could not be marked: {error}") from error
        while not self._bindable.shown(mark, LOOK):
            _still(lasts)
            if self._clock() >= until:
                raise StuckError(
                    "the watch on pods does not show the mark on this replica's own pod"
                )

    def _change(
        self, uid: PodUid, pod: Known, term: int, lasts: Callable[[], bool], until: float
    ) -> bool:
        """Change a pod so that it gets another version.

        Returns whether the pod has changed or is gone.
        """
        where = path("/api/v1/namespaces", pod.namespace, "pods", pod.name)
        value = f"{term}-{self._identity}"  # a new value, since an equal one changes no version
        try:
            self._written(where, {"uid": uid, "annotations": {WAKE: value}}, lasts, until)
        except ApiFailure as error:
            # The pod is gone, or another client has replaced or changed it. But a webhook can
            # return these statuses, too, so the pod is read.
            answered = isinstance(error, NotFoundError | ConflictError)
            if answered and self._has_changed(where, uid, pod.version):
                return True
            name = f"{pod.namespace}/{pod.name}"
            log.warning("a pod could not be changed", pod=name, cause=str(error))
            return False
        return True

    def _has_changed(self, where: str, uid: PodUid, version: str) -> bool:
        """Check whether a pod is gone or has another version; False if the pod cannot be read."""
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
        """Patch an object's metadata, with retries until ``until`` (a time of the clock).

        Raises :class:`.ApiFailure` if the patch is permanently refused or still fails at the end,
        and :class:`DeposedError` if the term is no longer ours.
        """
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
                log.info("a write failed and is retried", cause=str(error))
            else:
                return
            self._sleep(AGAIN)
            timeout = max(TIMEOUT, min(2 * timeout, until - self._clock()))


def _still(lasts: Callable[[], bool]) -> None:
    if not lasts():
        raise DeposedError
