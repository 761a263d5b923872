"""A group that has begun is bound whole, beside places that yield to some of its members only."""

import random

import msgspec
import pytest

from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.verbs.filtering import filtered
from scheduler_extender.wire import Pod
from tests.nodes import bridged, pod, record_of, switched
from topology.core.devices import NodeName
from topology.core.report import Report

NVLINK = {"link": "nvlink"}
ASKS = NVLINK, {"min-gpu-memory": "1Gi"}


@pytest.mark.parametrize("seed", range(130))
def test_a_group_of_several_priorities_is_bound_whole_beside_nominated_pods(seed: int) -> None:
    rng, cluster = random.Random(seed), Cache(lambda: 0.0)
    names = [f"n{number}" for number in range(rng.randint(2, 5))]
    for name in names:
        cluster.put_record(rng.choice((switched, bridged))(4, name), Report("boot", 1))
        labels = {"pool": rng.choice("ab")}
        cluster.put_node(NodeName(name), NodeObject(exists=True, labels=labels))
    domain = {"group": "g", "group-size": "3", "group-domain": rng.choice(("pool", "node"))}
    asks, gpus, left = rng.choice(ASKS) | domain, rng.choice((1, 2, 4)), []
    for number in range(3):
        member = pod(gpus, asks, name=f"m{number}", uid=f"m{number}")
        member["spec"]["priority"] = rng.choice((0, 10, 20))
        cluster.put_pod(record_of(member))
        left.append(member)
    for number in range(rng.randint(0, 3)):
        node, name = rng.choice(names), f"nominee{number}"
        nominee = pod(rng.choice((1, 2, 4)), NVLINK, name=name, uid=name, nominatedNodeName=node)
        nominee["spec"]["priority"] = rng.choice((5, 15))
        cluster.put_pod(record_of(nominee))
    rng.shuffle(left)
    for _ in range(3):
        open_to = [filtered(cluster.snapshot(), msgspec.convert(each, Pod), names) for each in left]
        goes = next((each for each, found in zip(left, open_to, strict=True) if found.passed), None)
        if goes is None:
            break
        goes["spec"]["nodeName"] = rng.choice(open_to[left.index(goes)].passed)
        cluster.put_pod(record_of(goes))
        left.remove(goes)
    assert len(left) in (0, 3)
