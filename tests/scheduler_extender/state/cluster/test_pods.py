"""The life of a pod: whatever is told in whatever order, it goes on as the table says."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.cluster.pods import LIFE, Stage
from scheduler_extender.state.node.occupants import Occupants
from scheduler_extender.state.pods.record import PodRecord
from tests.nodes import switched
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.report import Allocation, Report
from topology.core.requests import gpu_request

NODE = NodeName("switched")
UIDS = [PodUid(f"p{i}") for i in range(3)]


def stage_of(pod: PodRecord | None, uid: PodUid, there: Occupants) -> Stage:
    """The stage of a pod that was last seen as ``pod``; ``there`` are the pods of its node."""
    if uid in there.in_flight:
        return Stage.IN_FLIGHT
    if pod is None:
        return Stage.LEAVING if uid in there.leaving else Stage.UNKNOWN
    if pod.node is None:
        return Stage.WAITING
    if pod.ended:
        return Stage.ENDED
    if pod.deleting:
        return Stage.ENDING
    return Stage.REPORTED if uid in there.reported else Stage.BOUND


class World:
    """One node, three pods, and sources that tell of them."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.cluster = Cluster(lambda: 0.0, Settings(stale_after=None))
        self.cluster.feed.put_record(switched(), Report("boot", 1))
        self.sequence, self.version, self.boot = 1, 1, "boot"
        self.followed = set[tuple[Stage, str, Stage]]()

    def stages(self) -> dict[PodUid, Stage]:
        there = self.cluster.facts(NODE).pods
        return {uid: stage_of(self.cluster.pod(uid), uid, there) for uid in UIDS}

    def pod(self, uid: PodUid) -> PodRecord:
        known = self.cluster.pod(uid)
        return known or PodRecord(uid, "default", uid, None, gpu_request(1))

    def put_pod(self, uid: PodUid) -> None:
        if uid in self.cluster.facts(NODE).pods.leaving:
            return  # UIDs are given once
        pod = self.pod(uid)
        if pod.node is None and (self.rng.random() < 0.6 or self.cluster.cache.assumed(uid)):
            pod = replace(pod, node=NODE)
        if pod.node is not None and not pod.ended:
            pod = replace(pod, **self.rng.choice(({"deleting": True}, {"phase": "Failed"}, {})))
        self.cluster.feed.put_pod(pod)

    def assume(self, uid: PodUid) -> None:
        if self.pod(uid).node is None and uid not in self.cluster.facts(NODE).pods.leaving:
            self.cluster.cache.assume(NODE, self.pod(uid))

    def forget(self, uid: PodUid) -> None:
        ours = self.cluster.cache.assumed(uid)
        if ours is not None:
            self.cluster.cache.forget(ours)

    def drop_pod(self, uid: PodUid) -> None:
        self.version += 1
        if self.cluster.pod(uid) is not None:
            self.cluster.feed.drop_pod(uid, self.rng.choice((None, self.version)))

    def drop_in_flight(self, uid: PodUid) -> None:
        if self.cluster.pod(uid) is None:
            self.cluster.feed.drop_in_flight(uid, self.version)

    def put_report(self, uid: PodUid) -> None:
        """The kubelet has what is bound; now and then the node boots anew."""
        if self.rng.random() < 0.1:
            self.boot, self.sequence = f"{self.boot}'", 0
        self.sequence += 1
        there = self.cluster.facts(NODE).pods.living
        held = tuple(
            Allocation(p.uid, "default", p.name, "main", "nvidia.com/gpu", (DeviceId(f"GPU-{i}"),))
            for i, p in enumerate(there)
            if self.rng.random() < 0.7
        )
        report = Report(self.boot, self.sequence, allocations=held, pods_version=str(self.version))
        self.cluster.feed.put_report(NODE, report)

    def step(self) -> None:
        """One call, after which every pod is in a stage that may follow."""
        what = self.rng.choice(sorted({name for follows in LIFE.values() for name in follows}))
        before = self.stages()
        getattr(self, what)(self.rng.choice(UIDS))
        for uid, after in self.stages().items():
            if after is not before[uid]:
                assert after in LIFE[before[uid]].get(what, ()), (before[uid], what, after)
                self.followed.add((before[uid], what, after))


@pytest.mark.parametrize("seed", range(4))
def test_each_stage_follows_another_as_the_table_says(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.step()


def test_what_the_table_says_happens() -> None:
    followed = set[tuple[Stage, str, Stage]]()
    for seed in range(40):
        world = World(seed)
        for _ in range(200):
            world.step()
        followed |= world.followed
    said = {(b, what, a) for b, follows in LIFE.items() for what, s in follows.items() for a in s}
    assert followed == said
