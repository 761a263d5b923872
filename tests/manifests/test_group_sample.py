"""The sample of a group is a valid Job, and goes where a whole rack is free."""

import json
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from scheduler_extender.annotations import KEYS, PREFIX
from scheduler_extender.cli import main
from scheduler_extender.groupreference import GROUP_KEYS
from scheduler_extender.state.groups.groups import NEVER, NO_DOMAIN
from tests.commands import asked
from tests.manifests.building import KUBERNETES, ROOT, sample

PATH = ROOT / "manifests" / "samples" / "groups" / "nvl72-job.yaml"


def test_it_is_a_valid_job_of_its_files_name() -> None:
    job = sample(PATH)
    kubernetes_validate.validate(job, KUBERNETES, strict=True)
    assert (job["kind"], job["metadata"]["name"]) == ("Job", PATH.stem)
    ours = job["spec"]["template"]["metadata"]["annotations"]
    assert {key.removeprefix(PREFIX) for key in ours} <= {*KEYS, *GROUP_KEYS}
    assert str(job["spec"]["completions"]) == ours[PREFIX + "group-size"]


@pytest.mark.parametrize(
    ("trays", "reasons"), [(18, {NO_DOMAIN.message}), (17, {NO_DOMAIN.message, NEVER.message})]
)
def test_it_goes_where_a_whole_rack_is_free(trays: int, reasons: set[str], tmp_path: Path) -> None:
    groups = [
        {"kind": "MachineGroup", "machine": "gb200-tray", "count": trays, "namePrefix": "rack-"},
        {"kind": "MachineGroup", "machine": "dgx-h100", "count": 2, "namePrefix": "hgx-"},
    ]
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump_all(groups))
    done = asked(main, "check", str(PATH), f"--cluster={cluster}", "--output=json")
    answer = json.loads(done.stdout)
    assert answer["request"] == "4 GPUs link=nvlink group-size=18 group-domain=nvlink-domain"
    rows = answer["nodes"]
    taken = {row["node"].partition("-")[0] for row in rows if not row["message"]}
    assert taken == ({"rack"} if trays == 18 else set())
    assert done.returncode == (0 if trays == 18 else 1)
    assert {row["message"] for row in rows if row["message"]} == reasons


def test_a_label_in_a_cluster_file_names_a_domain(tmp_path: Path) -> None:
    job = sample(PATH)
    job["spec"] |= {"parallelism": 2, "completions": 2}
    annotations = job["spec"]["template"]["metadata"]["annotations"]
    annotations |= {PREFIX + "group-size": "2", PREFIX + "group-domain": "example.com/block"}
    written = tmp_path / "job.yaml"
    written.write_text(yaml.safe_dump(job))
    documents = [
        {"kind": "MachineGroup", "machine": "dgx-h100", "count": 3, "namePrefix": "hgx-"},
        *(
            {"kind": "Node", "metadata": {"name": f"hgx-{i:02}", "labels": labels}}
            for i, labels in enumerate(({"example.com/block": "a"}, {"example.com/block": "a"}))
        ),
    ]
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump_all(documents))
    done = asked(main, "check", str(written), f"--cluster={cluster}", "--output=json")
    rows = json.loads(done.stdout)["nodes"]
    assert {row["node"]: row["message"] for row in rows} == {
        "hgx-00": "",
        "hgx-01": "",
        "hgx-02": NO_DOMAIN.message,
    }
