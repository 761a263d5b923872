"""``gpu-topology nodes``, ``map`` and ``node``: with a kubeconfig alone, as text and as data."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from scheduler_extender.cli import main
from scheduler_extender.files.snapshot import cluster_file
from scheduler_extender.kube.sinks import NODES_PATH, PODS_PATH, RECORDS_PATH
from scheduler_extender.web.overview import ALONE
from tests.commands import asked, refused
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod
from tests.scheduler_extender.cli.kubecluster import Cluster
from tests.scheduler_extender.web.cluster import large
from topology.core.devices import NodeName
from topology.machines import machine

PAIRS = machine("a100-pcie-4-bridged").topology("train-07")
SWITCHED = machine("dgx-a100").topology("train-01")
LONG = machine("dgx1-v100").topology("gpu-node-with-a-long-name.eu-west-1.example.com")
PCIE = machine("l40s-4").topology("serve-01")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Four machines: one GPU is sick, one stranded, and a pod has GPUs without the links it asked
    for."""
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    with FakeApiServer() as fake:
        found = Cluster(fake, tmp_path)
        found.labelled(
            PAIRS, {"pool": "a100"}, {3: "Xid 79"}, serve=("team-a", 0), notebook=("team-b", 2)
        )
        found.labelled(SWITCHED, {"pool": "big"}, big=("team-a", 0, 1, 2, 3))
        found.labelled(LONG, {"pool": "old"}, {5: "Lost"}, one=("team-b", 0, 1), two=("team-a", 4))
        found.labelled(PCIE, {"pool": "l40s"})
        fake.put(NODES_PATH, {"metadata": {"name": "cpu-only"}, "status": {"allocatable": {}}})
        yield found


