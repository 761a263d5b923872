"""Protocol mode scores by the shipping formula: where both models can say a thing, they agree.

That is whole GPUs that need no links, or shares of one size, on nodes with CPU to spare.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.model import WHOLE, NodeKind, Nodes, PodKind
from benchmarks.papers.policies import CAPACITY_PART, POLICIES, STEP, Typical
from tests.nodes import (
    guaranteed_capacity,
    pcie,
    score_of,
)
from topology.core.admission import DeviceManager
from topology.core.availability import Availability
from topology.core.devicesets import pack
from topology.core.graph import AllocatorConfig
from topology.core.guaranteedcapacity import RequestClass
from topology.core.placement import assess
from topology.core.requests import gpu_request
from topology.core.scoring import RequestMix

sizes = st.sampled_from([1, 2, 4, 8])
# Fewer than twenty, so that none is too rare to be typical.
usual = st.lists(sizes, min_size=1, max_size=19)
free_gpus = st.lists(st.booleans(), min_size=1, max_size=8)


def fragmentation_cost_of(
    kubelet: DeviceManager, availability: Availability, count: int, weights: RequestMix
) -> float:
    request = gpu_request(count)
    assessed = assess(kubelet, availability, request)
    return score_of(kubelet, availability, request, assessed, weights).fragmentation_cost


def papers(free: list[int]) -> Nodes:
    """A node with so much left of its GPUs, in the papers' model."""
    found = Nodes.empty([NodeKind(10**6, 10**6, len(free), "T4")], ["T4"])
    found.gpu[0, : len(free)] = free
    return found


def capacity_of(typical: Typical, nodes: Nodes) -> float:
    return float(typical.guaranteed_capacity(nodes.cpu, nodes.gpu, nodes.model)[0])


def mix(counts: list[int]) -> RequestMix:
    return tuple((RequestClass(k), n / len(counts)) for k, n in Counter(counts).items())


@given(free_gpus, usual, sizes)
def test_whole_gpus(free: list[bool], counts: list[int], wanted: int) -> None:
    kubelet = DeviceManager(pcie(len(free)).shape, AllocatorConfig("best-effort"))
    pool = pack(map(int, free), kubelet.width)
    typical = Typical([PodKind(1, 1, k, WHOLE) for k in counts], ["T4"])
    nodes = papers([WHOLE * f for f in free])
    before = capacity_of(typical, nodes)
    assert before == pytest.approx(WHOLE * guaranteed_capacity(kubelet, pool, mix(counts)))
    if sum(free) < wanted:
        return
    pod = PodKind(1, 1, wanted, WHOLE)
    score = POLICIES["Guaranteed capacity"](nodes, pod, typical).scores[0]
    nodes.take(0, pod, np.flatnonzero(free)[:wanted].tolist())
    fragmentation_cost = fragmentation_cost_of(kubelet, Availability(pool), wanted, mix(counts))
    assert before - capacity_of(typical, nodes) == pytest.approx(WHOLE * fragmentation_cost)
    assert score == pytest.approx(-CAPACITY_PART * WHOLE * fragmentation_cost / STEP, abs=1 + 1e-6)


@given(st.sampled_from([2, 4, 5, 8]), st.data())
def test_shares_of_one_size_are_replicas(replicas: int, data: st.DataObject) -> None:
    """A replica is a device there and a part of a GPU here, so guaranteed capacity differs by that
    part."""
    left = data.draw(st.lists(st.integers(0, replicas), min_size=1, max_size=8))
    part = WHOLE // replicas
    kubelet = DeviceManager(pcie(len(left)).shape, AllocatorConfig("packed"), replicas)
    pool = pack(left, kubelet.width)
    share = PodKind(1, 1, 1, part)
    typical = Typical([share], ["T4"])
    nodes = papers([part * n for n in left])
    before = capacity_of(typical, nodes)
    assert before == pytest.approx(part * guaranteed_capacity(kubelet, pool, mix([1])))
    if any(left):
        nodes.take(0, share, [next(i for i, n in enumerate(left) if n)])
        availability = Availability(pool, width=kubelet.width)
        fragmentation_cost = fragmentation_cost_of(kubelet, availability, 1, mix([1]))
        assert before - capacity_of(typical, nodes) == pytest.approx(part * fragmentation_cost)
