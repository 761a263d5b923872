"""The devices of one node's ResourceSlices, and which of them selectors and claims take."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TypeVar

from scheduler_extender.kube.cel import matches, words_of
from scheduler_extender.kube.draobjects import (
    ClaimSpec,
    Device,
    DeviceClass,
    Request,
    Slice,
)
from scheduler_extender.state.node.nodeinfo import Offer
from scheduler_extender.wire import UNREADABLE
from topology.core.allocators.claims import (
    MOST,
    Alike,
    Alternative,
    NotFollowedError,
    Values,
    allocated,
)
from topology.core.devices import DeviceId, Mask, positions
from topology.core.dra import Claimed, DraError, Published, gpu_finder
from topology.core.graph import NodeTopology
from topology.core.memo import Memo, interruptible
from topology.core.placement import Reason, Rejection
from topology.core.report import Allocation

MOST_DEVICES = 2000  # of a node, including the parts of its GPUs (MIG)
MOST_OF_NODE, MOST_SLICES = 2 << 20, 256 << 20  # bytes of devices, of one node and of all
NO_QUOTA = (
    f"the ResourceSlices are too large: at most {MOST_OF_NODE >> 20} MiB are read for one node, "
    f"and {MOST_SLICES >> 20} MiB for all nodes"
)
Barred = Collection[str | None]
# The most characters that one evaluation reads, over all devices: the selectors' characters, and
# BESIDE more for each selector and for each attribute that devices must have in common.
MOST_READ, BESIDE = 1_500_000, 200
TOO_MUCH = "too many devices for the number and length of the selectors"
NO_DEVICES = Rejection("no free devices of the node match the pod's claims", True, Reason.CLAIMS)
Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")
_numbers = count()
_selected = Memo[tuple[int, tuple[str, ...]], Mask | str]()
_values = Memo[tuple[int, str], Values | str]()
_met = Memo[tuple[tuple[str, ...], str, Hashable], bool | str]()


class NodeDevices:
    """The devices of one node, in the order in which kube-scheduler takes them.

    Pools are sorted by driver and name; pools with a device that is bound late come last. Slices
    are sorted by name; devices are in the published order.

    ``barred`` are, for each pool, the names of the devices to which rules admit no pods; None
    stands for all devices. Raises :class:`DraError` if the devices cannot be read. Attributes are
    not kept: they are read anew when needed.
    """

    def __init__(self, slices: Iterable[Slice], barred: Mapping[str, Barred]) -> None:
        # Pools with a missing slice. No pod gets their devices.
        self._incomplete = set[tuple[str, str]]()
        read = _in_order(_read(slices), self._incomplete)
        self._parts = [part for part, _ in read]
        self.all: list[tuple[str, str, Published]] = []
        self._special = dict[int, str]()
        self.tainted: Mask = 0
        self._shared: Mask = 0  # devices that may be given more than once
        self._gpus: tuple[object, Mask] = (), 0  # the GPUs of the latest record
        self._number = next(_numbers)  # the key of these devices in the memos
        self._remember(read)
        for at, (driver, pool, device) in enumerate(self._devices()):
            published = device.published(driver, pool)
            self.all.append((driver, pool, published))
            self._shared |= bool(device.allow_multiple_allocations) << at
            if device.special:
                self._special[at] = device.special
            off = barred.get(published.pool, ())
            by_rule = None in off or device.name in off
            by_itself = device.tainted or (driver, pool) in self._incomplete
            self.tainted |= (by_itself or by_rule) << at
        self.pools = list(dict.fromkeys(published.pool for _, _, published in self.all))

    def _devices(self) -> Sequence[tuple[str, str, Device]]:
        """Return the devices with their attributes.

        Each thread caches those of one node, since it evaluates a node several times in a row.
        """
        if _latest.number != self._number:
            self._remember(_read(self._parts))
        return _latest.devices

    def _remember(self, read: Iterable[_Part]) -> None:
        _latest.devices = [
            (part.spec.driver, part.spec.pool.name, device)
            for part, devices in read
            for device in devices
        ]
        _latest.number = self._number

    def selected(self, conditions: tuple[str, ...]) -> Mask:
        """Return the devices that meet all conditions. Raises :class:`NotFollowedError`."""

        def select() -> Mask:
            if self._reads([conditions]) > MOST_READ:
                raise NotFollowedError(TOO_MUCH)
            words, mask = words_of(conditions), 0
            for at, (driver, _, device) in enumerate(self._devices()):
                mask |= _meets(device, driver, conditions, words) << at
            return mask

        return _once(_selected, (self._number, conditions), select)

    def _reads(self, selectors: Collection[tuple[str, ...]], attributes: int = 0) -> int:
        """Return how many characters are read of the devices: see :data:`MOST_READ`."""
        of_each = sum(BESIDE + sum(map(len, conditions)) for conditions in selectors)
        return len(self.all) * (of_each + BESIDE * attributes)

    def published(self, wanted: DeviceClass) -> Iterator[Published]:
        """Yield the devices of a class.

        Raises :class:`DraError` if the class cannot be followed, if one of its devices is not given
        out whole and once, or if that one's pool is incomplete.
        """
        for at in positions(self._of_class(wanted)):
            driver, pool, device = self.all[at]
            if (driver, pool) in self._incomplete:
                raise DraError(f"the pool {pool[:64]} of the node's ResourceSlices is incomplete")
            if at in self._special:
                said = f"device {device.name[:64]} of a ResourceSlice has {self._special[at]}"
                raise DraError(f"{said}, which is not supported")
            yield device if self.tainted >> at & 1 else replace(device, tainted=False)

    def others(self, wanted: DeviceClass) -> Iterator[Published]:
        """Yield the devices outside a class, whether given out whole or not.

        Raises :class:`DraError`.
        """
        for at in positions(~self._of_class(wanted) & (1 << len(self.all)) - 1):
            yield self.all[at][2]

    def _of_class(self, wanted: DeviceClass) -> Mask:
        try:
            return self.selected(wanted.conditions)
        except NotFollowedError as error:
            name = wanted.metadata.name
            problem = f"the selector of DeviceClass {name[:64]} cannot be evaluated: {error}"
            raise DraError(problem) from error

    def foreseen(
        self,
        offer: Offer,
        serving: DeviceClass,
        claims: Sequence[ClaimSpec],
        classes: Mapping[str, DeviceClass],
        claimed: Iterable[Claimed],
        held: Sequence[Allocation],
    ) -> tuple[DeviceId, ...] | Rejection:
        """Return the GPUs that kube-scheduler gives to these claims; :data:`NO_DEVICES` if none.

        ``offer`` is the offer of a record whose GPUs are those of the class ``serving``. Record and
        offer may be of another time than now; ``held`` are the record's allocations. An owner that
        has ``claimed`` GPUs now, but none in the record, counts as gone. Its other devices then
        count as free, too.

        Raises :class:`DraError` or :class:`NotFollowedError` if that cannot be foreseen.
        """
        self._need_few(claims, classes)
        topology, left = offer.topology, offer.availability.free
        at = positions(self._of_class(serving))
        gpus = dict(zip(at, topology.allocator.published, strict=False))
        if len(gpus) != len(at) or len(gpus) != len(topology.allocator.published):
            raise DraError("the node's record lists other devices")
        uuids = {gpu.index: gpu.uuid for gpu in topology.gpus}
        ids = {position: DeviceId(uuids[index]) for position, index in gpus.items()}
        bits = topology.bit_of_uuid
        now = {(each.pool, each.device): each.uid for each in claimed if not each.admin}
        owners = [now.get(each.key) for _, _, each in self.all]
        gone = {None, *(owners[position] for position in ids)} - {each.pod_uid for each in held}
        free = sum(
            1 << position
            for position, owner in enumerate(owners)
            # A device given out in parts may be given again. Then it is unknown what a claim gets.
            if (
                left & bits[ids[position]]
                if position in ids
                else owner in gone or position in self._special
            )
        )
        requests: list[list[Alternative]] = []
        alike: list[Alike] = []
        for claim in claims:
            asked = claim.devices.requests or []
            for constraint in claim.devices.constraints or ():
                if constraint.match_attribute is None:
                    raise NotFollowedError(
                        "a claim has a constraint other than matchAttribute, which is not supported"
                    )
                concerned = (
                    (len(requests) + number, place)
                    for number, request in enumerate(asked)
                    for place, each in enumerate(request.alternatives)
                    if constraint.concerns(request.name, each.name)
                )
                values = self._values(constraint.match_attribute)
                alike.append(Alike(values, frozenset(concerned)))
            mine = [[self._alternative(e, classes) for e in r.alternatives] for r in asked]
            if sum(max(e.count or e.devices.bit_count() for e in each) for each in mine) > MOST:
                raise NotFollowedError(f"a claim requests more than {MOST} devices")
            requests += mine
        given = allocated(free & ~self.tainted, requests, alike)
        if given is None:
            return NO_DEVICES
        outside = self._gpus_of(topology)
        for position in (position for position in given if position not in gpus):
            if position in self._special:
                raise NotFollowedError("a device is shared in parts, which is not supported")
            if outside >> position & 1:
                raise NotFollowedError(
                    "the claim could get a GPU outside the DeviceClass "
                    f"{serving.metadata.name[:64]}"
                )
        return tuple(ids[position] for position in given if position in ids)

    def _alternative(self, wanted: Request, classes: Mapping[str, DeviceClass]) -> Alternative:
        if wanted.admin_access or wanted.tolerations or wanted.capacity:
            raise NotFollowedError(
                "a request has adminAccess, tolerations or capacity, which are not supported"
            )
        if wanted.allocation_mode == "All" and self._incomplete:
            raise NotFollowedError("a pool of the node's ResourceSlices is incomplete")
        devices = self.selected(_conditions(wanted, classes))
        if devices & self._shared:
            raise NotFollowedError("a device allows multiple allocations, which is not supported")
        return Alternative(devices, None if wanted.allocation_mode == "All" else wanted.count)

    def would_do(
        self,
        claims: Sequence[ClaimSpec],
        classes: Mapping[str, DeviceClass],
        topology: NodeTopology | None = None,
    ) -> bool:
        """Check whether a device, free or not, meets one of the requests.

        With a record's topology the device must be one of its GPUs. Raises
        :class:`NotFollowedError`.
        """
        self._need_few(claims, classes)
        some = -1 if topology is None else self._gpus_of(topology)
        every = (_conditions(each, classes) for each in _alternatives(claims))
        return any(some & self.selected(conditions) for conditions in every)

    def _need_few(self, claims: Sequence[ClaimSpec], classes: Mapping[str, DeviceClass]) -> None:
        """Raise :class:`NotFollowedError` if too much would have to be read."""
        interruptible()
        selectors = {_conditions(each, classes) for each in _alternatives(claims)}
        constraints = (each for claim in claims for each in claim.devices.constraints or ())
        attributes = len({each.match_attribute for each in constraints})
        if self._reads(selectors, attributes) > MOST_READ:
            raise NotFollowedError(TOO_MUCH)

    def _gpus_of(self, topology: NodeTopology) -> Mask:
        """Return the devices that are GPUs of a record, of whatever class."""
        record = tuple((gpu.uuid, gpu.pci_bus_id) for gpu in topology.gpus)
        if self._gpus[0] != record:
            interruptible()
            find = gpu_finder(topology)
            found = (find(each) is not None for _, _, each in self.all)
            self._gpus = record, sum(is_gpu << at for at, is_gpu in enumerate(found))
        return self._gpus[1]

    def _values(self, attribute: str) -> Values:
        """Return the devices' values of an attribute, with their types.

        Raises :class:`NotFollowedError`.
        """

        def read() -> Values:
            domain, _, name = attribute.rpartition("/")
            values: list[Hashable | None] = []
            for driver, _, device in self._devices():
                known = device.attributes or {}
                given = known.get(attribute) or (known.get(name) if domain == driver else None)
                if given is not None and given.value is None:
                    raise NotFollowedError(
                        "matchAttribute names an attribute whose type is not supported"
                    )
                values.append(None if given is None else (type(given.value), given.value))
            return Values(values)

        return _once(_values, (self._number, attribute), read)


def _once(memo: Memo[Key, Found | str], key: Key, work: Callable[[], Found]) -> Found:
    """Return the cached value of a key, or the result of ``work``.

    Raises :class:`NotFollowedError`, which is cached, too.
    """
    stored = memo.get(key)
    if stored is None:
        interruptible()
        try:
            stored = work()
        except NotFollowedError as error:
            stored = str(error)
        memo.put(key, stored)
    if isinstance(stored, str):
        raise NotFollowedError(stored)
    return stored


def _alternatives(claims: Iterable[ClaimSpec]) -> Iterator[Request]:
    """Yield all alternatives of the claims' requests."""
    for claim in claims:
        for request in claim.devices.requests or ():
            yield from request.alternatives


