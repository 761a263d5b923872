"""``gpu-topology audit``: with a kubeconfig and the caller's rights, and as a table."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_extender.cli import main
from tests.commands import Done, asked, refused
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import bridged
from tests.scheduler_extender.auditing import event, failed
from tests.scheduler_extender.cli.kubecluster import Cluster

FILE = ("--cluster", "examples/clusters/audit.yaml")
PODS, EVENTS = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/events"


def audit(*words: object) -> Done:
    return asked(main, "audit", *words)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with FakeApiServer() as fake:
        yield Cluster(fake, tmp_path)


@pytest.mark.parametrize("columns", [60, 80, 160])
def test_it_fits_a_terminal_and_cuts_no_name(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    done = audit(*FILE)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= columns
    assert "most frequent reason" in done.stdout
    for whole in ("TopologyAffinityError", "single-numa-node", "team-a/sweep", "team-b/pretrain"):
        assert whole in done.stdout.split()


def test_the_nodes_that_are_traps_have_names() -> None:
    assert audit(*FILE, "-o", "name").stdout == "node/h100-00\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "soon"), "--since: allowed is a whole number with s, m, h or d"),
        (("--html", "/no/such/folder/audit.html"), "--html: /no/such/folder/audit.html: No such"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], said: str) -> None:
    refused(audit(*words, *FILE), said)


def test_refused_pods_and_their_events_are_read_with_the_callers_rights(cluster: Cluster) -> None:
    cluster.node(bridged(4, "n"), across=("default", 0, 2))
    cluster.fake.put(PODS, failed("refused", 4, "n", "11:00"))
    cluster.fake.put(EVENTS, event("refused", "n", "11:00"))
    cluster.fake.put(EVENTS, event("gone", "n", "11:30", "OutOfnvidia.com/gpu"))
    cluster.fake.put(EVENTS, {**event("pulled", "n", "11:31", "Pulled"), "type": "Normal"})
    words = ("--kubeconfig", cluster.kubeconfig, "--since", "99999d", "-o", "json")
    found = json.loads(audit(*words).stdout)
    assert found["refusedPods"]["pods"] == 2
    assert found["spreadPods"]["withoutNvlinks"] == 1
    assert found["notes"] == []
    cluster.fake.refuse(403, None, path="^/api/v1/events")
    less = json.loads(audit(*words).stdout)
    assert less["refusedPods"]["pods"] == 1
    assert "some refused pods may be missing" in less["notes"][0]


def test_a_cluster_without_agents_is_audited_too(cluster: Cluster) -> None:
    cluster.fake.put(PODS, failed("refused", 4, "n", "11:00"))
    for name, offers in (("n", {"nvidia.com/gpu": "8"}), ("cpu-only", {"cpu": "64"})):
        cluster.fake.put(
            "/api/v1/nodes", {"metadata": {"name": name}, "status": {"allocatable": offers}}
        )
    words = ("--kubeconfig", cluster.kubeconfig, "--since", "99999d")
    done = audit(*words)
    assert done.returncode == 0
    assert done.stdout.startswith("1 node with GPUs, 1 without a usable record, ")
    assert "no node has a record" in done.stderr
    assert "Kubelets refused 1 pod with GPUs on 1 node" in done.stdout
