"""MIG instances in the place of GPUs: positions, verdicts against every choice, cost."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest

from tests.nodes import unacknowledged
from topology.core.admission import DeviceManager, device_manager_of
from topology.core.availability import Availability, Holder, Unacknowledged
from topology.core.devices import MIB, Bytes, GpuResource
from topology.core.devicesets import pack
from topology.core.graph import AllocatorConfig, NodeTopology, TopologyError
from topology.core.links import LinkKind
from topology.core.mig import ServedDevices, served_devices
from topology.core.placement import Assessment, Verdict, assess, endangers
from topology.core.requests import Constraints, gpu_request
from topology.core.scoring import opened_gpus
from topology.machines import machine
from topology.machines.mig import cut

SMALL = "nvidia.com/mig-1g.5gb"
GIB = 1024 * MIB
STOCK = AllocatorConfig("distributed", "v0.19.3")


def sliced(profiles: Sequence[str], name: str = "dgx-a100", **how: Any) -> NodeTopology:
    return replace(cut(machine(name).topology("n"), profiles, **how), allocator=STOCK)


def served(node: NodeTopology, resource: str) -> ServedDevices:
    found = node.resource(resource)
    assert found is not None
    return served_devices(node, found)


def kubelet(node: NodeTopology, resource: str) -> DeviceManager:
    found = node.resource(resource)
    assert found is not None
    return device_manager_of(node, found)


def all_free(node: NodeTopology, resource: str) -> Availability:
    devices, width = served(node, resource), kubelet(node, resource).width
    return Availability(pack(devices.counts, width), width=width)


# --- Positions ------------------------------------------------------------------------------------


def test_equal_instances_of_a_gpu_are_one_position() -> None:
    devices = served(sliced(["1g.5gb"] * 7, strategy="single"), "nvidia.com/gpu")
    assert devices.counts == (7,) * 8
    assert devices.indices(0b101) == (0, 2)


def test_a_resource_of_the_mixed_strategy_has_the_instances_of_its_profile() -> None:
    node = sliced(["3g.20gb", "1g.5gb", "1g.5gb"], gpus=[1, 3])
    devices = served(node, SMALL)
    assert (devices.counts, devices.indices_of) == ((2, 2), (1, 3))
    assert set(devices.position_of) == {
        part.uuid
        for gpu in node.gpus
        for part in gpu.mig_instances
        if part.profile == "1g.5gb"
    }  # fmt: skip


def test_a_profile_with_attributes_is_found_by_the_plugins_name() -> None:
    node = sliced(["1g.5gb+me", "1g.5gb"], gpus=[0])
    assert served(node, "nvidia.com/mig-1g.5gb.me").counts == (1,)
    assert served(node, SMALL).counts == (1,)


def as_before_0_20(node: NodeTopology) -> NodeTopology:
    """The node as plugins before v0.20 serve it: profiles with a suffix, and compute instances, as
    the resource of the profile that their name holds."""
    answer = (GpuResource(name, "mig") for name in (SMALL, "nvidia.com/mig-2g.10gb"))
    return replace(node, resources=(GpuResource(), *answer))


def test_an_older_plugin_serves_a_profile_under_a_name_that_it_holds() -> None:
    node = as_before_0_20(sliced(["1g.5gb+me", "1g.5gb", "1g.5gb", "1c.2g.10gb"], gpus=[0, 2]))
    small, large = served(node, SMALL), served(node, "nvidia.com/mig-2g.10gb")
    assert (small.counts, small.indices_of) == ((1, 2, 1, 2), (0, 0, 2, 2))
    assert (large.counts, large.indices_of) == ((1, 1), (0, 2))


def test_nothing_is_promised_that_an_instance_with_a_suffix_can_break() -> None:
    """It lies on another GPU, and an older plugin hands it out as if it had no suffix."""
    plain, media = sliced(["1g.5gb"] * 2, gpus=[0]), sliced(["1g.5gb+me"], gpus=[1])
    both = replace(plain, gpus=(plain.gpus[0], media.gpus[1], *plain.gpus[2:]))
    wanted = Constraints(same_gpu=True)
    assert judged(as_before_0_20(both), SMALL, 2, wanted).verdict is Verdict.NOT_GUARANTEED
    named = (*both.resources, GpuResource("nvidia.com/mig-1g.5gb.me", "mig"))
    assert judged(replace(both, resources=named), SMALL, 2, wanted).verdict is Verdict.GUARANTEED


def test_an_instance_has_its_own_memory_and_product_and_its_gpus_position() -> None:
    node = sliced(["3g.20gb"], gpus=[5])
    shape, gpu = served(node, "nvidia.com/mig-3g.20gb").shape, node.gpus[5]
    assert shape.products == ("a100-sxm4-40gb-mig-3g.20gb",)
    assert shape.memory == (gpu.mig_instances[0].memory,)
    assert (shape.numa, shape.nic) == ((gpu.numa_node,), (node.shape.nic[5],))


@pytest.mark.parametrize(
    "wanted",
    [lambda n: Constraints(min_gpu_memory=n), lambda n: Constraints(gpu_memory=n)],
    ids=["min-gpu-memory", "gpu-memory"],
)
def test_compute_instances_share_the_memory_of_their_gpu_instance(
    wanted: Callable[[Bytes], Constraints],
) -> None:
    """The driver shows each of them all of it; promised to each, it would be given out thrice."""
    for slices in (1, 2):
        node = sliced([f"{slices}c.3g.20gb"], gpus=[0])
        whole = node.gpus[0].mig_instances[0].memory
        resource, own = "nvidia.com/mig-3g.20gb", Bytes(whole * slices // 3)
        assert judged(node, resource, 1, wanted(own)).verdict is Verdict.GUARANTEED
        assert judged(node, resource, 1, wanted(Bytes(own + 1))).verdict is Verdict.NEVER


def test_instances_that_are_time_sliced_have_a_position_each() -> None:
    node = sliced(["1g.5gb"] * 7, gpus=[0], replicas=3)
    assert served(node, SMALL).counts == (3,) * 7
    assert served(node, SMALL).shape.by_gpu == ((1 << 7) - 1,)


def test_more_than_can_be_followed_is_a_problem() -> None:
    node = sliced(["1g.5gb"] * 7, "dgx2", replicas=2)
    assert "112 time-sliced MIG instances" in served(node, SMALL).problem


def test_what_no_plugin_serves_cannot_be_cut() -> None:
    whole = machine("dgx-a100").topology("n")
    refused: tuple[tuple[list[str], dict[str, Any]], ...] = (
        (["1g.5gb", "2g.10gb"], {"strategy": "single"}),
        (["1g.5gb"], {"strategy": "single", "gpus": [0]}),
        (["4g.20gb", "4g.20gb"], {}),
        (["small"], {}),
        (["1g.5gb"], {"gpus": [8]}),
    )
    for profiles, how in refused:
        with pytest.raises(TopologyError):
            cut(whole, profiles, **how)


# --- Verdicts -------------------------------------------------------------------------------------

CONSTRAINTS = {
    "one GPU": Constraints(same_gpu=True),
    "apart": Constraints(spread_gpus=True),
    "one NUMA node": Constraints(same_numa=True),
    "apart on one NUMA node": Constraints(spread_gpus=True, same_numa=True),
    "memory": Constraints(min_gpu_memory=Bytes(4 * GIB)),
    "too much memory": Constraints(min_gpu_memory=Bytes(6 * GIB)),
    "model": Constraints(models=("a100*",)),
    "NIC": Constraints(nic=LinkKind.PXB),
    "links": Constraints(link=LinkKind.NODE),
}


def meets(node: NodeTopology, wanted: Constraints, chosen: Sequence[tuple[int, int]]) -> bool:
    """Whether instances, each a GPU's position and a number, meet a request; independent code."""
    gpus = [gpu for gpu, _ in chosen]
    nodes = {node.gpus[gpu].numa_node for gpu in gpus}
    parts = [node.gpus[gpu].mig_instances[number] for gpu, number in chosen]
    one = len(chosen) == 1
    return (
        (not wanted.same_gpu or len(set(gpus)) == 1)
        and (not wanted.spread_gpus or len(set(gpus)) == len(gpus))
        and (not wanted.same_numa or one or (len(nodes) == 1 and None not in nodes))
        and all(part.memory >= (wanted.min_gpu_memory or 0) for part in parts)
        and all(node.shape.nic[gpu] >= (wanted.nic or 0) for gpu in gpus)
        and (wanted.link is None or one)
    )


