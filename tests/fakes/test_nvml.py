"""The fake NVML's own rules.

Its users test its answers: the agent (``agent/probes/test_discovery.py`` and
``agent/test_service.py``), and NVIDIA's plugin in ``tests/e2e``.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pynvml
import pytest

from tests.fakes.nvml import CompilerMissing, building, fake_nvml, library
from tests.nodes import bridged, line


def test_every_change_is_seen_at_once(tmp_path: Path) -> None:
    """Also where two files have the same size and the first one's inode is used again."""
    fake = fake_nvml(tmp_path, bridged())
    with fake.in_process():
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        for turn in range(500):
            fake.utilisation(0, turn % 10)
            assert pynvml.nvmlDeviceGetUtilizationRates(device).gpu == turn % 10


def test_builders_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(tmp_path, line())  # skips where there is no compiler
    monkeypatch.setattr(building, "CACHE", tmp_path / "cache")
    with ThreadPoolExecutor(3) as pool:
        folders = set(pool.map(lambda _: library(), range(3)))
    (folder,) = folders
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerMissing):
        library()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no C compiler"):
        fake_nvml(tmp_path, line())
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no C compiler"):
        fake_nvml(tmp_path, line())
