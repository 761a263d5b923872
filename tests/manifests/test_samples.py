"""The samples go where their comments say."""

import json
from pathlib import Path

import kubernetes_validate
import yaml

from scheduler_extender.annotations import Malformed, parse
from scheduler_extender.cli import main
from scheduler_extender.files.clusterfile import read_pod
from tests.commands import asked
from tests.manifests.building import (
    KUBERNETES,
    every_sample,
    sample,
)


@every_sample
def test_a_sample_is_a_valid_pod_of_its_files_name(path: Path) -> None:
    pod = sample(path)
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    assert (pod["kind"], pod["metadata"]["name"]) == ("Pod", path.stem)
    assert not isinstance(parse(read_pod(pod)), Malformed | None)


# Machines of the catalogue that take the sample, and some that do not.
TAKEN = {
    "mig-slices": ({"a100-one-cut"}, {"a100-all-cut", "dgx-a100"}),
    "pair-nvlink": ({"dgx-a100", "dgx-h100"}, {"v100-pcie-4", "rtx4090-8"}),
    "plain": ({"dgx-a100", "dgx-h100", "rtx4090-8"}, set[str]()),
    "quad-preferred": ({"dgx-a100", "dgx-h100", "rtx4090-8"}, set[str]()),
    "ring-bandwidth": ({"dgx-a100", "dgx-h100"}, {"dgx1-v100", "rtx4090-8-allsys"}),
    "shared-memory": ({"a100-shared", "t4-shared", "dgx-a100"}, {"k80-shared", "k80-4"}),
    "single-model-memory": ({"dgx-h100", "dgx-a100-80"}, {"dgx-a100", "rtx4090-8"}),
}
PARTS = ["3g.40gb", "2g.20gb", "2g.20gb"]
# Those that are cut into MIG instances.
CUT: dict[str, dict[str, object]] = {
    "a100-one-cut": {"machine": "a100-pcie-4-bridged", "mig": {"profiles": PARTS, "gpus": [0]}},
    "a100-all-cut": {"machine": "a100-pcie-4-bridged", "mig": {"profiles": PARTS}},
}
# Those whose GPUs are shared.
SHARED: dict[str, dict[str, object]] = {
    "a100-shared": {"machine": "a100-pcie-4-bridged", "sharing": {"replicas": 3}},
    "t4-shared": {"machine": "t4-4", "sharing": {"replicas": 2}},
    "k80-shared": {"machine": "k80-4", "sharing": {"replicas": 2}},
}
KINDS = {**CUT, **SHARED}


@every_sample
def test_a_sample_goes_where_its_comment_says(path: Path, tmp_path: Path) -> None:
    takes, refuses = TAKEN[path.stem]
    groups = [
        {"kind": "MachineGroup", "machine": m, "count": 1, "namePrefix": f"{m}-"} | KINDS.get(m, {})
        for m in sorted(takes | refuses)
    ]
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump_all(groups))
    check = ["check", str(path), f"--cluster={cluster}", "--output=json"]
    done = asked(main, *check)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["nodes"]
    passed = {row["node"].rpartition("-")[0] for row in rows if not row["message"]}
    assert passed == takes
    assert len(rows) == len(groups)


def test_the_example_of_shared_gpus_says_what_the_page_says() -> None:
    root = Path(__file__).parents[2]
    cluster = root / "examples/clusters/shared.yaml"
    manifest = root / "manifests/samples/shared-memory.yaml"
    done = asked(main, "check", manifest, f"--cluster={cluster}", "--output=json")
    rows = {row["node"]: row for row in json.loads(done.stdout)["nodes"]}
    assert {name for name, row in rows.items() if not row["message"]} == {
        *("shared-01", "packed-00", "whole-00"),
    }
    assert rows["shared-00"]["message"].startswith(
        "a GPU that the pod may get has too little memory left for 12Gi"
    )
    assert [gpu["shares"] for gpu in rows["shared-01"]["sharedGpus"]] == [4, 4, 4, 4]
    assert "sharedGpus" not in rows["whole-00"]
