"""``gpu-topology pods``: which pod has which GPUs, how they are linked, and what was promised."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.annotations import PLACEMENT
from scheduler_extender.cli import main
from tests.commands import Done, asked, refused
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod
from tests.scheduler_extender.cli.kubecluster import Cluster
from topology.codec import encode
from topology.core.devices import DeviceId, GpuResource, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine

PAIRS = machine("a100-pcie-4-bridged").topology("train-07")
OTHER = machine("a100-pcie-4-bridged").topology("train-08")
CUBE = machine("dgx1-v100").topology("train-01")
STARTED = (datetime.now(UTC) - timedelta(hours=3, minutes=5)).isoformat(timespec="seconds")
SHARES = ((1, 0), (1, 3), (2, 1))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Pods with a linked pair, with an unlinked pair that requires links, and plain ones."""
    monkeypatch.setenv("COLUMNS", "200")
    with FakeApiServer() as fake:
        found = Cluster(fake, tmp_path)
        found.node(PAIRS, pair=("team-a", 0, 1))
        found.node(OTHER, wrong=("team-a", 1, 2))
        found.node(CUBE, four=("team-b", 0, 1, 2, 5), one=("team-a", 4))
        for name, node, verdict in (
            ("pair", "train-07", "guaranteed"),
            ("wrong", "train-08", "not-guaranteed"),
        ):
            manifest = pod(2, {"link": "nvlink"}, name=name, uid=name, node=node)
            written = {"verdict": verdict, "node": node, "uid": name}
            manifest["metadata"]["labels"] = {"app": name}
            manifest["metadata"]["annotations"] |= {PLACEMENT: json.dumps(written)}
            manifest["status"] = {"phase": "Running", "startTime": STARTED}
            found.pod(manifest)
        yield found


def pods(found: Cluster, *words: str) -> Done:
    if "-A" not in words:
        return found.asked("pods", *words)
    return asked(main, "pods", *words, "--kubeconfig", found.kubeconfig)


def listed(found: Cluster, *words: str) -> dict[str, dict[str, Any]]:
    rows = json.loads(pods(found, *words, "-o", "json").stdout)["pods"]
    return {row["pod"]: row for row in rows}


def test_each_pod_has_its_gpus_its_links_and_its_promise(cluster: Cluster) -> None:
    rows = listed(cluster, "-A")
    assert list(rows) == ["team-a/one", "team-a/pair", "team-a/wrong", "team-b/four"]
    pair, four = rows["team-a/pair"], rows["team-b/four"]
    assert (pair["node"], pair["gpus"], pair["links"]) == ("train-07", [0, 1], ["NV12"])
    assert (pair["request"], pair["numaNodes"], pair["state"]) == (
        "2 GPUs link=nvlink",
        [0],
        "in-use-as-asked",
    )
    assert (pair["verdict"], pair["since"]) == ("guaranteed", STARTED)
    assert (four["links"], four["numaNodes"]) == (["NV2", "NV1", "SYS"], [0, 1])
    assert (rows["team-a/one"]["links"], rows["team-a/one"]["verdict"]) == ([], "")


def test_the_table_says_the_same(cluster: Cluster) -> None:
    done = pods(cluster)
    assert (done.returncode, done.stderr) == (0, "")
    header, *lines = [re.split(r"  +", line) for line in done.stdout.splitlines()]
    assert header == ["pod", "node", "GPUs", "request", "has", "verdict", "runs"]
    asks = "2 GPUs link=nvlink"
    assert lines == [
        ["team-a/one", "train-01", "4", "1 GPU", "NUMA 1", "–", "–"],
        ["team-a/pair", "train-07", "0,1", asks, "NV12, NUMA 0", "guaranteed", "3 h"],
        ["team-a/wrong", "train-08", "1,2", asks, "SYS, NUMA 0,1, mismatched", "–", "3 h"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "names"),
    [
        pytest.param(("-A", "--mismatched"), "wrong", id="mismatched"),
        pytest.param(("-A", "--node", "train-01"), "one four", id="node"),
        pytest.param(("-l", "app=pair"), "pair", id="labels"),
        pytest.param(("-A", "--sort-by", "GPUs"), "four pair wrong one", id="GPUs"),
    ],
)
def test_some_of_the_pods(cluster: Cluster, words: tuple[str, ...], names: str) -> None:
    found = pods(cluster, *words, "-o", "name").stdout
    assert found.split() == [f"pod/{name}" for name in names.split()]


def test_no_pod(cluster: Cluster) -> None:
    done = pods(cluster, "-l", "app=none", "--mismatched")
    assert (done.returncode, done.stdout) == (
        0,
        "no pod in the namespace team-a has other GPUs than it requires; -A lists all namespaces\n",
    )
    assert pods(cluster, "-A", "-l", "app=none").stdout == "no pod has GPUs\n"
    refused(pods(cluster, "--node", "train-7"), "there is no node train-7")
    refused(pods(cluster, "--node", "../x"), "--node: allowed are names of")


def test_a_pod_on_its_way_has_no_gpus_yet(cluster: Cluster) -> None:
    cluster.pod(pod(2, name="coming", uid="coming", node="train-01"))
    coming = listed(cluster)["team-a/coming"]
    assert (coming["gpus"], coming["state"], coming["request"]) == ([], "assumed", "2 GPUs")
    assert "no report shows its GPUs yet" in pods(cluster).stdout


def test_shares_are_no_gpus(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    node = replace(PAIRS, resources=(GpuResource(replicas=4),))
    ids = tuple(DeviceId(f"{node.gpus[gpu].uuid}::{share}") for gpu, share in SHARES)
    held = Allocation(PodUid("u"), "default", "p", "main", "nvidia.com/gpu", ids)
    record = encode(node, Report("b", 1, allocations=(held,)))
    cluster.write_text(yaml.safe_dump(record))
    done = asked(main, "pods", "--cluster", cluster, "--no-headers")
    assert re.split(r"  +", done.stdout) == [
        "default/p", "train-07", "3 shares of 1,2", "–", "SYS, NUMA 0,1", "–", "–\n"
    ]  # fmt: skip


@pytest.mark.parametrize("columns", [40, 60, 80, 140])
@pytest.mark.parametrize("form", ["table", "wide"])
def test_it_fits_a_terminal(
    cluster: Cluster, columns: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = pods(cluster, "-A", "-o", form).stdout
    assert max(map(len, text.splitlines())) <= columns
    for name in ("one", "pair", "wrong", "four"):
        assert name in text
    if (columns, form) == (40, "table"):
        assert "on train-01, GPU 4: NUMA 1\n" in text


def test_a_pod_whose_gpus_no_report_shows_has_none_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    done = asked(main, "pods", "-A", "--cluster", "examples/clusters/where.yaml")
    assert "\n  on serve-01: no report shows its GPUs\n" in done.stdout
