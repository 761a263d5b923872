"""Promises over every kind of GPU; `make closed-loop` plays it at full length."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.promises.bykind import KINDS, RULE, WITH_FAULTS, counted, kept
from benchmarks.promises.plays import Play, play
from topology.core.placement import verdict

pytestmark = pytest.mark.long

PLACEMENTS = 2_000


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the command writes; it exits with 0."""
    path: Path = tmp_path_factory.mktemp("by-kind") / "figures.json"
    asked = ["promises", "--placements", str(PLACEMENTS), "--json", str(path)]
    done = CliRunner().invoke(app, [*asked, "--workers", str(os.cpu_count() or 1)])
    assert done.exit_code == 0, done.output
    assert "total without the rule" in done.output
    return json.loads(path.read_text())


def test_nothing_is_broken_whatever_is_placed(written: dict[str, Any]) -> None:
    rows = written["rows"]
    assert rows.pop(RULE)["guaranteed_broken"] > 0
    assert set(rows) == {name + more for name in KINDS for more in ("", WITH_FAULTS)}
    assert sum(row["placed"] for row in rows.values()) >= PLACEMENTS
    for name, row in rows.items():
        assert kept(row), (name, row)
        assert row["guaranteed"] > 0, name
    groups = rows["groups and gangs"]
    assert groups["gang_binds"] > 0
    assert groups["whole_groups"] > 0


def test_whole_groups_and_whole_racks_are_placed() -> None:
    tally = play(Play("extender", 900, 21, "racks", "groups", 0.7, 0.0))
    asked, placed = map(in_racks, (tally.asked_by_kind, tally.placed_by_kind))
    assert tally.whole_groups >= 160
    assert placed >= 0.33 * asked, "others break into whole racks"


def in_racks(kinds: Counter[str]) -> int:
    """The members of groups that need a good part of a whole rack."""
    return kinds["rack"] + kinds["gang-rack"]


def test_memory_over_a_gpus_total_is_counted(planted: pytest.MonkeyPatch) -> None:
    """A bug that is planted: its row says that something was not kept."""
    planted.setattr(verdict, "short_of_memory", lambda *_: None)
    first = next(kind for kind in KINDS.values() if kind.workload == "shares")
    row = counted(play(first))
    assert row["memory_exceeded"] > 0
    assert not kept(row)
