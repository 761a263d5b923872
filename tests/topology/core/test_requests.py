"""Requests: what counts as one question, the arithmetic of containers, and the words for people."""

from dataclasses import replace

import pytest

from topology.core.devices import MIB, Bytes
from topology.core.links import GBps, LinkKind
from topology.core.requests import (
    Constraints,
    ContainerRequest,
    GpuRequest,
    Pattern,
    Policy,
    Role,
    gpu_request,
    memory_text,
)

NVLINK = Constraints(link=LinkKind.NVLINK)


@pytest.mark.parametrize(
    ("containers", "count", "effective"),
    [
        pytest.param([("a", 2, Role.APP)], 2, 2, id="one app"),
        pytest.param([("a", 2, Role.APP), ("b", 1, Role.APP)], 3, 3, id="two apps"),
        pytest.param([("i", 3, Role.INIT), ("a", 2, Role.APP)], 2, 3, id="init asks for more"),
        pytest.param([("s", 1, Role.SIDECAR), ("a", 2, Role.APP)], 3, 3, id="sidecar"),
        pytest.param(
            [("s", 1, Role.SIDECAR), ("i", 3, Role.INIT), ("a", 2, Role.APP)],
            3,
            4,
            id="init beside an earlier sidecar",
        ),
        pytest.param(
            [("i", 3, Role.INIT), ("s", 1, Role.SIDECAR), ("a", 2, Role.APP)],
            3,
            3,
            id="init before a later sidecar",
        ),
    ],
)
def test_container_arithmetic(
    containers: list[tuple[str, int, Role]], count: int, effective: int
) -> None:
    request = GpuRequest("nvidia.com/gpu", tuple(ContainerRequest(*c) for c in containers))
    assert (request.count, request.effective_count) == (count, effective)


def test_requests_are_equal_whatever_containers_are_called() -> None:
    a = GpuRequest("nvidia.com/gpu", (ContainerRequest("a", 2),))
    b = GpuRequest("nvidia.com/gpu", (ContainerRequest("b", 2),))
    assert a == b
    assert hash(a) == hash(b)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"resource": "nvidia.com/gpu.shared"}, id="resource"),
        pytest.param({"containers": (ContainerRequest("main", 3),)}, id="count"),
        pytest.param({"containers": (ContainerRequest("main", 2, Role.INIT),)}, id="role"),
        pytest.param({"constraints": NVLINK}, id="constraints"),
        pytest.param({"policy": Policy.PREFERRED}, id="policy"),
        pytest.param({"only_gpu_plugin": False}, id="another plugin's devices"),
    ],
)
def test_different_requests_are_different_keys(change: dict[str, object]) -> None:
    asked = gpu_request(2)
    assert replace(asked, **change) != asked  # type: ignore[arg-type]
    assert len({asked, replace(asked, **change), gpu_request(2)}) == 2  # type: ignore[arg-type]


def test_a_plain_pod_is_never_required() -> None:
    assert gpu_request(2).plain
    assert not gpu_request(2).required
    assert gpu_request(2, NVLINK).required
    assert not gpu_request(2, NVLINK, Policy.PREFERRED).required


@pytest.mark.parametrize(
    ("constraints", "over_pairs"),
    [
        pytest.param(NVLINK, True, id="link"),
        pytest.param(Constraints(min_nvlinks=1), True, id="min-nvlinks"),
        pytest.param(Constraints(min_bandwidth=GBps(1)), True, id="min-bandwidth"),
        pytest.param(Constraints(same_numa=True), True, id="same-numa"),
        pytest.param(Constraints(models=("a100*",)), False, id="gpu-model"),
        pytest.param(Constraints(min_gpu_memory=Bytes(MIB)), False, id="min-gpu-memory"),
        pytest.param(Constraints(nic=LinkKind.PIX), False, id="nic"),
    ],
)
def test_which_keys_speak_about_pairs(constraints: Constraints, over_pairs: bool) -> None:
    assert constraints.over_pairs is over_pairs


def test_the_text_has_the_keys_in_one_order() -> None:
    everything = Constraints(
        link=LinkKind.PIX,
        min_nvlinks=2,
        pattern=Pattern.RING,
        min_bandwidth=GBps(50),
        min_gpu_memory=Bytes(40 * 1024 * MIB),
        models=("a100*", "h100*"),
        same_numa=True,
        nic=LinkKind.NODE,
    )
    assert everything.text == (
        "link=pix min-nvlinks=2 shape=ring min-bandwidth=50 min-gpu-memory=40Gi "
        "gpu-model=a100*,h100* same-numa nic=node"
    )
    assert Constraints().text == ""


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        pytest.param(gpu_request(1), "1 GPU", id="one"),
        pytest.param(gpu_request(3, NVLINK), "3 GPUs link=nvlink", id="required"),
        pytest.param(
            gpu_request(2, NVLINK, Policy.PREFERRED),
            "2 GPUs link=nvlink (preferred)",
            id="preferred",
        ),
    ],
)
def test_the_text_of_a_request(asked: GpuRequest, text: str) -> None:
    assert asked.text == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        pytest.param(2 * 1024 * 1024 * MIB, "2Ti", id="Ti"),
        pytest.param(40 * 1024 * MIB, "40Gi", id="Gi"),
        pytest.param(81559 * MIB, "81559Mi", id="what an H100 has"),
        pytest.param(1536, "1536", id="no whole unit"),
        pytest.param(3 * 1024, "3Ki", id="Ki"),
        pytest.param(40 * 10**9, "40G", id="G"),
        pytest.param(1_500_000_000, "1500M", id="M"),
        pytest.param(512_000, "500Ki", id="binary of two of one length"),
    ],
)
def test_memory_is_written_exactly(amount: int, text: str) -> None:
    assert memory_text(amount) == text