def test_nodes_in_a_pipe(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    done = cluster.asked("nodes")
    assert (done.returncode, done.stderr) == (0, "")
    name = "gpu-node-with-a-long-name.eu-west-1.example.com"
    assert done.stdout == (
        f"{'node':47}  GPUs  free  stranded  in use  sick  pairs  quads  whole\n"
        f"{name}     8     4         0       3     1      2      0      0\n"
        f"{'serve-01':47}     4     4         0       0     0      0      0      1\n"
        f"{'train-01':47}     8     4         0       4     0      2      1      0\n"
        f"{'train-07':47}     4     0         1       2     1      0      0      0\n"
        "\n"
        "4 nodes, 24 GPUs: 12 free, 1 stranded, 9 in use, 2 sick; can still promise 4 pairs, or 1 "
        "quad, or 1 whole node\n"
    )


def test_the_map_in_a_pipe(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = cluster.asked("map")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "4 × NVIDIA A100 80GB PCIe, NVLink 12\n"
        "1 node, 4 GPUs: 0 free, 1 stranded, 2 in use, 1 sick; can still promise no pair,\n"
        "quad or whole node\n"
        "  train-07  [0U 1s] | [2U 3X]\n"
        "\n"
        "4 × NVIDIA L40S, PCIe NODE/SYS\n"
        "1 node, 4 GPUs: 4 free; can still promise 1 whole node\n"
        "  serve-01  0f 1f | 2f 3f\n"
        "\n"
        "8 × NVIDIA A100-SXM4-40GB, NVLink 12\n"
        "1 node, 8 GPUs: 4 free, 4 in use; can still promise 2 pairs, or 1 quad\n"
        "  train-01  [0U 1U | 2U 3U | 4f 5f | 6f 7f]\n"
        "\n"
        "8 × Tesla V100-SXM2-16GB, NVLink 1-2\n"
        "1 node, 8 GPUs: 4 free, 3 in use, 1 sick; can still promise 2 pairs\n"
        "  gpu-node-with-a-long-name.eu-west-1.example.com\n"
        "    [0U 1U 2f 3f | 4U 5X 6f 7f]\n"
        "\n"
        " f   free: no pod has it\n"
        " s   stranded: free, but no other free GPU has an NVLink to it\n"
        " U   in use: its pod accepts any GPU\n"
        " X   sick: unhealthy, or it does not answer; in use or not\n"
        "[ ]  connected by NVLinks, directly or through other GPUs\n"
        " |   another NUMA node begins\n"
    )


@pytest.mark.parametrize("colours", ["FORCE_COLOR", "NO_COLOR", None])
@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("words", [("nodes",), ("map",), ("node", "train-07"), ("nodes", "-owide")])
def test_nothing_is_wider_than_the_terminal(
    cluster: Cluster,
    words: tuple[str, ...],
    columns: int,
    colours: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    if colours is not None:
        monkeypatch.setenv(colours, "1")
    done = cluster.asked(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(ANSI.search(done.stdout)) == (colours == "FORCE_COLOR")
    lines = ANSI.sub("", done.stdout).splitlines()
    assert max(map(len, lines)) <= columns
    text = "".join(line.strip() for line in lines)
    assert "train-07" in text
    for cell in ("0U", "1s", "2U", "3X") if words != ("nodes",) and "wide" not in words[-1] else ():
        assert cell in text


def test_a_warning_wraps_below_its_node_on_a_terminal_and_stays_whole_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    words = ("map", "--cluster", "examples/clusters/where.yaml")
    assert "\n    4 GPUs assumed for pods that no report shows yet\n" in asked(main, *words).stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    plain = re.sub(r"\x1b\[[\d;]*m", "", asked(main, *words).stdout)
    lines = [line.rstrip() for line in plain.splitlines()]
    assert ("    4 GPUs assumed for pods that no", "    report shows yet") in pairwise(lines)


def test_as_data(cluster: Cluster) -> None:
    found = json.loads(cluster.asked("nodes", "-o", "json").stdout)
    pairs = found["nodes"][3]
    assert (pairs["node"], found["notes"]) == ("train-07", [])
    assert pairs["gpus"] == {
        "total": 4, "free": 0, "stranded": 1, "assumed": 0, "reserved": 0, "inUse": 2, "sick": 1
    }  # fmt: skip
    assert pairs["canPromise"] == {"pairs": 0, "quads": 0, "wholeNodes": 0}
    assert yaml.safe_load(cluster.asked("nodes", "-o", "yaml").stdout)["nodes"][3] == pairs
    assert cluster.asked("nodes", "-o", "name").stdout.split() == [
        f"node/{node.name}" for node in (LONG, PCIE, SWITCHED, PAIRS)
    ]
    devices = json.loads(cluster.asked("map", "-o", "json").stdout)["nodes"][3]["devices"]
    assert [(gpu["gpu"], gpu["state"], gpu["pods"]) for gpu in devices] == [
        (0, "in-use", ["team-a/serve"]),
        (1, "stranded", []),
        (2, "in-use", ["team-b/notebook"]),
        (3, "sick", []),
    ]
    assert devices[3]["problem"] == "Xid 79"


def test_no_node_selected_is_a_no(cluster: Cluster) -> None:
    done = cluster.asked("nodes", "-l", "pool=none")
    assert (done.returncode, done.stdout) == (1, "no node with GPUs has these labels\n")
    assert cluster.asked("nodes", "-l", "pool=none", "--no-headers").stdout == ""


def test_a_tenant_reads_which_pods_are_not_counted(cluster: Cluster) -> None:
    cluster.fake.refuse(403, None, path=f"^{PODS_PATH}$")
    done = cluster.asked("node", "train-07")
    assert done.returncode == 0
    assert "team-b/notebook" in done.stdout, "the record names it"
    assert "note: you may list pods only in the namespace team-a" in done.stderr
    data = json.loads(cluster.asked("map", "-o", "json").stdout)
    assert "in the namespace team-a" in data["notes"][0]


def test_pods_on_their_way_and_a_reservation(cluster: Cluster) -> None:
    manifest = pod(2, {"link": "nvlink"}, name="coming", uid="coming", node="serve-01")
    cluster.pod(manifest)
    (_, serve, *_) = json.loads(cluster.asked("nodes", "-o", "json").stdout)["nodes"]
    assert (serve["gpus"]["free"], serve["gpus"]["assumed"], serve["unacknowledgedDevices"]) == (
        2,
        2,
        2,
    )
    cluster.pod(pod(2, name="more", uid="more", node="serve-01"))
    done = cluster.asked("map")
    assert (
        "serve-01  0W 1W | 2W 3W\n    4 GPUs assumed for pods that no report shows yet\n"
        in done.stdout
    )


def test_many_nodes_that_look_alike_share_a_line(cluster: Cluster) -> None:
    for number in range(ALONE):
        node = machine("l40s-4").topology(NodeName(f"many-{number:02}"), group="many")
        cluster.labelled(node, {})
    done = cluster.asked("map")
    alike = f"{ALONE + 1} nodes alike: many-00, many-01 and {ALONE - 1} more\n    0f 1f | 2f 3f\n"
    assert alike in done.stdout
    wide = cluster.asked("map", "-o", "wide")
    assert wide.stdout.count("  0f 1f | 2f 3f\n") == ALONE + 1


def test_of_nodes_that_are_only_similar_a_line_has_the_counts(tmp_path: Path) -> None:
    made = large(600)
    file = tmp_path / "cluster.yaml"
    file.write_bytes(b"".join(cluster_file(made.cluster)))
    lines = asked(main, "map", "--cluster", file).stdout.splitlines()
    under = [after for line, after in pairwise(lines) if " nodes similar: " in line]
    assert under
    assert all(re.fullmatch(r"    each has (\d+ [a-z ()]+(, )?)+", line) for line in under)


@pytest.mark.parametrize(
    "command", [["nodes"], ["map"], ["node", "train-07"], ["waiting"], ["idle"], ["pods"]]
)
class TestWhatCannotBeAnswered:
    """Each is one line on stderr, and exit code 2."""

    def test_no_extender(self, cluster: Cluster, command: list[str]) -> None:
        cluster.fake.refuse(404, None, path=RECORDS_PATH)
        refused(cluster.asked(*command), "is gpu-topology installed?")

    def test_no_rights(self, cluster: Cluster, command: list[str]) -> None:
        cluster.fake.refuse(403, None, path=".*")
        refused(cluster.asked(*command), "403", "permission to get and list pods", "--forward")

    def test_no_api_server(self, cluster: Cluster, command: list[str]) -> None:
        config = json.loads(cluster.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
        cluster.kubeconfig.write_text(json.dumps(config))
        done = cluster.asked(*command)
        refused(done, "127.0.0.1")
        assert "permission" not in done.stderr

    def test_a_word_that_is_no_form(self, cluster: Cluster, command: list[str]) -> None:
        more = ", graphml" if command[0] == "node" else ""
        message = f"error: --output: allowed are table, wide, json, yaml, name{more}, not 'xml'\n"
        refused(cluster.asked(*command, "-o", "xml"), message)

    def test_no_such_context(self, cluster: Cluster, command: list[str]) -> None:
        refused(cluster.asked(*command, "--context", "nope"), "nope")


@pytest.mark.parametrize("command", ["nodes", "map", "waiting"])
def test_a_selector_that_cannot_be_read(cluster: Cluster, command: str) -> None:
    done = cluster.asked(command, "-l", "pool=(")
    refused(done, "--selector: 'pool=(' cannot be read from ")


def test_a_selector_without_the_right_to_list_nodes(cluster: Cluster) -> None:
    cluster.fake.refuse(403, None, path=f"^{NODES_PATH}")
    done = cluster.asked("nodes", "-l", "pool=a100")
    refused(done, "--selector: no Node object can be read")


def test_nodes_by_their_names(cluster: Cluster) -> None:
    done = cluster.asked("nodes", "train-07", "serve-01", "train-07", "--no-headers")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["train-07", "serve-01"]
    assert cluster.asked("nodes", "train-07", "-l", "pool=big").returncode == 1
    refused(
        cluster.asked("nodes", "serve-1"),
        "there is no node serve-1 that you may see: did you mean",
        "serve-01",
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("nobody", "there is no node nobody", id="unknown"),
        pytest.param("cpu-only", "node cpu-only has no known GPUs", id="without GPUs"),
        pytest.param("../pods", "allowed are names of", id="no name"),
    ],
)
def test_a_node_that_is_not_there(cluster: Cluster, name: str, message: str) -> None:
    refused(cluster.asked("node", name), message)


def test_a_record_that_cannot_be_used_is_reported(cluster: Cluster) -> None:
    record = cluster.fake.read(f"{RECORDS_PATH}/serve-01")
    cluster.fake.put(RECORDS_PATH, {**record, "spec": {**record["spec"], "devices": "none"}})
    nodes = cluster.asked("nodes")
    assert (nodes.returncode, nodes.stderr) == (0, "")
    assert "no usable record" in nodes.stdout
    node = cluster.asked("node", "serve-01")
    assert node.returncode == 0
    assert "devices" in node.stdout, "which field of it"
    assert cluster.asked("nodes", "-o", "json").stdout.startswith("{"), "no log stands before it"
