"""The fake for tests, or the reason why there is none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.fakes.nvml.building import CompilerMissing
from tests.fakes.nvml.machine import FakeNvml
from topology.core.graph import NodeTopology

PATIENCE = 30.0
"""Seconds after which something that should happen soon counts as never happening."""


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


def eventually(happens: Callable[[], bool]) -> bool:
    """Whether it happens before our patience ends."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if happens():
            return True
        time.sleep(0.01)
    return False
