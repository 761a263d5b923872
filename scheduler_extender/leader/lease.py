"""Reads and writes the Lease object of coordination.k8s.io/v1."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from scheduler_extender.annotations import PREFIX
from scheduler_extender.leader.election import Lease
from scheduler_extender.wire import ObjectMeta
from topology.kubeapi.apiserver import ApiServer, NotFoundError, path

LEASES = "/apis/coordination.k8s.io/v1/namespaces"
# A holder that resigns writes its term into this annotation, if all its binds are written.
DRAINED = PREFIX + "drained"
# A stale holder writes ``true`` into this annotation. A replica with fresh watches may then take
# the Lease.
OFFERED = PREFIX + "offered"
TIMEOUT = 2.0  # seconds for one read or write


class _Spec(msgspec.Struct, rename="camel", frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None


class _Object(msgspec.Struct):
    metadata: dict[str, Any] = {}
    spec: _Spec = _Spec()


_decode = msgspec.json.Decoder(_Object).decode


class LeaseStore:
    """One Lease at the API server.

    All methods raise :class:`.ApiFailure`, and :class:`msgspec.DecodeError` if the answer is not a
    Lease.
    """

    def __init__(self, api: ApiServer, namespace: str, name: str) -> None:
        self._api = api
        self._namespace, self._name = namespace, name
        self._collection = path(LEASES, namespace, "leases")
        self._taken = ""
        self._metadata: dict[str, Any] = {}  # as last read; others may have written labels there

    def read(self) -> Lease:
        """Return the Lease from the API server; an empty one if there is none."""
        try:
            return self._lease(self._api.get(f"{self._collection}/{self._name}", timeout=TIMEOUT))
        except NotFoundError:
            return Lease()

    def write(self, lease: Lease, *, takes: bool = False) -> Lease:
        """Write the Lease over the version that it names, and return the Lease as written.

        ``takes`` is true if a new term begins. Raises :class:`.ConflictError` if the Lease has
        changed meanwhile.
        """
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if takes or not self._taken:
            self._taken = now
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        annotations: dict[str, str] = {}
        if lease.version:
            metadata = {**self._metadata, **metadata, "resourceVersion": lease.version}
            annotations = {**(self._metadata.get("annotations") or {})}
            annotations.pop(DRAINED, None)
            annotations.pop(OFFERED, None)
        if lease.drained >= 0:
            annotations[DRAINED] = str(lease.drained)
        if lease.offered:
            annotations[OFFERED] = "true"
        metadata["annotations"] = annotations
        spec = {
            "holderIdentity": lease.holder,
            "leaseDurationSeconds": max(1, round(lease.seconds)),
            "leaseTransitions": lease.term,
            "acquireTime": self._taken,
            "renewTime": now,
        }
        body = msgspec.json.encode(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": metadata,
                "spec": spec,
            }
        )
        if lease.version:
            where = f"{self._collection}/{self._name}"
            return self._lease(self._api.update(where, body, timeout=TIMEOUT))
        return self._lease(self._api.create(self._collection, body, timeout=TIMEOUT))

    def _lease(self, body: bytes) -> Lease:
        written = _decode(body)
        metadata = msgspec.convert(written.metadata, ObjectMeta)
        self._metadata = written.metadata
        annotations = metadata.annotations or {}
        drained = annotations.get(DRAINED, "")
        return Lease(
            holder=written.spec.holder_identity or "",
            seconds=float(written.spec.lease_duration_seconds or 0),
            term=written.spec.lease_transitions or 0,
            drained=int(drained) if drained.isdecimal() and len(drained) <= 18 else -1,
            offered=annotations.get(OFFERED) == "true",
            version=metadata.resource_version,
        )
