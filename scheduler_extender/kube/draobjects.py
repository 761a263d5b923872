"""What is read of DRA's objects: classes, taint rules, slices and claims."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import Self

import msgspec

from scheduler_extender.annotations import MANAGED
from scheduler_extender.kube.cel import Domains, Known, Value, Version
from scheduler_extender.quantities import BadValueError, quantity
from topology.core.devices import PodUid
from topology.core.dra import Claimed, Published, claim_holder

COMMON = "resource.kubernetes.io"  # the domain of attributes that all drivers have alike
OF_NVIDIA = {"gpu.nvidia.com": MANAGED[0]}  # the class that comes with NVIDIA's driver
MOST_ASKED = 64 << 10  # bytes of what the claims of one pod ask for
BARS = ("NoSchedule", "NoExecute")  # effects of a device's taint that keep pods off


class _Metadata(msgspec.Struct, rename="camel"):
    """Without labels and annotations, of which each object may have 256 KiB, and all are kept."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    creation_timestamp: str | None = None


class _Something(msgspec.Struct):
    """That it is there is all that is read of it."""


class _Attribute(msgspec.Struct):
    text: str | None = msgspec.field(name="string", default=None)
    number: int | None = msgspec.field(name="int", default=None)
    flag: bool | None = msgspec.field(name="bool", default=None)
    version: str | None = None

    @property
    def value(self) -> Value:
        """The one value that it has; None for a kind that is not read."""
        if self.version is not None:
            return Version(self.version)
        given = (self.text, self.number, self.flag)
        return next((each for each in given if each is not None), None)


class _Capacity(msgspec.Struct):
    value: str

    @property
    def amount(self) -> Value:
        """The quantity; None for one that cannot be read."""
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
        """What selectors see of it. A name without a domain is in the driver's."""
        attributes = ((name, each.value) for name, each in (self.attributes or {}).items())
        capacity = ((name, each.amount) for name, each in (self.capacity or {}).items())
        of_each = _by_domain(attributes, driver), _by_domain(capacity, driver)
        return Known(driver, *of_each, bool(self.allow_multiple_allocations))

    def among(self, words: set[str] | None) -> Hashable:
        """Its attributes and its capacity whose names, without domains, are among these words (None
        for all), and whether it is given more than once. To Python a 1 and a true are equal, so the
        kinds are told, too."""
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
        """The field by which it is handed out in another way than whole and once."""
        fields = {
            "consumesCounters": self.consumes_counters,
            "allowMultipleAllocations": self.allow_multiple_allocations,
            "bindingConditions": self.binding_conditions,
        }
        return next((field for field, value in fields.items() if value), None)

    @property
    def tainted(self) -> bool:
        """Whether a taint of its own keeps pods off."""
        return any(taint.effect in BARS for taint in self.taints or ())

    def published(self, driver: str, pool: str) -> Published:
        """The device as a record's GPU, which nobody gets."""
        uuid = self._value("uuid", f"{driver}/uuid")
        bus = self._value(f"{COMMON}/pciBusID", "pciBusID", f"{driver}/pciBusID")
        return Published(f"{driver}/{pool}", self.name, uuid, bus, tainted=True)

    def _value(self, *names: str) -> str:
        """The first of these attributes that it has; empty if it has none."""
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
    """What tells an object of a kind apart."""
    return f"{namespace}/{name}" if namespace else name


class Stored(msgspec.Struct):
    """An object that is kept. What it says may need room (:class:`.ByteQuota`)."""

    metadata: _Metadata

    @property
    def key(self) -> str:
        """What tells it apart from others of its kind."""
        return key_of(self.metadata.namespace, self.metadata.name)

    @property
    def owner(self) -> str:
        """Who shares the room with others of the kind."""
        return ""

    @property
    def size(self) -> int:
        """How many bytes it needs."""
        return 0

    def bare(self) -> Self:
        """The object where there is no room for what it says."""
        return self


class DeviceClass(Stored):
    """A kind of devices that pods ask for; by ``extendedResourceName`` without a claim."""

    spec: _ClassSpec

    @property
    def serves(self) -> str | None:
        """The resource that its devices are counted as: the one that pods can ask for, or that of
        NVIDIA's own class, whose devices claims can have all the same."""
        return self.spec.extended_resource_name or OF_NVIDIA.get(self.metadata.name)

    @property
    def conditions(self) -> tuple[str, ...]:
        """Its selectors, all of which a device has to meet."""
        return conditions_of(self.spec.selectors)


