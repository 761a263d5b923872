"""Promises over every kind of GPU, beside oracles; `make closed-loop` plays it at full length."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.promises.bykind import KINDS, WITH_FAULTS, counted, kept
from benchmarks.promises.plays import Play, play, play_all
from benchmarks.promises.tally import Tally
from topology.core.placement import verdict

pytestmark = pytest.mark.long

PLACEMENTS = 2_000


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the command writes; it exits with 0."""
    path: Path = tmp_path_factory.mktemp("by-kind") / "figures.json"
    asked = ["promises-by-kind", "--placements", str(PLACEMENTS), "--json", str(path)]
    done = CliRunner().invoke(app, [*asked, "--workers", str(os.cpu_count() or 1)])
    assert done.exit_code == 0, done.output
    assert "everything" in done.output
    return json.loads(path.read_text())


def test_nothing_is_broken_whatever_is_placed(written: dict[str, Any]) -> None:
    rows = written["rows"]
    assert set(rows) == {name + more for name in KINDS for more in ("", WITH_FAULTS)}
    assert sum(row["placed"] for row in rows.values()) >= PLACEMENTS
    for name, row in rows.items():
        assert kept(row), (name, row)
        assert row["guaranteed"] > 0, name
    groups = rows[next(iter(KINDS))]
    assert groups["gang_binds"] > 0
    assert groups["whole_groups"] > 0


def test_nine_tenths_of_what_an_oracle_places_are_placed(
    written: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    oracles = written["oracle"]
    ours = sum(written["rows"][name]["required_placed"] for name in oracles)
    oracle = sum(row["required_placed"] for row in oracles.values())
    with capsys.disabled():
        print(f"\nrequired, of every kind: {ours} of the oracles' {oracle}")
    assert ours >= 0.9 * oracle
    assert all(row["guaranteed_broken"] == row["split_groups"] == 0 for row in oracles.values())


def test_the_oracle_for_groups_keeps_every_promise_and_places_more() -> None:
    ours, oracle = play_all(
        Play(policy, 900, 21, "racks", "groups", 0.7, 0.0) for policy in ("extender", "oracle")
    )
    assert oracle.broken.total() == oracle.split_groups == 0
    assert oracle.kubelet_refusals.total() == oracle.gang_refusals.total() == 0
    assert oracle.whole_groups >= ours.whole_groups
    assert ours.whole_groups >= 0.9 * oracle.whole_groups
    assert in_racks(ours) >= 0.8 * in_racks(oracle), "others break into whole racks"


def in_racks(tally: Tally) -> int:
    """The members of groups that need a good part of a whole rack."""
    return tally.placed_by_kind["rack"] + tally.placed_by_kind["gang-rack"]


def test_memory_that_nobody_adds_up_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that is planted: its row says that something was not kept."""
    monkeypatch.setattr(verdict, "short_of_memory", lambda *_: None)
    first = next(kind for kind in KINDS.values() if kind.workload == "shares")
    row = counted(play(first))
    assert row["memory_exceeded"] > 0
    assert not kept(row)
