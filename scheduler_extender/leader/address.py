"""The EndpointSlice of the scheduler's Service: the leader's address, and no other.

The Service has no selector, so nobody else writes its endpoints. A slice is one object: there is no
moment at which two replicas stand in it.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from scheduler_extender.annotations import PREFIX
from scheduler_extender.kube.bindable import OwnPod
from topology.kubeapi.apiserver import NotFoundError, Query
from topology.kubeapi.paths import path

SLICES = "/apis/discovery.k8s.io/v1/namespaces"
TIMEOUT = 2.0
"""Seconds for one request."""


class _SliceApi(Protocol):
    """The part of the API server's client that this needs."""

    def get(self, path: str, query: Query = (), *, timeout: float) -> bytes: ...
    def create(self, path: str, body: bytes, query: Query = (), *, timeout: float) -> bytes: ...
    def patch(self, path: str, body: bytes, *, timeout: float) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Address:
    """Where kube-scheduler reaches this replica: an IP address, a port, and the Service's name."""

    ip: str
    port: int
    service: str
    port_name: str = "scheduler"


class Endpoint:
    """The leader's entry in the Service. :meth:`publish` raises :class:`.ApiFailure`."""

    def __init__(self, api: _SliceApi, own: OwnPod, address: Address) -> None:
        self._api = api
        self._own = own
        self._address = address
        version = ipaddress.ip_address(address.ip).version
        self._type = f"IPv{version}"
        # The kind of address of a slice never changes, so each has a slice of its own.
        self._name = f"{address.service}-leader-ipv{version}"
        self._collection = path(SLICES, own.namespace, "endpointslices")

    def publish(self) -> None:
        """Make the slice name us and nobody else."""
        where = f"{self._collection}/{self._name}"
        try:
            found = msgspec.json.decode(self._api.get(where, timeout=TIMEOUT))
        except NotFoundError:
            self._api.create(self._collection, self._whole(), timeout=TIMEOUT)
            return
        wanted = self._content()
        if any(found.get(key) != value for key, value in wanted.items()):
            self._api.patch(where, msgspec.json.encode(wanted), timeout=TIMEOUT)

    def _content(self) -> dict[str, Any]:
        address, own = self._address, self._own
        return {
            "endpoints": [
                {
                    "addresses": [address.ip],
                    "conditions": {"ready": True, "serving": True, "terminating": False},
                    "targetRef": {"kind": "Pod", "namespace": own.namespace, "name": own.name},
                }
            ],
            "ports": [{"name": address.port_name, "port": address.port, "protocol": "TCP"}],
        }

    def _whole(self) -> bytes:
        labels = {
            "kubernetes.io/service-name": self._address.service,
            "endpointslice.kubernetes.io/managed-by": PREFIX.rstrip("/"),
        }
        metadata = {"name": self._name, "namespace": self._own.namespace, "labels": labels}
        head = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata,
            "addressType": self._type,
        }
        return msgspec.json.encode(head | self._content())
