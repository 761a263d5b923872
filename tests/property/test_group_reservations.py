"""Groups come and go on nodes that change: cached answers about them equal fresh ones."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender.deadline import NO_DEADLINE
from scheduler_extender.framework.capacitycounter import CapacityCounter
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs import filter_nodes, prioritize
from scheduler_extender.wire import Pod
from tests.nodes import record_of
from tests.scheduler_extender.verbs.racks import Scheduler, member
from topology.core.devices import NodeName
from topology.core.report import Report
from topology.machines import machine

STEPS = 60
DOMAINS = ("nvlink-domain", "block", "node")
LABEL = "scheduling.x-k8s.io/pod-group"


class World:
    """Three racks of which anything may change."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.scheduler = Scheduler({"a": 4, "b": 4, "c": 3})
        self.cluster = self.scheduler.cluster
        self.pods: list[PodRecord] = []
        for name in self.scheduler.names:
            self.label(name)
        self.number = 0

    def label(self, name: str) -> None:
        """The node is in a block, or none, and may be cordoned."""
        labels = self.rng.choice(({"block": "x"}, {"block": "y"}, {"block": "y"}, {}))
        cordoned = self.rng.random() < 0.15
        self.cluster.put_node(NodeName(name), NodeObject(labels=labels, cordoned=cordoned))

    def asks(self, gang: bool = False) -> dict[str, Any]:
        """A member of one of six groups, each of which says always the same; or of a gang that
        nobody has asked about."""
        number = self.rng.randrange(6)
        self.number += 1
        domain, gpus, size = DOMAINS[number % 3], 1 + number % 4, 2 + number
        labels = {LABEL: f"gang{self.number}"}
        kind = {"group": "", "labels": labels} if gang else {"group": f"g{number}"}
        annotations = {"group-domain": domain}
        return member(f"p{self.number}", size=size, gpus=gpus, annotations=annotations, **kind)

    def come(self) -> None:
        """A member is bound by hand, to a node where it fits or not."""
        found = record_of(self.asks())
        found = replace(found, node=NodeName(self.rng.choice(self.scheduler.names)))
        self.pods.append(found)
        self.cluster.put_pod(found)

    def end(self) -> None:
        """A member has succeeded, has failed, is being deleted, or is gone."""
        if not self.pods:
            return
        pod = self.pods.pop(self.rng.randrange(len(self.pods)))
        how = self.rng.choice(("Succeeded", "Failed", "deleting", "gone"))
        if how == "gone":
            self.cluster.drop_pod(pod.uid)
        else:
            changed = {"terminating": True} if how == "deleting" else {"phase": how}
            self.cluster.put_pod(replace(pod, **changed))

    def fly(self) -> None:
        """A pod is assumed, and perhaps forgotten again."""
        asked = self.asks()
        for name in self.scheduler.passing(asked)[:1]:
            ours = self.cluster.assume(NodeName(name), record_of(asked))
            if self.rng.random() < 0.5 and ours is not None:
                self.cluster.forget(ours)

    def change(self) -> None:
        """A node gets other labels, moves to another rack, or loses its record."""
        name = self.rng.choice(self.scheduler.names)
        how = self.rng.randrange(4)
        if how == 0:
            self.cluster.drop_record(NodeName(name))
        elif how == 1:
            group = self.rng.choice("abc")
            topology = machine("gb200-tray").topology(name, group=group)
            self.cluster.put_record(topology, Report("boot", 1 + self.number))
        else:
            self.label(name)

    def answers(self, asked: list[dict[str, Any]]) -> list[object]:
        """What filter and prioritize say to each."""
        pods = [msgspec.convert(each, Pod) for each in asked]
        names = self.scheduler.names
        return [
            (filter_nodes(self.cluster, each, names), prioritize(self.cluster, each, names))
            for each in pods
        ]


@pytest.mark.parametrize("seed", range(6))
def test_cached_answers_about_groups_equal_fresh_ones(seed: int) -> None:
    world = World(seed)
    kept = 0
    for _ in range(STEPS):
        steps: tuple[Callable[[], None], ...] = (
            world.come,
            world.come,
            world.end,
            world.fly,
            world.change,
        )
        world.rng.choice(steps)()
        asked = [world.asks() for _ in range(3)] + [world.asks(gang=True)]
        cached = world.answers(asked)
        assert world.answers(asked) == cached
        world.cluster.forget_answers()
        assert world.answers(asked) == cached
        kept += bool(CapacityCounter(world.cluster.snapshot(), NO_DEADLINE).reservations().reserved)
    assert kept > STEPS / 4
