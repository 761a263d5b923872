"""Writes the EndpointSlice of the scheduler's Service, which names only the leader's address.

The Service has no selector, so only we write its endpoints. An EndpointSlice is one object, so it
never names two replicas.

A former leader that was paused must not overwrite the new leader's address. So a replica first
reads the EndpointSlice, then checks that it still leads, and then writes over the version that it
has read. One case is left: a former leader still considers itself the leader if its clock stood
still and its watch shows no later term. The EndpointSlice may then name the former leader until
the leader checks again, at most :data:`AGAIN` seconds later. This costs time but no GPU, because
the former leader's binds fail (ADR 12).
"""

import ipaddress
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from scheduler_extender.annotations import PREFIX
from scheduler_extender.kube.bindable import OwnPod
from topology.kubeapi.apiserver import ApiFailure, ApiServer, NotFoundError, path

log = structlog.get_logger(__name__)

SLICES = "/apis/discovery.k8s.io/v1/namespaces"
TIMEOUT = 2.0  # seconds for one request
PORT = "scheduler"  # the name of the port in the Service
AGAIN = 10.0  # seconds after which the leader checks again that the Service names it
AFTER_FAILURE = 0.5  # the same after a check that failed


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which kube-scheduler reaches this replica."""

    ip: str
    port: int
    service: str  # the Service's name


class AddressWriter:
    """The writer that makes the Service name this replica while the replica leads.

    It has a thread of its own, so that a slow write does not delay the Lease's renewal.
    """

    def __init__(
        self, api: ApiServer, own: OwnPod, address: Address, leads: Callable[[], bool]
    ) -> None:
        self._api = api
        self._leads = leads
        # The address type of an EndpointSlice cannot change, so IPv4 and IPv6 have one each.
        version = ipaddress.ip_address(address.ip).version
        name = f"{address.service}-leader-ipv{version}"
        self._collection = path(SLICES, own.namespace, "endpointslices")
        self._slice = f"{self._collection}/{name}"
        self._content: dict[str, Any] = {
            "endpoints": [
                {
                    "addresses": [address.ip],
                    "conditions": {"ready": True, "serving": True, "terminating": False},
                    "targetRef": {"kind": "Pod", "namespace": own.namespace, "name": own.name},
                }
            ],
            "ports": [{"name": PORT, "port": address.port, "protocol": "TCP"}],
        }
        labels = {
            "kubernetes.io/service-name": address.service,
            "endpointslice.kubernetes.io/managed-by": PREFIX.rstrip("/"),
        }
        self._whole = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": own.namespace, "labels": labels},
            "addressType": f"IPv{version}",
            **self._content,
        }
        self._due = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="service-address", daemon=True)

    def start(self) -> None:
        """Start the thread that checks the EndpointSlice every :data:`AGAIN` seconds."""
        self._thread.start()

    def soon(self) -> None:
        """Make the thread check at once, because this replica has begun to lead."""
        self._due.set()

    def stop(self) -> None:
        """Stop the checks. A request that has begun ends within :data:`TIMEOUT` seconds."""
        self._stopping = True
        self._due.set()

    def publish(self) -> None:
        """Make the EndpointSlice name only this replica, if this replica leads.

        Raises :class:`.ApiFailure`. It is a :class:`.ConflictError` if another client has written
        the EndpointSlice meanwhile.
        """
        try:
            written = msgspec.json.decode(self._api.get(self._slice, timeout=TIMEOUT))
        except NotFoundError:
            if self._leads():
                body = msgspec.json.encode(self._whole)
                self._api.create(self._collection, body, timeout=TIMEOUT)
            return
        named = all(written.get(key) == value for key, value in self._content.items())
        if not named and self._leads():
            over = {"metadata": {"resourceVersion": written["metadata"]["resourceVersion"]}}
            body = msgspec.json.encode(over | self._content)
            self._api.patch(self._slice, body, timeout=TIMEOUT)

    def _run(self) -> None:
        pause = AGAIN
        while not self._stopping:
            self._due.wait(pause)
            self._due.clear()
            pause = AGAIN
            try:
                if self._leads():
                    self.publish()
            except (ApiFailure, msgspec.DecodeError) as error:
                log.warning("the Service could not be pointed to this replica", cause=str(error))
                pause = AFTER_FAILURE
            except Exception:
                # A failed check must not end this thread.
                log.exception("the Service's EndpointSlice could not be checked")
                pause = AFTER_FAILURE
