"""The fake for tests, or the reason why there is none."""

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.fakes.nvml.building import CompilerMissing
from tests.fakes.nvml.machine import FakeNvml
from topology.core.graph import NodeTopology


def fake_nvml(folder: Path, topology: NodeTopology, *, without: Collection[str] = ()) -> FakeNvml:
    """A :class:`FakeNvml`. Without a C compiler the test fails in CI and is skipped elsewhere."""
    try:
        return FakeNvml(folder, topology, without=without)
    except CompilerMissing as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
