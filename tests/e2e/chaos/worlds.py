"""A replicated cluster with a fleet of emulated nodes, whose history is kept and judged."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from scheduler_extender.simulator.overapi import PlayedNodes
from tests.chaos.checks import Finding, findings
from tests.chaos.history import Recorder, read
from tests.chaos.report import report
from tests.chaos.story import Story, story_of
from tests.e2e.chaos.kubelets import played
from tests.e2e.chaos.replicas import ReplicatedCluster
from tests.e2e.chaos.workload import Submitter
from tests.e2e.cluster import PODS, RECORDS
from tests.waiting import FOREVER, eventually
from topology.machines import machine

OVER = ("Succeeded", "Failed")
Fleet = Sequence[tuple[str, int]]  # machines of the catalogue, and how many of each

# A connection that ends in the middle of its TLS handshake is closed by the garbage collector.
CUT_OFF = "ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"


@dataclass
class World:
    """The cluster with its replicas, its nodes, and the history so far."""

    cluster: ReplicatedCluster
    kubelets: PlayedNodes
    history: Recorder
    submitter: Submitter

    def unfinished(self) -> list[str]:
        """The pods that are not over."""
        items = self.cluster.api.get(PODS).json()["items"]
        return [i["metadata"]["name"] for i in items if i["status"].get("phase") not in OVER]

    def finish(self) -> Story:
        """Wait until every pod is over, and put together what has happened."""
        eventually(
            lambda: not self.unfinished(),
            "every pod has ended or is gone",
            within=FOREVER,
            every=0.5,
            detail=lambda: f"{self.unfinished()}\n{self.cluster.logs()}",
        )
        return self.story()

    def story(self) -> Story:
        """What has happened so far, with what etcd and the API server have written down."""
        assert self.kubelets.errors == []
        self.cluster.take_down(self.history)
        return story_of(read(self.history.path))


def judged(story: Story, history: Recorder) -> list[Finding]:
    """The findings, after the report was printed."""
    print(f"\n{report(story)}")
    found = findings(story)
    if found:
        print(f"judge it again: python -m tests.chaos {history.path}")
    return found


@contextmanager
def world(
    cluster: ReplicatedCluster,
    path: Path,
    fleet: Fleet,
    seed: int,
    look: float = 0.15,
) -> Iterator[World]:
    """Nodes with kubelets, and a new history in the file ``path``; all of it goes at the end.

    ``look`` is how many seconds the agents take to report a change, on average.
    """
    nodes = [machine(name).topology(f"{name}-{i}") for name, n in fleet for i in range(n)]
    with ExitStack() as stack:
        history = stack.enter_context(Recorder(path))
        cluster.service.history = history
        cluster.follow_from_the_start()
        for node in nodes:
            cluster.add_machine(node)
        stack.callback(_emptied, cluster)
        plane = cluster.control_plane
        kubelets = stack.enter_context(played(plane, nodes, seed, history, look))
        submitter = Submitter(plane, history)
        stack.callback(submitter.close)
        yield World(cluster, kubelets, history, submitter)


def _emptied(cluster: ReplicatedCluster) -> None:
    """No pods, no nodes."""
    for item in cluster.api.get(PODS).json()["items"]:
        cluster.api.delete(f"{PODS}/{item['metadata']['name']}", params={"gracePeriodSeconds": 0})
    for path in ("/api/v1/nodes", RECORDS):
        cluster.api.delete(path)


def kept_at(name: str, folder: Path) -> Path:
    """Where a history is written: below ``GPU_TOPOLOGY_CHAOS_KEEP`` if that is set."""
    kept = os.environ.get("GPU_TOPOLOGY_CHAOS_KEEP")
    where = Path(kept) if kept else folder
    where.mkdir(parents=True, exist_ok=True)
    return where / f"{name}.jsonl"
