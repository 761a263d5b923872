"""Verdicts, case by case."""

from dataclasses import replace

import pytest

from tests.nodes import GIB, bridged, line, pcie, switched, unacknowledged
from topology.core.admission import DeviceManager
from topology.core.availability import Availability, Holder
from topology.core.devices import Bytes
from topology.core.devicesets import pack
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.links import GBps, LinkKind
from topology.core.placement import UNASKED, UNPLACED, Verdict, assess, satisfies
from topology.core.requests import (
    Constraints,
    Pattern,
    Policy,
    gpu_request,
)

NVLINK = Constraints(link=LinkKind.NVLINK)


@pytest.mark.parametrize(
    ("node", "availability", "count", "constraints", "verdict", "words"),
    [
        pytest.param(
            switched(), Availability(0b1111), 2, NVLINK, Verdict.GUARANTEED, None, id="any set does"
        ),
        pytest.param(
            bridged(),
            Availability(0b1111),
            2,
            NVLINK,
            Verdict.NOT_GUARANTEED,
            "not guaranteed: the node may hand out GPUs without link=nvlink",
            id="a good set is free, but a bad one too",
        ),
        pytest.param(
            bridged(),
            Availability(0b0011, running=(Holder(0b1100),)),
            2,
            NVLINK,
            Verdict.EXPECTED,
            None,
            id="holds unless the other pair is freed",
        ),
        pytest.param(
            bridged(),
            Availability(0b0101, running=(Holder(0b1010),)),
            2,
            NVLINK,
            Verdict.NOT_NOW,
            "no set of 2 free GPUs with link=nvlink",
            id="two free halves of pairs",
        ),
        pytest.param(
            bridged(),
            Availability(0b0001),
            2,
            NVLINK,
            Verdict.NOT_NOW,
            "not enough free GPUs",
            id="busy",
        ),
        pytest.param(
            pcie(),
            Availability(0b1111),
            2,
            NVLINK,
            Verdict.NEVER,
            "the hardware has no set of 2 GPUs with link=nvlink",
            id="PCIe only",
        ),
        pytest.param(
            pcie(),
            Availability(0),
            2,
            NVLINK,
            Verdict.NEVER,
            "the hardware has no set of 2 GPUs with link=nvlink",
            id="busy as well, but the hardware counts",
        ),
        pytest.param(
            pcie(),
            Availability(0b1111),
            5,
            Constraints(link=LinkKind.NODE),
            Verdict.NEVER,
            "node has fewer GPUs than requested",
            id="too few GPUs",
        ),
        pytest.param(
            pcie(),
            Availability(0b1111),
            2,
            Constraints(models=("a100*", "h100*")),
            Verdict.NEVER,
            "GPU model is l40s, not a100*,h100*",
            id="model",
        ),
        pytest.param(
            pcie(),
            Availability(0b1111),
            1,
            Constraints(min_gpu_memory=Bytes(80 * GIB)),
            Verdict.NEVER,
            "GPU memory is less than 80Gi",
            id="memory",
        ),
        pytest.param(
            line(),
            Availability(0b111),
            1,
            Constraints(nic=LinkKind.PIX),
            Verdict.NOT_GUARANTEED,
            "not guaranteed: the node may hand out GPUs without nic=pix",
            id="only one GPU is near the NIC",
        ),
        pytest.param(
            line(),
            Availability(0b111),
            2,
            Constraints(nic=LinkKind.PIX),
            Verdict.NEVER,
            "too few GPUs have an RDMA NIC as near as pix",
            id="NIC",
        ),
        pytest.param(
            line(),
            Availability(0b111),
            3,
            Constraints(link=LinkKind.NVLINK, pattern=Pattern.CONNECTED),
            Verdict.GUARANTEED,
            None,
            id="a line is connected",
        ),
        pytest.param(
            line(),
            Availability(0b111),
            3,
            Constraints(link=LinkKind.NVLINK, pattern=Pattern.RING),
            Verdict.NEVER,
            "the hardware has no set of 3 GPUs with link=nvlink shape=ring",
            id="a line is no ring",
        ),
        pytest.param(
            line(),
            Availability(0b111),
            3,
            NVLINK,
            Verdict.NEVER,
            "the hardware has no set of 3 GPUs with link=nvlink",
            id="nor are its ends a pair",
        ),
        pytest.param(
            line(),
            Availability(0b011),
            2,
            Constraints(min_nvlinks=2),
            Verdict.GUARANTEED,
            None,
            id="a double link",
        ),
        pytest.param(
            line(),
            Availability(0b110),
            2,
            Constraints(min_nvlinks=2),
            Verdict.NOT_NOW,
            "no set of 2 free GPUs with min-nvlinks=2",
            id="only the single link is free",
        ),
        pytest.param(
            line(),
            Availability(0b011),
            2,
            Constraints(min_bandwidth=GBps(100)),
            Verdict.GUARANTEED,
            None,
            id="2 links x 25 x both ways is 100 GB/s",
        ),
        pytest.param(
            line(),
            Availability(0b011),
            2,
            Constraints(min_bandwidth=GBps(100.5)),
            Verdict.NEVER,
            "the hardware has no set of 2 GPUs with min-bandwidth=100.5",
            id="and no more",
        ),
        pytest.param(
            switched(),
            Availability(0b0011),
            2,
            Constraints(same_numa=True),
            Verdict.GUARANTEED,
            None,
            id="one NUMA node",
        ),
        pytest.param(
            switched(),
            Availability(0b0110),
            2,
            Constraints(same_numa=True),
            Verdict.NOT_NOW,
            "no set of 2 free GPUs with same-numa",
            id="two NUMA nodes",
        ),
        pytest.param(
            bridged(),
            Availability(0b1111),
            1,
            NVLINK,
            Verdict.GUARANTEED,
            None,
            id="one GPU meets every pair key",
        ),
        pytest.param(
            switched(),
            Availability(0b1111, sick=0b1000),
            2,
            NVLINK,
            Verdict.NOT_GUARANTEED,
            "not guaranteed: the node may hand out a sick GPU",
            id="a sick GPU may come",
        ),
        pytest.param(
            switched(),
            Availability(0b1100, sick=0b1000),
            2,
            NVLINK,
            Verdict.NOT_NOW,
            "the node would hand out a sick GPU",
            id="a sick GPU surely comes",
        ),
        pytest.param(
            switched(),
            Availability(0b0111, sick=0b1000, running=(Holder(0b1000),)),
            2,
            NVLINK,
            Verdict.EXPECTED,
            None,
            id="a sick GPU is held by someone",
        ),
        pytest.param(
            switched(),
            Availability(0b1111, unacknowledged=(unacknowledged(2),)),
            2,
            NVLINK,
            Verdict.GUARANTEED,
            None,
            id="whatever the unacknowledged pod takes",
        ),
        pytest.param(
            switched(),
            Availability(0b1111, unacknowledged=(unacknowledged(2, init=3),)),
            2,
            NVLINK,
            Verdict.NOT_NOW,
            "not enough free GPUs",
            id="an unacknowledged pod's init container holds one more",
        ),
        pytest.param(
            switched(),
            Availability(0b1111, running=(Holder(0, 3),)),
            2,
            NVLINK,
            Verdict.NOT_NOW,
            "not enough free GPUs",
            id="devices nobody shows",
        ),
        pytest.param(
            bridged(),
            Availability(0b0011, releasing=(Holder(0b0100),)),
            2,
            NVLINK,
            Verdict.NOT_GUARANTEED,
            "not guaranteed: the node may hand out GPUs without link=nvlink",
            id="a releasing pod may add a bad choice",
        ),
        pytest.param(
            bridged(),
            Availability(0b0001, releasing=(Holder(0b0010),)),
            2,
            NVLINK,
            Verdict.NOT_NOW,
            "not enough free GPUs",
            id="a releasing pod is not counted on",
        ),
        pytest.param(
            switched(),
            Availability(pack([4] * 4, 3), width=3),
            2,
            NVLINK,
            Verdict.NOT_GUARANTEED,
            "not guaranteed: the node may hand out GPUs without link=nvlink",
            id="two shares of one GPU are no pair",
        ),
        pytest.param(
            switched(),
            Availability(pack([4] * 4, 3), width=3),
            2,
            Constraints(models=("a100*",)),
            Verdict.GUARANTEED,
            None,
            id="two shares of the right model",
        ),
    ],
)
def test_verdict(
    node: NodeTopology,
    availability: Availability,
    count: int,
    constraints: Constraints,
    verdict: Verdict,
    words: str | None,
) -> None:
    kubelet = DeviceManager(node.shape, replicas=1 if availability.width == 1 else 4)
    found = assess(kubelet, availability, gpu_request(count, constraints))
    assert found.verdict is verdict
    assert (found.rejection.message if found.rejection else None) == words
    if found.rejection:
        assert found.rejection.resolvable is (verdict is not Verdict.NEVER)


