"""``gpu-topology node``: from a file, and what it writes to a fake API server."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.annotations import RESUME
from scheduler_extender.cli import main
from tests.commands import asked, refused
from tests.fakes.apiserver import FakeApiServer
from topology import codec
from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine
from topology.machines.mig import cut, resource_name


def test_of_a_node_with_dra_it_says_in_which_order_gpus_come(tmp_path: Path) -> None:
    record: dict[str, Any] = codec.encode(machine("a100-pcie-4-bridged").topology("node"))
    record["spec"]["allocator"] = {"policy": "dra", "published": [3, 1, 0, 2]}
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(record))
    done = asked(main, "node", "node", "--cluster", tmp_path / "cluster.yaml")
    assert done.stdout.splitlines()[1:3] == [
        "a DRA driver serves the GPUs; kube-scheduler takes free ones in this order: 3, 1, 0, 2",
        "can still promise 1 whole node",
    ]


def test_the_memory_that_it_shows_is_what_a_pod_may_write() -> None:
    """An H100 has 79.65 GiB: who writes 80Gi gets none."""
    done = asked(main, "node", "h100-00", "-o", "wide", "--cluster", "examples/clusters/mixed.yaml")
    assert done.stdout.count(" 79Gi ") == 8


def test_of_a_gpu_in_mig_mode_it_counts_the_instances_and_not_the_gpu(tmp_path: Path) -> None:
    """Under the strategy ``mixed`` the plugin serves the other GPUs as whole ones."""
    profiles = ["3g.40gb", "3g.40gb"]
    node = cut(machine("a100-pcie-4-bridged").topology("node"), profiles, gpus=[0])
    one = node.gpus[0].mig_instances[0].uuid
    name, held = resource_name(profiles[0]), (DeviceId(one),)
    report = Report(allocations=(Allocation(PodUid("u"), "team", "pod", "main", name, held),))
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(codec.encode(node, report)))
    done = asked(main, "node", "node", "--cluster", tmp_path / "cluster.yaml")
    assert "1 of 2 MIG instances: team/pod" in done.stdout


def test_resume_writes_the_time_to_the_node(tmp_path: Path) -> None:
    with FakeApiServer() as fake:
        fake.put("/api/v1/nodes", {"metadata": {"name": "n"}, "status": {}})
        kubeconfig = fake.write_kubeconfig(tmp_path / "kubeconfig")
        written = []
        for _ in range(2):
            done = asked(main, "node", "n", "--resume", "--kubeconfig", kubeconfig)
            assert (done.returncode, done.stdout) == (0, "n takes GPU pods again\n"), done.stderr
            found = fake.read("/api/v1/nodes/n")["metadata"]["annotations"][RESUME]
            written.append(datetime.fromisoformat(found))
        assert written[0] < written[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["../pods", "--resume"], "allowed are names of", id="a path"),
        pytest.param(["n", "--resume", "--kubeconfig", "nope"], "nope", id="kubeconfig"),
        pytest.param(["n", "--resume"], "--kubeconfig", id="in no cluster"),
        pytest.param(["n", "--kubeconfig", "nope"], "nope", id="no kubeconfig"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: list[str], message: str) -> None:
    refused(asked(main, "node", *words), message)


def test_resume_of_a_node_that_is_not_there(tmp_path: Path) -> None:
    with FakeApiServer() as fake:
        kubeconfig = fake.write_kubeconfig(tmp_path / "kubeconfig")
        done = asked(main, "node", "n", "--resume", "--kubeconfig", kubeconfig)
        assert done.returncode == 2
        assert "n was not resumed" in done.stderr
