"""What is told of a pod for which any GPUs will do, beside the same worked out step by step."""

from __future__ import annotations

from itertools import combinations
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.property.test_laws import nodes
from topology.core.admission import Kubelet
from topology.core.allocators import Call
from topology.core.allocators.best_effort import BEST_EFFORT
from topology.core.availability import Availability, Holder, Unreported, unreported_order
from topology.core.belief import free_states
from topology.core.budget import SPENT
from topology.core.devices import NodeName
from topology.core.graph import AllocatorFacts, NodeTopology
from topology.core.links import LinkKind
from topology.core.placement import Verdict, assess, keeps, verdict
from topology.core.placement.indifference import pool_sizes
from topology.core.requests import Constraints, Counts, GpuRequest, Role, gpu_request
from topology.machines import machine

NVLINK = Constraints(link=LinkKind.NVLINK)
FACTS = AllocatorFacts("best-effort", topology_manager_policy="none", plugin_version="0.19.3")
STEP_BY_STEP, AT_ONCE = 99, -1


def node(kind: str) -> Kubelet:
    return Kubelet(machine(kind).topology(NodeName("n")).shape, FACTS)


@given(nodes(most=6), st.integers(1, 4))
def test_whom_the_plugin_refuses_nothing_it_refuses_nothing_on_any_free_gpus(
    topology: NodeTopology, size: int
) -> None:
    shape = topology.shape
    if not BEST_EFFORT.never_refuses(shape, size, None):
        return
    for count in range(size, shape.size + 1):
        for free in combinations(range(shape.size), count):
            found = BEST_EFFORT.outcomes(Call(shape, sum(1 << p for p in free), size))
            assert found.hazards == ()
            assert found.sets
            assert all(each.bit_count() == size for each in found.sets)


@pytest.mark.parametrize(
    ("kind", "sizes"), [("dgx2", {1, 2}), ("hgx-h100-8", {1, 2}), ("dgx1-v100", {1, 2})]
)
def test_pairs_are_never_refused(kind: str, sizes: set[int]) -> None:
    shape = node(kind).shape
    assert {size for size in (1, 2) if BEST_EFFORT.never_refuses(shape, size, None)} == sizes


def test_where_the_plugin_may_panic_it_is_not_called_safe() -> None:
    """Of triples on a DGX A100 NVIDIA's plugin may choose the set with a blank."""
    shape = node("dgx-a100").shape
    refused = {
        size
        for size in range(2, 8)
        for count in range(size, 9)
        for free in combinations(range(8), count)
        if BEST_EFFORT.outcomes(Call(shape, sum(1 << p for p in free), size)).hazards
    }
    assert refused == {3}
    assert not BEST_EFFORT.never_refuses(shape, 3, None)
    assert BEST_EFFORT.never_refuses(shape, 2, None)


counts = st.one_of(
    st.tuples(st.tuples(st.just(Role.APP), st.integers(1, 4))),
    st.tuples(
        st.tuples(st.sampled_from((Role.INIT, Role.SIDECAR)), st.integers(1, 2)),
        st.tuples(st.just(Role.APP), st.integers(0, 3)),
    ),
)
pods = st.builds(
    Unreported, counts, promised=st.sampled_from((Constraints(), NVLINK)), ending=st.booleans()
)


@st.composite
def states(draw: st.DrawFn, size: int) -> Availability:
    free = (1 << size) - 1
    running: list[Holder] = []
    for gpu in range(size):
        if draw(st.booleans()) and len(running) < 2:
            running.append(Holder(1 << gpu))
            free &= ~(1 << gpu)
    coming = draw(st.lists(pods, max_size=3))
    return Availability(
        free,
        running=tuple(running),
        unreported=unreported_order(coming),
        sick=draw(st.sampled_from((0, 0, 1))),
    )


@pytest.mark.parametrize("kind", ["hgx-a100-4", "hgx-h100-8", "dgx-a100", "dgx1-v100", "l40s-4"])
@given(st.data())
def test_what_is_promised_at_once_is_promised_step_by_step(kind: str, data: st.DataObject) -> None:
    kubelet = node(kind)
    now = data.draw(states(kubelet.shape.size))
    wanted = data.draw(st.sampled_from((Constraints(), NVLINK)))
    request = gpu_request(data.draw(st.integers(1, 4)), wanted)
    if request.effective_count > now.devices_left:
        return
    at_once, slow = (_assessed(kubelet, now, request, n) for n in (AT_ONCE, STEP_BY_STEP))
    if at_once.verdict is Verdict.GUARANTEED:
        assert slow.verdict is Verdict.GUARANTEED or _too_much(kubelet, now, request)
    pod = Unreported(request.counts, request.constraints, survives_endings=data.draw(st.booleans()))
    if keeps(kubelet, now, pod).every:
        with patch.object(verdict, "indifferent_to", lambda *_: None):
            kept = keeps(kubelet, now, pod).every
        assert kept or _too_much(kubelet, now, request)


@pytest.mark.parametrize("kind", ["hgx-a100-4", "hgx-h100-8", "dgx1-v100", "l40s-4"])
@given(st.data())
def test_every_number_of_free_gpus_is_foreseen(kind: str, data: st.DataObject) -> None:
    """Followed step by step, the pods leave no other number."""
    kubelet = node(kind)
    now = data.draw(states(kubelet.shape.size))
    found = free_states(kubelet, now.outcome_key(endings=True), endings=True)
    assume(found is not None)
    assert found
    left = {state.free.bit_count() for state in found}
    assert left <= pool_sizes(kubelet, now)
    if not now.running and all(len(pod.counts) == 1 for pod in now.unreported):
        assert max(pool_sizes(kubelet, now)) == max(left)


def _too_much(kubelet: Kubelet, now: Availability, request: GpuRequest) -> bool:
    """Whether the steps are too many to be followed."""
    found = verdict._outlook_of(kubelet, now, request, endings=True)
    return SPENT in found.hazards or found.sets is None


def _assessed(
    kubelet: Kubelet, now: Availability, request: GpuRequest, followed: int
) -> verdict.Assessment:
    with patch.object(verdict, "FOLLOWED", followed):
        return verdict._assess(kubelet, now, request)


@pytest.mark.parametrize(("size", "many"), [(2, 8), (4, 4), (8, 2)])
def test_linked_pods_fill_a_machine_of_sixteen_gpus(size: int, many: int) -> None:
    """Each is guaranteed beside the others, none of which a report shows yet."""
    kubelet, wanted = node("dgx2"), gpu_request(size, NVLINK)
    each: Counts = ((Role.APP, size),)
    for coming in range(many):
        now = Availability(0xFFFF, unreported=(Unreported(each, NVLINK, True),) * coming)
        assert assess(kubelet, now, wanted).verdict is Verdict.GUARANTEED, coming
    full = Availability(0xFFFF, unreported=(Unreported(each, NVLINK, True),) * many)
    assert assess(kubelet, full, wanted).verdict is Verdict.IMPOSSIBLE