def test_preferred_is_judged_like_required() -> None:
    request = gpu_request(2, NVLINK, Policy.PREFERRED)
    found = assess(DeviceManager(bridged().shape), Availability(0b1111), request)
    assert found.verdict is Verdict.NOT_GUARANTEED
    assert found.passing_fraction == pytest.approx(2 / 6)


def test_a_plain_pod_is_guaranteed_what_it_asks() -> None:
    found = assess(DeviceManager(pcie().shape), Availability(0b0111), gpu_request(2))
    assert (found.verdict, found.sets) == (Verdict.GUARANTEED, (0b011, 0b101, 0b110))


def test_unknown_links_meet_nothing() -> None:
    untold = NodeTopology(line().name, line().gpus)
    assert not satisfies(untold.shape, Constraints(link=LinkKind.NODE), 0b11)
    assert not satisfies(untold.shape, Constraints(min_bandwidth=GBps(1)), 0b11)


def test_an_unknown_topology_manager_is_the_reason_that_is_given() -> None:
    pairs = bridged()
    node = replace(pairs, gpus=tuple(replace(g, numa_node=g.index // 2) for g in pairs.gpus))
    config = AllocatorConfig("best-effort", topology_manager_policy="unknown")
    request = gpu_request(2, NVLINK)
    found = assess(DeviceManager(node.shape, config), Availability(0b1111), request)
    assert (found.verdict, found.rejection) == (Verdict.NOT_GUARANTEED, UNASKED)
    known = replace(config, topology_manager_policy="none")
    found = assess(DeviceManager(node.shape, known), Availability(0b1111), request)
    assert found.verdict is Verdict.GUARANTEED


def test_a_record_without_the_numa_nodes_of_gpus_is_the_reason_that_is_given() -> None:
    config = AllocatorConfig(
        "best-effort", topology_manager_policy="restricted", sees_topology=False
    )
    request = gpu_request(2, NVLINK)
    found = assess(DeviceManager(switched(4).shape, config), Availability(0b1111), request)
    assert (found.verdict, found.rejection) == (Verdict.NOT_GUARANTEED, UNPLACED)


def test_too_many_outcomes_are_judged_without_listing() -> None:
    request = gpu_request(10, NVLINK)
    full = Availability((1 << 20) - 1)
    found = assess(DeviceManager(switched(20).shape), full, request)
    assert (found.verdict, found.sets) == (Verdict.GUARANTEED, None)
    assert assess(
        DeviceManager(bridged(20).shape), full, gpu_request(10, Constraints(nic=LinkKind.PIX))
    ).verdict is (Verdict.NEVER)
