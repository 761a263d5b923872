"""The fields of DRA's objects that are read: classes, taint rules, slices and claims."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import Self

import msgspec

from scheduler_extender.annotations import MANAGED
from scheduler_extender.kube.cel import Domains, Known, Value, Version
from scheduler_extender.quantities import BadValueError, quantity
from topology.core.devices import PodUid
from topology.core.dra import Claimed, Published, claim_holder

COMMON = "resource.kubernetes.io"  # the domain of attributes that all drivers have in common
OF_NVIDIA = {"gpu.nvidia.com": MANAGED[0]}  # the class that NVIDIA's driver installs
MOST_ASKED = 64 << 10  # bytes of the specs of one pod's claims
# The texts in JSON that may name a node or a pool. JSON escapes none of these characters.
NAMES = re.compile(rb'"([a-z0-9][a-z0-9./-]*)"')
PER_NAME = 100  # bytes that a name takes beside its text
BARS = ("NoSchedule", "NoExecute")  # effects of a device's taint that admit no pods


class Metadata(msgspec.Struct, rename="camel"):
    """Metadata without labels and annotations.

    Each object may have 256 KiB of those, and all objects are kept.
    """

    name: str = ""
    namespace: str = ""
    uid: str = ""
    creation_timestamp: str | None = None


class _Something(msgspec.Struct):
    """An object of which only the presence is read."""


class _Attribute(msgspec.Struct):
    text: str | None = msgspec.field(name="string", default=None)
    number: int | None = msgspec.field(name="int", default=None)
    flag: bool | None = msgspec.field(name="bool", default=None)
    version: str | None = None

    @property
    def value(self) -> Value:
        """The attribute's one value; None for a type that is not read."""
        if self.version is not None:
            return Version(self.version)
        given = (self.text, self.number, self.flag)
        return next((each for each in given if each is not None), None)


class _Capacity(msgspec.Struct):
    value: str

    @property
    def amount(self) -> Value:
        """The quantity; None if it cannot be read."""
        with suppress(BadValueError):
            return quantity(self.value)
        return None


class _Taint(msgspec.Struct):
    effect: str = ""


class Device(msgspec.Struct, rename="camel"):
    """A device of a ResourceSlice."""

    name: str
    attributes: dict[str, _Attribute] | None = None
    capacity: dict[str, _Capacity] | None = None
    taints: list[_Taint] | None = None
    consumes_counters: list[_Something] | None = None
    allow_multiple_allocations: bool | None = None
    binding_conditions: list[str] | None = None

    def known(self, driver: str) -> Known:
        """Return the device as selectors see it.

        A name without a domain is in the driver's domain.
        """
        attributes = ((name, each.value) for name, each in (self.attributes or {}).items())
        capacity = ((name, each.amount) for name, each in (self.capacity or {}).items())
        of_each = _by_domain(attributes, driver), _by_domain(capacity, driver)
        return Known(driver, *of_each, bool(self.allow_multiple_allocations))

    def among(self, words: set[str] | None) -> Hashable:
        """Return a key of the attributes and capacity that ``words`` mention.

        The words are names without domains; None stands for all words. The key contains whether the
        device may be given more than once, and the types of values, since in Python 1 equals true.
        """
        return bool(self.allow_multiple_allocations), *(
            tuple(
                (name, type(each.value).__name__, each.value)
                for name, each in some
                if words is None or name.rpartition("/")[2] in words
            )
            for some in ((self.attributes or {}).items(), (self.capacity or {}).items())
        )

    @property
    def special(self) -> str | None:
        """The field because of which the device is not given out whole and once.

        It is None if there is no such field.
        """
        fields = {
            "consumesCounters": self.consumes_counters,
            "allowMultipleAllocations": self.allow_multiple_allocations,
            "bindingConditions": self.binding_conditions,
        }
        return next((field for field, value in fields.items() if value), None)

    @property
    def tainted(self) -> bool:
        """Whether one of the device's own taints admits no pods."""
        return any(taint.effect in BARS for taint in self.taints or ())

    def published(self, driver: str, pool: str) -> Published:
        """Return the device in the form of a record's GPU, tainted, so that no pod gets it."""
        uuid = self._value("uuid", f"{driver}/uuid")
        bus = self._value(f"{COMMON}/pciBusID", "pciBusID", f"{driver}/pciBusID")
        return Published(f"{driver}/{pool}", self.name, uuid, bus, tainted=True)

    def _value(self, *names: str) -> str:
        """Return the first of these attributes that the device has.

        Return an empty text if it has none.
        """
        given = self.attributes or {}
        found = (given[name].value for name in names if name in given)
        return next((str(value) for value in found if value), "")


