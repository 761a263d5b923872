"""What ``make release`` builds."""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from manifests import releasefiles
from tests.commands import asked
from tests.e2e.building import HELM
from tests.e2e.conftest import programs
from tests.manifests.building import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
FILES = {"c/Chart.yaml": b"name: c\n", "c/values.yaml": b"a: 1\n", "c/templates/a.yaml": b"{}\n"}


def chart(names: list[str], mtime: int) -> bytes:
    """A chart as ``helm package`` might write it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(FILES[name]), mtime, 0o600 | mtime % 8
            tar.addfile(entry, io.BytesIO(FILES[name]))
    return gzip.compress(packed.getvalue(), mtime=mtime)


def test_equal_charts_are_packed_into_equal_bytes() -> None:
    one, two = chart(list(FILES), 1_700_000_001), chart(list(FILES)[::-1], 1_700_000_002)
    assert one != two
    found = releasefiles.repacked(one, 1_600_000_000)
    assert found == releasefiles.repacked(two, 1_600_000_000)
    with tarfile.open(fileobj=io.BytesIO(found)) as tar:
        entries = list(tar)
        content = {entry.name: tar.extractfile(entry).read() for entry in entries}  # type: ignore[union-attr]
    assert content == FILES
    assert {entry.mtime for entry in entries} == {1_600_000_000}


def test_the_sums_are_those_of_all_other_files(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"b")
    (tmp_path / "a.tgz").write_bytes(chart(list(FILES), 1))
    for _ in range(2):  # once more changes nothing
        assert asked(releasefiles.main, tmp_path).returncode == 0
        lines = (tmp_path / releasefiles.SUMS).read_text().splitlines()
        assert [line.split("  ") for line in lines] == [
            [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest(), name]
            for name in ("a.tgz", "b")
        ]


@pytest.mark.parametrize(
    ("name", "why"), [("no/where", "No such file"), ("bad", "not a gzip file")], ids=["no", "bad"]
)
def test_a_folder_that_cannot_be_finished_is_reported_in_one_line(
    name: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.tgz").write_bytes(b"no chart")
    done = asked(releasefiles.main, tmp_path / name)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("seconds", ["soon", "1e9", "9" * 15, "\u0667" * 3, "9" * 99])
def test_a_date_that_is_none_is_one_line(
    seconds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.tgz").write_bytes(chart(list(FILES), 1))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", seconds)
    done = asked(releasefiles.main, tmp_path)
    assert done.returncode == 1
    allowed = "allowed are seconds since 1970, such as 1700000000"
    assert done.stderr == f"error: SOURCE_DATE_EPOCH: {allowed}, not {seconds[:60]!r}\n"


@pytest.mark.parametrize("image", ["agent", "extender"])
def test_a_bill_lists_the_lock_of_its_image_with_every_hash(image: str, tmp_path: Path) -> None:
    """The bill that ``make release`` writes, by the command that stands there."""
    recipe = (ROOT / "Makefile").read_text().replace("\\\n", "")
    (command,) = re.findall(r"-m (cyclonedx_py .*) -o ", recipe)
    words = command.replace("$$each", image).split()
    bill = tmp_path / "bill.json"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", *words, "-o", str(bill)], check=True, cwd=ROOT
    )
    listed = json.loads(bill.read_text())
    lock = (ROOT / "requirements" / f"{image}.txt").read_text()
    wanted = dict.fromkeys(re.findall(r"^([\w.-]+==[^ ]+)", lock, re.MULTILINE))
    assert {f"{each['name']}=={each['version']}" for each in listed["components"]} == {*wanted}
    hashes = [
        one["content"]
        for each in listed["components"]
        for reference in each["externalReferences"]
        for one in reference["hashes"]
    ]
    assert sorted(hashes) == sorted(re.findall(r"--hash=sha256:(\w+)", lock))
    assert listed["metadata"]["component"]["version"] == VERSION


@pytest.mark.long
def test_the_same_commit_gives_the_same_bytes(tmp_path: Path) -> None:
    """Another umask and another time zone change nothing."""
    helm = programs(HELM) / "helm"
    built = [
        release(tmp_path / zone, helm, zone, umask)
        for zone, umask in (("UTC0", 0o022), ("JST-9", 0o077))
    ]
    assert built[0] == built[1]
    names = sorted(built[0])
    assert [name for name in names if not name.startswith("kubectl-gpu_topology-")] == [
        "SHA256SUMS",
        "agent.cdx.json",
        "extender.cdx.json",
        f"gpu-topology-{VERSION}.tgz",
        "gpu-topology.yaml",
        f"gpu_topology-{VERSION}-py3-none-any.whl",
    ]
    assert len(names) == 7


def release(out: Path, helm: Path, zone: str, umask: int) -> dict[str, str]:
    """The SHA-256 of each file that ``make release`` writes."""
    kept = {f"HELM_{kind}_HOME": str(out / kind) for kind in ("CACHE", "CONFIG", "DATA")}
    tools = Path(sys.executable).parent
    words = (
        "release",
        f"BIN={tools}",
        f"HELM={helm}",
        f"OUT={out}",
        "ADDRESS=https://example.com",
    )
    subprocess.run(
        ["make", "-s", "-o", ".venv/dev.stamp", *words],  # with the packages that are here
        check=True,
        cwd=ROOT,
        env={**os.environ, **kept, "TZ": zone, "SOURCE_DATE_EPOCH": "1790000000"},
        umask=umask,
    )
    folder = out / "release"
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
