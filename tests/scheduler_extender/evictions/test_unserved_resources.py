"""A node that does not serve the resource asked for: it takes no pod, and nothing fails over it."""

from dataclasses import replace

import msgspec
import pytest

from scheduler_extender.explain.evictions import eviction_advice
from scheduler_extender.kube.waker import Waker
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.attributes import SchedulingAttributes, amounts_of
from scheduler_extender.verbs import filter_nodes, preempt
from scheduler_extender.wire import MetaPod, MetaVictims, Pod, PreemptionArgs
from tests.nodes import pod
from tests.scheduler_extender.evictions.scenes import NVLINKED, Held, cluster_of, waiting
from topology.core.devices import GpuResource
from topology.core.placement import ALL_SPLIT_BY_MIG
from topology.core.requests import Policy, gpu_request
from topology.kubeapi.apiserver import ApiServer
from topology.machines import machine
from topology.machines.mig import cut

MIG = cut(machine("hgx-a100-4").topology("a-mig"), ["3g.40gb", "3g.40gb"])
WHOLE = machine("hgx-a100-4").topology("whole")
ASKS = {
    "plain": (gpu_request(2), {}),
    "preferred": (
        replace(gpu_request(2, NVLINKED), policy=Policy.PREFERRED),
        {"link": "nvlink", "policy": "preferred"},
    ),
    "required": (gpu_request(2, NVLINKED), {"link": "nvlink"}),
}
ADVERTISES = {
    "only MIG by its Node object": {"nvidia.com/mig-3g.40gb": 2},
    "whole GPUs by its Node object": {"nvidia.com/gpu": 4},
    "nobody knows what": None,
}


class NoApi(ApiServer):
    """An API server that no test may ask."""

    def __init__(self) -> None:
        pass

    def patch(self, path: str, body: bytes, *, timeout: float) -> bytes:
        raise AssertionError(path)


@pytest.fixture(params=ADVERTISES)
def cluster(request: pytest.FixtureRequest) -> Cache:
    found = cluster_of({MIG: {}, WHOLE: {"runs": Held((0, 1, 2))}})
    given = ADVERTISES[request.param]
    allocatable = None if given is None else amounts_of({**given, "pods": 110})
    found.put_node(MIG.name, NodeObject(allocatable=allocatable))
    return found


@pytest.mark.parametrize("kind", ASKS)
def test_unblock_and_preempt_answer(cluster: Cache, kind: str) -> None:
    """They name the node that serves the resource, and never the other one."""
    asks, annotations = ASKS[kind]
    cluster.put_pod(waiting("wants", asks, SchedulingAttributes(1)))
    found = eviction_advice(cluster, "team", "wants")
    assert found is not None
    assert found.plan is not None
    assert found.plan.node == WHOLE.name
    manifest = pod(2, annotations, name="wants", uid="wants")
    manifest["spec"]["priority"] = 1
    asked = msgspec.convert(manifest, Pod)
    offered: dict[str, MetaVictims | None] = {
        MIG.name: MetaVictims([MetaPod("unknown")], 0),
        WHOLE.name: MetaVictims([MetaPod("runs")], 0),
    }
    kept = preempt(cluster, PreemptionArgs(asked, meta_victims=offered)).meta_victims
    assert WHOLE.name in kept
    assert cluster.faults.count == 0


@pytest.mark.parametrize("kind", ASKS)
def test_filter_rejects_it_and_no_pod_is_woken_for_it(kind: str) -> None:
    found = cluster_of({MIG: {}})
    asks, annotations = ASKS[kind]
    found.put_pod(waiting("wants", asks))
    asked = msgspec.convert(pod(2, annotations, name="wants", uid="wants"), Pod)
    answer = filter_nodes(found, asked, [MIG.name])
    assert answer.unresolvable == {MIG.name: ALL_SPLIT_BY_MIG.message}
    waker = Waker(found, NoApi())
    found.tell_of_all_nodes()
    waker.round(1.0)
    assert (waker.looks > 0, waker.woken) == (True, 0)


def test_a_node_that_begins_to_advertise_the_resource_counts() -> None:
    """The agent's record says so later: until then the node counts as unknown."""
    shares = replace(WHOLE, resources=(GpuResource("nvidia.com/gpu.shared"),))
    found = cluster_of({shares: {}})
    asked = msgspec.convert(pod(2, name="wants", uid="wants"), Pod)
    for given, passing in (({}, []), ({"nvidia.com/gpu": 4}, [shares.name]), ({}, [])):
        found.put_node(shares.name, NodeObject(allocatable=amounts_of(given)))
        assert filter_nodes(found, asked, [shares.name]).node_names == passing
