"""What is read of DRA's objects: DeviceClasses, ResourceSlices and ResourceClaims."""

from __future__ import annotations

import re

import msgspec

from scheduler_extender.wire import ObjectMeta
from topology.core.devices import PodUid
from topology.core.dra import Claimed, DraError, Published, claim_holder

PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
BARS = ("NoSchedule", "NoExecute")  # effects of a device's taint that keep pods off
# The comparisons of which a DeviceClass's selector may be made, all of which hold together.
_DRIVER = re.compile(r"""device\.driver\s*==\s*(?P<value>"[^"]*"|'[^']*')""")
_ATTRIBUTE = re.compile(
    r"""device\.attributes\[(?P<domain>"[^"]*"|'[^']*')\]\.(?P<name>\w+)\s*==\s*"""
    r"""(?P<value>"[^"]*"|'[^']*'|-?[0-9]{1,19}|true|false)"""
)

Value = str | int | bool


class _Attribute(msgspec.Struct):
    text: str | None = msgspec.field(name="string", default=None)
    number: int | None = msgspec.field(name="int", default=None)
    flag: bool | None = msgspec.field(name="bool", default=None)
    version: str | None = None


class _Taint(msgspec.Struct):
    effect: str = ""


class Device(msgspec.Struct, rename="camel"):
    """A device of a ResourceSlice."""

    name: str
    attributes: dict[str, _Attribute] | None = None
    taints: list[_Taint] | None = None
    consumes_counters: list[msgspec.Raw] | None = None
    allow_multiple_allocations: bool | None = None
    binding_conditions: list[str] | None = None

    def attribute(self, driver: str, name: str) -> Value | None:
        """An attribute by its name with a domain; without one a name is in the driver's."""
        known = self.attributes or {}
        value = known.get(name) or known.get(name.removeprefix(f"{driver}/"))
        if value is None:
            return None
        given = (value.text, value.number, value.flag, value.version)
        return next((each for each in given if each is not None), None)

    def published(self, driver: str, pool: str) -> Published:
        """The device as a record's GPU. Raises :class:`DraError` where it is handed out in another
        way than whole and once."""
        for field, value in (
            ("consumesCounters", self.consumes_counters),
            ("allowMultipleAllocations", self.allow_multiple_allocations),
            ("bindingConditions", self.binding_conditions),
        ):
            if value:
                raise DraError(f"device {self.name[:64]} of a ResourceSlice has {field}")
        tainted = any(taint.effect in BARS for taint in self.taints or ())
        uuid = self.attribute(driver, f"{driver}/uuid")
        bus = self.attribute(driver, PCI_BUS_ID) or self.attribute(driver, f"{driver}/pciBusID")
        return Published(f"{driver}/{pool}", self.name, str(uuid or ""), str(bus or ""), tainted)


class _Cel(msgspec.Struct):
    expression: str = ""


class _Selector(msgspec.Struct):
    cel: _Cel | None = None


class _ClassSpec(msgspec.Struct, rename="camel"):
    selectors: list[_Selector] | None = None
    extended_resource_name: str | None = None


class DeviceClass(msgspec.Struct):
    """A kind of devices that pods ask for; by ``extendedResourceName`` without a claim."""

    metadata: ObjectMeta
    spec: _ClassSpec

    @property
    def key(self) -> str:
        """What tells it apart."""
        return self.metadata.name

    def selects(self, driver: str, device: Device) -> bool:
        """Whether a device is of this class. Raises :class:`DraError` where the class compares in
        another way than we read."""
        wanted = [each.cel.expression for each in self.spec.selectors or () if each.cel is not None]
        return all(
            self._meets(term.strip(), driver, device)
            for expression in wanted
            for term in expression.split("&&")
        )

    def _meets(self, term: str, driver: str, device: Device) -> bool:
        if found := _DRIVER.fullmatch(term):
            return found["value"][1:-1] == driver
        if found := _ATTRIBUTE.fullmatch(term):
            known = device.attribute(driver, f"{found['domain'][1:-1]}/{found['name']}")
            return known is not None and known == _value(found["value"])
        name = self.metadata.name
        raise DraError(f"the selector of DeviceClass {name} cannot be followed: {term[:100]}")


def _value(text: str) -> Value:
    if text[0] in "\"'":
        return text[1:-1]
    return text == "true" if text in ("true", "false") else int(text)


class _Pool(msgspec.Struct, rename="camel"):
    name: str
    generation: int = 0
    resource_slice_count: int = 1


class _SliceSpec(msgspec.Struct, rename="camel"):
    driver: str
    pool: _Pool
    node_name: str | None = None
    devices: list[Device] | None = None


class Slice(msgspec.Struct):
    """Devices of one node, or a part of them."""

    metadata: ObjectMeta
    spec: _SliceSpec

    @property
    def key(self) -> str:
        """What tells it apart."""
        return self.metadata.name

    @property
    def pool(self) -> str:
        """Driver and pool."""
        return f"{self.spec.driver}/{self.spec.pool.name}"


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


class Claim(msgspec.Struct):
    """Devices for a pod: asked for, or, once allocated, held."""

    metadata: ObjectMeta
    status: _ClaimStatus = msgspec.field(default_factory=_ClaimStatus)

    @property
    def key(self) -> tuple[str, str]:
        """What tells it apart."""
        return self.metadata.namespace, self.metadata.name

    def by_pool(self) -> dict[str, list[Claimed]]:
        """The devices that it has for its pod alone, by driver and pool."""
        allocated = self.status.allocation
        results = allocated.devices.results if allocated and allocated.devices else None
        pods = [each for each in self.status.reserved_for or () if each.resource == "pods"]
        own = _Consumer(name=claim_holder(self.metadata.name), uid=self.metadata.uid)
        holder = pods[0] if pods else own
        found: dict[str, list[Claimed]] = {}
        for each in results or ():
            if not each.admin_access:
                pool, uid = f"{each.driver}/{each.pool}", PodUid(holder.uid)
                claimed = Claimed(pool, each.device, uid, self.metadata.namespace, holder.name)
                found.setdefault(pool, []).append(claimed)
        return found
