"""Files that are read while a program runs."""

import os
from pathlib import Path

import pytest

from topology import regularfile
from topology.agent.probes.node import ConfigurationUnseenError, from_file


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert regularfile.content(path, 3) == b"abc"
    with pytest.raises(OSError, match="larger than 2 bytes"):
        regularfile.content(path, 2)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "link to a pipe"])
def test_nothing_else_is_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "path"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe")
    with pytest.raises(OSError, match="this is no regular file"):
        regularfile.content(path, 10)
    with pytest.raises(ConfigurationUnseenError, match="this is no regular file"):
        from_file(path)
