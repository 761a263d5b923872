"""The sizes of the image's packages are those of the files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from requirements import sizes


def installed(folder: Path, name: str, count: int) -> str:
    """A package of one file with so many bytes, and its line in a lock."""
    (folder / f"{name}.py").write_bytes(b"#" * count)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"{name}.py,,\n__pycache__/{name}.cpython-311.pyc,,\n")
    return f"{name}==1.0 \\\n    --hash=sha256:0\n"


def test_the_largest_comes_first_and_the_sum_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "smallsized.cpython-311.pyc").write_bytes(b"#" * 5_000_000)
    lock = installed(tmp_path, "smallsized", 100_000) + installed(tmp_path, "largesized", 2_300_000)
    foreign = "elsewhere==1.0 ; sys_platform == 'win32' \\\n    --hash=sha256:0\n"
    assert [line.split() for line in sizes.table(lock + foreign).splitlines()] == [
        ["2.3", "MB", "largesized"],
        ["0.1", "MB", "smallsized"],
        ["2.4", "MB", "in", "all"],
    ]


def test_the_command_lists_the_lock_of_each_image(capsys: pytest.CaptureFixture[str]) -> None:
    assert sizes.main() == 0
    lines = capsys.readouterr().out.splitlines()
    agent, extender = lines.index("agent"), lines.index("extender")
    packages = [len(list(sizes.locked_requirements(lock.read_text()))) for lock in sizes.LOCKS]
    assert [extender - agent - 2, len(lines) - extender - 2] == packages
    assert re.fullmatch(r" *\d+\.\d MB  in all", lines[-1])
    assert any(line.endswith("  grpcio") for line in lines[agent:extender])
    assert any(line.endswith("  fastapi") for line in lines[extender:])


def test_a_package_that_is_not_here_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "run.txt"
    lock.write_text("not-installed-anywhere==1.0 \\\n    --hash=sha256:0\n")
    monkeypatch.setattr(sizes, "LOCKS", [lock])
    assert sizes.main() == 1
    said = "not-installed-anywhere is not installed: run `make dev`\n"
    assert capsys.readouterr().err == said
