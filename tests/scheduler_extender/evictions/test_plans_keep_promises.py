"""The law of evictions: what unblock and preempt promise on a node is what filter says there, once
the pods have gone.

Small clusters are drawn at random: racks in two zones, groups that wait for members, gangs, and
pods of their own. Whoever is evicted is gone, the agents report it, and filter is asked.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import MANAGED
from scheduler_extender.explain.evictions import eviction_advice
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import SchedulingAttributes
from scheduler_extender.state.pods.record import pod_record
from scheduler_extender.verbs import preempt
from scheduler_extender.wire import MetaPod, MetaVictims, Pod, PreemptionArgs
from tests.nodes import pod
from tests.scheduler_extender.verbs.racks import Scheduler, member
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Report
from topology.machines import machine

GANG = "scheduling.x-k8s.io/pod-group"
KINDS = ("gb200-tray", "a100-pcie-4-bridged")


class World(Scheduler):
    """Racks of machines of one kind; ``held`` has the GPUs of each running pod."""

    def __init__(self, kind: str, racks: Mapping[str, int], rng: random.Random) -> None:
        super().__init__({})
        self.cluster.budgets = ()
        self.rng, self.sequence = rng, 0
        self.held: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.nodes: dict[str, NodeTopology] = {}
        for rack, machines in racks.items():
            zone = rng.choice("yz")
            for i in range(machines):
                self.add(kind, NodeName(f"{rack}-{i}"), rack, zone)
        self.report()

    def add(self, kind: str, name: NodeName, rack: str, zone: str) -> None:
        """One more machine; its agent has reported nothing yet."""
        self.names.append(name)
        self.nodes[name] = machine(kind).topology(name, group=rack)
        self.cluster.put_node(name, NodeObject(labels={"zone": zone}))

    def fill(self) -> None:
        """Two groups run in part, and pods of their own."""
        rng = self.rng
        for name in "gh":
            self._run_group(name)
        for i in range(rng.randint(2 * len(self.names), 4 * len(self.names))):
            self.run(pod(rng.choice((1, 1, 2)), name=f"p{i}"), rng.choice(self.names))

    def pods_of(self, group: str) -> list[dict[str, Any]]:
        """The members of a group, or of a gang, drawn at random."""
        rng, size = self.rng, self.rng.randint(2, 4)
        domain = {"group-domain": rng.choice(("node", "nvlink-domain", "zone"))}
        gang = rng.random() < 0.4
        annotations = {} if gang and rng.random() < 0.4 else domain
        annotations |= rng.choice(({"link": "nvlink"}, {"link": ""}))
        labels = {GANG: group} if gang else {}
        gpus = rng.choice((1, 2, 2, 4))
        named = "" if gang else group
        return [member(f"{group}{i}", named, size, gpus, annotations, labels) for i in range(size)]

    def _run_group(self, name: str) -> None:
        """Some members of a group run, in one domain where that can be."""
        pods, rng = self.pods_of(name), self.rng
        for each in pods[: rng.randint(1, len(pods))]:
            passing = self.passing(each)
            if passing:
                self.run(each, rng.choice(passing))

    def run(self, manifest: dict[str, Any], name: str, priority: int | None = None) -> None:
        """A pod runs on a node, if there is room for it."""
        meta = manifest["metadata"]
        taken = {gpu for node, gpus in self.held.values() if node == name for gpu in gpus}
        free = [gpu for gpu in range(len(self.nodes[NodeName(name)].gpus)) if gpu not in taken]
        count = int(manifest["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        if len(free) < count:
            return
        meta["uid"] = f"uid-{meta['name']}"
        manifest["spec"]["nodeName"] = name
        found = pod_record(msgspec.convert(manifest, Pod), MANAGED)
        assert found is not None
        others = () if found.group_ref else ((5, ""), (5, ""))
        drawn, controller = self.rng.choice(((-1, ""), (0, "ReplicaSet"), *others))
        drawn = drawn if priority is None else priority
        attributes = replace(found.attributes, priority=drawn, controller=controller)
        running = replace(found, phase="Running", admitted=True, attributes=attributes)
        self.cluster.put_pod(running)
        self.held[found.uid] = (name, tuple(self.rng.sample(free, count)))
        self.report(name)

    def report(self, *names: str) -> None:
        """The agents of some nodes, or of all, report who holds what."""
        self.sequence += 1
        for name in names or self.nodes:
            node = self.nodes[name]
            held = tuple(
                Allocation(
                    PodUid(uid), "default", uid.removeprefix("uid-"), "main", "nvidia.com/gpu",
                    tuple(DeviceId(node.gpus[p].uuid) for p in gpus),
                )
                for uid, (at, gpus) in sorted(self.held.items())
                if at == name
            )  # fmt: skip
            self.cluster.put_record(node, Report("boot", self.sequence, allocations=held))

    def evict(self, uids: Iterable[str]) -> None:
        """These pods have gone, and the agents say so."""
        for uid in uids:
            self.cluster.drop_pod(PodUid(uid))
            del self.held[uid]
        self.report()

    def waiting(self, found: dict[str, Any] | None = None) -> dict[str, Any]:
        """A pod of priority 1 that waits: of a new group as a rule."""
        rng, group = self.rng, self.rng.choice(("new", "new", "new", ""))
        if found is None:
            found = self.pods_of(group)[0] if group else pod(rng.choice((1, 2)), {"link": "nvlink"})
        found["metadata"] |= {"name": "waits", "uid": "uid-waits"}
        found["spec"]["priority"] = 1
        record = pod_record(msgspec.convert(found, Pod), MANAGED)
        assert record is not None
        self.cluster.put_pod(replace(record, attributes=SchedulingAttributes(1)))
        return found


def drawn(seed: int) -> World:
    """A small cluster drawn at random."""
    rng = random.Random(seed)
    racks = {rack: rng.randint(1, 2) for rack in "abc"[: rng.randint(2, 3)]}
    found = World(rng.choice(KINDS), racks, rng)
    found.fill()
    return found


def played(seed: int) -> str:
    """What unblock promises, and whether filter keeps it."""
    world = drawn(seed)
    asked = world.waiting()
    found = eviction_advice(world.cluster, "default", "waits")
    assert found is not None
    if found.takes is not None:
        assert found.takes in world.passing(asked)
        return "takes"
    if found.plan is None:
        return "nothing"
    world.evict(step.uid for step in found.plan.steps)
    assert found.plan.node in world.passing(asked), found.text
    return "plan"


def preempted(seed: int) -> str:
    """Which victims preempt leaves or names, and whether filter takes the pod after them."""
    world = drawn(seed)
    asked, offered = world.waiting(), dict[str, MetaVictims | None]()
    for name in world.names:
        here = [uid for uid, (at, _) in world.held.items() if at == name]
        if here:
            some = world.rng.sample(here, world.rng.randint(1, len(here)))
            offered[name] = MetaVictims([MetaPod(uid) for uid in some], 0)
    args = PreemptionArgs(msgspec.convert(asked, Pod), meta_victims=offered)
    kept = preempt(world.cluster, args).meta_victims
    if not kept:
        return "nothing"
    node = world.rng.choice(sorted(kept))
    world.evict(victim.uid for victim in kept[node].pods or ())
    assert node in world.passing(asked)
    return "preempts"


@pytest.mark.parametrize("part", range(4))
def test_filter_keeps_what_unblock_and_preempt_promise(part: int) -> None:
    seeds = range(part, 100, 4)
    answer = [played(seed) for seed in seeds] + [preempted(seed) for seed in seeds]
    assert {"takes", "plan", "nothing", "preempts"} == set(answer), "else it would be about nothing"


@pytest.mark.parametrize("left", [0, 2, 3])
def test_no_pod_is_evicted_if_its_group_has_the_reservation(left: int) -> None:
    """A group has a member on each of two nodes of a zone, and other pods leave fewer GPUs on the
    second one than the first one has. A pair of pods needs the first node whole: the second one has
    no NVLinks. Its member evicted, the group would wait for the place that has come free."""
    world = World("gb200-tray", {}, random.Random(1))
    for i, kind in enumerate(("gb200-tray", "l40s-8")):
        world.add(kind, NodeName(f"a-{i}"), "a", "z")
        old = member(f"old{i}", "old", 2, 2, {"group-domain": "zone", "link": ""})
        world.run(old, f"a-{i}", priority=-1)
    asked = world.waiting(member("new0", "new", 2, 2, {"group-domain": "node"}))
    offered: dict[str, MetaVictims | None] = {"a-0": MetaVictims([MetaPod("uid-old0")], 0)}
    args = PreemptionArgs(msgspec.convert(asked, Pod), meta_victims=offered)
    found = eviction_advice(world.cluster, "default", "waits")
    assert found is not None
    assert found.plan is not None, "the group has room on the other node"
    assert [step.uid for step in found.plan.steps] == ["uid-old0"]
    assert set(preempt(world.cluster, args).meta_victims) == {"a-0"}
    world.run(pod(6 - left, name="rest"), "a-1", priority=100)
    found = eviction_advice(world.cluster, "default", "waits")
    assert found is not None
    assert (found.plan, found.takes) == (None, None)
    assert preempt(world.cluster, args).meta_victims == {}
    world.evict(["uid-old0"])
    assert world.passing(asked) == [], "else the eviction would have helped"


def test_a_plan_for_the_first_member_says_that_it_counts_its_peers() -> None:
    world = World("gb200-tray", {"a": 1}, random.Random(1))
    world.run(pod(4, name="old"), "a-0", priority=0)
    for size, noted in ((2, True), (4, False)):
        world.waiting(member("new0", "new", size, 4 // size, {"group-domain": "node"}))
        if not noted:
            world.waiting(pod(4, name="alone"))
        found = eviction_advice(world.cluster, "default", "waits")
        assert found is not None
        assert found.plan is not None
        assert found.plan.node == "a-0"
        assert any("1 more members of its group fit there" in line for line in found.text) is noted
