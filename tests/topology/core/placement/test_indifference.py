"""The assessment of a pod for which any GPUs will do equals the one computed step by step."""

from itertools import combinations
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scheduler_extender.framework.nodedecision import pod_capacity
from tests.scheduler_extender.verbs.test_gangs import gang, on
from topology.core.admission import DeviceManager
from topology.core.allocators import Call
from topology.core.allocators.best_effort import BEST_EFFORT
from topology.core.availability import Availability, Holder, Unacknowledged, unacknowledged_order
from topology.core.budget import SPENT
from topology.core.devices import NodeName
from topology.core.graph import AllocatorConfig
from topology.core.links import LinkKind
from topology.core.placement import Verdict, assess, endangers, keeps, verdict
from topology.core.placement.indifference import indifferent_to, pool_sizes
from topology.core.possiblestates import possible_states
from topology.core.requests import Constraints, GpuRequest, Role, gpu_request
from topology.machines import MACHINES, machine

NVLINK = Constraints(link=LinkKind.NVLINK)
CONFIGS = AllocatorConfig("best-effort", topology_manager_policy="none", plugin_version="0.19.3")
STEP_BY_STEP, AT_ONCE = 99, -1
SMALL = sorted(name for name in MACHINES if len(machine(name).topology(NodeName("n")).gpus) <= 8)


def node(kind: str) -> DeviceManager:
    return DeviceManager(machine(kind).topology(NodeName("n")).shape, CONFIGS)


@pytest.mark.parametrize("name", SMALL)
def test_no_pool_of_a_small_machine_is_refused_where_none_should_be(name: str) -> None:
    shape = machine(name).topology(NodeName("n")).shape
    for size in range(1, shape.size + 1):
        for count in range(size, shape.size + 1):
            if not BEST_EFFORT.never_refuses(shape, size, frozenset({count})):
                assert not BEST_EFFORT.never_refuses(shape, size, None)
                continue
            for pool in combinations(range(shape.size), count):
                found = BEST_EFFORT.outcomes(Call(shape, sum(1 << p for p in pool), size))
                assert not found.hazards
                assert found.sets is None or found.sets


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
    Unacknowledged,
    counts,
    promised=st.sampled_from((Constraints(), NVLINK)),
    terminating=st.booleans(),
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
        unacknowledged=unacknowledged_order(coming),
        sick=draw(st.sampled_from((0, 0, 1))),
    )


@pytest.mark.parametrize("kind", ["hgx-a100-4", "hgx-h100-8", "dgx-a100", "dgx1-v100", "l40s-4"])
@given(st.data())
def test_what_is_promised_at_once_is_promised_step_by_step(kind: str, data: st.DataObject) -> None:
    kubelet = node(kind)
    availability = data.draw(states(kubelet.shape.size))
    wanted = data.draw(st.sampled_from((Constraints(), NVLINK)))
    request = gpu_request(data.draw(st.integers(1, 4)), wanted)
    if request.effective_count > availability.devices_left:
        return
    at_once, slow = (_assessed(kubelet, availability, request, n) for n in (AT_ONCE, STEP_BY_STEP))
    if at_once.verdict is Verdict.GUARANTEED:
        assert slow.verdict is Verdict.GUARANTEED or _too_much(kubelet, availability, request)
    pod = Unacknowledged(
        request.counts, request.constraints, survives_endings=data.draw(st.booleans())
    )
    if keeps(kubelet, availability, pod).every:
        with patch.object(verdict, "indifferent_to", lambda *_: None):
            kept = keeps(kubelet, availability, pod).every
        assert kept or _too_much(kubelet, availability, request)


