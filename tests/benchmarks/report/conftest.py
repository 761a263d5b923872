"""Sweeps that are played once for all tests of the report."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.simulation.plays import Shard
from tests.benchmarks.report.pages import played, tiny


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return played(tiny())


@pytest.fixture(scope="module")
def shards() -> list[dict[str, Any]]:
    return [played(tiny(shard=Shard(part, 3))) for part in range(3)]
