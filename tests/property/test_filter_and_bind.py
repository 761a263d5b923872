"""filter passes no node on which bind would surely refuse the pod: for some of the devices that
kube-scheduler may give to it there, bind says yes.

Else its claims would keep their devices, and the pod would be tried there for ever.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from scheduler_extender import verbs
from scheduler_extender.annotations import IMPLICIT_NAME, MANAGED
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord, requesting_record
from scheduler_extender.verbs import BindError
from scheduler_extender.verbs.assume import assume
from scheduler_extender.wire import Pod
from tests.dranodes import (
    DRIVER,
    IS_GPU,
    NODE,
    STALE_AFTER,
    DraWorld,
    Json,
    asking,
    claim,
    device,
    device_class,
    exactly,
    raw,
    slice_of,
)
from tests.nodes import bridged, pod
from topology import codec
from topology.core.devices import DeviceId, GpuUuid, NodeName
from topology.core.report import Condition, Health, Report

NODES = (NODE, NodeName("other"))
GPUS = range(4)
NIC: Json = {"driver": "nics.example.com", "pool": "fabric"}
UNREAD = f'device.attributes["{DRIVER}"].uuid.matches("^GPU")'
STATES = ("served", "served", "served", "stale", "unusable", "plugin", "none", "empty", "unready")
HANGS = (Condition("Ready", status=False, reason="Hangs"),)


@dataclass(frozen=True)
class OwnClaim:
    """A claim in the pod's spec."""

    kind: str  # whole GPUs, those of a selector that is not read, seen by adminAccess, or a NIC
    count: int
    given: tuple[int, ...]  # the GPUs that it has already, on the first node

    @property
    def is_unpredictable(self) -> bool:
        """Whether nobody can say which GPUs it will get, so that filter lets the pod pass where any
        could come."""
        return self.kind in ("unread", "admin") and not self.given


@dataclass(frozen=True)
class OneNode:
    """What a node is like."""

    state: str
    order: tuple[int, ...]  # of its GPUs, as published
    sick: tuple[int, ...]
    held: tuple[int, ...]  # by claims of others

    @property
    def free(self) -> list[int]:
        """The GPUs that kube-scheduler may give away."""
        return [] if self.state == "empty" else [gpu for gpu in GPUS if gpu not in self.held]


@dataclass(frozen=True)
class Scene:
    """A cluster of two nodes, and a pod that waits."""

    nodes: tuple[OneNode, OneNode]
    annotations: dict[str, str]
    name: str  # of the resource that it asks for a number of
    count: int
    claims: tuple[OwnClaim, ...]
    flies: bool  # its bind to the first node is in flight

    @property
    def offered(self) -> Sequence[NodeName]:
        """The nodes that kube-scheduler offers: where a claim has devices, that one alone."""
        return NODES[:1] if any(each.given for each in self.claims) else NODES

    @property
    def wanted(self) -> Pod:
        """The pod."""
        limits = {"nvidia.com/gpu": "0", self.name: str(self.count)}
        containers = [{"name": "main", "resources": {"limits": limits}}]
        manifest = pod(annotations=self.annotations, name="a", uid="a", containers=containers)
        manifest["metadata"]["namespace"] = "ns"
        names = [f"own-{number}" for number, _ in enumerate(self.claims)]
        manifest["spec"]["resourceClaims"] = [{"name": n, "resourceClaimName": n} for n in names]
        return msgspec.convert(manifest, Pod)

    def world(self) -> DraWorld:
        """The extender's picture of it."""
        world = DraWorld()
        world.classes.apply(device_class())
        of_nics: Json = {"selectors": [{"cel": {"expression": IS_GPU.replace("'gpu'", "'nic'")}}]}
        world.classes.apply(raw({"metadata": {"name": "nic"}, "spec": of_nics}))
        world.slices.apply(slice_of("", device(0, "nic"), name="nics", pool="fabric"))
        for name, node in zip(NODES, self.nodes, strict=True):
            _tell(world, name, node)
        world.now += STALE_AFTER + 1
        for name, node in zip(NODES, self.nodes, strict=True):
            if node.state != "stale":
                _report(world, name, node, 2)
        for number, each in enumerate(self.claims):
            self._claim(world, number, each)
        return world

    def _claim(self, world: DraWorld, number: int, each: OwnClaim) -> None:
        name = f"own-{number}"
        if each.given:
            of: Json = {"adminAccess": True} if each.kind == "admin" else {}
            world.claims.apply(claim(name, *each.given, pod="a", **of))
            return
        more: Json = {"adminAccess": True} if each.kind.startswith("admin") else {}
        request = exactly(each.count, UNREAD if each.kind == "unread" else "", **more)
        if each.kind.endswith("nic"):
            request["exactly"]["deviceClassName"] = "nic"
        world.claims.apply(asking(name, request))


def _tell(world: DraWorld, name: NodeName, node: OneNode) -> None:
    world.cluster.put_node(name, NodeObject(exists=True, advertises_none=node.state != "plugin"))
    _report(world, name, node, 1)
    if node.state == "plugin":
        return
    devices = [device(gpu) for gpu in node.order if node.state != "empty"]
    others = [device(7)] if node.state == "unusable" else []
    world.slices.apply(slice_of(name, *devices, *others, name=name, pool=name))
    for gpu in node.held:
        world.claims.apply(claim(f"{name}-{gpu}", gpu, pod=f"{name}-{gpu}", pool=name))


