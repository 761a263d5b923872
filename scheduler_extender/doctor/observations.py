"""What was seen of a cluster and its installation, as far as the checks need it.

A part is :class:`Unseen` where it could not be looked at, and None where it is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
# A pod that only a node can promise to take whose report is fresh and complete.
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
    """Why something could not be looked at."""

    why: str


class _Write(msgspec.Struct, frozen=True):
    """Who wrote which part of an object, and when by the API server's clock."""

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
        """Its labels."""
        return self.metadata.labels or {}

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources of GPUs that its kubelet serves."""
        served = self.status.capacity or {}
        return tuple(managed_among([r for r, n in served.items() if str(n) != "0"], MANAGED))


class Kubelet(msgspec.Struct, frozen=True, rename="camel"):
    """How a kubelet hands out devices, as its record says it or its own configuration."""

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
        """A condition; an empty one where the agent has not told it."""
        return next((c for c in self.status.conditions or () if c.type == kind), _Condition())

    @property
    def ahead(self) -> float | None:
        """By how many seconds its node's clock is ahead of the API server's."""
        writes = [w for w in self.metadata.managed_fields or () if w.subresource == "status"]
        return ahead(self.status.observed_at, (write.time for write in writes))


def ahead(told: str, written: Any) -> float | None:
    """By how many seconds a clock that told one time is ahead of the API server's, which wrote at
    the latest of the others; within two seconds it is none. None where somebody says nothing."""
    by_them, by_server = seconds_of(told), [s for t in written if (s := seconds_of(t)) is not None]
    if by_them is None or not by_server:
        return None
    apart = by_them - max(by_server)
    return apart if abs(apart) > 2.0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A configuration of kube-scheduler: where it is from, and its text."""

    where: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What the extender has answered us, who asked as kube-scheduler does; or why it has not."""

    where: str
    nodes: int = 0
    takes: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen. ``now`` is the time by the API server's clock, and ``ahead`` by how many
    seconds this machine's is ahead of it."""

    system: str
    version: str
    now: float
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
    kubelets: Mapping[str, Kubelet | Unseen] = field(default_factory=dict)
    metrics: Sequence[Sample] | Unseen = Unseen("")  # of one replica
    cluster: Cache | Unseen = Unseen("")
    answered: Sequence[Answered] = ()

    @property
    def flags(self) -> dict[str, str]:
        """The extender's flags, as its Deployment has them."""
        template = at(there(self.extender), "spec", "template")
        words = [str(word).partition("=") for word in first_container(template).get("args") or ()]
        return {name: value for name, _, value in words}


def at(found: Any, *keys: str | int) -> Any:
    """What is at a place in an object; None where nothing is.

    >>> at({"spec": {"args": ["a"]}}, "spec", "args", 0), at({"spec": None}, "spec", "args")
    ('a', None)
    """
    for key in keys:
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and isinstance(key, int) and key < len(found):
            found = found[key]
        else:
            return None
    return found


def there(part: T | Unseen | None) -> T | None:
    """A part, if it is there and was seen."""
    return None if isinstance(part, Unseen) else part


def first_container(pod: Any) -> Json:
    """The first container of a pod, or of a template of pods."""
    return at(pod, "spec", "containers", 0) or {}


def tag_of(image: str) -> str:
    """The tag of an image; empty if it has none.

    >>> tag_of("registry.example:5000/gpus:0.1.0@sha256:ab"), tag_of("registry.example:5000/gpus")
    ('0.1.0', '')
    """
    name, _, tag = image.partition("@")[0].rpartition(":")
    return tag if name and "/" not in tag else ""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate, the name of its file or of its place in a Secret, and whom it certifies:
    ``extender``, ``scheduler``, or ``authority`` where it signs others."""

    where: str
    whose: str
    content: x509.Certificate

    @property
    def expires(self) -> float:
        """When it ends, in seconds since 1970."""
        return self.content.not_valid_after_utc.timestamp()

    @property
    def names(self) -> set[str]:
        """The names that it is for."""
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
        """Whether an authority has signed it."""
        try:
            self.content.verify_directly_issued_by(authority.content)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


def certificates_in(where: str, whose: str, pem: bytes) -> Iterator[Certificate]:
    """The certificates of a text. Raises ValueError where there is none."""
    for content in x509.load_pem_x509_certificates(pem):
        yield Certificate(where, whose, content)
