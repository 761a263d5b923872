"""``--watch``: the answer is written again when it changes, and only then."""

import json
import os
import pty
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod
from tests.programs import started
from tests.scheduler_extender.cli.kubecluster import Cluster
from tests.waiting import PATIENCE, eventually
from topology.machines import machine

PCIE = machine("l40s-4").topology("serve-01")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One idle machine."""
    with FakeApiServer() as fake:
        found = Cluster(fake, tmp_path)
        found.node(PCIE)
        yield found


def command(cluster: Cluster, *words: str) -> list[str]:
    config = ("--kubeconfig", str(cluster.kubeconfig))
    return [sys.executable, "-m", "scheduler_extender", *words, "--watch", *config]


@pytest.mark.usefixtures("interruptible")
def test_names_of_waiting_pods_as_they_come_and_go(cluster: Cluster) -> None:
    words = command(cluster, "waiting", "-A", "-o", "name")
    cluster.pod(pod(8, name="first", uid="first"))
    with started(words, stdout=PIPE, stderr=PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "pod/first\n"
        cluster.pod(pod(8, name="second", uid="second"))
        assert [child.stdout.readline() for _ in range(2)] == ["pod/first\n", "pod/second\n"]
        cluster.fake.remove("/api/v1/namespaces/team-a/pods/first")
        assert child.stdout.readline() == "pod/second\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE) == 130
        assert child.stderr is not None
        assert child.stderr.read() == ""


def test_each_document_of_json_is_whole(cluster: Cluster) -> None:
    with started(command(cluster, "nodes", "-o", "json"), stdout=PIPE) as child:
        assert child.stdout is not None
        decoder, text = json.JSONDecoder(), ""
        held: list[int] = []
        while len(held) < 2:
            text += child.stdout.readline()
            try:
                found, end = decoder.raw_decode(text)
            except json.JSONDecodeError:
                continue
            text = text[end:].lstrip()
            held.append(found["nodes"][0]["gpus"]["assumed"])
            cluster.pod(pod(2, name="new", uid="new", node="serve-01"))
    assert held == [0, 2]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("verb", "lost", "back"),
    [
        pytest.param(
            ("waiting", "-A"),
            "note: the API server does not answer; retrying: 503",
            "note: the API server answers again",
            id="which asks",
        ),
        pytest.param(
            ("map",),
            "note: no change of the cluster received since ",
            "note: resolved: no change of the cluster received",
            id="which follows",
            marks=pytest.mark.long,
        ),
    ],
)
def test_an_api_server_that_is_gone_for_a_while_is_reported_and_watched_again(
    verb: tuple[str, ...], lost: str, back: str, cluster: Cluster
) -> None:
    cluster.pod(pod(8, name="first", uid="first"))
    with started(command(cluster, *verb), stdout=PIPE, stderr=PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline()
        cluster.fake.refuse(503, None, path=".*")
        cluster.fake.drop_streams()
        assert child.stderr.readline().startswith(lost)
        cluster.fake.allow()
        cluster.pod(pod(2, name="new", uid="new", node="serve-01"))
        while not (line := child.stderr.readline()).startswith(back):
            assert line.startswith("note: "), line
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE) == 130


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system has no /proc")
def test_connections_that_break_again_and_again_leave_nothing_open(cluster: Cluster) -> None:
    """An hour's worth of watches that end: descriptors and threads are those of the beginning."""
    words = command(cluster, "waiting", "-A", "-o", "name")
    cluster.pod(pod(8, name="p0", uid="p0"))
    with started(words, stdout=PIPE, stderr=PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "pod/p0\n"
        eventually(lambda: cluster.fake.open_streams == 3)
        before = [len(list(Path(f"/proc/{child.pid}/{kind}").iterdir())) for kind in ("fd", "task")]
        for number in range(1, 13):
            cluster.fake.drop_streams() if number % 2 else cluster.fake.end_streams()
            cluster.fake.remove(f"/api/v1/namespaces/team-a/pods/p{number - 1}")
            cluster.pod(pod(8, name=f"p{number}", uid=f"p{number}"))
            while child.stdout.readline() != f"pod/p{number}\n":
                pass
        eventually(lambda: cluster.fake.open_streams == 3)
        after = [len(list(Path(f"/proc/{child.pid}/{kind}").iterdir())) for kind in ("fd", "task")]
        assert after[0] <= before[0] + 3, "a connection kept for the next request at most"
        assert after[1] == before[1]


def test_a_terminal_is_drawn_anew(cluster: Cluster) -> None:
    ours, theirs = pty.openpty()
    with started(
        command(cluster, "map"), stdout=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "60"}
    ):
        os.close(theirs)
        seen = ""
        while "another NUMA node begins" not in seen:
            seen += os.read(ours, 65536).decode()
        assert seen.startswith("\x1b[H\x1b[2J")
        cluster.pod(pod(4, name="new", uid="new", node="serve-01"))
        while "assumed for pods that no report shows yet" not in seen:
            seen += os.read(ours, 65536).decode()
    os.close(ours)
    assert seen.count("\x1b[2J") == 2
    assert "\x1b[1" in seen, "a terminal has colours"
