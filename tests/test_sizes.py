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


def test_the_command_lists_the_lock_of_the_image(capsys: pytest.CaptureFixture[str]) -> None:
    assert sizes.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(list(sizes.locked_names(sizes.LOCK.read_text())))
    assert re.fullmatch(r" *\d+\.\d MB  in all", lines[-1])
    assert any(line.endswith("  kubernetes") for line in lines)


def test_a_package_that_is_not_here_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "run.txt"
    lock.write_text("not-installed-anywhere==1.0 \\\n    --hash=sha256:0\n")
    monkeypatch.setattr(sizes, "LOCK", lock)
    assert sizes.main() == 1
    said = "not-installed-anywhere is not installed: run `make dev`\n"
    assert capsys.readouterr().err == said
