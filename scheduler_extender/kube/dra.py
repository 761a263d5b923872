"""Nodes whose GPUs are published through Dynamic Resource Allocation (DRA).

An agent may report that no device plugin serves anything on its node. Such a node's record is
merged with its ResourceSlices and ResourceClaims (:func:`topology.core.dra.served`), whenever one
of these changes. Records of nodes with a device plugin pass through unchanged.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from scheduler_extender.annotations import managed_among
from scheduler_extender.kube.bytequota import NO_QUOTA, Bounds, ByteQuota
from scheduler_extender.kube.draobjects import (
    MOST_ASKED,
    NAMES,
    Claim,
    ClaimSpec,
    DeviceClass,
    Metadata,
    Slice,
    TaintRule,
    Unread,
    decode_spec,
    key_of,
    ways,
)
from scheduler_extender.kube.nodedevices import MOST_OF_NODE, MOST_SLICES, Barred, NodeDevices
from scheduler_extender.kube.sinks import ObjectSink, metadata_of
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.nodeinfo import Devices, NodeInfo, unsaid
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import UNREADABLE, ObjectMeta
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

GROUP = "/apis/resource.k8s.io/v1"
CLASSES_PATH = f"{GROUP}/deviceclasses"
CLAIMS_PATH, SLICES_PATH = f"{GROUP}/resourceclaims", f"{GROUP}/resourceslices"
NOWHERE = NodeName("")  # the node of ResourceSlices that are for several nodes
ALL = ""  # the key of objects that are all searched
MOST_WANTED = 16 << 20  # bytes of the specs of claims without devices, all together
AGAIN = 30.0  # seconds between two lists of objects that had no room
UNREAD = (
    "a ResourceClaim, ResourceSlice or DeviceTaintRule that may concern this node's GPUs cannot be "
    "read; the extender's log names it"
)
Known = DeviceClass | TaintRule | Slice | Claim | Unread
Item = TypeVar("Item")
# Seconds for which the lock is held for several objects, and seconds for which it is then released.
HELD, YIELD = 0.005, 0.0001


@dataclass(frozen=True, slots=True)
class _AgentRecord:
    """What the agent of a node has written."""

    topology: NodeTopology
    report: Report | None
    uid: str
    at: float  # when it was written, by the extender's clock


class _Places(defaultdict[str, dict[str, Item]]):
    """What is kept of objects, by place (a node or a pool, for instance) and by the object's key.

    A place without objects takes no memory.
    """

    def __init__(self) -> None:
        super().__init__(dict)

    def drop(self, place: str, key: str) -> None:
        """Remove an object from a place."""
        self[place].pop(key, None)
        if not self[place]:
            del self[place]

    def at(self, place: str) -> Mapping[str, Item]:
        """Return what is kept at a place."""
        return self.get(place, {})


class DraNodes:
    """All nodes under DRA, with their objects. The threads of several reflectors feed it."""

    def __init__(self, cluster: Cache) -> None:
        self._cache, self._managed = cluster, cluster.settings.managed
        self._faults, self._clock = cluster.faults, cluster.clock
        self._tell_of = cluster.tell_of
        self._lock = threading.Lock()
        self._agents: dict[NodeName, _AgentRecord] = {}
        self._classes = _Places[DeviceClass]()  # all at one place
        self._slices = _Places[Slice]()  # by node
        # By pool. All allocated claims are at :data:`ALL`, too.
        self._claims = _Places[list[Claimed]]()
        self._wanted = _Places[msgspec.Raw]()  # the specs of claims without devices
        # By each name in them. Those that may concern any node are at :data:`ALL`.
        self._unread = _Places[Unread]()
        # By each way in which a rule may select a pool: the nodes with slices of it, and the
        # devices to which rules admit no pods. None stands for all devices.
        self._nodes_of = _Places[NodeName]()
        self._bars = _Places[str | None]()
        # As far as they were read. Under the empty name: the devices of no single node.
        self._devices: dict[NodeName, NodeDevices | DraError] = {}
        cluster.foresees, cluster.claims_known = self.foresee, self.claims_known

    @property
    def has_nodes(self) -> bool:
        """Whether there is a node that no device plugin serves."""
        return bool(self._agents)

    # The agents' records, in the form in which :class:`.Cache` takes them.

    def put_record(
        self, topology: NodeTopology, report: Report | None, *, uid: str = "", age: float = 0.0
    ) -> None:
        """Take in a record of a node."""
        name = topology.name
        self._read(name)
        with self._lock:
            known, now = self._agents.get(name), self._clock()
            anew = known is None or known.uid != uid
            earlier = None if known is None or anew else known.report
            # If the kubelet offers nothing, an agent names the usual resource all the same, since
            # the plugin may come back.
            offers = report is None or report.allocatable != frozenset()
            if report is not None and earlier is not None and not report.follows(earlier):
                self._cache.reports_out_of_order += 1
            elif topology.resources and offers:  # a device plugin serves the GPUs
                self._agents.pop(name, None)
                self._cache.put_record(topology, report, uid=uid, age=age)
            else:
                if known is None or anew:
                    at = now - max(0.0, age)
                else:
                    at = known.at if known.report == report else now
                self._agents[name] = _AgentRecord(topology, report, uid, at)
                self._put(name, spoken=True)

    def put_problem(self, name: NodeName, problem: str) -> None:
        """Take in that a node's record cannot be used."""
        with self._lock:
            self._agents.pop(name, None)
            self._cache.put_problem(name, problem)

    def drop_record(self, name: NodeName) -> None:
        """Take in that a record is gone."""
        with self._lock:
            self._agents.pop(name, None)
            self._cache.drop_record(name)

    def keep_records(self, names: set[NodeName]) -> None:
        """Take in that all records but these are gone."""
        with self._lock:
            self._agents = {name: self._agents[name] for name in self._agents.keys() & names}
            self._cache.keep_records(names)

    # The API server's objects.

    def change(self, before: Iterable[Known], after: Iterable[Known]) -> None:
        """Replace the objects ``before`` by the objects ``after``.

        A list of thousands is taken in piece by piece, so that no thread waits long for the lock. A
        node that is merged meanwhile is in the state between two events of a watch.
        """
        now = {obj.key: obj for obj in after}
        pairs = [(obj, now.pop(obj.key, None)) for obj in before]
        names: set[NodeName] = set()

        def take(pair: tuple[Known | None, Known | None]) -> None:
            former, obj = pair
            if former is not None:
                names.update(self._changed_by(former))
                for places, place, _ in self._parts(former):
                    places.drop(place, former.key)
            if obj is not None:
                for places, place, part in self._parts(obj):
                    places[place][obj.key] = part
                names.update(self._changed_by(obj))

        def put(name: NodeName) -> None:
            self._put(name, spoken=False)
            # Also if no GPU has changed its owner: what claims get depends on other devices, too.
            self._tell_of(self._agents.keys() & {name})

        self._locked(take, [*pairs, *((None, obj) for obj in now.values())])
        for name in sorted(names):
            self._read(name)
            self._locked(put, [name])

    def _locked(self, act: Callable[[Item], None], items: Iterable[Item]) -> None:
        """Act on each item with the lock held.

        The lock is released in between, so that waiting threads get it.
        """
        left = deque(items)
        while left:
            with self._lock:
                until = time.monotonic() + HELD
                while left:
                    act(left.popleft())
                    if time.monotonic() > until:
                        break
            time.sleep(YIELD)

    def _changed_by(self, obj: Known) -> Collection[NodeName]:
        """Return the nodes that an object concerns.

        Their devices are forgotten if it may change them, to be read anew.
        """
        if isinstance(obj, DeviceClass) or (isinstance(obj, Unread) and obj.names is None):
            return self._agents.keys()
        if isinstance(obj, Unread):
            named = [self._nodes_of.at(f"/{pool}").values() for pool in obj.names or ()]
            return (self._agents.keys() & (obj.names or ())).union(*named)
        if isinstance(obj, Claim):
            pools = map(self._nodes_of.at, obj.by_pool())
            return {name for nodes in pools for name in nodes.values()}
        if isinstance(obj, Slice):
            names = {NodeName(obj.owner)}
        else:
            names = set(self._nodes_of.at(obj.selects or "").values())
        for name in names:
            self._devices.pop(name, None)
        return names - {NOWHERE}

    def _parts(self, obj: Known) -> Iterator[tuple[_Places[Any], str, Any]]:
        """Yield each place at which a part of an object is kept, and that part."""
        if isinstance(obj, Unread):
            for name in (ALL,) if obj.names is None else obj.names:
                yield self._unread, name, obj
        elif isinstance(obj, DeviceClass):
            yield self._classes, ALL, obj
        elif isinstance(obj, Claim):
            for pool, claimed in obj.by_pool().items():
                yield self._claims, pool, claimed
            if obj.size:
                yield self._wanted, ALL, obj.spec
        elif isinstance(obj, Slice):
            yield self._slices, obj.owner, obj
            for way in ways(obj.spec.driver, obj.spec.pool.name):
                yield self._nodes_of, way, NodeName(obj.owner)
        elif obj.selects is not None:
            yield self._bars, obj.selects, obj.device

    # A node's merged record.

    def _put(self, name: NodeName, *, spoken: bool) -> None:
        """Put the merged record of a node into the cache.

        ``spoken`` says that its agent has reported.
        """
        agent = self._agents.get(name)
        if agent is None:
            return
        topology, report = agent.topology, agent.report
        try:
            if report is not None:
                topology, report = self._served(topology, report)
        except DraError as error:
            self._cache.put_problem(name, str(error))
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            # A fault of our code costs this node, not the others of the same change.
            self._faults.note(name, error)
            self._cache.put_problem(name, f"internal error: {type(error).__name__}")
        else:
            age = self._clock() - agent.at
            self._cache.put_record(topology, report, uid=agent.uid, age=age, spoken=spoken)

    def _served(self, topology: NodeTopology, report: Report) -> tuple[NodeTopology, Report]:
        devices = self._devices_of(topology.name)
        named = {each.serves or "" for each in self._classes.at(ALL).values()}
        for resource in managed_among(sorted(named), self._managed) if devices.all else ():
            of_class = self._class_of(resource)
            if published := list(devices.published(of_class)):
                others, claimed = devices.others(of_class), self._claimed(devices)
                topology, report = served(topology, report, resource, published, claimed, others)
                if not of_class.spec.extended_resource_name:
                    topology = with_own_claims_only(topology)
                return topology, report
        slices = self._slices.at(topology.name).values()
        drivers = {driver for driver, _, _ in devices.all}
        if any(each.spec.driver == DRIVER for each in slices) and DRIVER not in drivers:
            topology = without_devices(topology)
        return topology, report

    def _devices_of(self, name: NodeName) -> NodeDevices:
        """Return the devices of a node. Raises :class:`DraError`."""
        pools = (each.spec.pool.name for each in self._slices.at(name).values())
        if any(each in self._unread for each in (ALL, name, *pools)):
            raise DraError(UNREAD)
        devices = self._devices.get(name)
        if devices is None:
            devices = _devices_in(*self._said_of(name))
            if name in self._slices:
                self._devices[name] = devices
        if isinstance(devices, DraError):
            raise devices
        return devices

    def _said_of(self, name: NodeName) -> tuple[list[Slice], dict[str, Barred]]:
        """Return a node's slices, and for each of their pools the barred devices.

        These are the devices to which rules admit no pods.
        """
        slices = [*self._slices.at(name).values()]
        pools = {each.pool: ways(each.spec.driver, each.spec.pool.name) for each in slices}
        bars: dict[str, Barred] = {
            pool: set[str | None]().union(*(self._bars.at(way).values() for way in of))
            for pool, of in pools.items()
        }
        return slices, bars

    def _read(self, name: NodeName) -> None:
        """Read the devices of a node without the lock, since they may be many."""
        with self._lock:
            devices = self._devices.get(name)
            conditions = {each.conditions for each in self._classes.at(ALL).values() if each.serves}
            said = self._said_of(name) if devices is None else ([], {})
        # An unreadable object, or a fault of our code, is reported when the devices are requested.
        with suppress(Exception):
            if devices is None and said[0]:
                devices = _devices_in(*said)
                with self._lock:
                    if said == self._said_of(name):
                        self._devices[name] = devices
        if devices is None or isinstance(devices, DraError):
            return
        for each in conditions:
            with suppress(Exception):
                devices.selected(each)

    def _claimed(self, devices: NodeDevices) -> Iterator[Claimed]:
        """Yield which pods and claims have these devices."""
        for pool in devices.pools:
            for claimed in self._claims.at(pool).values():
                yield from claimed

    # A pod with claims of its own.

    def claims_known(self, pod: PodRecord, number: int, node: NodeName) -> bool:
        """Check whether the pod's claims are known, as :attr:`.Cache.claims_known` describes."""
        own = {key_of(pod.namespace, name) for name in pod.claims}
        self._read(node)
        with self._lock:
            if node not in self._agents:
                return True
            self._put(node, spoken=False)
            of_node = {each.pool for each in self._slices.at(node).values()}
            others = (
                claimed
                for pool in of_node
                for key, every in self._claims.at(pool).items()
                if key not in own
                for claimed in every
            )
            known = own <= self._claims.at(ALL).keys()
            return known and (not number or any(claimed.uid == pod.uid for claimed in others))

    def foresee(
        self, namespace: str, names: Sequence[str]
    ) -> Callable[[NodeInfo], Devices | Rejection]:
        """Return a function that foresees what claims get on a node.

        :data:`.Foresees` describes it.
        """
        keys = [key_of(namespace, name) for name in names]
        with self._lock:
            asked, made = self._wanted.at(ALL), self._claims.at(ALL)
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
                self._read(info.name)
                with self._lock:
                    devices = self._devices_of(info.name)
                    claimed = list(self._claimed(devices))
                    serving = self._class_of(info.topology.resources[0].name)
                    classes = dict(self._classes.at(ALL))
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
            self._read(NOWHERE)
            with self._lock:
                devices, classes = self._devices_of(NOWHERE), dict(self._classes.at(ALL))
            will_do = "devices that belong to no single node match"
            return will_do if devices.all and devices.would_do(specs, classes) else ""
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
        classes = [each for each in self._classes.at(ALL).values() if each.serves == resource]
        if not classes:
            raise DraError(f"no DeviceClass serves {resource}")
        classes.sort(key=attrgetter("metadata.name"))
        return max(
            classes,
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


class DraSink(ObjectSink):
    """A sink that puts objects of one kind into :class:`DraNodes`.

    Objects without room are put there bare.
    """

    def __init__(
        self, cluster: Cache, nodes: DraNodes, kind: type[Known], bounds: Bounds = NO_QUOTA
    ) -> None:
        super().__init__(cluster)
        self._nodes = nodes
        self._decode: Callable[[Any], Known] = msgspec.json.Decoder(kind).decode
        self._known: dict[Hashable, Known] = {}
        self._bounds, self._quota = bounds, ByteQuota(bounds)
        self._clock, self._next = cluster.clock, float("-inf")

    @property
    def outside(self) -> int:
        """The number of objects without room."""
        return self._quota.outside

    def again(self) -> bool:
        """Check whether to list the objects again, since one without room would now find room."""
        if not self.outside or self._clock() < self._next:
            return False
        self._next = self._clock() + AGAIN
        return self._quota.is_there()

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Take in a complete list."""
        now, quota = dict[Hashable, Known](), ByteQuota(self._bounds)
        for raw in objects:
            _keep(self._read(raw), now, quota)
        quota.settle()
        before = self._known
        gone = [obj for key, obj in before.items() if now.get(key) != obj]
        new = [obj for key, obj in now.items() if before.get(key) != obj]
        # Of unchanged objects only the former copy is kept, since they may be large.
        same = ((key, obj) for key, obj in before.items() if now.get(key) == obj)
        self._known, self._quota = now | dict(same), quota
        self._nodes.change(gone, new)

    def _take(self, obj: msgspec.Raw) -> str:
        found = self._read(obj)
        before = self._drop(found.key)
        others = _keep(found, self._known, self._quota)
        after = [self._known[key] for key in (found.key, *others)]
        self._nodes.change([*before, *others.values()], after)
        return found.metadata.name

    def _read(self, obj: msgspec.Raw) -> Known:
        """Return an object, or its former version if it cannot be read, or else an :class:`Unread`.

        The devices of a claim do not change. A claim without devices may have got some, and the
        object may be another one with the same name.
        """
        try:
            return self._decode(obj)
        except UNREADABLE as error:
            self._tell_bad(obj, error)
        metadata = metadata_of(obj) or ObjectMeta()
        ours = Metadata(metadata.name, metadata.namespace, metadata.uid)
        found = Unread(ours, frozenset(name.decode() for name in NAMES.findall(bytes(obj))))
        former = self._known.get(found.key, found)
        if isinstance(former, Unread) or former.metadata.uid != metadata.uid:
            return found
        waits = isinstance(former, Claim) and former.status.allocation is None
        return found if waits else former

    def delete(self, obj: msgspec.Raw) -> None:
        """Take in a deletion."""
        metadata = metadata_of(obj) or ObjectMeta()
        self._nodes.change(self._drop(key_of(metadata.namespace, metadata.name)), [])

    def _drop(self, key: Hashable) -> list[Known]:
        known = self._known.pop(key, None)
        if known is None:
            return []
        self._quota.drop(known.owner, key)
        return [known]


def _keep(obj: Known, known: dict[Hashable, Known], quota: ByteQuota) -> dict[Hashable, Known]:
    """Add an object to the known ones. Return the others that gave way to it, as they were."""
    known[obj.key] = obj
    others: dict[Hashable, Known] = {}
    for key in quota.put(obj.owner, obj.key, obj.size) if obj.size else ():
        if key != obj.key:
            others[key] = known[key]
        known[key] = known[key].bare()
    return others


def dra_sinks(cluster: Cache, nodes: DraNodes) -> dict[str, DraSink]:
    """Return a sink for each collection, by the collection's path.

    There is no room for a taint rule that cannot be read, so it concerns all nodes.
    """
    classes = Bounds(MOST_WANTED, MOST_WANTED, MOST_WANTED)
    claims = Bounds(MOST_WANTED, MOST_WANTED, MOST_ASKED)
    slices = Bounds(MOST_SLICES, MOST_OF_NODE, MOST_OF_NODE)
    return {
        CLASSES_PATH: DraSink(cluster, nodes, DeviceClass, classes),
        SLICES_PATH: DraSink(cluster, nodes, Slice, slices),
        CLAIMS_PATH: DraSink(cluster, nodes, Claim, claims),
        f"{GROUP}/devicetaintrules": DraSink(cluster, nodes, TaintRule),
    }
