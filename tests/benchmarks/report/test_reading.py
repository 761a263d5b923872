"""Which files belong together: shards, other sweeps, other versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import ReportError
from benchmarks.report.reading import parse, together
from tests.benchmarks.report.pages import (
    POLICIES,
    Page,
    changed,
    page_of,
    played,
    refused,
    rewritten,
    tiny,
)

pytestmark = pytest.mark.long


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_shards_are_the_sweep(
    order: tuple[int, ...], whole: dict[str, Any], shards: list[dict[str, Any]]
) -> None:
    parts = [shards[place] for place in order]
    (merged,) = together([parse(json.dumps(part)) for part in parts])
    rows = json.loads(json.dumps(merged.as_json()["rows"]))

    def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "cpu_seconds"} for row in rows]

    assert untimed(rows) == untimed(whole["rows"])
    assert page_of(parts) == page_of([whole])


def test_a_missing_shard_is_said(shards: list[dict[str, Any]]) -> None:
    assert "Only 3 of 4 simulations" in page_of(shards[:2])
    assert "of 4 simulations" not in page_of(shards)


def test_a_sweep_of_which_nothing_is_here(whole: dict[str, Any]) -> None:
    empty = {**whole, "runs": [], "rows": []}
    with pytest.raises(ReportError, match="no simulation"):
        page_of([empty])
    assert page_of([empty, whole]) == page_of([whole])


def test_shards_that_contradict_one_another(shards: list[dict[str, Any]]) -> None:
    other = rewritten(shards[0], POLICIES[0], completion=1.0)
    with pytest.raises(ReportError, match="there twice with different figures") as caught:
        page_of([shards[1], shards[0], other])
    assert caught.value.files == (1, 2)
    slower = rewritten(shards[0], POLICIES[0], cpu_seconds=1e6)
    assert page_of([*shards, slower]) == page_of(shards)


def test_another_sweep_is_another_section(whole: dict[str, Any]) -> None:
    other = played(tiny(policies=("Buddy",), seeds=(1,)))
    shown = Page(page_of([whole, other]))
    assert len(shown.sections) == 2
    assert shown.figures_of(1, "Buddy")
    assert "Buddy" not in shown.sections[0]
    assert "MostAllocated" not in shown.sections[1]


def test_both_files_are_named_where_they_contradict(
    shards: list[dict[str, Any]], tmp_path: Path
) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(shards[0]))
    b.write_text(json.dumps(rewritten(shards[0], POLICIES[0], kept=0.123)))
    line = refused([a, b], tmp_path / "report.html")
    assert f"{a}, {b}: " in line
    assert "allowed are" in line


def test_parameters_of_another_version(whole: dict[str, Any]) -> None:
    other = changed(whole, lambda found: found["parameters"]["workload"].update(colour="red"))
    with pytest.raises(ReportError, match="another version"):
        page_of([other])
