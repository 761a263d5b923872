"""The sets that meet compiled constraints, and the memory that a small machine keeps them in."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from topology.core.admission import DeviceManager
from topology.core.availability import Availability
from topology.core.devicesets import DeviceSet, pack
from topology.core.graph import AllocatorConfig
from topology.core.links import LinkKind
from topology.core.placement import Verdict, assess
from topology.core.placement.constraints import compiled
from topology.core.requests import Constraints, gpu_request
from topology.machines import machine

REPLICAS = 1024
SHAPE = machine("dgx1-v100").topology("n").shape


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(Constraints(models=("v100",)), id="model"),
        pytest.param(Constraints(link=LinkKind.NVLINK), id="link"),
        pytest.param(Constraints(same_gpu=True), id="same-gpu"),
        pytest.param(Constraints(spread_gpus=True), id="spread-gpus"),
        pytest.param(Constraints(exclusive_gpus=True), id="exclusive"),
    ],
)
def test_pods_with_any_number_of_shares_need_little_memory(wanted: Constraints) -> None:
    test = compiled(SHAPE, wanted, 0, REPLICAS)
    masks = np.arange(256, dtype=np.uint64)
    for count in (*range(1, 12), *range(12, 8 * REPLICAS, 97), *range(REPLICAS, 8193, REPLICAS)):
        assert test.good_sets(count) == set(masks[test.passing(masks, count)[0]].tolist())
    assert test.known is not None
    kept = {id(good): sys.getsizeof(good) for good in test.known.values()}
    assert sum(kept.values()) < 3 * test.shared_bytes


@pytest.mark.parametrize("replicas", [4, 64, 128, REPLICAS])
@pytest.mark.parametrize("gpus", [1, 5])
def test_a_pod_alone_on_its_gpus_is_guaranteed_only_all_of_their_shares(
    replicas: int, gpus: int
) -> None:
    kubelet = DeviceManager(SHAPE, AllocatorConfig("packed", "v0.20.0"), replicas)
    part, more = divmod(replicas, gpus)
    free = pack([part + (p < more) for p in range(gpus)], kubelet.width)
    request = gpu_request(replicas, Constraints(exclusive_gpus=True))
    found = assess(kubelet, Availability(free, width=kubelet.width), request)
    assert found.verdict is (Verdict.GUARANTEED if gpus == 1 else Verdict.NOT_NOW)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(AllocatorConfig(), id="unknown plugin"),
        pytest.param(
            AllocatorConfig("packed", topology_manager_policy="best-effort"), id="best-effort"
        ),
    ],
)
@pytest.mark.parametrize(
    ("free", "guaranteed"),
    [pytest.param(0b10, True, id="of 1"), pytest.param(0b0101, False, id="of 2")],
)
def test_a_pod_alone_on_a_mig_instance_is_guaranteed_only_all_of_its_shares(
    config: AllocatorConfig, free: DeviceSet, guaranteed: bool
) -> None:
    instances = replace(
        machine("hgx-a100-4").topology("n").shape,
        links=((None,) * 4,) * 4,
        instances=(1,) * 4,
        parents=(0, 0, 1, 1),
    )
    kubelet = DeviceManager(instances, config, 2)
    request = gpu_request(2, Constraints(exclusive_gpus=True))
    found = assess(kubelet, Availability(free, width=kubelet.width), request)
    assert (found.verdict is Verdict.GUARANTEED) == guaranteed
