"""The schema of figures: what is written is read again, to the last digit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from benchmarks.figures.compared import Compared, ComparisonParameters, ComparisonRow, Experiment
from benchmarks.figures.schema import Interval
from benchmarks.figures.simulated import Parameters, PolicyRow

ROW = ComparisonRow(workload="default", policy="FGD", seeds=5, published=95, ours=94.50)
GIVEN: dict[str, Any] = {
    "clusters": ["dgx1-v100=2"],
    "workload": {"source": "philly", "count": None, "demand": "nvlink", "pod_gpus": None},
    "loads": [1, 0.9, None],
    "policies": ["Buddy"],
    "seeds": [1],
    "rules": {
        "queue": "fifo",
        "gang": True,
        "speed": {"communication": 0.05, "full": 50, "network": 25.0},
    },
    "adds": [],
}


def test_whole_numbers_stay_whole() -> None:
    text = json.dumps(GIVEN)
    assert json.dumps(Parameters.model_validate_json(text).as_json()) == text


def test_parameters_of_a_later_version_are_kept_but_workloads_are_known() -> None:
    later = {**GIVEN, "colour": "red"}
    assert Parameters.model_validate_json(json.dumps(later)).as_json()["colour"] == "red"
    workload = {**GIVEN["workload"], "colour": "red"}
    with pytest.raises(ValidationError, match="colour"):
        Parameters.model_validate_json(json.dumps({**GIVEN, "workload": workload}))


def test_what_an_upper_bound_has_not_is_left_out() -> None:
    bound = Experiment(
        workload="default",
        policy="upper bound",
        seed=42,
        published=None,
        allocation_at_130=97.25,
        cpu_seconds=3.5,
    )
    names = ["workload", "policy", "seed", "published", "allocation_at_130", "cpu_seconds"]
    assert list(bound.as_json()) == names
    given = ComparisonParameters(workloads=("default",), policies=("FGD",), seeds=(42,))
    found = Compared(parameters=given, experiments=(bound,), rows=(ROW,))
    assert Compared.model_validate_json(json.dumps(found.as_json())) == found


def test_a_file_that_calls_unplaceable_jobs_impossible_is_read() -> None:
    jobs = ("jobs", "placed", "unplaceable", "stuck", "asking", "unblocked")
    counts = dict.fromkeys(("seeds", "moved", *jobs), 7)
    means = {name: None for name in PolicyRow.model_fields if name not in counts}
    written = {**means, **counts, "cluster": "dgx1-v100=1", "policy": "Buddy"}
    row = PolicyRow.model_validate_json(json.dumps(written))
    assert row.as_json() == written
    written["impossible"] = written.pop("unplaceable")
    assert PolicyRow.model_validate_json(json.dumps(written)) == row


def test_pairs_are_lists_in_a_file() -> None:
    assert json.dumps(Interval(1, 0.5)) == "[1, 0.5]"


@pytest.mark.parametrize(
    ("field", "value"),
    [("ours", float("nan")), ("ours", "94"), ("ours", True), ("seeds", -1), ("workload", None)],
)
def test_what_cannot_be_is_refused_where_it_is_made(field: str, value: object) -> None:
    row = {**ROW.as_json(), field: value}
    with pytest.raises(ValidationError, match=field):
        ComparisonRow.model_validate(row)


def test_figures_never_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ROW.ours = 100.0
