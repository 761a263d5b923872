"""Every figure of the files stands in the page, which is complete in itself."""

from __future__ import annotations

import re
from typing import Any

import pytest

from benchmarks.figures.schema import Interval
from benchmarks.report import wording
from benchmarks.report.sweeps import OWN_PLUGIN
from benchmarks.simulation.baselines import OwnPlugin
from benchmarks.simulation.policies import POLICIES as KNOWN
from benchmarks.simulation.rows import spread
from tests.benchmarks.report.pages import (
    CLUSTER,
    POLICIES,
    Page,
    page_of,
    played,
    rewritten,
    tiny,
)


def written(value: list[float] | None, form: str, unit: float = 1.0) -> str:
    """An interval as the page has it."""
    return spread(None if value is None else Interval(*value), form, unit)


def test_every_policy_and_figure_stands_in_its_row(whole: dict[str, Any]) -> None:
    shown = Page(page_of([whole]))
    for row in whole["rows"]:
        wait = wording.unit(max(r["wait"][0] for r in whole["rows"]))[0]
        completion = wording.unit(max(r["completion"][0] for r in whole["rows"]))[0]
        assert shown.figures_of(0, row["policy"]) == [
            written(row["kept"], ".1f", 0.01),
            written(row["hop"], ".1f"),
            written(row["wait"], ".2f", wait),
            written(row["wait_asking"], ".2f", wait),
            written(row["completion"], ".2f", completion),
            written(row["completion_against_ours"], ".3f"),
            written(row["completion_several_against_ours"], ".3f"),
            written(row["allocated"], ".1f"),
            written(row["fragmented"], ".1f"),
        ]


def test_nothing_is_loaded_from_elsewhere(whole: dict[str, Any]) -> None:
    assert Page(page_of([whole])).outside() == []


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param('<img src="//a.example/x.png">', id="image"),
        pytest.param('<p><a href="https://a.example">x</a></p>', id="link"),
        pytest.param("<style>@import 'x.css';</style>", id="import"),
        pytest.param('<p style="background:url(x.png)"></p>', id="style"),
        pytest.param("<script>1</script>", id="script"),
        pytest.param('<p onclick="x()"></p>', id="handler"),
    ],
)
def test_the_test_sees_what_is_loaded(bad: str) -> None:
    assert Page(bad).outside()


def test_parts_of_drawings_have_names_of_their_own(whole: dict[str, Any]) -> None:
    text = page_of([whole])
    shown = Page(text)
    names = [given["id"] for _, given in shown.tags if "id" in given]
    assert len(names) == len(set(names))
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', text)
    assert used
    assert set(used) <= set(names)


def test_every_kind_of_drawing_is_there_once_for_a_case(whole: dict[str, Any]) -> None:
    labels = [
        given["aria-label"] for _, given in Page(page_of([whole])).tags if "aria-label" in given
    ]
    titles = [re.split(r"[.:]", label)[0] for label in labels]
    assert titles == [
        "Figures",
        "Promises kept",
        "Completion",
        "Waiting",
        "Weakest hop",
    ]


def test_several_loads_have_panels_of_their_own() -> None:
    shown = Page(page_of([played(tiny(loads=(0.5, 1.5), seeds=(1,)))]))
    labels = [given.get("aria-label", "") for _, given in shown.tags]
    for load in ("load 0.5", "load 1.5"):
        assert any(label.startswith(f"Completion, {CLUSTER}, {load}") for label in labels)
    assert "In 2 cases" in shown.text


def test_it_says_which_policies_need_a_device_plugin_of_their_own() -> None:
    assert {name for name, made in KNOWN.items() if isinstance(made(), OwnPlugin)} == {*OWN_PLUGIN}
    found = played(tiny(policies=("gpu-topology", "Buddy"), seeds=(1,)))
    told = "Buddy needs a device plugin of its own, which picks the GPUs; under the others NVIDIA’s"
    assert told in Page(page_of([found])).text


def test_the_best_of_a_column_is_marked(whole: dict[str, Any]) -> None:
    found = rewritten(whole, POLICIES[0], kept=0.5, hop=80.0, fragmented=3.0)
    found = rewritten(found, POLICIES[1], kept=0.9, hop=80.0, fragmented=2.0)
    shown = Page(page_of([found]))
    places = {row[0]: place for place, row in enumerate(shown.rows) if row and row[0] in POLICIES}
    marked = {name: ["best" in mark for mark in shown.marks[p]] for name, p in places.items()}
    kept, hop, fragmented = 1, 2, 7
    assert [marked[name][kept] for name in POLICIES] == [False, True]
    assert [marked[name][hop] for name in POLICIES] == [False, False]
    assert [marked[name][fragmented] for name in POLICIES] == [False, True]


def test_a_sweep_without_promises_waiting_or_several_gpus(whole: dict[str, Any]) -> None:
    nothing = dict.fromkeys(
        ("kept", "hop", "hop_least_tenth", "wait", "wait_asking", "completion", "allocated")
    )
    found = whole
    for policy in POLICIES:
        found = rewritten(found, policy, **nothing, waits=[], hops={}, curve=[], fragmented=None)
        found = rewritten(found, policy, placed=0, completion_several=None)
    shown = Page(page_of([found]))
    assert shown.figures_of(0, "gpu-topology") == ["–"] * 9 + ["120"]
