"""examples/workloads: each file is read without a warning, and there is room for its pods."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from scheduler_extender.cli import main
from tests.commands import ROOT, asked
from tests.manifests.building import KUBERNETES

PATHS = sorted((ROOT / "examples" / "workloads").glob("*.yaml"))
BUILT_IN = ("v1", "apps/v1", "batch/v1")


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_it_is_read_without_a_warning_and_there_is_room(path: Path) -> None:
    clusters = ROOT / "examples" / "clusters"
    cluster = clusters / ("racks.yaml" if path.stem == "jobset" else "mixed.yaml")
    done = asked(main, "check", path, "--cluster", cluster)
    assert (done.returncode, done.stderr) == (0, "")
    assert "guaranteed" in done.stdout
    assert "link=nvlink" in done.stdout


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_kubernetes_would_take_what_it_knows(path: Path) -> None:
    for found in yaml.safe_load_all(path.read_text()):
        if found["apiVersion"] in BUILT_IN:
            kubernetes_validate.validate(found, KUBERNETES, strict=True)
