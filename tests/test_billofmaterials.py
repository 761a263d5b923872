"""The bill of materials lists what the image gets, and nothing else."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from requirements.billofmaterials import IMAGES, image_python, locked, main, written
from tests.imagefiles import ROOT


@pytest.fixture(scope="module", params=IMAGES)
def lock(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def bill(lock: str) -> Any:
    return json.loads(written(lock))


def test_it_lists_the_lock_of_the_image_with_every_hash(lock: str, bill: Any) -> None:
    """Read here once more in another way: line by line, and markers by what they say."""
    expected: dict[tuple[str, str], set[str]] = {}
    for line in (ROOT / "requirements" / f"{lock}.txt").read_text().splitlines():
        if found := re.match(r"([A-Za-z0-9._-]+)==(\S+)(?: ; (.*?))?(?: \\)?$", line):
            marker = found[3] or ""
            foreign = "< '3.12'" in marker or "== 'win32'" in marker
            hashes: set[str] = set()
            if not foreign:
                expected[found[1], found[2]] = hashes
        elif digest := re.search(r"--hash=sha256:(\w+)", line):
            hashes.add(digest[1])
    listed = {
        (part["name"], part["version"]): {
            one["content"] for one in part["externalReferences"][0]["hashes"]
        }
        for part in bill["components"]
    }
    assert listed == expected
    assert all(listed.values())
    assert image_python((ROOT / "Dockerfile").read_text()) == "3.12"  # the markers above


def test_it_is_valid_cyclonedx_and_names_the_image(lock: str, bill: Any) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    image = bill["metadata"]["component"]
    assert (image["type"], image["name"], image["version"]) == (
        "container",
        IMAGES[lock],
        project["version"],
    )
    assert bill["dependencies"]


def test_every_package_has_its_licence(bill: Any) -> None:
    told = {part["name"]: part["licenses"] for part in bill["components"]}
    spdx = {name for name, (one,) in told.items() if "expression" in one or "id" in one["license"]}
    # Some say in no word that SPDX knows which BSD licence theirs is.
    assert told.keys() - spdx <= {"google-re2", "jinja2", "nvidia-ml-py"}
    assert told["pydantic"] == [{"license": {"id": "MIT", "acknowledgement": "declared"}}]


def test_the_graph_leads_from_the_image_to_every_package(bill: Any) -> None:
    graph = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    names = {part["bom-ref"]: part["name"] for part in bill["components"]}
    reached, left = set[str](), list(graph["image"])
    while left:
        if (one := left.pop()) not in reached:
            reached.add(one)
            left += graph[one]
    assert {names[one] for one in reached} == set(names.values())
    asks_for = {names[ref]: {names[one] for one in on} for ref, on in graph.items() if ref in names}
    assert {names[one] for one in graph["image"]} >= {"kubernetes", "pydantic", "typer"}
    assert "pygments" not in {names[one] for one in graph["image"]}
    assert asks_for["rich"] == {"markdown-it-py", "pygments"}
    assert asks_for["markdown-it-py"] == {"mdurl"}


def test_equal_locks_give_equal_bills(lock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert written(lock) == written(lock)
    assert "2023-11-14" in written(lock)


@pytest.mark.parametrize("seconds", ["soon", "1e9", "9" * 15, "9" * 99])
def test_a_date_that_is_none_is_one_line(
    seconds: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", seconds)
    monkeypatch.setattr("sys.argv", ["sbom", "--output", str(tmp_path)])
    assert main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    allowed = "allowed are seconds since 1970, such as 1700000000"
    assert line == f"error: SOURCE_DATE_EPOCH: {allowed}, not {seconds[:60]!r}"


def test_what_the_image_does_not_get_is_left_out() -> None:
    lock = (
        f"a==1 \\\n    --hash=sha256:{'0' * 64}\n"
        f"b==2 ; sys_platform == 'win32' \\\n    --hash=sha256:{'1' * 64}\n    # via a\n"
        f"c==3 ; python_full_version >= '3.12' \\\n    --hash=sha256:{'2' * 64}\n"
    )
    assert [(p.name, p.version, p.sha256) for p in locked(lock, "3.12")] == [
        ("a", "1", ("0" * 64,)),
        ("c", "3", ("2" * 64,)),
    ]
    assert [p.name for p in locked(lock, "3.11")] == ["a"]
