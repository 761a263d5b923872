"""Write each bind to the API server as one Binding, and settle binds that no watch confirms.

Binds have time limits of their own.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import msgspec
import structlog

from scheduler_extender.annotations import PLACEMENT, WAKE, Malformed
from scheduler_extender.framework.awaited import RECORD_WITHOUT_CLAIMS
from scheduler_extender.kube.sinks import PODS_PATH, metadata_decoder, version_of
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord, claiming_record, pod_record
from scheduler_extender.verbs import Binding, BindUnknownError, NotWrittenError
from scheduler_extender.wire import pod_decoder
from topology.core.devices import PodUid
from topology.core.requests import GpuRequest
from topology.kubeapi.apiserver import (
    ApiError,
    ApiFailure,
    ApiNotSent,
    ApiServer,
    ApiUnreachable,
    ConflictError,
    NotFoundError,
    path,
)

log = structlog.get_logger(__name__)

# Seconds. A bind may take a look-up, one write and one read, and must end within httpTimeout.
WRITE_TIMEOUT = 4.0
READ_TIMEOUT = 2.0
# Seconds for which the API server may work on a Binding, sent with it as ``timeout=``. It is
# shorter than our own timeout, so that mostly the server ends the request.
SERVER_TIMEOUT = 3
# Seconds for which etcd may still carry out a write that the API server has given up. etcd's own
# limit of a request is 7 s (5 s and two election timeouts).
COMMIT_MARGIN = 8.0
# Seconds after which a Binding that the API server has begun can no longer be committed.
SETTLED_AFTER = WRITE_TIMEOUT + COMMIT_MARGIN


VERSION_WITHIN = 1.0  # seconds for the watch to show a pod's latest version
VERSIONS_TRIED = 3
# Seconds within which a Binding is sent again. The time passed by then is taken from the time of
# the write, so that all ends within httpTimeout.
TRIES_WITHIN = 1.0
ANOTHER_CLAIM = (
    "the pod names a claim that the extender has not seen yet; kube-scheduler tries again"
)


class Fence(Protocol):
    """A fence that keeps a replica that no longer leads from writing binds (ADR 12)."""

    def version(self, uid: PodUid, *, other_than: str, within: float) -> str | None:
        """Return the resourceVersion of a pod that our watch has shown.

        Return None if the watch shows none but ``other_than`` within so many seconds.
        """
        ...

    def writing(self, term: int) -> AbstractContextManager[None]:
        """Allow a bind inside the block.

        Its version must have been known before the block, and the bind must have been decided in
        this term. Raises :class:`.NotWrittenError` if we do not lead, or lead in another term:
        other replicas may have bound pods between the two terms.
        """
        ...


class _ChangedError(NotWrittenError):
    """The pod is unbound, and its version is not the one that the Binding names."""


class KubeBinder:
    """A writer of Bindings.

    One write sets the nodeName and the placement annotation, with the pod's UID as a precondition.
    With a ``fence`` the pod's version is a precondition, too. ``placed`` is called for each bind
    that was surely written, and must not block.
    """

    def __init__(
        self,
        api: ApiServer,
        cluster: Cache,
        fence: Fence | None = None,
        placed: Callable[[Binding], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._fence = fence
        self._placed = placed

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        """Return the pod as the API server has it.

        Return None if the pod is gone, or if another pod has its name.
        """
        try:
            body = self._api.get(_pod_path(namespace, name), timeout=READ_TIMEOUT)
        except NotFoundError:
            return None
        except ApiFailure as error:
            raise BindUnknownError(f"cannot read the pod: {error}") from error
        pod = pod_decoder.decode(body)
        if pod.metadata.uid != uid:
            return None
        managed = self._cluster.settings.managed
        record = pod_record(pod, managed) or claiming_record(pod, managed)
        if record is None:
            raise NotWrittenError(
                f"the pod requests none of {', '.join(managed)}, and this extender binds no "
                "other pods (see managedResources in kube-scheduler's configuration)"
            )
        return record

    def version(self) -> int:
        """Return a resourceVersion of pods, as a number, that is not older than this call."""
        try:
            body = self._api.get(PODS_PATH, (("limit", "1"),), timeout=READ_TIMEOUT)
        except ApiFailure as error:
            raise BindUnknownError(f"cannot list pods: {error}") from error
        return version_of(metadata_decoder.decode(body).metadata.resource_version)

    def void(self, pod: PodRecord) -> None:
        """Change a pod, so that no Binding that we sent before can be written any more.

        Each Binding names the pod's version, if we are one of several replicas. Otherwise nothing
        is done. If the API server refuses the change, nothing is done either: then only the time
        limit settles the bind. Raises :class:`.BindUnknownError` if it is unknown whether the pod
        was changed.
        """
        if self._fence is None:
            return
        body = {"metadata": {"uid": pod.uid, "annotations": {WAKE: f"void-{uuid4().hex[:12]}"}}}
        where = _pod_path(pod.namespace, pod.name)
        try:
            self._api.patch(where, msgspec.json.encode(body), timeout=READ_TIMEOUT)
        except ApiError as error:
            if error.status >= 500 or error.status == 429:
                raise BindUnknownError(f"cannot change the pod: {error}") from error
        except ApiFailure as error:
            raise BindUnknownError(f"cannot change the pod: {error}") from error

    def write(self, binding: Binding) -> None:
        """Create the Binding. On a conflict, or without an answer, read what became of the pod.

        A change of the pod in the meantime makes a fenced Binding fail. It is tried again with the
        version that the watch then shows. If the pod's request differs in that version, nothing is
        written: the decision was about the request before.

        Without a fence the Binding names no version, so only a change that our watch has shown is
        noticed.
        """
        self._write(binding)
        self._placed(binding)

    def _write(self, binding: Binding) -> None:
        if self._fence is None:
            self._check_request(binding)
            if self._has_another_claim(binding):
                raise NotWrittenError(ANOTHER_CLAIM)
            self._create(binding)
            return
        version, began = "", time.monotonic()
        for _ in range(VERSIONS_TRIED):
            if version and time.monotonic() - began > TRIES_WITHIN:
                break
            known = self._fence.version(binding.uid, other_than=version, within=VERSION_WITHIN)
            if known is None:
                raise NotWrittenError(
                    "the watch on pods has not shown the pod's latest version yet; "
                    "kube-scheduler tries again"
                )
            version = known
            # The check follows the look-up of the version. So the cluster's pod has that version or
            # a later one, and if it is later, the API server refuses the Binding.
            self._check_request(binding)
            if self._has_another_claim(binding):
                continue  # the claim that it had before, or one that we do not know yet
            try:
                with self._fence.writing(binding.term):
                    self._create(binding, version, spent=time.monotonic() - began)
            except _ChangedError:
                continue
            return
        raise NotWrittenError(
            "the pod changed at each attempt to bind it; kube-scheduler tries again"
        )

    def _has_another_claim(self, binding: Binding) -> bool:
        """Check whether the pod names another claim than those on which the decision was based."""
        pod = self._cluster.pod(binding.uid)
        named = (
            pod.extended_resource_claim
            if pod is not None and pod.has_extended_resource_claim
            else ""
        )
        return bool(named) and binding.claims is not None and named not in binding.claims

    def _check_request(self, binding: Binding) -> None:
        """Raise :class:`.NotWrittenError` if the pod differs from the one that was decided about.

        It may have another request or another group, or a claim although its node seemed to serve
        none.
        """
        pod = self._cluster.pod(binding.uid)
        if binding.request is None or pod is None:
            return
        if pod.request != binding.request:
            raise NotWrittenError(
                "the pod changed while it was being bound: its request was "
                f"{_text(binding.request)} and is now {_text(pod.request)}; "
                "kube-scheduler tries again"
            )
        if pod.group_ref != binding.group_ref:
            raise NotWrittenError(
                "the pod's group changed while the pod was being bound; kube-scheduler tries again"
            )
        if pod.has_extended_resource_claim and binding.claims == frozenset():
            raise NotWrittenError(RECORD_WITHOUT_CLAIMS.message)

    def _create(self, binding: Binding, version: str | None = None, spent: float = 0.0) -> None:
        """Write the Binding.

        ``spent`` seconds of its time have passed; at least half of it is left.
        """
        metadata: dict[str, Any] = {
            "name": binding.name,
            "namespace": binding.namespace,
            "uid": binding.uid,
        }
        if binding.placement:
            metadata["annotations"] = {PLACEMENT: binding.placement}
        if version is not None:
            metadata["resourceVersion"] = version
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
        }
        path = _pod_path(binding.namespace, binding.name) + "/binding"
        left = max(WRITE_TIMEOUT - spent, WRITE_TIMEOUT / 2)
        servers = max(SERVER_TIMEOUT - spent, SERVER_TIMEOUT / 3)
        limit = (("timeout", f"{round(1000 * servers)}ms"),)
        try:
            self._api.create(path, msgspec.json.encode(body), limit, timeout=left)
        except ApiNotSent as error:
            raise NotWrittenError(f"the bind could not be sent: {error}") from error
        except ConflictError as error:
            self._settle(binding, error, fenced=version is not None)
        except ApiUnreachable as error:
            self._settle(binding, error)
        except ApiError as error:
            if error.status >= 500:
                self._settle(binding, error)
            else:
                raise NotWrittenError(f"the API server refused the bind: {error}") from error
        except ApiFailure as error:
            raise NotWrittenError(f"the bind could not be sent: {error}") from error

    def _settle(self, binding: Binding, cause: ApiFailure, *, fenced: bool = False) -> None:
        """Read the pod to find out whether the write was committed.

        An unbound pod proves nothing if the answer never came or came too late: the write may still
        be committed. Only a conflict shows that the server is done with it.
        """
        try:
            pod = self.find(binding.namespace, binding.name, binding.uid)
        except NotWrittenError as error:  # the write may be committed, whatever the pod says by now
            raise BindUnknownError(str(error)) from cause
        if pod is None:
            words = "the pod is gone, or another pod has its name now"
            if isinstance(cause, ConflictError):
                raise NotWrittenError(words) from cause
            raise BindUnknownError(words) from cause  # it may have been bound before it was deleted
        if pod.node is None:
            words = f"the bind was not written: {cause}"
            if fenced and not pod.terminating:
                raise _ChangedError from cause
            if isinstance(cause, ConflictError):
                raise NotWrittenError(words) from cause
            raise BindUnknownError(f"{words} (but it may still be written)") from cause
        if pod.node != binding.node:
            raise NotWrittenError(f"the pod is already bound to {pod.node}") from cause


@dataclass(slots=True)
class _AssumedBind:
    """An assumed bind as the settler follows it.

    It has the time since when the bind is assumed, and the time at which the pod was first read as
    unbound after the patience; both in seconds.
    """

    pod: PodRecord
    since: float
    unbound_at: float | None = None


class Settler:
    """The settler, which ends assumed binds that no watch confirms.

    A pod that is read as bound, or as gone, settles its bind at once. A pod that is read as unbound
    may still be bound by a write that is under way: in the API server for as long as our timeout
    allows, in etcd for a margin more, and for any length of time in the socket of a server that
    does not run. So two readings have to show it unbound, each after the ``patience`` in seconds.
    The first shows that the server runs; what had reached the server by then is done at the second.
    With several API servers, another one may have answered. So if we are one of several replicas,
    the pod is changed before the second reading, and no earlier Binding can be written after that.
    """

    def __init__(
        self,
        cluster: Cache,
        binder: KubeBinder,
        *,
        patience: float = SETTLED_AFTER,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._cluster = cluster
        self._binder = binder
        self._patience = patience
        self._clock = clock
        self._assumed_binds: dict[int, _AssumedBind] = {}  # by the ``id`` of the assumed record

    def round(self, now: float) -> None:
        """Read every pod whose bind has been assumed for longer than the patience.

        One reading may take seconds, and the next bind is read that much later than ``now``:
        ``clock`` measures it. By default no time passes.
        """
        began = self._clock()
        assumed_pods = self._cluster.snapshot().assumed
        # Each bind has its own patience, also if the same pod is bound again. A bind that returns,
        # because the one after it was surely not written, keeps its own.
        known = self._assumed_binds.items()
        self._assumed_binds = {at: bind for at, bind in known if bind.pod.uid in assumed_pods}
        for pod in assumed_pods.values():
            bind = self._assumed_binds.setdefault(id(pod), _AssumedBind(pod, now))
            last = bind.since if bind.unbound_at is None else bind.unbound_at
            if now - last >= self._patience:
                try:
                    self._settle(bind, lambda: now + self._clock() - began)
                except Exception:
                    # A failure about one pod must not keep the others assumed.
                    log.exception("the result of a bind could not be determined", pod=pod.name)

    def _settle(self, bind: _AssumedBind, clock: Callable[[], float]) -> None:
        pod = bind.pod
        try:
            if bind.unbound_at is not None:
                self._binder.void(pod)
            read = self._binder.find(pod.namespace, pod.name, pod.uid)
            version = self._binder.version() if read is None else 0
        except (BindUnknownError, NotWrittenError) as error:
            log.info("an assumed pod cannot be read", pod=pod.name, cause=str(error))
            return
        with self._cluster.lock:
            if self._cluster.assumed(pod.uid) is not pod:
                return  # another bind has begun, or the pod is gone
            if read is None:
                self._cluster.drop_assumed(pod.uid, version)
            elif read.node is not None:
                self._cluster.put_pod(read)
            elif bind.unbound_at is None:
                bind.unbound_at = clock()
            else:
                self._cluster.forget(pod)
                # The pod was refused everywhere else, so any node may be news for it.
                self._cluster.tell_of_all_nodes()


def _text(request: GpuRequest | Malformed) -> str:
    return request.text if isinstance(request, GpuRequest) else "an unreadable request"


def _pod_path(namespace: str, name: str) -> str:
    return path("/api/v1/namespaces", namespace, "pods", name)