@pytest.mark.parametrize("kind", ["hgx-a100-4", "hgx-h100-8", "dgx1-v100", "l40s-4"])
@given(st.data())
def test_every_number_of_free_gpus_is_predicted(kind: str, data: st.DataObject) -> None:
    """Followed step by step, the pods leave no other number."""
    kubelet = node(kind)
    availability = data.draw(states(kubelet.shape.size))
    found = possible_states(
        kubelet, availability.outcome_key(endings=True), endings=True
    ).free_states
    assume(found is not None)
    assert found
    left = {state.free.bit_count() for state in found}
    assert left <= pool_sizes(kubelet, availability)
    if not availability.running and all(
        len(pod.counts) == 1 for pod in availability.unacknowledged
    ):
        assert max(pool_sizes(kubelet, availability)) == max(left)


def _too_much(kubelet: DeviceManager, availability: Availability, request: GpuRequest) -> bool:
    """Whether the steps are too many to be followed."""
    found = verdict._outlook_of(kubelet, availability, request, endings=True)
    return SPENT in found.hazards or found.sets is None


def _assessed(
    kubelet: DeviceManager, availability: Availability, request: GpuRequest, followed: int
) -> verdict.Assessment:
    with patch.object(verdict, "FOLLOWED", followed):
        return verdict._assess(kubelet, availability, request)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("dgx2", (2,) * 8),
        ("dgx2", (4,) * 4),
        ("dgx2", (8, 8)),
        ("dgx2", (3, 3, 3, 3, 3)),
        ("dgx2", (4, 2, 4, 2, 4)),
        ("dgx2", (2, 2, 2, 2, 4, 4)),
        ("dgx2", (5, 5, 5)),
        ("hgx-h100-8", (3, 3)),
        ("hgx-h100-8", (2, 4, 2)),
    ],
)
def test_linked_pods_fill_a_machine(kind: str, sizes: tuple[int, ...]) -> None:
    """Each is guaranteed beside the others, none of which a report shows yet: no number of GPUs
    that these pods may leave each other makes the plugin fail."""
    kubelet = node(kind)
    for at, size in enumerate(sizes):
        earlier = [Unacknowledged(((Role.APP, n),), NVLINK, True) for n in sizes[:at]]
        availability = Availability(
            kubelet.shape.all_gpus, unacknowledged=unacknowledged_order(earlier)
        )
        request = gpu_request(size, NVLINK)
        assert assess(kubelet, availability, request).verdict is Verdict.GUARANTEED, at
        assert not endangers(kubelet, availability, request), at


@pytest.mark.parametrize(("many", "size"), [(8, 2), (5, 3)])
def test_a_gang_fills_a_machine_of_sixteen_linked_gpus(many: int, size: int) -> None:
    scheduler = on("dgx2")
    (config,) = scheduler.cluster.snapshot().nodes
    assert pod_capacity(config, gpu_request(size, NVLINK), scheduler.cluster.settings, 64) == many
    required = {"policy": "required", "group-domain": "node"}
    pods = [gang(f"m{i}", many, size, **required) for i in range(many)]
    assert all(scheduler.passing(each) for each in pods)
    assert {scheduler.bind(each, scheduler.names[0]) for each in pods} == {""}


def test_triples_beside_pairs_are_followed_for_the_plugin_may_fail() -> None:
    """Eight GPUs are two triples and a pair, which may score more than a triple on a DGX-2."""
    kubelet = node("dgx2")
    pairs = (Unacknowledged(((Role.APP, 2),)),) * 4
    availability = Availability(kubelet.shape.all_gpus, unacknowledged=pairs)
    assert 8 in pool_sizes(kubelet, availability)
    assert indifferent_to(kubelet, availability, ((Role.APP, 3),), NVLINK) is None
    assert indifferent_to(kubelet, availability, ((Role.APP, 2),), NVLINK) is not None


def test_pairs_that_must_be_linked_are_still_distinguished_on_a_cube_mesh() -> None:
    """Any pair may come there, so what comes first matters, and is followed."""
    scheduler = on("dgx1-v100")
    (config,) = scheduler.cluster.snapshot().nodes
    assert pod_capacity(config, gpu_request(4, NVLINK), scheduler.cluster.settings, 64) == 2
    scattered = on("dgx1-v100", free=[1, 2, 3, 4])
    assert not any(scattered.passing(gang(f"m{i}", 2, policy="required")) for i in range(2))
