"""kube-scheduler's own choice under DRA: the first free devices, as they are published."""

from dataclasses import replace

import pytest

from tests.nodes import bridged
from topology.core.admission import device_manager_of
from topology.core.graph import AllocatorConfig


@pytest.mark.parametrize(
    ("order", "free", "size", "sets"),
    [
        pytest.param((3, 1, 0, 2), 0b1111, 2, (0b1010,), id="the first two"),
        pytest.param((3, 1, 0, 2), 0b0111, 2, (0b0011,), id="the first two that are free"),
        pytest.param((2, 3), 0b1111, 2, (0b1100,), id="not all are published"),
        pytest.param((), 0b0111, 2, (0b011, 0b101, 0b110), id="in no order that is known"),
    ],
)
def test_the_first_free_devices_come(
    order: tuple[int, ...], free: int, size: int, sets: tuple[int, ...]
) -> None:
    node = replace(bridged(), allocator=AllocatorConfig("dra", published=order))
    kubelet = device_manager_of(node, node.resources[0])
    assert kubelet.outcomes(free, size).sets == sets
    assert kubelet.allocator.never_refuses(node.shape, size, None)
