"""The real scheduler places pods while everything around it is killed, paused and cut off.

A short run here; ``make chaos`` makes a long one. The seed is printed, and so is the report of
:mod:`tests.chaos`, which judges the history afterwards.
"""

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checks import fits, free_at_end
from tests.chaos.story import Story
from tests.e2e.chaos import clocks
from tests.e2e.chaos.faults import Faults
from tests.e2e.chaos.replicas import ReplicatedCluster
from tests.e2e.chaos.workload import Workload
from tests.e2e.chaos.worlds import CUT_OFF, OVER, World, judged, kept_at, world
from tests.e2e.cluster import PODS
from tests.waiting import FOREVER

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings(CUT_OFF)]

SECONDS = float(os.environ.get("GPU_TOPOLOGY_CHAOS_SECONDS", "40"))
SEED = int(os.environ.get("GPU_TOPOLOGY_CHAOS_SEED", "0")) or random.SystemRandom().randrange(
    1, 10**6
)
LEASE_SECONDS = 3.0  # Shorter than the one that we ship, so that leaders change often
FLEET = (
    ("dgx1-v100", 3),
    ("a100-pcie-4-bridged", 2),
    ("l40s-4", 1),
    ("hgx-h100-8", 1),
)
RATE = 5.0
# How fast the clocks of the two replicas run.
RATES = ((0.95, 1.05), (1.05, 0.95), (1.05, 1.05), (1.0, 1.0))
RUNS = (0.3, 2.5)  # seconds for which a pod runs, from and to
# Seconds without a pod that is bound or ends, after which whoever waits is taken to be forgotten.
# Less than the five minutes after which kube-scheduler looks by itself again at a pod that fitted
# nowhere. More than it takes to watch again after several outages of the API server: 85 s were
# seen.
STUCK = 240.0
POLL_SECONDS = 2.0
TAKEN_DOWN = 30.0  # seconds between two looks at what etcd has stored; it keeps all of it meanwhile


def test_nothing_is_lost_and_nothing_is_given_twice(
    cluster: ReplicatedCluster, tmp_path: Path
) -> None:
    print(f"\nGPU_TOPOLOGY_CHAOS_SEED={SEED} GPU_TOPOLOGY_CHAOS_SECONDS={SECONDS:g}")
    path = kept_at(f"chaos-{SEED}", tmp_path)
    for replica, rate in zip(cluster.replicas, random.Random(SEED).choice(RATES), strict=True):
        print(f"the clock of {replica.pod} runs at {rate:g}")
        replica.clock_rate = rate
    cluster.replace_replicas(LEASE_SECONDS, clocks.WRAPPER)
    with world(cluster, path, FLEET, SEED) as answer:
        began = time.monotonic()
        _broken_for(answer, began + SECONDS)
        stay = _fill(answer)
        settled = _settles(answer, stay)
        with cluster.without_scheduler():  # so that nothing is bound while we look
            settled = settled and _settles(answer, stay)
            story = answer.story()
        found = judged(story, answer.history)
        print(f"{time.monotonic() - began:.0f} s, {len(story.answers)} answers to the scheduler")
    assert found == [], f"seed {SEED}"
    assert settled, f"seed {SEED}: nothing moves any more"
    assert len(story.binds) > SECONDS / 2
    assert len({write.source for write in story.writes if write.kind == "mark"}) > 1


def _broken_for(answer: World, until: float) -> None:
    """Pods come and go, and things break, until then; then all is mended."""
    faults = Faults(answer, SEED)
    looked = time.monotonic()
    plane = answer.cluster.control_plane
    with Workload(plane, answer.history, SEED, RATE, seconds=RUNS) as workload:
        try:
            # On a slow machine so few things may break that nobody has had to take over.
            while workload.error is None and (
                time.monotonic() < until
                or (not faults.has_ended_a_leader and time.monotonic() < until + FOREVER)
            ):
                faults.step()
                if time.monotonic() >= looked + TAKEN_DOWN and faults.all_well:
                    answer.cluster.take_down(answer.history)
                    looked = time.monotonic()
                time.sleep(0.1)
        finally:
            faults.mend_all()


def _fill(answer: World) -> set[str]:
    """Pods that stay, so that others have to wait at the end: their names."""
    names = set()
    for i in range(24):
        gpus, linked = ((3, False), (2, True), (4, True))[i % 3]
        names.add(f"stays-{i}")
        answer.submitter.create(f"stays-{i}", gpus, 1e6, linked=linked)
    return names


def _settles(answer: World, stay: set[str]) -> bool:
    """Wait until all is settled, or nothing has moved for :data:`STUCK` seconds; which of both."""
    seen, since = (0, 0), time.monotonic()
    while time.monotonic() < since + STUCK:
        items = answer.cluster.api.get(PODS).json()["items"]
        if _settled(answer, items, stay):
            return True
        now = (sum("nodeName" in i["spec"] for i in items), sum(map(_over, items)))
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(POLL_SECONDS)
    return False


def _over(pod: dict[str, Any]) -> bool:
    return pod["status"].get("phase") in OVER


def _settled(answer: World, items: list[dict[str, Any]], stay: set[str]) -> bool:
    """Whether each pod that has not ended is in ``stay``, and runs or surely fits no node."""
    open_ = [i for i in items if not _over(i)]
    if any(i["metadata"]["name"] not in stay and i["spec"].get("nodeName") for i in open_):
        return False
    if any(i["spec"].get("nodeName") and i["status"]["phase"] != "Running" for i in open_):
        return False
    story = answer.story()
    return not any(
        _could(story, i["metadata"]["uid"]) for i in open_ if not i["spec"].get("nodeName")
    )


def _could(story: Story, uid: str) -> bool:
    pod, free = story.pods[uid].created, free_at_end(story)
    return any(
        fits(story.nodes[name], devices, pod.gpus, linked=pod.linked)
        for name, devices in free.items()
    )
