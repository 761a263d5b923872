"""Sweeps: shards, rows over seeds, and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.figures.schema import Figures
from benchmarks.figures.simulated import Simulated
from benchmarks.simulation import sources, sweep
from benchmarks.simulation.jobs import Ask, Job
from benchmarks.simulation.plays import Shard, Sweep
from benchmarks.simulation.rows import interval, merge, table, tsv
from benchmarks.simulation.sources import Workload
from tests.benchmarks.simulation.samples import play


def small(**more: object) -> Sweep:
    return Sweep(
        ("dgx1-v100=2",),
        Workload("synthetic", 60),
        (0.7, 1.1),
        ("gpu-topology", "LeastAllocated"),
        (1, 2),
        **more,  # type: ignore[arg-type]
    )


def without_cost(rows: Sequence[Figures]) -> list[dict[str, object]]:
    return [{k: v for k, v in row.as_json().items() if k != "cpu_seconds"} for row in rows]


def read_again(found: Simulated) -> Simulated:
    """As `report` has it: through JSON."""
    return Simulated.model_validate_json(json.dumps(found.as_json()))


@pytest.mark.long
def test_shards_together_are_the_whole_and_the_same_again() -> None:
    whole = sweep.run(small(), workers=1)
    parts = [sweep.run(small(shard=Shard(i, 3)), workers=1) for i in range(3)]
    merged = merge([read_again(part) for part in (parts[2], parts[0], parts[1])])
    assert without_cost(merged.runs) == without_cost(whole.runs)
    assert without_cost(merged.rows) == without_cost(whole.rows)
    with pytest.raises(ValueError, match="parameters differ"):
        merge([whole, sweep.run(replace(small(), seeds=(1,)), workers=1)])


def test_figures_and_their_table() -> None:
    found = sweep.run(small(), workers=1)
    assert json.loads(json.dumps(found.as_json(), allow_nan=False))["mode"] == "as shipped"
    assert read_again(found) == found
    for row in found.rows:
        assert row.jobs == 120
        assert row.placed == 120
        assert row.allocated is not None
        assert 0 <= row.allocated.mean <= 100
        assert row.fragmented is not None
        assert 0 <= row.fragmented.mean <= 100
        if row.policy == "gpu-topology":
            assert row.kept == (1.0, 0.0)
            assert row.completion_against_ours == (1.0, 0.0)
    stock = [row for row in found.rows if row.policy == "LeastAllocated"]
    assert len(stock) == 2
    assert all(row.kept is not None and row.kept.mean < 1 for row in stock)
    lines = tsv(found).splitlines()
    assert len(lines) == 1 + 8
    assert len({line.count("\t") for line in lines}) == 1
    assert table(found).row_count == 4


def test_intervals_are_students() -> None:
    assert interval([]) is None
    assert interval([3.0]) == (3.0, 0.0)
    # Five values with a standard deviation of 1: t is 2.776 for four degrees of freedom.
    values = [10 + math.sqrt(1 / 2.5) * x for x in (-2, -1, 0, 1, 2)]
    middle, half = interval(values) or (0, 0)
    assert middle == pytest.approx(10)
    assert half == pytest.approx(2.776 / math.sqrt(5), rel=1e-3)


def test_gpu_time_is_of_gpus_that_are_taken() -> None:
    # A share is a whole GPU where nothing else is served; so is its time.
    whole = sweep.run(
        Sweep(("t4-1=4",), Workload("synthetic", 80, demand="none"), (0.8,), ("Random",), (1,)),
        workers=1,
    )
    allocated = whole.runs[0].allocated
    assert allocated is not None
    assert 0 < allocated <= 100
    shares = [Job("", float(i), 1000.0, Ask(1, 0.1)) for i in range(4)]
    result = play("t4-1=4", shares, "Random")
    assert [o.gpus for o in result.outcomes] == [1, 1, 1, 1]
    (first, *_, last) = sources.loaded(shares, 0.5, 4)
    assert (first.arrives, last.arrives) == (0, 4 * 1000 / (0.5 * 4))
