"""What a manifest asks of the kubelet's static managers, by the pod's class."""

from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import PodRequest, containers_of, parse
from scheduler_extender.exclusive import exclusive_of
from scheduler_extender.wire import Pod
from topology.core.requests import MAX_DEMANDS, Demand, Exclusive, Role

GPU = "nvidia.com/gpu"
GIB = 1 << 30
FULL = {"cpu": "2", "memory": "1Gi"}


def manifest(*limits: dict[str, str], spec: dict[str, Any] | None = None) -> Pod:
    containers = [
        {"name": f"c{i}", "resources": {"limits": amounts}} for i, amounts in enumerate(limits)
    ]
    return msgspec.convert(
        {"metadata": {"name": "p"}, "spec": {"containers": containers, **(spec or {})}}, Pod
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param([{GPU: "1"}], Exclusive.NOTHING, id="no limits: not Guaranteed"),
        pytest.param([{**FULL, GPU: "1"}, {"cpu": "1"}], Exclusive.NOTHING, id="one lacks memory"),
        pytest.param([{"cpu": "0", "memory": "0", GPU: "1"}], Exclusive.NOTHING, id="both 0"),
        pytest.param([{"cpu": "2", "memory": "0Gi", GPU: "1"}], Exclusive.NOTHING, id="memory 0"),
        pytest.param(
            [{**FULL, GPU: "1"}],
            Exclusive(True, True, (Demand(Role.APP, 1, 2, (("memory", GIB),)),)),
            id="whole CPUs",
        ),
        pytest.param(
            [{"cpu": "1500m", "memory": "1Gi", GPU: "1"}],
            Exclusive(False, True, (Demand(Role.APP, 1, 0, (("memory", GIB),)),)),
            id="a fraction of a CPU",
        ),
        pytest.param(
            [{"cpu": "2000m", "memory": "1Gi", GPU: "1", "hugepages-1Gi": "2Gi"}, FULL],
            Exclusive(
                True,
                True,
                (
                    Demand(Role.APP, 1, 2, (("hugepages-1Gi", 2 * GIB), ("memory", GIB))),
                    Demand(Role.APP, 0, 2, (("memory", GIB),)),
                ),
            ),
            id="huge pages, and a container without GPUs",
        ),
        pytest.param([{"cpu": "nonsense", "memory": "1Gi"}], Exclusive.CPUS, id="unreadable"),
        pytest.param(
            [{"cpu": "2", "memory": "1073741824500m", GPU: "1"}], Exclusive.CPUS, id="half a byte"
        ),
        pytest.param([{"cpu": "-2", "memory": "1Gi", GPU: "1"}], Exclusive.CPUS, id="negative"),
        pytest.param([{"cpu": "2", "memory": "10E", GPU: "1"}], Exclusive.CPUS, id="too much"),
        pytest.param([FULL] * (MAX_DEMANDS + 1), Exclusive.CPUS, id="too many containers"),
    ],
)
def test_what_the_managers_would_give(limits: list[dict[str, str]], expected: Exclusive) -> None:
    assert exclusive_of(manifest(*limits), GPU) == expected


def test_init_containers_and_sidecars_stand_first() -> None:
    init = [
        {"name": "i", "resources": {"limits": FULL}},
        {"name": "s", "restartPolicy": "Always", "resources": {"limits": FULL}},
    ]
    found = exclusive_of(manifest({**FULL, GPU: "1"}, spec={"initContainers": init}), GPU)
    assert [demand.role for demand in found.demands] == [Role.INIT, Role.SIDECAR, Role.APP]


def test_resources_of_the_pod_as_a_whole_are_the_kubelets_to_say() -> None:
    assert exclusive_of(manifest({GPU: "1"}, spec={"resources": {"limits": FULL}}), GPU) == (
        Exclusive.CPUS
    )


@pytest.mark.parametrize(
    "limits",
    [
        [{**FULL, GPU: "1"}, FULL],
        [FULL, {"cpu": "500m", "memory": "1Gi", GPU: "2"}],
        [{GPU: "1"}],
    ],
)
def test_a_request_written_as_containers_reads_as_itself(limits: list[dict[str, str]]) -> None:
    asks = parse(manifest(*limits))
    assert isinstance(asks, PodRequest)
    again = {"metadata": {"name": "p"}, "spec": containers_of(asks.request)}
    assert parse(msgspec.convert(again, Pod)) == asks
