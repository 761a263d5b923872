"""The samples of docs/tasks/quotas.md are valid and named there; tests/e2e/test_quotas.py
applies them to a real API server."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from scheduler_extender.annotations import Malformed, parse
from scheduler_extender.files.clusterfile import read_pod
from tests.manifests.building import KUBERNETES, ROOT

FOLDER = ROOT / "manifests" / "samples" / "neighbours"
PATHS = sorted(FOLDER.glob("*.yaml"))
DEFAULTED = {"limits-pair"}  # who says how many GPUs it wants only through a LimitRange


def documents() -> list[Any]:
    return [
        pytest.param(found, id=f"{path.stem}-{found['kind']}-{found['metadata']['name']}")
        for path in PATHS
        for found in yaml.safe_load_all(path.read_text())
    ]


@pytest.mark.parametrize("found", documents())
def test_each_object_is_valid(found: dict[str, Any]) -> None:
    kubernetes_validate.validate(found, KUBERNETES, strict=True)


@pytest.mark.parametrize("found", [d for d in documents() if d.values[0]["kind"] == "Pod"])
def test_each_sample_pod_is_managed_by_the_extender(found: dict[str, Any]) -> None:
    request = parse(read_pod(found))
    if found["metadata"]["name"] in DEFAULTED:
        assert request is None
    else:
        assert not isinstance(request, Malformed | None)


def test_the_page_names_each_of_them() -> None:
    page = (ROOT / "docs" / "tasks" / "quotas.md").read_text()
    named = re.findall(r"kubectl apply -f (manifests/samples/neighbours/\S+)", page)
    assert sorted(named) == [str(path.relative_to(ROOT)) for path in PATHS]


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_the_end_to_end_test_applies_it(path: Path) -> None:
    source = (ROOT / "tests" / "e2e" / "test_quotas.py").read_text()
    assert f'apply(real, "{path.stem}")' in source