def _report(world: DraWorld, name: NodeName, node: OneNode, sequence: int) -> None:
    if node.state == "none":
        return
    everything = frozenset(DeviceId(f"GPU-{gpu}") for gpu in GPUS)
    found = Report(
        "boot",
        sequence,
        allocatable=everything if node.state == "plugin" else frozenset(),
        health=tuple(Health(GpuUuid(f"GPU-{gpu}"), False, "Xid48") for gpu in node.sick),
        conditions=HANGS if node.state == "unready" else (),
    )
    world.records.apply(raw(codec.encode(bridged(name=name), found)))


def scenes(rng: Random) -> Scene:
    """Any scene."""

    def node() -> OneNode:
        held = rng.sample(GPUS, rng.choice((0, 0, 1, 2, 3)))
        sick = rng.sample(GPUS, rng.choice((0, 0, 0, 1, 2)))
        return OneNode(rng.choice(STATES), (*rng.sample(GPUS, 4),), (*sick,), (*held,))

    first, second = node(), node()
    kinds: Sequence[str] = ("gpus", "gpus", "unread", "nic", "admin", "admin nic")
    claims, left = [], list(first.free) if first.state == "served" else []
    for number in range(rng.choice((0, 1, 1, 2))):
        kind, count, given = rng.choice(kinds), rng.choice((1, 1, 2)), tuple[int, ...]()
        if number and kind in ("unread", "admin"):
            kind = "gpus"
        if rng.random() < 0.3 and kind in ("gpus", "admin"):
            given = tuple((list(GPUS) if kind == "admin" else left)[:count])
            left = [gpu for gpu in left if gpu not in given or kind == "admin"]
        claims.append(OwnClaim(kind, count, given))
        if claims[-1].is_unpredictable:  # then nothing is known of the others' devices either
            kinds = ("nic", "admin nic")
    count = 0 if claims else rng.choice((1, 1, 2, 3))
    annotations = rng.choice(({"link": "nvlink"}, {"min-gpu-memory": "1Gi"}, {"link": "nvlink"}))
    plain = count and rng.random() < 0.3
    name = rng.choice(("nvidia.com/gpu", IMPLICIT_NAME))
    flies = rng.random() < 0.1
    return Scene((first, second), {} if plain else annotations, name, count, tuple(claims), flies)


def given_devices(scene: Scene, node: OneNode) -> Iterator[list[tuple[int, ...]]]:
    """Everything that kube-scheduler may give to the pod on a node: for each claim of its own, and
    at the end for the number."""
    taken = {gpu for each in scene.claims if each.kind != "admin" for gpu in each.given}
    free = [gpu for gpu in node.free if gpu not in taken]
    choices = [
        [each.given]
        if each.given
        else [(0,)]
        if each.kind.endswith("nic")
        else [(gpu,) for gpu in free if gpu not in node.sick]
        if each.is_unpredictable
        else list(combinations(free, each.count))
        for each in scene.claims
    ]
    for every in product(*choices, combinations(free, scene.count)):
        own = [
            gpu
            for each, gpus in zip(scene.claims, every, strict=False)
            if each.kind in ("gpus", "unread") and not each.given
            for gpu in gpus
        ]
        whole = [*own, *every[-1]]
        if len({*whole}) == len(whole):
            yield list(every)


def binds(scene: Scene, name: NodeName, node: OneNode, devices: list[tuple[int, ...]]) -> bool:
    """Whether bind says yes where the pod gets these devices."""
    world, record = assumed(scene)
    of_node: Json = {"pool": name}
    for number, (each, gpus) in enumerate(zip(scene.claims, devices, strict=False)):
        of = NIC if each.kind.endswith("nic") else of_node
        more: Json = {"adminAccess": True} if each.kind.startswith("admin") else {}
        world.claims.apply(claim(f"own-{number}", *gpus, pod="a", **of, **more))
    if scene.count and node.state != "plugin":
        world.claims.apply(claim("made", *devices[-1], pod="a", **of_node))
    try:
        assume(world.cluster, record, name, lambda: "")
    except BindError:
        return False
    return True


def assumed(scene: Scene) -> tuple[DraWorld, PodRecord]:
    """The extender's picture with the pod, which may be assumed."""
    world = scene.world()
    record = requesting_record(scene.wanted, MANAGED)
    assert record is not None
    world.cluster.put_pod(record)
    if scene.flies:
        world.cluster.assume(NODE, record, seen=world.cluster.node_info(NODE))
    return world, record


@given(rng=st.randoms(use_true_random=False))
def test_where_filter_lets_a_pod_pass_bind_may_say_yes(rng: Random) -> None:
    scene = scenes(rng)
    world, _ = assumed(scene)
    answered = verbs.filter_nodes(world.cluster, scene.wanted, list(scene.offered))
    assert not answered.error
    for name in answered.node_names or ():
        node = scene.nodes[NODES.index(NodeName(name))]
        possible = list(given_devices(scene, node))
        # A node without the devices is never offered.
        assert not possible or any(binds(scene, NodeName(name), node, each) for each in possible), (
            name,
            scene,
        )
