"""The samples go where their comments say."""

from __future__ import annotations

import json
from pathlib import Path

import kubernetes_validate
import yaml

from scheduler_extender.annotations import KEYS, PREFIX, Malformed, parse
from scheduler_extender.cli.commands import main
from scheduler_extender.files.clusterfile import read_pod
from tests.commands import asked
from tests.manifests.building import (
    KUBERNETES,
    every_sample,
    sample,
)

TABLE = {
    *("link", "min-nvlinks", "shape", "min-bandwidth", "min-gpu-memory", "gpu-model"),
    *("same-numa", "nic", "policy"),
}
"""The design's table."""


@every_sample
def test_a_sample_is_a_valid_pod_of_its_files_name(path: Path) -> None:
    pod = sample(path)
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    assert (pod["kind"], pod["metadata"]["name"]) == ("Pod", path.stem)


@every_sample
def test_a_sample_carries_only_keys_of_the_table(path: Path) -> None:
    pod = sample(path)
    ours = {k.removeprefix(PREFIX) for k in pod["metadata"].get("annotations", {})}
    assert ours <= TABLE
    assert not isinstance(parse(read_pod(pod)), Malformed | None)


def test_the_table_is_the_codes() -> None:
    assert KEYS.keys() == TABLE


TAKEN = {
    "pair-nvlink": ({"dgx-a100", "dgx-h100"}, {"v100-pcie-4", "rtx4090-8"}),
    "plain": ({"dgx-a100", "dgx-h100", "rtx4090-8"}, set[str]()),
    "quad-preferred": ({"dgx-a100", "dgx-h100", "rtx4090-8"}, set[str]()),
    "ring-bandwidth": ({"dgx-a100", "dgx-h100"}, {"dgx1-v100", "rtx4090-8-allsys"}),
    "single-model-memory": ({"dgx-h100", "dgx-a100-80"}, {"dgx-a100", "rtx4090-8"}),
}
"""Machines of the catalogue that take the sample, and some that do not."""


@every_sample
def test_a_sample_goes_where_its_comment_says(path: Path, tmp_path: Path) -> None:
    takes, refuses = TAKEN[path.stem]
    groups = [
        {"kind": "MachineGroup", "machine": m, "count": 1, "namePrefix": f"{m}-"}
        for m in sorted(takes | refuses)
    ]
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump_all(groups))
    check = ["check", str(path), f"--cluster={cluster}", "--output=json"]
    done = asked(main, *check)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["nodes"]
    passed = {row["node"].rpartition("-")[0] for row in rows if not row["reason"]}
    assert passed == takes
    assert len(rows) == len(groups)