def conditions_of(selectors: Iterable[_Selector] | None) -> tuple[str, ...]:
    """The expressions of selectors."""
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
        """Of which devices it keeps pods off, as one of :func:`ways` to them; None if of none."""
        wanted = self.spec.device_selector
        if wanted is None or self.spec.taint.effect not in BARS:
            return None
        return f"{wanted.driver or ''}/{wanted.pool or ''}"

    @property
    def device(self) -> str | None:
        """The name of the devices; None for all."""
        return self.spec.device_selector.device if self.spec.device_selector else None


def ways(driver: str, pool: str) -> tuple[str, str, str, str]:
    """How a rule may select a pool: by both, by one of them, or as any."""
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
    """Devices of one node, or a part of them, as JSON: what is asked of them is read anew."""

    spec: _SliceSpec

    def __post_init__(self) -> None:
        """Keep nothing of the list that it was in."""
        self.spec.devices = self.spec.devices.copy()

    @property
    def pool(self) -> str:
        """Driver and pool."""
        return f"{self.spec.driver}/{self.spec.pool.name}"

    @property
    def owner(self) -> str:
        """Its node; empty if it is for several."""
        return self.spec.node_name or ""

    @property
    def size(self) -> int:
        """How many bytes its devices have, and about how many the rest has."""
        return len(bytes(self.spec.devices)) + 500

    def bare(self) -> Self:
        """The same without devices, which is told from one that has none."""
        spec = msgspec.structs.replace(self.spec, devices=msgspec.Raw())
        return msgspec.structs.replace(self, spec=spec)

    @property
    def is_bare(self) -> bool:
        """Whether there was no room for its devices."""
        return not bytes(self.spec.devices)

    def devices(self) -> list[Device]:
        """Its devices. Raises :class:`msgspec.DecodeError`."""
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
    """Devices that a claim asks for: ``exactly`` these, or the ``firstAvailable`` of some."""

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
        """What will do, the best first."""
        return self.first_available or [self.exactly or self]

    @property
    def conditions(self) -> tuple[str, ...]:
        """Its own selectors, all of which a device has to meet."""
        return conditions_of(self.selectors)


class Constraint(msgspec.Struct, rename="camel"):
    """What the devices of some requests, or of all, have to have in common."""

    requests: list[str] | None = None
    match_attribute: str | None = None

    def concerns(self, request: str, alternative: str) -> bool:
        """Whether it speaks of an alternative of a request."""
        names = {request, f"{request}/{alternative}"}
        return not self.requests or not names.isdisjoint(self.requests)


class _Asked(msgspec.Struct):
    requests: list[Request] | None = None
    constraints: list[Constraint] | None = None


class ClaimSpec(msgspec.Struct):
    """What a claim asks for."""

    devices: _Asked = msgspec.field(default_factory=_Asked)


decode_spec = msgspec.json.Decoder(ClaimSpec).decode


class Claim(Stored):
    """Devices for a pod: asked for, or, once allocated, held."""

    spec: msgspec.Raw = msgspec.Raw()
    status: _ClaimStatus = msgspec.field(default_factory=_ClaimStatus)

    def __post_init__(self) -> None:
        """Keep what it asks for while it has no devices, and nothing of the list that it was in."""
        self.spec = self.spec.copy() if self.status.allocation is None else msgspec.Raw()

    @property
    def owner(self) -> str:
        """Its namespace."""
        return self.metadata.namespace

    @property
    def size(self) -> int:
        """How many bytes its spec has while it has no devices."""
        return len(bytes(self.spec))

    def bare(self) -> Claim:
        """The claim without what it asks for."""
        return msgspec.structs.replace(self, spec=msgspec.Raw())

    def by_pool(self) -> dict[str, list[Claimed]]:
        """The devices that it has for its pod, by driver and pool; once it is allocated there
        is an empty pool, too."""
        allocated = self.status.allocation
        results = allocated.devices.results if allocated and allocated.devices else None
        pods = [each for each in self.status.reserved_for or () if each.resource == "pods"]
        own = _Consumer(name=claim_holder(self.metadata.name), uid=self.metadata.uid)
        holder = pods[0] if len(pods) == 1 else own  # several share them
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