def _by_domain(values: Iterable[tuple[str, Value]], driver: str) -> Domains:
    found: dict[str, dict[str, Value]] = {}
    for name, value in values:
        domain, _, own = name.rpartition("/")
        found.setdefault(domain or driver, {})[own] = value
    return Domains(found)


class _Cel(msgspec.Struct):
    expression: str = ""


class _Selector(msgspec.Struct):
    cel: _Cel | None = None


class _ClassSpec(msgspec.Struct, rename="camel"):
    selectors: list[_Selector] | None = None
    extended_resource_name: str | None = None


def key_of(namespace: str, name: str) -> str:
    """Return the key of an object among those of its kind."""
    return f"{namespace}/{name}" if namespace else name


class Stored(msgspec.Struct):
    """An object that is kept. Its content may be limited (:class:`.ByteQuota`)."""

    metadata: Metadata

    @property
    def key(self) -> str:
        """The object's key among those of its kind."""
        return key_of(self.metadata.namespace, self.metadata.name)

    @property
    def owner(self) -> str:
        """The owner whose objects of this kind share their bytes of the quota: the namespace."""
        return self.metadata.namespace

    @property
    def size(self) -> int:
        """The number of bytes that it takes of the quota."""
        return 0

    def bare(self) -> Self:
        """Return the object without the content for which there is no room."""
        return self


class Unread(Stored):
    """An object that cannot be read.

    ``names`` are the texts in it that may name a node or a pool; None if there is no room for them.
    """

    names: frozenset[str] | None

    @property
    def size(self) -> int:
        """The bytes of its names."""
        return sum(len(name) + PER_NAME for name in self.names or ())

    def bare(self) -> Self:
        """Return the object without its names."""
        return msgspec.structs.replace(self, names=None)


class DeviceClass(Stored):
    """A class of devices. Pods ask for its ``extendedResourceName`` without a claim."""

    spec: _ClassSpec

    @property
    def serves(self) -> str | None:
        """The resource as which its devices are counted.

        It is the resource that pods can ask for. For NVIDIA's own class it is NVIDIA's resource,
        since claims can have its devices all the same.
        """
        return self.spec.extended_resource_name or OF_NVIDIA.get(self.metadata.name)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The class's selectors, all of which a device must meet."""
        return conditions_of(self.spec.selectors)


def conditions_of(selectors: Iterable[_Selector] | None) -> tuple[str, ...]:
    """Return the expressions of selectors."""
    return tuple(each.cel.expression for each in selectors or () if each.cel is not None)


class _Selected(msgspec.Struct):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class _RuleSpec(msgspec.Struct, rename="camel"):
    taint: _Taint
    device_selector: _Selected | None = None


class TaintRule(Stored):
    """A taint that an administrator, or a controller, puts on devices."""

    spec: _RuleSpec

    @property
    def selects(self) -> str | None:
        """The pools whose devices it taints, as one of their :func:`ways`.

        It is None if the rule admits all pods.
        """
        wanted = self.spec.device_selector
        if wanted is None or self.spec.taint.effect not in BARS:
            return None
        return f"{wanted.driver or ''}/{wanted.pool or ''}"

    @property
    def device(self) -> str | None:
        """The name of the tainted devices; None for all."""
        return self.spec.device_selector.device if self.spec.device_selector else None


def ways(driver: str, pool: str) -> tuple[str, str, str, str]:
    """Return the ways in which a rule may select a pool.

    A rule selects it by both names, by one of them, or by none.
    """
    return f"{driver}/{pool}", f"{driver}/", f"/{pool}", "/"


class _Pool(msgspec.Struct, rename="camel"):
    name: str
    generation: int = 0
    resource_slice_count: int = 1


class _SliceSpec(msgspec.Struct, rename="camel"):
    driver: str
    pool: _Pool
    node_name: str | None = None
    devices: msgspec.Raw = msgspec.Raw(b"[]")


