"""``--refusals``: which kubelets a pod is not sent to, plain pods included."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler_extender.framework.possiblerefusals import MAY_REFUSE
from scheduler_extender.state.answers.decision import Refusals, Settings
from tests.nodes import pod
from tests.scheduler_extender.serving import running
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.placement import Verdict
from topology.machines import machine


def dgx(name: str, policy: str, managers: str | None = "none") -> NodeTopology:
    """Two NUMA nodes of four GPUs."""
    memory = "None" if managers else None
    config = AllocatorConfig("best-effort", None, policy, "container", managers, memory)
    return replace(machine("dgx1-v100").topology(name), allocator=config)


SURE = dgx("sure", "none")
STRICT = dgx("strict", "single-numa-node")
# Its CPU Manager may have hints that nobody tells us of, and may refuse.
UNASKED = dgx("unasked", "single-numa-node", managers=None)
NODES = (SURE, STRICT, UNASKED)
NAMES = [node.name for node in NODES]


def pinned(count: int, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """A pod of the class Guaranteed with whole CPUs: a static CPU Manager gives hints for it."""
    limits = {"nvidia.com/gpu": str(count), "cpu": "2", "memory": "1Gi"}
    return pod(None, annotations, containers=[{"name": "main", "resources": {"limits": limits}}])


FIVE, TWO = pinned(5), pinned(2)
NO_NODE = "Topology Manager single-numa-node: the node can never align 5 GPUs"


def under(refusals: Refusals) -> Settings:
    return Settings(Verdict.EXPECTED, None, refusals=refusals)


def answer(settings: Settings, asking: dict[str, Any], *nodes: NodeTopology) -> dict[str, Any]:
    with running(*nodes, settings=settings) as service:
        return service.filter(asking, *(node.name for node in nodes))


@pytest.mark.parametrize("annotations", [{}, {"link": "nvlink", "policy": "preferred"}])
def test_a_pod_is_not_sent_where_it_is_refused_for_certain(annotations: dict[str, str]) -> None:
    found = answer(under(Refusals.CERTAIN), pinned(5, annotations), *NODES)
    assert found["NodeNames"] == ["sure"]
    assert found["FailedAndUnresolvableNodes"] == {"strict": NO_NODE, "unasked": NO_NODE}


def test_ignored_refusals_are_left_to_the_kubelet() -> None:
    assert answer(under(Refusals.IGNORE), FIVE, *NODES)["NodeNames"] == NAMES


def test_a_possible_refusal_keeps_a_pod_off_only_while_others_are_left() -> None:
    possible = under(Refusals.POSSIBLE)
    found = answer(possible, TWO, *NODES)
    assert found["NodeNames"] == ["sure", "strict"]
    assert found["FailedNodes"] == {"unasked": MAY_REFUSE.message}
    assert answer(possible, TWO, UNASKED)["NodeNames"] == ["unasked"]
    assert answer(under(Refusals.CERTAIN), TWO, *NODES)["NodeNames"] == NAMES


def test_scores_steer_away_from_a_kubelet_that_may_refuse() -> None:
    with running(*NODES, settings=under(Refusals.CERTAIN)) as service:
        found = service.prioritize(TWO, *NAMES)
        assert found["unasked"] < min(found["sure"], found["strict"])


def test_a_bind_is_refused_too() -> None:
    with running(*NODES, settings=under(Refusals.CERTAIN)) as service:
        assert service.filter(FIVE, *NAMES)["NodeNames"] == ["sure"]
        assert NO_NODE in service.bind(FIVE, "strict")
        assert service.bind(FIVE, "sure") == ""
