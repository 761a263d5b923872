"""``gpu-topology idle``: from a cluster file, and with a kubeconfig and the caller's rights."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.cli import kubectl_plugin, main
from scheduler_extender.kube.sinks import NODES_PATH, RECORDS_PATH
from tests.commands import Done, asked, refused
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import bridged, pod
from topology import codec
from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation, IdleAllocation, Report

FILE = ("--cluster", "examples/clusters/idle.yaml")
GPU = "nvidia.com/gpu"
NVLINK = {"link": "nvlink"}


def idle(*words: object) -> Done:
    return asked(main, "idle", *words)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("form", ["table", "wide"])
def test_it_fits_a_terminal_and_cuts_no_name(
    columns: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    done = idle("-A", *FILE, "-o", form)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= columns
    words = done.stdout.split()
    for whole in ("team-a/notebook", "team-b/sweep-0", "train-01", "min", "team-a/train"):
        assert whole in words
    assert "\x1b" not in done.stdout


def test_only_pods_that_have_been_idle_for_longer() -> None:
    assert idle("-A", *FILE, "--longer-than", "5h", "-o", "name").stdout == (
        "pod/notebook\npod/debug\n"
    )
    alone = json.loads(idle("-A", *FILE, "--longer-than", "5h", "-o", "json").stdout)["idle"]
    assert [each["completes"] for each in alone][1] == [], "nobody asks for the end of sweep-0"


def test_json_and_yaml_are_the_same_and_complete() -> None:
    found = json.loads(idle("-n", "team-b", *FILE, "-o", "json").stdout)
    assert yaml.safe_load(idle("-n", "team-b", *FILE, "-o", "yaml").stdout) == found
    debug = found["idle"][0]
    assert debug["completes"] == [
        {"pods": ["team-a/train"], "request": "2 GPUs link=nvlink", "together": ["team-b/sweep-0"]}
    ]
    assert (debug["pod"], debug["node"], debug["gpus"]) == ("team-b/debug", "train-02", [0])
    assert (debug["idleSince"], debug["idleSeconds"]) == ("2026-03-02T11:20:00Z", 20640)


def test_kubectl_has_it_too() -> None:
    done = asked(kubectl_plugin, "idle", "-A", *FILE, "-o", "name")
    assert done.stdout.count("pod/") == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-o", "xml"), "--output: allowed are table, wide, json, yaml, name, not 'xml'"),
        (("--longer-than", "3y"), "--longer-than: allowed is a whole number with s, m, h or d"),
        (("--longer-than", "9" * 99), "--longer-than: allowed is"),
        (("-n", "a", "-A"), "--namespace and --all-namespaces: only one of them is allowed"),
        (("-l", "a=b=c"), "--selector: 'a=b=c' cannot be read from 'a=b=c' on"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], message: str) -> None:
    refused(idle(*words, *FILE), message)


class Cluster:
    """A fake API server with GPU nodes, and pods that hold a GPU each and do not use it."""

    def __init__(self, fake: FakeApiServer, folder: Path) -> None:
        self.fake = fake
        self.kubeconfig = fake.write_kubeconfig(folder / "kubeconfig")

    def node(self, name: str, *, looked: float = 30.0, **held: tuple[str, int, float]) -> None:
        """A node of two linked pairs. ``held`` is ``pod=(namespace, GPU, hours idle)``."""
        node = bridged(4, name)
        now = datetime.now(UTC) - timedelta(seconds=looked)
        allocations, resting = [], []
        for who, (namespace, gpu, hours) in held.items():
            manifest = pod(1, name=who, uid=who, node=name, phase="Running")
            manifest["metadata"]["labels"] = {"app": who}
            self.pod(manifest, namespace)
            uid, ids = PodUid(who), (DeviceId(node.gpus[gpu].uuid),)
            allocations.append(Allocation(uid, namespace, who, "main", GPU, ids))
            since = (now - timedelta(hours=hours)).isoformat()
            resting += [IdleAllocation(uid, "main", GPU, since)] if hours else []
        report = Report(
            "boot", 1, None, tuple(allocations), idle=tuple(resting), observed_at=now.isoformat()
        )
        self.fake.put(RECORDS_PATH, codec.encode(node, report))
        status = {"allocatable": {GPU: "4"}}
        self.fake.put(NODES_PATH, {"metadata": {"name": name}, "status": status})

    def pod(self, manifest: dict[str, Any], namespace: str = "team-a") -> None:
        manifest["metadata"]["namespace"] = namespace
        self.fake.put(f"/api/v1/namespaces/{namespace}/pods", manifest)

    def idle(self, *words: object) -> Done:
        return idle(*words, "--kubeconfig", self.kubeconfig)

    def rows(self, *words: object) -> dict[str, list[str]]:
        """The pods that the end of each idle pod would unblock."""
        done = self.idle(*words, "-o", "json")
        assert (done.returncode, done.stderr) == (0, "")
        return {
            each["pod"]: [name for one in each["completes"] for name in one["pods"]]
            for each in json.loads(done.stdout)["idle"]
        }


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with FakeApiServer() as fake:
        yield Cluster(fake, tmp_path)


def test_with_a_kubeconfig_alone_it_names_the_pods_in_the_way(cluster: Cluster) -> None:
    cluster.node("n", serve=("team-a", 0, 3), notebook=("team-b", 2, 5), busy=("team-b", 3, 0))
    cluster.pod(pod(2, NVLINK, name="train", uid="train"))
    assert cluster.rows("-n", "team-a") == {"team-a/serve": ["team-a/train"]}
    assert cluster.rows("-A") == {"team-b/notebook": [], "team-a/serve": ["team-a/train"]}
    done = cluster.idle("-n", "team-a")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "pod           idle  node  GPUs  would unblock\n"
        "team-a/serve   3 h  n     0     team-a/train (2 GPUs link=nvlink)\n"
        "\n"
        "1 pod in other namespaces; -A lists them too\n"
    )
    assert "no pod in the namespace default holds GPUs" in cluster.idle().stdout


def test_idle_pods_of_others_are_those_that_the_records_name(cluster: Cluster) -> None:
    cluster.node("n", serve=("team-a", 0, 3), notebook=("team-b", 2, 5))
    cluster.fake.refuse(403, None, path="^/api/v1/pods")
    done = cluster.idle("-n", "team-a")
    assert "you may list pods only in the namespace team-a" in done.stderr
    config = json.loads(cluster.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = "team-a"
    cluster.kubeconfig.write_text(json.dumps(config))
    found = json.loads(cluster.idle("-A", "-o", "json").stdout)
    assert [each["pod"] for each in found["idle"]] == [
        "team-b/notebook",
        "team-a/serve",
    ]
    assert cluster.idle("-A", "-l", "app=serve", "-o", "name").stdout == "pod/serve\n"


def test_pods_are_selected_by_their_labels_as_kubectl_selects(cluster: Cluster) -> None:
    cluster.node("n", a=("team-a", 0, 3), b=("team-a", 1, 4), c=("team-b", 2, 5))
    assert list(cluster.rows("-A", "-l", "app in (a, c)")) == ["team-b/c", "team-a/a"]
    assert list(cluster.rows("-n", "team-a", "-l", "app!=a")) == ["team-a/b"]
    refused(cluster.idle("-A", "-l", "app in"), "--selector: 'app in' cannot be read")


def test_a_record_of_an_agent_that_is_gone_claims_nothing_since(cluster: Cluster) -> None:
    cluster.node("n", looked=7200.0, serve=("team-a", 0, 3))
    done = cluster.idle("-A")
    assert "the report of n is 2 h old; GPU use since then is unknown" in done.stderr
    assert re.search(r"team-a/serve +3 h", done.stdout), "not five: two hours nobody has watched"


def test_of_many_old_reports_the_oldest_are_named_and_the_others_counted(cluster: Cluster) -> None:
    for n in range(8):
        cluster.node(f"n{n}", looked=3600.0 * (n + 1), **{f"serve-{n}": ("team-a", 0, 12)})
    notes = cluster.idle("-A").stderr.splitlines()
    assert [line.split()[4] for line in notes[:5]] == ["n7", "n6", "n5", "n4", "n3"]
    assert notes[5:] == [
        "note: the reports of 3 more nodes are older than 10 min; GPU use since then is unknown "
        "(-o json shows the time of each report)"
    ]


def test_an_older_agent_reports_no_idle_pod(cluster: Cluster) -> None:
    cluster.node("n", serve=("team-a", 0, 0))
    assert cluster.rows("-A") == {}
