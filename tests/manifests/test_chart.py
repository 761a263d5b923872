"""The Helm chart, as far as it can be judged without Helm: tests/e2e/test_chart.py has the rest."""

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from manifests import generatechart
from scheduler_extender.annotations import MANAGED
from tests.manifests.building import ROOT, Object, container, objects

CHART = ROOT / "manifests" / "chart"
HANDMADE = {
    "NOTES.txt",
    "_helpers.tpl",
    "certificates.yaml",
    "openshift.yaml",
    "scheduler.yaml",
    "steering.yaml",
}


def values() -> Object:
    return yaml.safe_load((CHART / "values.yaml").read_text())  # type: ignore[no-any-return]


def schema() -> Object:
    return json.loads((CHART / "values.schema.json").read_text())  # type: ignore[no-any-return]


def test_the_templates_are_those_that_make_chart_writes() -> None:
    made = generatechart.templates()
    found = {path.name: path.read_text() for path in (CHART / "templates").iterdir()}
    assert {name: text for name, text in found.items() if name not in HANDMADE} == made
    assert found.keys() >= HANDMADE


def test_make_chart_says_what_is_out_of_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    assert generatechart.main(["--check"]) == 0
    monkeypatch.setattr(generatechart, "TEMPLATES", tmp_path)
    assert generatechart.main([]) == 0
    (tmp_path / "rbac.yaml").write_text("another")
    assert generatechart.main(["--check"]) == 1
    assert capsys.readouterr().err == "rbac.yaml is out of date: run `make chart`\n"


def test_the_chart_is_not_generated_from_a_base_without_the_placeholder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = [each for each in objects() if each["kind"] != "DaemonSet"]
    monkeypatch.setattr(generatechart, "kustomized", lambda _: copy.deepcopy(base))
    with pytest.raises(generatechart.ChartError, match=r"the base has no .*DaemonSet"):
        generatechart.templates()


@pytest.mark.parametrize(
    ("added", "why"),
    [
        pytest.param(
            {"kind": "Secret", "metadata": {"name": "x"}},
            "no template takes Secret",
            id="a-kind-that-no-template-takes",
        ),
        pytest.param(
            {"kind": "Service", "metadata": {"name": "x", "labels": {"a": "{{ b }}"}}},
            "Service x has text that Helm would read as a template",
            id="text-with-braces",
        ),
    ],
)
def test_the_chart_is_not_made_of_what_it_cannot_take(
    monkeypatch: pytest.MonkeyPatch, added: Object, why: str
) -> None:
    base = [*objects(), added]
    monkeypatch.setattr(generatechart, "kustomized", lambda _: copy.deepcopy(base))
    with pytest.raises(generatechart.ChartError, match=why):
        generatechart.templates()


def test_the_versions_are_the_projects() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
    assert chart["name"] == project["name"]
    assert container()["image"] == f"{chart['name']}:{chart['appVersion']}"
    assert values()["image"]["repository"] == "", "the images are in no registry"


def leaves(of: Object, way: str = "") -> Iterator[tuple[str, Any]]:
    """The values that may be set, by their path; the schema says where a path ends."""
    for key, value in of.items():
        path = f"{way}{key}"
        if isinstance(value, dict) and "properties" in schema_of(path):
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def schema_of(path: str) -> Object:
    at = schema()
    for key in path.split("."):
        at = at["properties"][key]
        if "$ref" in at:
            return {}
    return at


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    Draft7Validator.check_schema(schema())
    assert list(Draft7Validator(schema()).iter_errors(values())) == []

    def named(of: Object, way: str = "") -> Iterator[str]:
        for key, value in of["properties"].items():
            if "properties" in value:
                assert value["additionalProperties"] is False, key
                yield from named(value, f"{way}{key}.")
            elif key != "global":  # Helm's own
                yield f"{way}{key}"

    assert sorted(named(schema())) == sorted(path for path, _ in leaves(values()))


def test_every_value_is_explained_and_used() -> None:
    text = (CHART / "values.yaml").read_text()
    templates = "\n".join(p.read_text() for p in (CHART / "templates").iterdir())
    # Where a release may be older than the value: (.Values.group).name
    used = set(re.findall(r"\.Values\.([\w.]+)", templates.replace(").", ".")))
    for path, _ in leaves(values()):
        assert path in used, path
    assert used <= {path for path, _ in leaves(values())}
    # A line of words stands before each group, and before what its name does not explain.
    for group in values():
        assert f"\n{group}:" in text


def test_gpu_pods_are_recognised_by_the_resources_that_the_code_manages() -> None:
    text = (CHART / "templates" / "_helpers.tpl").read_text()
    (listed,) = re.findall(r"\bname in \[(.*?)\]", text)
    prefixes = re.findall(r"startsWith\('(.*?)'\)", text)
    found = [*re.findall(r"'(.*?)'", listed), *(f"{prefix}*" for prefix in prefixes)]
    assert tuple(found) == MANAGED
