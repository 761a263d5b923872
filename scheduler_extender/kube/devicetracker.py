"""The devices of all nodes under DRA, as the API server's objects publish and allocate them."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from scheduler_extender.annotations import managed_among
from scheduler_extender.kube.draobjects import (
    MOST_ASKED,
    Claim,
    ClaimSpec,
    DeviceClass,
    DraObject,
    Slice,
    Unread,
    decode_spec,
    key_of,
    ways,
)
from scheduler_extender.kube.nodedevices import Barred, NodeDevices
from scheduler_extender.state.answers.tallies import Faults
from scheduler_extender.state.node.nodeinfo import Devices, NodeInfo, unsaid
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import UNREADABLE
from topology.core.allocators.claims import NotFollowedError
from topology.core.devices import NodeName
from topology.core.dra import (
    DRIVER,
    Claimed,
    DraError,
    served,
    with_own_claims_only,
    without_devices,
)
from topology.core.graph import NodeTopology
from topology.core.placement import Rejection
from topology.core.report import Report

NOWHERE = NodeName("")  # the node of ResourceSlices that are for several nodes
ALL = ""  # the one place of objects that are searched for every node
EVERY_NODE = NodeName("*")  # stands for all nodes; none has this name
UNREAD = (
    "a ResourceClaim, ResourceSlice or DeviceTaintRule that may concern this node's GPUs cannot be "
    "read; the extender's log names it"
)
PIECE = 10  # objects, each of which may concern every node, that are taken in with the lock held
YIELD = 0.0001  # seconds for which it is then released
Item = TypeVar("Item")
# What is kept of objects, by place (a node or a pool, for instance) and by the object's key.
_Places = defaultdict[str, dict[str, Item]]
_Part = tuple[_Places[Any], str, Any, Iterable[NodeName]]


class DeviceTracker:
    """The devices of all nodes. Several threads use it."""

    def __init__(self, managed: tuple[str, ...], faults: Faults) -> None:
        self._managed, self._faults, self._lock = managed, faults, threading.Lock()
        self._classes = _Places[DeviceClass](dict)  # all at one place
        self._slices = _Places[Slice](dict)  # by node
        # By pool. All allocated claims are at :data:`ALL`, too.
        self._claims = _Places[list[Claimed]](dict)
        self._wanted = _Places[msgspec.Raw](dict)  # the specs of claims without devices
        # By each name in them. Those that may concern any node are at :data:`ALL`.
        self._unread = _Places[Unread](dict)
        # By each way in which a rule may select a pool: the nodes with slices of it, and the
        # devices to which rules admit no pods. None stands for all devices.
        self._nodes_of = _Places[NodeName](dict)
        self._bars = _Places[str | None](dict)
        # As far as they were read. Under the empty name: the devices of no single node.
        self._devices: dict[NodeName, NodeDevices | DraError] = {}

    def change(self, before: Iterable[DraObject], after: Iterable[DraObject]) -> set[NodeName]:
        """Replace the objects ``before`` by the objects ``after``.

        Return the nodes that they concern; :data:`EVERY_NODE` stands for all. A list of
        thousands is taken in piece by piece, so that no thread waits long for the lock.
        """
        now = {obj.key: obj for obj in after}
        pairs = [(obj, now.pop(obj.key, None)) for obj in before]
        every = [*pairs, *((None, obj) for obj in now.values())]
        names: set[NodeName] = set()
        for start in range(0, len(every), PIECE):
            with self._lock:
                names.update(*(self._replace(*pair) for pair in every[start : start + PIECE]))
            time.sleep(YIELD)  # a waiting thread gets the lock
        return names

    def _replace(self, *pair: DraObject | None) -> set[NodeName]:
        """Replace one object by another, and return the nodes that they concern.

        Devices that change are forgotten, to be read anew.
        """
        names: set[NodeName] = set()
        for obj in [each for each in pair if each is not None]:
            for places, place, part, nodes in self._parts(obj):
                names.update(nodes)
                for name in nodes if places is self._slices or places is self._bars else ():
                    self._devices.pop(name, None)
                if obj is pair[-1]:
                    places[place][obj.key] = part
                else:
                    places[place].pop(obj.key, None)
                    if not places[place]:  # an empty place would take memory
                        del places[place]
        return names

    def _parts(self, obj: DraObject) -> Iterator[_Part]:
        """Yield each place of a part of an object, the part, and the nodes that it concerns."""
        if isinstance(obj, Unread):
            for name in obj.names or ():
                nodes = {NodeName(name), *self._nodes_of.get(f"/{name}", {}).values()}
                yield self._unread, name, obj, nodes
            if obj.names is None:
                yield self._unread, ALL, obj, {EVERY_NODE}
        elif isinstance(obj, DeviceClass):
            yield self._classes, ALL, obj, {EVERY_NODE}
        elif isinstance(obj, Claim):
            for pool, claimed in obj.by_pool().items():
                yield self._claims, pool, claimed, self._nodes_of.get(pool, {}).values()
            if obj.size:
                yield self._wanted, ALL, obj.spec, ()
        elif isinstance(obj, Slice):
            name = NodeName(obj.owner)
            yield self._slices, name, obj, {name}
            for way in ways(obj.spec.driver, obj.spec.pool.name):
                yield self._nodes_of, way, name, ()
        elif obj.selects is not None:
            yield self._bars, obj.selects, obj.device, self._nodes_of.get(obj.selects, {}).values()

    def served(self, topology: NodeTopology, report: Report) -> tuple[NodeTopology, Report]:
        """Return a node's record with its devices and their holders. Raises :class:`DraError`."""
        with self._lock:
            devices = self._devices_of(topology.name)
            named = {each.serves or "" for each in self._classes.get(ALL, {}).values()}
            for resource in managed_among(sorted(named), self._managed) if devices.all else ():
                of_class = self._class_of(resource)
                if published := list(devices.published(of_class)):
                    claimed, others = self._claimed(devices), devices.others(of_class)
                    topology, report = served(
                        topology, report, resource, published, claimed, others
                    )
                    if not of_class.spec.extended_resource_name:
                        topology = with_own_claims_only(topology)
                    return topology, report
            published_by = {
                each.spec.driver for each in self._slices.get(topology.name, {}).values()
            }
            if DRIVER in published_by - {driver for driver, _, _ in devices.all}:
                topology = without_devices(topology)
            return topology, report

    def _devices_of(self, name: NodeName) -> NodeDevices:
        """Return the devices of a node. Raises :class:`DraError`."""
        pools = (each.spec.pool.name for each in self._slices.get(name, {}).values())
        if any(each in self._unread for each in (ALL, name, *pools)):
            raise DraError(UNREAD)
        devices = self._devices.get(name) or _devices_in(*self._slices_and_bars(name))
        if name in self._slices:
            self._devices[name] = devices
        if isinstance(devices, DraError):
            raise devices
        return devices

    def _slices_and_bars(self, name: NodeName) -> tuple[list[Slice], dict[str, Barred]]:
        """Return a node's slices, and for each of their pools the barred devices.

        These are the devices to which rules admit no pods.
        """
        slices = [*self._slices.get(name, {}).values()]
        pools = {each.pool: ways(each.spec.driver, each.spec.pool.name) for each in slices}
        bars: dict[str, Barred] = {
            pool: set[str | None]().union(*(self._bars.get(way, {}).values() for way in of))
            for pool, of in pools.items()
        }
        return slices, bars

    def read(self, name: NodeName) -> None:
        """Read the devices of a node without the lock, since they may be many."""
        with self._lock:
            devices = self._devices.get(name)
            conditions = {
                each.conditions for each in self._classes.get(ALL, {}).values() if each.serves
            }
            found = self._slices_and_bars(name) if devices is None else ([], {})
        # An unreadable object, or a fault of our code, is reported when the devices are requested.
        with suppress(Exception):
            if devices is None and found[0]:
                devices = _devices_in(*found)
                with self._lock:
                    if found == self._slices_and_bars(name):
                        self._devices[name] = devices
        if devices is None or isinstance(devices, DraError):
            return
        for each in conditions:
            with suppress(Exception):
                devices.selected(each)

    def _claimed(self, devices: NodeDevices) -> Iterator[Claimed]:
        """Yield which pods and claims have these devices."""
        for pool in devices.pools:
            for claimed in self._claims.get(pool, {}).values():
                yield from claimed

    def claims_known(self, pod: PodRecord, number: int, node: NodeName) -> bool:
        """Check whether all claims of a pod have devices, also its own claim for a ``number``."""
        own = {key_of(pod.namespace, name) for name in pod.claims}
        with self._lock:
            return own <= self._claims.get(ALL, {}).keys() and (
                not number
                or any(
                    claimed.uid == pod.uid
                    for each in self._slices.get(node, {}).values()
                    for key, every in self._claims.get(each.pool, {}).items()
                    if key not in own
                    for claimed in every
                )
            )

    def foresee(
        self, namespace: str, names: Sequence[str]
    ) -> Callable[[NodeInfo], Devices | Rejection]:
        """Return a function that foresees what claims get on a node.

        :data:`.Foresees` describes it.
        """
        keys = [key_of(namespace, name) for name in names]
        with self._lock:
            asked, made = self._wanted.get(ALL, {}), self._claims.get(ALL, {})
            wanted = [asked[key] for key in keys if key in asked]
            given = [key for key in keys if key in made]
        too_large = sum(len(bytes(each)) for each in wanted) > MOST_ASKED
        if too_large or len(wanted) + len(given) < len(keys):
            return lambda _: unsaid("a claim does not exist yet, or the claims are too large")
        try:
            specs = list(map(decode_spec, wanted))
        except UNREADABLE:
            return lambda _: unsaid("a claim cannot be read")
        elsewhere = self._of_no_node(specs)  # once, however many nodes are evaluated

        def here(info: NodeInfo) -> Devices | Rejection:
            if info.topology is None or info.report is None:
                return unsaid("no DRA driver serves the node's GPUs")
            if not specs:
                return ()
            gives_gpus = True
            try:
                self.read(info.name)
                with self._lock:
                    devices = self._devices_of(info.name)
                    claimed = list(self._claimed(devices))
                    serving = self._class_of(info.topology.resources[0].name)
                    classes = dict(self._classes.get(ALL, {}))
                offer, held = info.last_offer(serving.serves or ""), info.report.allocations
                if isinstance(offer, Rejection):
                    return unsaid(offer.message)
                gives_gpus = devices.would_do(specs, classes, info.topology)
                if elsewhere:
                    return unsaid(elsewhere) if gives_gpus else ()
                return devices.foreseen(offer, serving, specs, classes, claimed, held)
            except (DraError, NotFollowedError) as error:
                return unsaid(str(error)) if gives_gpus else ()
            except Exception as error:  # noqa: BLE001 (a listener logs it)
                self._faults.note(info.name, error)
                return unsaid(f"internal error: {type(error).__name__}")

        return here

    def _of_no_node(self, specs: Sequence[ClaimSpec]) -> str:
        """Return why it is unknown what claims get if devices of no single node could meet them.

        Return an empty text if no such device meets a request.
        """
        try:
            self.read(NOWHERE)
            with self._lock:
                devices, classes = self._devices_of(NOWHERE), dict(self._classes.get(ALL, {}))
            return (
                "devices that belong to no single node match"
                if devices.all and devices.would_do(specs, classes)
                else ""
            )
        except (DraError, NotFollowedError) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            self._faults.note(NOWHERE, error)
            return f"internal error: {type(error).__name__}"

    def _class_of(self, resource: str) -> DeviceClass:
        """Return the DeviceClass of a resource.

        A class by whose name pods ask for the resource comes before one that only serves it. Of
        several the newest is returned, then the first by name. Raises :class:`DraError` if there is
        none.
        """
        classes = [each for each in self._classes.get(ALL, {}).values() if each.serves == resource]
        if not classes:
            raise DraError(f"no DeviceClass serves {resource}")
        return max(
            sorted(classes, key=attrgetter("metadata.name")),
            key=lambda c: (
                bool(c.spec.extended_resource_name),
                c.metadata.creation_timestamp or "",
            ),
        )


def _devices_in(slices: Iterable[Slice], barred: Mapping[str, Barred]) -> NodeDevices | DraError:
    try:
        return NodeDevices(slices, barred)
    except DraError as error:
        return error
