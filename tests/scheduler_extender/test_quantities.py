"""Quantities are read as Kubernetes reads them."""

from decimal import Decimal

import pytest

from scheduler_extender.quantities import MEMORY, BadValueError, memory, quantity
from topology.core.devices import NodeName
from topology.core.requests import at_most
from topology.machines import MACHINES


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("2", 2), ("1.5", "1.5"), ("40Gi", 40 << 30), ("1e3", 1000), ("1E", 10**18)],
        *[("1E2", 100), ("500m", "0.5"), ("+1Ki", 1024), ("1.", 1), (" 3 ", 3)],
    ],
)
def test_what_is_a_quantity(text: str, value: int | str) -> None:
    assert quantity(text) == Decimal(value)


@pytest.mark.parametrize(
    "text", ["", "Gi", "1e3Ki", "1e3m", "1e", "40GB", "1 Gi", "٣", "1K", "--1"]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(BadValueError):
        quantity(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        *[("80", "80Gi"), ("1", "1Gi"), ("1023", "1023Gi"), ("1024", "1024Mi")],
        *[("40000", "40000Mi"), ("081559", "81559Mi"), ("1048575", "1048575Mi")],
        *[("1048576", "1048576Ki"), ("67108863", "67108863Ki")],
    ],
)
def test_a_number_of_bytes_that_no_gpu_has_is_refused_with_the_unit_that_was_meant(
    text: str, meant: str
) -> None:
    with pytest.raises(BadValueError) as refused:
        memory(text)
    assert str(refused.value) == f"that is {int(text)} bytes; write {meant}"
    assert 2**30 <= memory(meant) < 2**40


@pytest.mark.parametrize("text", ["0", "-80", "80.5", "8e1", "63Mi", "40k", "40000m", "", "1e9m"])
def test_an_invalid_memory_is_answered_with_what_is_allowed(text: str) -> None:
    with pytest.raises(BadValueError) as refused:
        memory(text)
    assert str(refused.value) == MEMORY


def test_memory_from_64_mebibytes_on_is_read() -> None:
    assert [memory(t) for t in ("64Mi", "67108864", "1.5Gi")] == [64 << 20, 64 << 20, 3 << 29]


@pytest.mark.parametrize("name", MACHINES)
def test_a_pod_that_asks_for_the_memory_shown_gets_the_gpu(name: str) -> None:
    for gpu in MACHINES[name].topology(NodeName("n")).gpus:
        assert gpu.memory - (1 << 30) < memory(at_most(gpu.memory)) <= gpu.memory
