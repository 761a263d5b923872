"""Files below a folder that stands for ``/``: written in one step, with their owner and mode."""

from pathlib import Path

import pytest

from scheduler_extender.cli.atomicfile import Change, Files
from scheduler_extender.cli.commandline import BadInputError


def test_a_file_keeps_its_mode_and_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    change = Change(path="/link", old_text="old", new_text="new", copy="/kept/link")
    Files(tmp_path).apply(change)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "kept" / "link").read_text() == "old"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(BadInputError, match="a: No space left on device"):
        Files(tmp_path).apply(Change(path="/a", old_text="old", new_text="new"))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old"}


def test_what_is_written_first_is_hidden_from_the_kubelet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts every file of the folder whose name does not begin with a dot."""
    seen: list[str] = []
    monkeypatch.setattr("os.fsync", lambda _: seen.extend(p.name for p in tmp_path.iterdir()))
    Files(tmp_path).apply(Change(path="/pod.yaml", old_text=None, new_text="new"))
    assert len(seen) == 1
    assert seen[0].startswith(".")
    assert not seen[0].endswith(".yaml")  # k3s reads those that begin with a dot, too


@pytest.mark.parametrize(
    "target",
    ["/real", "real", "../../real", "/../real", "/again", "/abs/../real"],
    ids=["absolute", "relative", "far up", "above", "twice", "up from a link"],
)
def test_links_lead_where_they_do_for_the_node_itself(tmp_path: Path, target: str) -> None:
    """As under chroot: an absolute one begins at the root, and none leads out of it."""
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (root / "real" / "file").write_text("old")
    (root / "again").symlink_to("/real")
    (root / "abs").symlink_to("/real")
    (root / "etc").symlink_to(target)
    files = Files(root)
    assert files.names("/etc") == ["/etc/file"]
    assert files.text("/etc/file") == "old"
    files.apply(Change(path="/etc/file", old_text="old", new_text="new"))
    assert (root / "real" / "file").read_text() == "new"


@pytest.mark.parametrize("way", ["file", "folder", "../outside"])
def test_no_link_leads_out_of_the_root(tmp_path: Path, way: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "file").write_text("theirs")
    (root / "file").symlink_to(outside / "file")
    (root / "folder").symlink_to(outside)
    (root / "up").symlink_to("../outside")
    path = {"file": "/file", "folder": "/folder/file"}.get(way, "/up/file")
    files = Files(root)
    assert files.text(path) is None
    assert files.names("/folder") == []
    files.apply(Change(path=path, old_text=None, new_text="ours"))
    assert files.text(path) == "ours"
    assert (outside / "file").read_text() == "theirs"


def test_a_link_to_itself_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("/loop")
    with pytest.raises(BadInputError, match="loop: more than 40 symbolic links"):
        Files(tmp_path).text("/loop")


def test_a_path_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    """As a folder of root's is to others."""
    (tmp_path / "odd").symlink_to("x" * 300)
    with pytest.raises(BadInputError, match="xxx: File name too long"):
        Files(tmp_path).text("/odd")


def test_no_other_user_can_read_a_secret() -> None:
    change = Change(path="/key", old_text=None, new_text="secret", secret=True)
    assert change.difference() == "/key: new; a secret, so its content is not shown\n"
