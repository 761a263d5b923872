"""docs/operate/day-2.md says what the manifests and the metrics have."""

import re

import pytest

from tests.documents.blocks import ROOT
from tests.manifests.building import agent_container, container, the

PAGE = (ROOT / "docs" / "operate" / "day-2.md").read_text()
DOCS = ROOT / "docs"


@pytest.mark.parametrize("part", ["extender", "agent"])
def test_the_sizes_are_those_of_the_manifests(part: str) -> None:
    row = re.search(rf"^\| {part} \| (.*) \| (.*) CPU, (.*) \| (.*) \|$", PAGE, re.MULTILINE)
    assert row is not None
    found = (container() if part == "extender" else agent_container())["resources"]
    assert found["requests"] == {"cpu": row[2], "memory": row[3]}
    assert found["limits"] == {"memory": row[4]}, "the page says that there is no CPU limit"


def test_there_are_so_many_replicas() -> None:
    assert f"| extender | {the('Deployment')['spec']['replicas']} replicas |" in PAGE


def test_every_metric_is_one_of_the_reference() -> None:
    names = re.compile(r"`(gpu_topology_[a-z_]+)[`{]")
    known = set(names.findall((DOCS / "reference/metrics.md").read_text()))
    named = set(names.findall(PAGE))
    assert named
    assert named <= known