def _conditions(wanted: Request, classes: Mapping[str, DeviceClass]) -> tuple[str, ...]:
    """Return the conditions that a device of a request must meet.

    Raises :class:`NotFollowedError`.
    """
    of_class = classes.get(wanted.device_class_name)
    if of_class is None:
        raise NotFollowedError(f"DeviceClass {wanted.device_class_name} does not exist")
    return (*of_class.conditions, *wanted.conditions)


def _meets(
    device: Device, driver: str, conditions: tuple[str, ...], words: set[str] | None
) -> bool:
    """Check whether a device meets all conditions.

    Devices that are equal in all that the conditions mention are checked once. Raises
    :class:`NotFollowedError`.
    """

    def judge() -> bool:
        known = device.known(driver)
        return all(matches(each, known) for each in conditions)

    return _once(_met, (conditions, driver, device.among(words)), judge)


class _Latest(threading.local):
    """The devices that a thread has read last."""

    number = -1
    devices: Sequence[tuple[str, str, Device]] = ()


_latest = _Latest()


_Part = tuple[Slice, list[Device]]


def _read(slices: Iterable[Slice]) -> Iterator[_Part]:
    """Yield ResourceSlices with their devices. Raises :class:`DraError`."""
    found = 0
    for each in slices:
        if not bytes(each.spec.devices):  # there was no room for them
            raise DraError(NO_QUOTA)
        try:
            devices = each.devices()
        except UNREADABLE as error:
            name = each.metadata.name[:64]
            raise DraError(f"ResourceSlice {name} cannot be read: {error}") from error
        found += len(devices)
        if found > MOST_DEVICES:
            raise DraError(f"the node's ResourceSlices have more than {MOST_DEVICES} devices")
        yield each, devices


def _in_order(read: Iterable[_Part], incomplete: set[tuple[str, str]]) -> list[_Part]:
    pools = defaultdict[tuple[str, str], list[_Part]](list)
    for part, devices in read:
        pools[part.spec.driver, part.spec.pool.name].append((part, devices))
    for pool, every in pools.items():
        newest = max(part.spec.pool.generation for part, _ in every)
        pools[pool] = current = [each for each in every if each[0].spec.pool.generation == newest]
        if any(part.spec.pool.resource_slice_count != len(current) for part, _ in current):
            incomplete.add(pool)

    def place(pool: tuple[str, str]) -> tuple[bool, tuple[str, str]]:
        """Return a key that sorts pools with a device that is bound late last."""
        listed = (device for _, devices in pools[pool] for device in devices)
        return any(device.binding_conditions for device in listed), pool

    in_order = (
        sorted(pools[pool], key=lambda each: each[0].key) for pool in sorted(pools, key=place)
    )
    return [each for some in in_order for each in some]
