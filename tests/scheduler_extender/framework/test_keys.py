"""Nodes whose keys are equal answer every request alike."""

from dataclasses import replace
from itertools import product

import pytest

from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.node.objects import AgentRecord, NodeObject
from topology.core.devices import GpuResource, NodeName
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.report import Report
from topology.core.requests import GpuRequest, Policy, gpu_request

GPU = "nvidia.com/gpu"
POLICIES = ("best-effort", "any", "dra", "a policy of tomorrow")


def unserved(policy: str, advertised: int) -> NodeInfo:
    """A node whose record serves another resource than its Node object advertises."""
    served = (GpuResource("nvidia.com/other"),)
    made = NodeTopology(NodeName("n"), (), allocator=AllocatorConfig(policy), resources=served)
    advertises = NodeObject(exists=True, allocatable=((GPU, 1000 * advertised),))
    return NodeInfo(NodeName("n"), node_object=advertises, record=AgentRecord(made, Report("b")))


@pytest.mark.parametrize("by_implicit_name", [False, True])
@pytest.mark.parametrize("policy", Policy)
def test_of_a_resource_that_the_record_does_not_serve(
    policy: Policy, *, by_implicit_name: bool
) -> None:
    request: GpuRequest = replace(gpu_request(1), policy=policy, by_implicit_name=by_implicit_name)
    found: dict[object, object] = {}
    for allocator, advertised in product(POLICIES, (0, 4)):
        info = unserved(allocator, advertised)
        answer = decide(info, request, Settings()).rejection
        assert found.setdefault(info.key(GPU), answer) == answer, (allocator, advertised)
    assert len(found) > 1
