"""Reference data that is absent: a skip that says so, and a failure where it is required."""

import re
from pathlib import Path

import pytest

from tests import recorded

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())


@pytest.fixture
def absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "SHARED", tmp_path)
    monkeypatch.delenv(recorded.REQUIRE, raising=False)


@pytest.mark.usefixtures("absent")
def test_absent_data_is_a_skip_that_says_what_is_missing() -> None:
    with pytest.raises(pytest.skip.Exception, match=r"traces/openb.*GPU_TOPOLOGY_SHARED"):
        recorded.shared("traces", "openb")
    (condition,) = recorded.needs("traces", "openb").args
    assert condition
    assert recorded.files("fixtures/topo", "*.txt") == ["fixtures/topo/*.txt"]


@pytest.mark.usefixtures("absent")
def test_absent_data_is_a_failure_where_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(recorded.REQUIRE, "1")
    for read in (recorded.shared, recorded.recorded):
        with pytest.raises(pytest.fail.Exception, match="no reference data here"):
            read("any")
    (condition,) = recorded.needs("traces").args
    assert not condition


def test_what_lands_has_been_compared_with_reality() -> None:
    assert f"export {recorded.REQUIRE}=1\n" in (ROOT / ".ci" / "run").read_text()


def test_every_test_finds_the_data_in_the_same_way() -> None:
    """Or it would skip where it has to fail."""
    ways = re.compile(r"environ.*GPU_TOPOLOGY_SHARED|parent.*/ .shared.")
    others = [p for p in (ROOT / "tests").rglob("*.py") if p != Path(__file__).resolve()]
    found = [str(p.relative_to(ROOT)) for p in others if ways.search(p.read_text())]
    assert found == ["tests/recorded.py"]
