"""Sweeps: means over seeds, and tables of them."""

import json
import math

import pytest

from benchmarks.simulation import sweep
from benchmarks.simulation.figures import Simulated, Sweep, interval, rows, table


def test_figures_and_their_table() -> None:
    found = sweep.run(
        Sweep(
            clusters=("dgx1-v100=2",),
            jobs="synthetic",
            count=60,
            demand="nvlink",
            loads=(0.7, 1.1),
            policies=("gpu-topology", "LeastAllocated"),
            seeds=2,
            communication=0.05,
            full_speed=50,
            network=25,
        ),
        workers=1,
    )
    written = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert Simulated.model_validate(written) == found
    assert table(found).row_count == len(rows(found.runs)) == 4
    for row in written["rows"]:
        assert (row["jobs"], row["never_placed"]) == (120, 0)
        assert 0 < row["allocated"][0] <= 1
        if row["policy"] == "gpu-topology":
            assert row["kept"] == [1.0, None]
            assert row["completion_against_ours"] == [1.0, None]
        else:
            assert row["kept"][0] < 1


def test_intervals_are_students() -> None:
    assert interval([]) is None
    assert interval([3.0]) == (3.0, None)
    assert interval([3.0, 30.0]) == (16.5, None)
    # Five values with a standard deviation of 1: t is 2.776 for four degrees of freedom.
    values = [10 + math.sqrt(1 / 2.5) * x for x in (-2, -1, 0, 1, 2)]
    middle, half = interval(values) or (0, 0)
    assert middle == pytest.approx(10)
    assert half == pytest.approx(2.776 / math.sqrt(5), rel=1e-3)
