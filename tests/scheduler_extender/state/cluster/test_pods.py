"""The life of a pod: events in any order lead to the transitions of ``pods``."""

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster import pods
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.nodeinfo import Offer
from scheduler_extender.state.pods.attributes import BARE
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import BindingArgs
from tests.nodes import switched
from tests.scheduler_extender.binding import Written, bind_error
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.report import Allocation, Report
from topology.core.requests import gpu_request

NODE = NodeName("switched")
UIDS = [PodUid(f"p{i}") for i in range(3)]
THERE = ("bound", "acknowledged", "terminating", "ended")
Step = tuple[str, str, str]  # the stage before, the call, and the stage after


def rows(number: int) -> list[list[str]]:
    """A table at the head of the module, cell by cell; lines that go on with a row are left out."""
    tables = re.findall(r"^=+ .*?\n(.*?)^=", pods.__doc__ or "", re.DOTALL | re.MULTILINE)
    lines = tables[number].splitlines()
    return [re.split("  +", line, maxsplit=3) for line in lines if not line.startswith(" ")]


def documented_steps() -> set[Step]:
    """Every step that the head of the module tells of."""
    return {
        (before, call, after)
        for before, call, afterwards, _ in rows(1)
        for name in afterwards.split(", ")
        for after in (THERE if name == "there" else (name,))
    }


CALLS = sorted({call for _, call, _ in documented_steps()})


def stage_of(cluster: Cache, uid: PodUid) -> str:
    """The stage of a pod that can be on one node."""
    there, pod = cluster.node_info(NODE).pods, cluster.pod(uid)
    if uid in there.assumed:
        return "assumed"
    if pod is None:
        return "unconfirmed" if uid in there.unconfirmed else "gone"
    if pod.node is None:
        return "nominated" if uid in cluster.snapshot().nominated else "pending"
    if pod.ended or pod.terminating:
        return "ended" if pod.ended else "terminating"
    return "acknowledged" if uid in there.acknowledged else "bound"