@pytest.mark.parametrize("wish", CONSTRAINTS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_verdict_is_what_every_choice_says(wish: str, size: int) -> None:
    """Four GPUs of two instances, any of them free or held."""
    node = sliced(["1g.5gb"] * 2, "hgx-a100-4", strategy="single")
    resource, wanted = "nvidia.com/gpu", CONSTRAINTS[wish]
    choosing, request = kubelet(node, resource), gpu_request(size, wanted)
    for free in product(range(3), repeat=4):
        found = assess(choosing, Availability(pack(free, 2), width=2), request)
        there = [(gpu, number) for gpu, n in enumerate(free) for number in range(n)]
        passing = [meets(node, wanted, chosen) for chosen in combinations(there, size)]
        if found.verdict is Verdict.NEVER or found.verdict is Verdict.NOT_NOW:
            assert not any(passing), free
        elif found.verdict is Verdict.NOT_GUARANTEED:
            assert any(passing), free
            assert not all(passing), free
            assert found.passing_fraction == pytest.approx(sum(passing) / len(passing))
        else:
            assert passing, free
            assert all(passing), free


def judged(node: NodeTopology, resource: str, size: int, wanted: Constraints) -> Assessment:
    request = replace(gpu_request(size, wanted), resource=resource)
    return assess(kubelet(node, resource), all_free(node, resource), request)


def test_instances_of_one_gpu_are_promised_where_one_gpu_alone_has_some() -> None:
    node = sliced(["1g.5gb"] * 7, gpus=[3])
    found = judged(node, SMALL, 4, Constraints(same_gpu=True))
    assert (found.verdict, found.sets) == (Verdict.GUARANTEED, (0b1,))


@pytest.mark.parametrize(
    ("size", "wanted", "words"),
    [
        (2, Constraints(link=LinkKind.NVLINK),
         "MIG instances have no links, and the pod requires link=nvlink"),
        (8, Constraints(same_gpu=True),
         "the hardware has no set of 8 MIG instances with same-gpu"),
        (9, Constraints(spread_gpus=True),
         "the hardware has no set of 9 MIG instances with spread-gpus"),
        (1, Constraints(min_gpu_memory=Bytes(10 * GIB)), "MIG instance memory is less than 10Gi"),
        (1, Constraints(models=("h100*",)), "GPU model is a100-sxm4-40gb-mig-1g.5gb, not h100*"),
        (1, Constraints(models=("a100-sxm4-40gb",)),
         "GPU model is a100-sxm4-40gb-mig-1g.5gb, not a100-sxm4-40gb"),
    ],
    ids=["links", "more than a GPU has", "more than there are GPUs", "memory", "model", "whole"],
)  # fmt: skip
def test_never(size: int, wanted: Constraints, words: str) -> None:
    node = sliced(["1g.5gb"] * 7, strategy="single")
    found = judged(node, "nvidia.com/gpu", size, wanted)
    assert found.verdict is Verdict.NEVER
    assert found.rejection is not None
    assert (found.rejection.message, found.rejection.resolvable) == (words, False)


@pytest.mark.parametrize(
    ("node", "size", "words"),
    [
        (machine("dgx-a100").topology("n"), 2,
         "GPUs are not shared: no set of 2 GPUs is on one GPU (same-gpu)"),
        (replace(machine("dgx-a100").topology("n"), allocator=STOCK,
                 resources=(GpuResource("nvidia.com/gpu", "time-slicing", 2, False),)), 3,
         "GPUs have fewer shares: no set of 3 GPUs is on one GPU (same-gpu)"),
    ],
    ids=["whole", "two shares"],
)  # fmt: skip
def test_whole_gpus_and_shares_on_one_gpu(node: NodeTopology, size: int, words: str) -> None:
    found = judged(node, "nvidia.com/gpu", size, Constraints(same_gpu=True))
    assert found.rejection is not None
    assert (found.verdict, found.rejection.message) == (Verdict.NEVER, words)


def test_shares_are_spread_by_the_plugin_that_spreads_them() -> None:
    shares = (GpuResource("nvidia.com/gpu", "time-slicing", 2, False),)
    node = replace(machine("dgx-a100").topology("n"), allocator=STOCK, resources=shares)
    apart = judged(node, "nvidia.com/gpu", 2, Constraints(spread_gpus=True))
    one = judged(node, "nvidia.com/gpu", 2, Constraints(same_gpu=True))
    assert (apart.verdict, one.verdict) == (Verdict.GUARANTEED, Verdict.NOT_NOW)


def test_a_promise_may_fall_with_a_pod_that_ends() -> None:
    node = sliced(["1g.5gb"] * 2, "hgx-a100-4", strategy="single")
    now = Availability(pack((2, 0, 0, 0), 2), running=(Holder(pack((0, 1, 0, 0), 2)),), width=2)
    found = assess(kubelet(node, "nvidia.com/gpu"), now, gpu_request(2, Constraints(same_gpu=True)))
    assert found.verdict is Verdict.EXPECTED


def test_a_sick_gpu_is_all_of_its_instances() -> None:
    node = sliced(["1g.5gb"] * 2, "hgx-a100-4", strategy="single")
    now = replace(all_free(node, "nvidia.com/gpu"), sick=0b1)
    found = assess(
        kubelet(node, "nvidia.com/gpu"), now, gpu_request(1, Constraints(min_gpu_memory=Bytes(1)))
    )
    assert (found.verdict, found.passing_fraction) == (Verdict.NOT_GUARANTEED, 6 / 8)


def test_whole_gpus_beside_instances_are_as_they_were() -> None:
    """Six of eight GPUs of an HGX are whole and all-linked; the plugin looks for links there."""
    node = replace(sliced(["1g.5gb"] * 7, gpus=[0, 1]), allocator=AllocatorConfig("best-effort"))
    choosing = kubelet(node, "nvidia.com/gpu")
    now, pair = Availability(0b11111100), gpu_request(2, Constraints(link=LinkKind.NVLINK))
    assert assess(choosing, now, pair).verdict is Verdict.GUARANTEED
    seven = assess(choosing, now, gpu_request(7, Constraints(link=LinkKind.NVLINK)))
    assert seven.rejection is not None
    assert seven.rejection.message == "too few whole GPUs: the others are split by MIG"


def test_a_gpu_in_mig_mode_that_is_allocated_whole_meets_no_constraint() -> None:
    """As under the plugin's strategy ``none``."""
    node = sliced(["1g.5gb"] * 7, gpus=[0])
    whole = replace(node, resources=(GpuResource(),), allocator=AllocatorConfig("best-effort"))
    wanted = gpu_request(1, Constraints(min_gpu_memory=Bytes(GIB)))
    choosing = kubelet(whole, "nvidia.com/gpu")
    assert assess(choosing, Availability(0b11), wanted).verdict is Verdict.NOT_GUARANTEED
    assert assess(choosing, Availability(0b10), wanted).verdict is Verdict.GUARANTEED


def test_time_sliced_instances_are_chosen_one_after_the_other() -> None:
    """Two shares of each: the plugin takes them from two instances, here of one GPU."""
    node = sliced(["1g.5gb"] * 2, gpus=[0], replicas=2)
    node = replace(node, resources=tuple(replace(r, refuses_several=False) for r in node.resources))
    found = judged(node, SMALL, 2, Constraints(same_gpu=True))
    assert (found.verdict, found.sets) == (Verdict.GUARANTEED, (0b11,))


# --- Size -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 16, 56, 112])
def test_the_largest_node_is_judged_for_every_wish(size: int) -> None:
    """Sixteen GPUs of seven instances: none is given up, however many choices there are."""
    node = sliced(["1g.5gb"] * 7, "dgx2", strategy="single")
    choosing, now = kubelet(node, "nvidia.com/gpu"), all_free(node, "nvidia.com/gpu")
    for wanted in CONSTRAINTS.values():
        found = assess(choosing, now, gpu_request(size, wanted))
        assert "too-much-at-once" not in found.hazards
        assert found.rejection is None or "too much" not in found.rejection.message


ALIGNING = AllocatorConfig(
    "distributed",
    "v0.19.3",
    "best-effort",
    "container",
    "none",
    "None",
    False,
    ((10, 21), (21, 10)),
)


def test_what_every_choice_is_needs_no_hints() -> None:
    """Three pods of which no report tells yet, on the largest node whose kubelet aligns."""
    node = replace(sliced(["1g.5gb"] * 7, "dgx2", strategy="single"), allocator=ALIGNING)
    choosing, now = kubelet(node, "nvidia.com/gpu"), all_free(node, "nvidia.com/gpu")
    waiting = (unacknowledged(1), unacknowledged(2), unacknowledged(4))
    busy = replace(now, free=now.free - 7, unacknowledged=waiting, running=(Holder(1),) * 7)
    for size in (1, 2, 3, 4, 8):
        for wanted in (Constraints(), Constraints(min_gpu_memory=Bytes(4 * GIB))):
            found = assess(choosing, busy, gpu_request(size, wanted))
            assert (found.verdict, found.hazards) == (Verdict.GUARANTEED, ())
    assert not endangers(choosing, replace(busy, unacknowledged=promised(waiting)), gpu_request(4))


def promised(pods: tuple[Unacknowledged, ...]) -> tuple[Unacknowledged, ...]:
    wanted = Constraints(min_gpu_memory=Bytes(4 * GIB))
    return tuple(replace(pod, promised=wanted, survives_endings=True) for pod in pods)


def test_hints_are_followed_where_they_decide() -> None:
    """Two on one NUMA node: the kubelet sees to it, and one choice in two would not."""
    node = replace(sliced(["1g.5gb"] * 2, "hgx-a100-4", strategy="single"), allocator=ALIGNING)
    now, pair = all_free(node, "nvidia.com/gpu"), gpu_request(2, Constraints(same_numa=True))
    assert assess(kubelet(node, "nvidia.com/gpu"), now, pair).verdict is Verdict.GUARANTEED
    unaligned = replace(node, allocator=STOCK)
    assert assess(kubelet(unaligned, "nvidia.com/gpu"), now, pair).verdict is Verdict.NOT_GUARANTEED


# --- Damage ---------------------------------------------------------------------------------------


def opens(free: Sequence[int], size: int, beside: int = 0) -> float:
    node = sliced(["1g.5gb"] * 2, "hgx-a100-4", strategy="single")
    now = Availability(pack(free, 2), width=2, beside=beside)
    return opened_gpus(kubelet(node, "nvidia.com/gpu"), now, gpu_request(size))


@pytest.mark.parametrize(
    ("free", "size", "beside", "expected"),
    [
        ((2, 2, 2, 2), 1, 0, 1.0),
        ((1, 1, 1, 0), 1, 0, 0.0),
        ((2, 1, 1, 0), 1, 0, 0.5),
        ((2, 0, 0, 0), 2, 0, 1.0),
        ((2, 2, 0, 0), 2, 0, 2 * (1 - 1 / 6)),
        ((2, 2, 2, 2), 1, 0b1111, 0.0),
    ],
    ids=["all unused", "all begun", "one unused", "both of one", "two unused", "other profiles"],
)
def test_fragmentation_costs_count_on_unused_gpus(
    free: Sequence[int], size: int, beside: int, expected: float
) -> None:
    assert opens(free, size, beside) == pytest.approx(expected)


def test_gpus_that_are_begun_on_are_counted_by_every_choice() -> None:
    for free in product(range(3), repeat=4):
        for size in range(1, sum(free) + 1):
            there = [gpu for gpu, n in enumerate(free) for _ in range(n)]
            begun = [len({g for g in taken if free[g] == 2}) for taken in combinations(there, size)]
            assert opens(free, size) == pytest.approx(sum(begun) / len(begun))
