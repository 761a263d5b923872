"""Cached scores equal fresh ones, whatever the request mix does."""

import random
from dataclasses import replace

import pytest

from scheduler_extender.framework.equivalence import ask, class_ids_of, scores
from scheduler_extender.state.answers.answercache import REFRESH
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.guaranteedcapacity import RequestClass
from topology.core.links import LinkKind
from topology.core.report import Report
from topology.core.requests import Constraints, GpuRequest, Pattern, Policy, gpu_request
from topology.core.scoring import UNKNOWN, PlacementCost
from topology.machines import machine

NVLINK = Constraints(link=LinkKind.NVLINK)
REQUESTS = [
    gpu_request(1),
    gpu_request(2, NVLINK),
    gpu_request(4, replace(NVLINK, pattern=Pattern.RING)),
    gpu_request(2, NVLINK, Policy.PREFERRED),
    *(gpu_request(n) for n in range(2, 9)),  # more kinds than a mix holds
]


def scored(cluster: Cache, request: GpuRequest, names: list[str]) -> dict[str, int]:
    found = scores(ask(cluster.snapshot(), request, names, scores=True))
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize("seed", range(2))
def test_after_every_change_of_the_mix(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    names = []
    for i, kind in enumerate(("dgx1-v100", "a100-pcie-4-bridged", "hgx-h100-8", "l40s-4") * 2):
        topology = machine(kind).topology(f"node-{i}")
        cluster.put_record(topology, Report())
        names.append(str(topology.name))
    mixes = set()
    for number in range(6 * REFRESH):
        request = rng.choice(REQUESTS[: 1 + number // 16])
        uid, node = PodUid(f"u{number}"), NodeName(rng.choice(names))
        pod = PodRecord(uid, "x", f"p{number}", node, request)
        cluster.put_pod(pod)
        if rng.random() < 0.97:
            cluster.put_pod(replace(pod, phase="Succeeded"))
            cluster.drop_pod(uid)
        if number % (REFRESH // 2) == 0:
            cached = [scored(cluster, request, names) for request in REQUESTS]
            cluster.forget_answers()
            assert [scored(cluster, request, names) for request in REQUESTS] == cached
            mixes.add(str(cached))
    assert len(mixes) > 3  # they did change


def test_what_was_worked_out_for_an_old_mix_takes_nothing_away() -> None:
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    cluster.put_record(machine("dgx1-v100").topology("node"), Report())
    request = gpu_request(2, NVLINK)
    before = scored(cluster, request, ["node"])
    late = PlacementCost(UNKNOWN, (0.0,))
    seen = cluster.snapshot()
    ([class_id], _) = class_ids_of(seen, request.resource, ["node"])
    assert class_id is not None
    seen.answers.put(request, {}, {class_id: late}, (RequestClass(7),))
    assert seen.answers.known(request, [class_id], seen.mix, stores=True)[1], "it is weighed"
    assert scored(cluster, request, ["node"]) == before
