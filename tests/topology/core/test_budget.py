"""A budget changes no answer of a machine of the catalogue, and bounds all others."""

import json
import tracemalloc

import pytest

from benchmarks.speed.worst import sparse
from tests.nodes import score_of
from tests.topology import answerdigests
from topology.core import memo
from topology.core.admission import DeviceManager, admissions, container_sets
from topology.core.availability import Availability, Holder, Unacknowledged
from topology.core.budget import SPENT
from topology.core.devices import MIB, Bytes, NodeName
from topology.core.graph import AllocatorConfig
from topology.core.links import LinkKind
from topology.core.placement import TOO_MUCH, Verdict, assess, endangers, verdict
from topology.core.requests import (
    Constraints,
    ContainerRequest,
    Counts,
    GpuRequest,
    Pattern,
    Role,
    gpu_request,
)
from topology.core.scoring import PRIOR, Score, normalized_scores
from topology.machines import MACHINES, machine

RING = Constraints(link=LinkKind.NVLINK, pattern=Pattern.RING)


@pytest.mark.parametrize(
    "name", ["dgx1-v100", "p3.8xlarge", "ac922-6", "hgx-h100-8", "l40s-8", "titanv-8", "dgx2"]
)
def test_no_answer_of_the_catalogue_is_changed(name: str) -> None:
    recorded = json.loads(answerdigests.TABLE.read_text())
    assert answerdigests.answers(name) == recorded[name]


def test_every_machine_is_recorded() -> None:
    assert set(json.loads(answerdigests.TABLE.read_text())) == set(MACHINES)


def _sparse(n: int, policy: str) -> DeviceManager:
    return DeviceManager(
        sparse(NodeName("n"), n, 2, AllocatorConfig(policy)).shape, AllocatorConfig(policy)
    )


def test_a_ring_that_is_not_found_is_neither_promised_nor_ruled_out() -> None:
    node = _sparse(24, "any")
    found = assess(node, Availability(node.shape.all_gpus), gpu_request(24, RING))
    assert found.verdict is not Verdict.NEVER
    assert found.rejection is None or found.rejection.resolvable


def test_init_containers_that_change_nothing_cost_nothing() -> None:
    node = DeviceManager(machine("dgx2").topology("n").shape, AllocatorConfig("best-effort"))
    few: Counts = ((Role.INIT, 2), (Role.APP, 1))
    many: Counts = ((Role.INIT, 2),) * 1500 + ((Role.APP, 1),)
    free = node.shape.all_gpus
    assert admissions(node, free, many).ways == admissions(node, free, few).ways
    assert admissions(node, free, many).steps < 2 * admissions(node, free, few).steps


def _greedy_pod() -> GpuRequest:
    containers = tuple(ContainerRequest(f"c{n}", 1 + n % 3) for n in range(8))
    return GpuRequest("nvidia.com/gpu", containers, Constraints(min_gpu_memory=Bytes(1)))


def test_what_is_over_budget_is_not_promised_and_refuses_a_bind() -> None:
    node = _sparse(16, "best-effort")
    now = Availability(node.shape.all_gpus)
    request = _greedy_pod()
    memo.forget()
    cold = assess(node, now, request)
    assert cold.rejection == TOO_MUCH
    assert SPENT in cold.hazards
    assert not cold.verdict.holds
    # The same, whatever is remembered.
    for count in (1, 2, 3):
        admissions(node, node.shape.all_gpus, ((Role.APP, count),))
    assert verdict._assessed.__wrapped__(node, now, request) == cold  # type: ignore[attr-defined]
    promise = Unacknowledged(request.counts, promised=request.constraints)
    assert endangers(
        node, Availability(node.shape.all_gpus, unacknowledged=(promise,)), gpu_request(1)
    )
    assert container_sets(node, now.free, request.counts)[-1] is None


def test_many_pods_that_may_end_between_hint_and_devices_take_no_memory() -> None:
    """Any of eighteen pods may have released its instance by then: that is 262,144 ways, which are
    too many to follow and must not be listed to find that out."""
    config = AllocatorConfig("distributed", "v0.19.3", "restricted")
    node = DeviceManager(machine("dgx2").topology("n").shape, config)
    releasing = tuple(1 << i % 8 for i in range(18))
    tracemalloc.start()
    try:
        found = admissions(node, 0xFF00, ((Role.APP, 1),), releasing=releasing)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.sets, SPENT in found.hazards) == (None, True)
    assert most < 4 * MIB


def test_a_score_that_is_over_budget_is_in_the_middle() -> None:
    request = gpu_request(1)
    low, high = Score(Verdict.GUARANTEED, 2.0), Score(Verdict.GUARANTEED, 1.0)
    unknown = Score(Verdict.GUARANTEED, measured=False)
    assert normalized_scores(request, [low, high, unknown]) == {low: 0, high: 10, unknown: 5}


def test_a_large_node_under_any_is_scored() -> None:
    node = _sparse(64, "any")
    now = Availability(node.shape.all_gpus, running=(Holder(0, 1),))
    request = gpu_request(2)
    assert score_of(node, now, request, assess(node, now, request), PRIOR).measured


def test_memories_hold_no_more_than_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    memo.forget()
    monkeypatch.setattr(memo, "BYTES", 200_000)
    node = DeviceManager(machine("dgx1-v100").topology("n").shape, AllocatorConfig("best-effort"))
    for free in range(1, 256):
        assess(node, Availability(free), gpu_request(1, RING))
        assert memo._now.bytes <= 100_000
    held = sum(len(m.young) + len(m.old) for m in list(memo._memos))
    assert 0 < held < 255 * 2
    memo.forget()
