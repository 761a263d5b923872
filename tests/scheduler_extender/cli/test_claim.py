"""``gpu-topology claim``: a pod's constraints as a ResourceClaimTemplate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.claims import selector
from scheduler_extender.cli import main
from tests.commands import ROOT, Done, asked
from topology.core import alternatives as core

CLUSTERS = ROOT / "examples" / "clusters"
GROUP = "kind: MachineGroup\nmachine: {}\ncount: 1\nnamePrefix: n-\n"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: train, annotations: {gpu-topology.io/link: nvlink}}
spec:
  containers:
  - {name: log, image: x}
  - name: main
    image: x
    resources: {limits: {nvidia.com/gpu: 2, cpu: 4}, requests: {nvidia.com/gpu: 2}}
"""


def claim(folder: Path, text: str, cluster: str = GROUP.format("a100-pcie-4-bridged")) -> Done:
    (folder / "pod.yaml").write_text(text)
    (folder / "cluster.yaml").write_text(cluster)
    return asked(main, "claim", folder / "pod.yaml", "--cluster", folder / "cluster.yaml")


def requests(template: dict[str, Any]) -> Any:
    return template["spec"]["spec"]["devices"]["requests"]


def test_the_pod_takes_its_gpus_by_the_claim(tmp_path: Path) -> None:
    done = claim(tmp_path, POD)
    assert (done.returncode, done.stderr) == (0, "")
    template, pod = yaml.safe_load_all(done.stdout)
    assert template["metadata"] == {"name": "train-gpus"}
    ((name, alternatives),) = [(r["name"], r["firstAvailable"]) for r in requests(template)]
    assert name == "gpus"
    assert [each["count"] for each in alternatives] == [2, 2]
    buses = [re.findall(r'"(0000:[^"]*)"', str(each["selectors"])) for each in alternatives]
    assert buses == [["0000:27:00.0", "0000:38:00.0"], ["0000:a8:00.0", "0000:b8:00.0"]]
    assert pod["spec"]["resourceClaims"] == [
        {"name": "gpus", "resourceClaimTemplateName": "train-gpus"}
    ]
    log, main_ = pod["spec"]["containers"]
    assert "resources" not in log
    assert main_["resources"] == {
        "limits": {"nvidia.com/gpu": 0, "cpu": 4}, "requests": {}, "claims": [{"name": "gpus"}]
    }  # fmt: skip
    assert pod["metadata"]["annotations"] == {"gpu-topology.io/link": "nvlink"}
    (tmp_path / "claimed.yaml").write_text(done.stdout)
    checked = asked(
        main, "check", tmp_path / "claimed.yaml", "--cluster", tmp_path / "cluster.yaml"
    )
    assert checked.returncode == 2
    assert "asks for the GPUs of its claims: once it is there, gpu-topology why" in checked.stderr


def test_what_makes_pods_has_the_claim_in_its_template() -> None:
    job = ROOT / "examples" / "workloads" / "job.yaml"
    done = asked(main, "claim", job, "--cluster", CLUSTERS / "mixed.yaml")
    assert done.returncode == 0
    template, made = yaml.safe_load_all(done.stdout)
    assert made["kind"] == "Job"
    assert made["spec"]["template"]["spec"]["resourceClaims"][0]["name"] == "gpus"
    assert len(requests(template)[0]["firstAvailable"]) <= 8


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    names = ("dgx1-v100", "a100-pcie-4-bridged", "a30-4-bridged")
    groups = "---\n".join(
        GROUP.format(name).replace("n-", f"n{i}-") for i, name in enumerate(names)
    )
    done = claim(tmp_path, POD, groups)
    assert done.returncode == 0
    assert done.stderr == (
        "note: 8 × Tesla V100-SXM2-16GB, NVLink 1-2: 14 of 16 sets of 2 GPUs with link=nvlink are "
        "named, and no pod gets the others\n"
    )


def test_machines_that_are_not_looked_at_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "MOST_STEPS", 14)  # half of them do for one
    names = ("dgx1-v100", "a100-pcie-4-bridged", "a30-4-bridged")
    groups = "---\n".join(
        GROUP.format(name).replace("n-", f"n{i}-") for i, name in enumerate(names)
    )
    done = claim(tmp_path, POD, groups)
    assert "too many kinds of machines to look at all: 2 nodes are left\n" in done.stderr


def test_no_set_is_a_no(tmp_path: Path) -> None:
    done = claim(tmp_path, POD, GROUP.format("l40s-4"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("no set of 2 GPUs with link=nvlink can be named by PCI addresses\n")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("{gpu-topology.io/link: nvlink}", "{}", "no constraints that are required"),
        ("nvlink}", "nvlink, gpu-topology.io/policy: preferred}", "no constraints that are req"),
        ("name: log, image: x", "name: log, image: x, resources: {limits: {nvidia.com/gpu: 1}}",
         "one container that asks for GPUs is needed"),
        ("nvidia.com/gpu: 2, cpu: 4}, requests: {nvidia.com/gpu: 2}", "cpu: 4}", "asks for no GPU"),
        ("link: nvlink", "lnik: nvlink", "unknown key"),
    ],
    ids=["plain", "preferred", "two containers", "no GPUs", "a key"],
)  # fmt: skip
def test_bad_input_is_one_line(tmp_path: Path, before: str, after: str, said: str) -> None:
    done = claim(tmp_path, POD.replace(before, after))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_can_have_no_claim_is_named(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "workloads" / "kserve.yaml").read_text()
    done = claim(tmp_path, text)
    assert (done.returncode, done.stdout) == (2, "")
    assert "kind InferenceService: its pods can have no claim" in done.stderr


def test_products_are_told_apart() -> None:
    found = selector([("A", "0000:01:00.0"), ("B", "0000:02:00.0"), ("A", "0000:03:00.0")])
    assert found.count(" || ") == 1
    assert 'productName == "A" && ' in found
    assert '["0000:01:00.0", "0000:03:00.0"]' in found
