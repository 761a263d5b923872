"""The observations of a cluster and its installation that the checks need.

A part is :class:`Unseen` if it could not be read, and None if it does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID
from prometheus_client.samples import Sample

from scheduler_extender.annotations import MANAGED, managed_among
from scheduler_extender.state.cluster.cache import Cache
from topology.times import seconds_of

Json = dict[str, Any]
# Only a node whose report is fresh and complete can give this pod a guarantee.
PROBE: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "gpu-topology-doctor",
        "namespace": "default",
        "uid": "gpu-topology-doctor",
        "annotations": {"gpu-topology.io/link": "nvlink"},
    },
    "spec": {
        "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    },
}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unseen:
    """The reason why something could not be read."""

    why: str
    forbidden: bool = False  # the caller lacks the permission


class _Write(msgspec.Struct, frozen=True):
    """A write to a part of an object, with its time by the API server's clock."""

    subresource: str = ""
    time: str = ""


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    """An object's metadata."""

    name: str = ""
    labels: dict[str, str] | None = None
    managed_fields: list[_Write] | None = None


class _NodeStatus(msgspec.Struct, frozen=True):
    capacity: dict[str, str | int] | None = None


class Node(msgspec.Struct, frozen=True):
    """A Node."""

    metadata: Meta = Meta()
    status: _NodeStatus = _NodeStatus()

    @property
    def labels(self) -> dict[str, str]:
        """The node's labels."""
        return self.metadata.labels or {}

    @property
    def resources(self) -> tuple[str, ...]:
        """The GPU resources that the node's kubelet serves."""
        served = self.status.capacity or {}
        return tuple(managed_among([r for r, n in served.items() if str(n) != "0"], MANAGED))


class Kubelet(msgspec.Struct, frozen=True, rename="camel"):
    """A kubelet's settings for handing out devices, from a record or from the kubelet itself."""

    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    cpu_manager_policy: str = "none"
    memory_manager_policy: str = "None"


class _Allocator(Kubelet, frozen=True, rename="camel"):
    policy: str = "any"
    plugin_version: str = ""


class _Device(msgspec.Struct, frozen=True, rename="camel"):
    numa_node: int | None = None


class _Spec(msgspec.Struct, frozen=True):
    allocator: _Allocator = _Allocator()
    devices: list[_Device] | None = None


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    observed_at: str = ""
    conditions: list[_Condition] | None = None


class Record(msgspec.Struct, frozen=True):
    """A GPUTopology object."""

    metadata: Meta = Meta()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    def condition(self, kind: str) -> _Condition:
        """Return a condition; an empty one if the agent has not reported it."""
        return next((c for c in self.status.conditions or () if c.type == kind), _Condition())

    @property
    def ahead(self) -> float | None:
        """The seconds by which the node's clock is ahead of the API server's."""
        writes = [w for w in self.metadata.managed_fields or () if w.subresource == "status"]
        return ahead(self.status.observed_at, (write.time for write in writes))


def ahead(told: str, written: Any) -> float | None:
    """Return the seconds by which a clock is ahead of the API server's.

    ``told`` is the time that the clock gave, and the latest of ``written`` is the API server's time
    of the write. A difference of at most two seconds counts as 0. The result is None if one of the
    two times is missing.
    """
    by_them, by_server = seconds_of(told), [s for t in written if (s := seconds_of(t)) is not None]
    if by_them is None or not by_server:
        return None
    apart = by_them - max(by_server)
    return apart if abs(apart) > 2.0 else 0.0


# Where the configuration of a second kube-scheduler stands.
SECOND = "ConfigMap gpu-topology-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A configuration of kube-scheduler, with its origin and its text."""

    where: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The extender's answer to a request like kube-scheduler's, or its ``problem``."""

    where: str
    nodes: int = 0
    takes: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All observations.

    ``observed_at`` is the time by the API server's clock. ``ahead`` is the number of seconds by
    which this machine's clock is ahead of it.
    """

    system: str
    version: str
    observed_at: float
    ahead: float = 0.0
    crd: Json | Unseen | None = None
    policies: Sequence[Json] | Unseen = ()  # the bindings, too
    nodes: Sequence[Node] | Unseen = ()
    records: Sequence[Record] | Unseen | None = None
    classes: Sequence[Json] | Unseen = ()  # DRA's DeviceClasses
    daemon_sets: Sequence[Json] | Unseen = ()  # of all namespaces
    gpu_clusters: Sequence[Json] | Unseen = ()  # the GPU operator's, for DRA
    extender: Json | Unseen | None = None  # its Deployment
    service: Json | Unseen | None = None
    lease: Json | Unseen | None = None
    leader: Json | Unseen | None = None  # the EndpointSlice
    schedulers: Sequence[Json] | Unseen = ()  # kube-scheduler's pods
    configurations: Sequence[Configuration] = ()
    certificates: Sequence[Certificate | Unseen] = ()
    missing: Sequence[str] = ()  # Secrets with certificates
    kubelets: Mapping[str, Kubelet | Unseen] = field(default_factory=dict)
    metrics: Sequence[Sample] | Unseen = Unseen("")  # of one replica
    cluster: Cache | Unseen = Unseen("")
    answered: Sequence[Answered] = ()

    @property
    def flags(self) -> dict[str, str]:
        """The extender's flags in its Deployment."""
        template = at(there(self.extender), "spec", "template")
        words = [str(word).partition("=") for word in first_container(template).get("args") or ()]
        return {name: value for name, _, value in words}


def at(value: Any, *keys: str | int) -> Any:
    """Return the value at a path in an object; None if there is none.

    >>> at({"spec": {"args": ["a"]}}, "spec", "args", 0), at({"spec": None}, "spec", "args")
    ('a', None)
    """
    for key in keys:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return None
    return value


def there(part: T | Unseen | None) -> T | None:
    """Return a part; None if it does not exist or was not seen."""
    return None if isinstance(part, Unseen) else part


def first_container(pod: Any) -> Json:
    """Return the first container of a pod or of a pod template; empty if there is none."""
    return at(pod, "spec", "containers", 0) or {}


def tag_of(image: str) -> str:
    """Return the tag of an image; empty if it has none.

    >>> tag_of("registry.example:5000/gpus:0.1.0@sha256:ab"), tag_of("registry.example:5000/gpus")
    ('0.1.0', '')
    """
    name, _, tag = image.partition("@")[0].rpartition(":")
    return tag if name and "/" not in tag else ""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its origin and its subject.

    ``where`` is the name of its file, or its key in a Secret. ``whose`` is ``extender``,
    ``scheduler``, or ``authority`` for a certificate that signs others.
    """

    where: str
    whose: str
    content: x509.Certificate

    @property
    def expires(self) -> float:
        """The time at which it expires, in seconds since 1970."""
        return self.content.not_valid_after_utc.timestamp()

    @property
    def names(self) -> set[str]:
        """The DNS names and IP addresses that it is valid for."""
        try:
            found = self.content.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return set()
        addresses = found.value.get_values_for_type(x509.IPAddress)
        return {*found.value.get_values_for_type(x509.DNSName), *map(str, addresses)}

    @property
    def common_name(self) -> str:
        """The subject's name, by which the extender knows kube-scheduler."""
        found = self.content.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(found[0].value) if found else ""

    def signed_by(self, authority: Certificate) -> bool:
        """Check whether this authority has signed it."""
        try:
            self.content.verify_directly_issued_by(authority.content)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True