class Slice(Stored):
    """A node's devices, or a part of them, as undecoded JSON that is read anew when needed."""

    spec: _SliceSpec

    def __post_init__(self) -> None:
        """Keep no reference to the list from which the object was decoded."""
        self.spec.devices = self.spec.devices.copy()

    @property
    def pool(self) -> str:
        """The driver and pool, as one text."""
        return f"{self.spec.driver}/{self.spec.pool.name}"

    @property
    def owner(self) -> str:
        """The slice's node; empty if it is for several."""
        return self.spec.node_name or ""

    @property
    def size(self) -> int:
        """The bytes of its devices, and about those of the rest."""
        return len(bytes(self.spec.devices)) + 500

    def bare(self) -> Self:
        """Return the slice without devices. It differs from a slice that has none."""
        spec = msgspec.structs.replace(self.spec, devices=msgspec.Raw())
        return msgspec.structs.replace(self, spec=spec)

    def devices(self) -> list[Device]:
        """Return its devices. Raises :class:`msgspec.DecodeError`."""
        return _devices(self.spec.devices) or []


_devices = msgspec.json.Decoder(list[Device] | None).decode


class _Result(msgspec.Struct, rename="camel"):
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None


class _Results(msgspec.Struct):
    results: list[_Result] | None = None


class _Allocation(msgspec.Struct):
    devices: _Results | None = None


class _Consumer(msgspec.Struct):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _ClaimStatus(msgspec.Struct, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class Request(msgspec.Struct, rename="camel"):
    """A claim's request for devices: ``exactly`` these, or the ``firstAvailable`` of several."""

    name: str = ""
    device_class_name: str = ""
    selectors: list[_Selector] | None = None
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    tolerations: list[_Something] | None = None
    capacity: _Something | None = None
    exactly: Request | None = None
    first_available: list[Request] | None = None

    @property
    def alternatives(self) -> list[Request]:
        """The alternatives that meet the request, the best first."""
        return self.first_available or [self.exactly or self]

    @property
    def conditions(self) -> tuple[str, ...]:
        """The request's own selectors, all of which a device must meet."""
        return conditions_of(self.selectors)


class Constraint(msgspec.Struct, rename="camel"):
    """What the devices of some or all requests must have in common."""

    requests: list[str] | None = None
    match_attribute: str | None = None

    def concerns(self, request: str, alternative: str) -> bool:
        """Check whether the constraint concerns an alternative of a request."""
        names = {request, f"{request}/{alternative}"}
        return not self.requests or not names.isdisjoint(self.requests)


class _Asked(msgspec.Struct):
    requests: list[Request] | None = None
    constraints: list[Constraint] | None = None


class ClaimSpec(msgspec.Struct):
    """The requests and constraints of a claim."""

    devices: _Asked = msgspec.field(default_factory=_Asked)


decode_spec = msgspec.json.Decoder(ClaimSpec).decode


class Claim(Stored):
    """A pod's claim: requested devices, or, once it is allocated, the devices that it has."""

    spec: msgspec.Raw = msgspec.Raw()
    status: _ClaimStatus = msgspec.field(default_factory=_ClaimStatus)

    def __post_init__(self) -> None:
        """Keep the spec only while the claim has no devices.

        Keep no reference to the list from which the object was decoded.
        """
        self.spec = self.spec.copy() if self.status.allocation is None else msgspec.Raw()

    @property
    def size(self) -> int:
        """The bytes of its spec while it has no devices."""
        return len(bytes(self.spec))

    def bare(self) -> Claim:
        """Return the claim without its spec."""
        return msgspec.structs.replace(self, spec=msgspec.Raw())

    def by_pool(self) -> dict[str, list[Claimed]]:
        """Return the devices that the claim has for its pod, by driver and pool.

        An allocated claim also has an empty pool.
        """
        allocated = self.status.allocation
        results = allocated.devices.results if allocated and allocated.devices else None
        pods = [each for each in self.status.reserved_for or () if each.resource == "pods"]
        own = _Consumer(name=claim_holder(self.metadata.name), uid=self.metadata.uid)
        holder = pods[0] if len(pods) == 1 else own  # several pods share the claim
        sharers = tuple(PodUid(each.uid) for each in pods) if len(pods) > 1 else ()
        found: dict[str, list[Claimed]] = {} if allocated is None else {"": []}
        for each in results or ():
            pool, uid, admin = f"{each.driver}/{each.pool}", PodUid(holder.uid), each.admin_access
            namespace, name = self.metadata.namespace, self.metadata.name
            claimed = Claimed(
                pool, each.device, uid, namespace, holder.name, sharers, name, bool(admin)
            )
            found.setdefault(pool, []).append(claimed)
        return found


DraObject = DeviceClass | TaintRule | Slice | Claim | Unread
