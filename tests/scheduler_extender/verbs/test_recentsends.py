"""Under DRA a pod keeps off nodes to which another may be on its way, where that one could spoil
its promise: kube-scheduler has chosen devices for it, and has told nobody yet."""

from dataclasses import replace

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.files.binder import FileBinder
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.recentsends import MOST_PODS, SECONDS
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.wire import BindingArgs, Pod
from tests.nodes import bridged, pod, record_of
from topology.core.devices import NodeName
from topology.core.dra import Published, served
from topology.core.report import Report

NODES = [NodeName("one"), NodeName("two")]


class World:
    """Two nodes of two linked pairs each, 0-1 and 2-3, whose GPUs are published as 0, 1, 2, 3."""

    def __init__(self, *, by_dra: bool = True) -> None:
        self.now = 0.0
        self.cluster = Cache(lambda: self.now)
        for name in NODES:
            self.serve(name, by_dra=by_dra)

    def serve(self, name: NodeName, *, by_dra: bool) -> None:
        topology, report = bridged(name=name), Report("boot", 1)
        if by_dra:
            published = [Published("pool", f"gpu-{i}", f"GPU-{i}") for i in range(4)]
            bare = replace(topology, resources=())
            topology, report = served(bare, report, "nvidia.com/gpu", published, [])
        self.cluster.put_node(name, NodeObject(exists=True, advertises_none=by_dra))
        self.cluster.put_record(topology, report)

    def sees(self, uid: str, nominated: str | None = None, node: str | None = None) -> None:
        manifest = pod(1, {}, name=uid, uid=uid, node=node)
        if nominated is not None:
            manifest["status"]["nominatedNodeName"] = nominated
        self.cluster.put_pod(record_of(manifest))

    def asks(self, uid: str, count: int, nodes: list[NodeName], link: str = "") -> list[int]:
        asked = msgspec.convert(pod(count, {"link": link} if link else {}, name=uid, uid=uid), Pod)
        return [row.score for row in verbs.prioritize(self.cluster, asked, nodes)]

    def avoids(self) -> bool:
        """Whether a pair goes to the other node, though both are alike."""
        one, two = self.asks("pair", 2, NODES, "nvlink")
        assert one in (0, two)
        return one < two


@pytest.fixture
def world() -> World:
    found = World()
    assert not found.avoids()
    found.asks("single", 1, NODES[:1])
    assert found.avoids(), "after one more GPU the next two are no pair"
    return found


def test_until_it_is_known_where_the_other_has_gone(world: World) -> None:
    world.sees("single")
    assert world.avoids()
    world.sees("single", nominated="two")
    assert world.asks("pair", 2, NODES, "nvlink") == [10, 0], "now its GPU is chosen"


@pytest.mark.parametrize("elsewhere", ["bound", "time", "asked again", "many others"])
def test_not_where_the_other_does_not_come(world: World, elsewhere: str) -> None:
    if elsewhere == "bound":
        world.sees("single")
        args = BindingArgs("single", "default", "single", NODES[1])
        verbs.bind(world.cluster, FileBinder(world.cluster), args, lambda: "")
        assert world.asks("pair", 2, NODES, "nvlink") == [10, 0]
        return
    if elsewhere == "time":
        world.now = SECONDS
    elif elsewhere == "asked again":
        world.asks("single", 1, NODES[1:])
        assert world.asks("pair", 2, NODES, "nvlink") == [10, 0]
        return
    else:
        for other in range(MOST_PODS):
            world.asks(f"other-{other}", 1, NODES[1:])
    assert not world.avoids()


def test_only_where_the_promise_hangs_on_it(world: World) -> None:
    world.asks("two", 2, NODES[1:])
    assert world.asks("pair", 2, NODES, "nvlink") == [0, 10], "after two more the next are a pair"
    plain = world.asks("plain", 2, NODES)
    assert plain[0] == plain[1]


def test_not_where_a_plugin_chooses_among_all_that_are_free() -> None:
    world = World(by_dra=False)
    world.asks("single", 1, NODES[:1])
    assert not world.avoids()
