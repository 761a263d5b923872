"""The fake for tests, or the reason why there is none."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
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


@contextmanager
def playing(
    folder: Path, topology: NodeTopology, *, without: Collection[str] = ()
) -> Iterator[FakeNvml]:
    """As :func:`fake_nvml`, with NVML initialised in this process."""
    fake = fake_nvml(folder, topology, without=without)
    with fake.in_process():
        pynvml.nvmlInit()
        yield fake


def handle(index: int) -> Any:
    """NVML's handle of the GPU with this NVML index."""
    return pynvml.nvmlDeviceGetHandleByIndex(index)