class World:
    """One node, three pods, and sources that tell of them."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.cluster = Cache(lambda: 0.0, Settings(stale_after=None))
        self.cluster.put_record(switched(), Report("boot", 1))
        self.sequence, self.version, self.boot = 1, 1, "boot"
        self.followed = set[Step]()

    def stages(self) -> dict[PodUid, str]:
        return {uid: stage_of(self.cluster, uid) for uid in UIDS}

    def pod(self, uid: PodUid) -> PodRecord:
        known = self.cluster.pod(uid)
        return known or PodRecord(uid, "default", uid, None, gpu_request(1))

    def put_pod(self, uid: PodUid) -> None:
        pod, unconfirmed = self.pod(uid), uid in self.cluster.node_info(NODE).pods.unconfirmed
        bound = self.rng.random() < 0.6 or self.cluster.assumed(uid) is not None
        if pod.node is None and (bound or unconfirmed):
            pod = replace(pod, node=NODE)
        elif pod.node is None:
            pod = replace(pod, attributes=replace(BARE, nominated=self.rng.choice((NODE, None))))
        if pod.node is not None and not pod.ended:
            pod = replace(pod, **self.rng.choice(({"terminating": True}, {"phase": "Failed"}, {})))
        self.cluster.put_pod(pod)

    def assume(self, uid: PodUid) -> None:
        if self.pod(uid).node is None and uid not in self.cluster.node_info(NODE).pods.unconfirmed:
            self.cluster.assume(NODE, self.pod(uid))

    def forget(self, uid: PodUid) -> None:
        ours = self.cluster.assumed(uid)
        if ours is not None:
            self.cluster.forget(ours)

    def drop_pod(self, uid: PodUid) -> None:
        self.version += 1
        if self.cluster.pod(uid) is not None:
            self.cluster.drop_pod(uid, self.rng.choice((None, self.version)))

    def drop_assumed(self, uid: PodUid) -> None:
        if self.cluster.pod(uid) is None:
            self.cluster.drop_assumed(uid, self.version)

    def put_report(self, uid: PodUid) -> None:
        """The kubelet has the bound pods; now and then the node boots again."""
        if self.rng.random() < 0.1:
            self.boot, self.sequence = f"{self.boot}'", 0
        there = self.cluster.node_info(NODE).pods.living
        self.report({p.uid: i for i, p in enumerate(there) if self.rng.random() < 0.7})

    def report(self, held: dict[PodUid, int]) -> None:
        """The agent reports which GPU each pod has; it knows all that we know."""
        self.sequence += 1
        shown = tuple(
            Allocation(uid, "default", uid, "main", "nvidia.com/gpu", (DeviceId(f"GPU-{i}"),))
            for uid, i in held.items()
        )
        report = Report(self.boot, self.sequence, allocations=shown, pods_version=str(self.version))
        self.cluster.put_report(NODE, report)

    def step(self) -> None:
        """One call, after which every pod is in a stage that may follow."""
        call = self.rng.choice(CALLS)
        before = self.stages()
        getattr(self, call)(self.rng.choice(UIDS))
        for uid, after in self.stages().items():
            if after != before[uid]:
                self.followed.add((before[uid], call, after))


def test_the_table_has_every_transition_and_no_other() -> None:
    followed = set[Step]()
    for seed in range(60):
        world = World(seed)
        for _ in range(200):
            world.step()
        followed |= world.followed
    assert followed == documented_steps()


def test_what_a_pod_holds_in_each_stage() -> None:
    world, uid = World(0), UIDS[0]
    cluster, lived = world.cluster, list[str]()

    def holds(
        *, shown: int = 0, unshown: int = 0, terminating: int = 0, place: bool = False
    ) -> None:
        """Of the four GPUs the report shows so many held; so many more are held, not which."""
        info = cluster.node_info(NODE)
        offer = info.last_offer("nvidia.com/gpu")
        assert isinstance(offer, Offer)
        now = offer.availability
        left = 4 - shown - unshown
        assert (now.free.bit_count(), now.devices_left, now.devices_terminating) == (
            4 - shown,
            left,
            terminating,
        )
        assert info.is_reserved_for(uid) == place
        lived.append(stage_of(cluster, uid))

    holds()
    pod = world.pod(uid)
    cluster.put_pod(pod)
    holds()
    cluster.put_pod(replace(pod, attributes=replace(BARE, nominated=NODE)))
    holds(place=True)
    cluster.assume(NODE, pod)
    holds(unshown=1, place=True)
    pod = replace(pod, node=NODE)
    cluster.put_pod(pod)
    holds(unshown=1)
    world.report({uid: 0})
    holds(shown=1)
    world.report({})
    holds(unshown=1)  # a kubelet shows nothing for a moment after its restart
    world.report({uid: 0})
    cluster.put_pod(replace(pod, terminating=True))
    holds(shown=1, terminating=1)
    cluster.put_pod(replace(pod, terminating=True, phase="Failed"))
    holds(shown=1, terminating=1)
    cluster.drop_pod(uid, 10)
    holds(shown=1, terminating=1)
    world.version = 10
    world.report({})
    holds()
    assert [*dict.fromkeys(lived)] == ["gone", *(stage for stage, _ in rows(0) if stage != "gone")]


UID = UIDS[0]


def bind(world: World, node: str = NODE) -> str:
    """The error of a bind that is written, and that the watch does not show yet."""
    return bind_error(world.cluster, Written(), BindingArgs(UID, "default", UID, node))


def put(world: World, node: NodeName | None) -> None:
    world.cluster.put_pod(PodRecord(UID, "default", UID, node, gpu_request(1)))


def assumed(world: World) -> PodRecord:
    put(world, None)
    assert not bind(world)
    ours = world.cluster.assumed(UID)
    assert ours is not None
    return ours


def shown_on_no_node(world: World) -> str:
    put(world, NODE)
    put(world, None)
    return "bound"


def bound_again(world: World) -> str:
    put(world, NODE)
    assert not bind(world)
    assert bind(world, "other")
    return "bound"


def bind_repeated(world: World) -> str:
    former = assumed(world)
    assert bind(world, "other") == "an earlier bind of the pod to switched has not finished"
    assert world.cluster.assumed(UID) is former
    assert not bind(world)
    world.cluster.forget(former)  # another one is in flight
    return "assumed"


def forgotten_once_bound(world: World) -> str:
    ours = assumed(world)
    put(world, NODE)
    world.cluster.forget(ours)
    return "bound"


def forgotten_once_gone(world: World) -> str:
    ours = assumed(world)
    world.cluster.drop_pod(UID, 10)
    world.cluster.forget(ours)
    return "gone"


def shown_once_gone(world: World) -> str:
    assumed(world)
    world.cluster.drop_assumed(UID, 10)
    put(world, NODE)
    assert stage_of(world.cluster, UID) == "unconfirmed"
    put(world, None)
    assert stage_of(world.cluster, UID) == "pending"
    world.cluster.drop_pod(UID, 9)
    return "unconfirmed"


def old_report(world: World) -> str:
    put(world, NODE)
    world.report({})
    world.sequence -= 2
    world.report({UID: 0})
    return "bound"


LATE: dict[tuple[str, str], Callable[[World], str]] = {
    ("there", "put_pod"): shown_on_no_node,
    ("there", "assume"): bound_again,
    ("assumed", "assume"): bind_repeated,
    ("there", "forget"): forgotten_once_bound,
    ("gone", "forget"): forgotten_once_gone,
    ("unconfirmed", "put_pod"): shown_once_gone,
    ("(any)", "put_report"): old_report,
}


def test_all_that_may_come_too_late_is_tried() -> None:
    assert [(before, call) for before, call, _ in rows(2)] == [*LATE]


@pytest.mark.parametrize("late", LATE.values())
def test_what_comes_too_late_changes_nothing(late: Callable[[World], str]) -> None:
    world = World(0)
    world.cluster.put_record(switched(name="other"), Report("boot", 1))
    stands = late(world)
    assert stage_of(world.cluster, UID) == stands
