"""Quantities are read as Kubernetes reads them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from scheduler_extender.quantities import BadValueError, quantity


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
