"""``gpu-topology play`` on a real control plane, and docs/install/kind.md as a reader follows it.

Of that page kind and the images are not tried: the control plane is ours, and extender and second
kube-scheduler are processes with the accounts and the configuration that the chart gives them.
"""

import json
import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from scheduler_extender.simulator.registration import LEASES_PATH, RENEWAL
from tests.documents.blocks import Block, shell_blocks, statements
from tests.documents.running import BINARIES
from tests.e2e.cluster import RECORDS, ROOT
from tests.e2e.helm import Helm
from tests.e2e.hookjobs import jobs_run
from tests.e2e.test_documents import PLAYED, ran, reader
from tests.e2e.test_second_scheduler import TwoSchedulers
from tests.manifests.building import NAMESPACE
from tests.programs import started
from tests.waiting import PATIENCE

pytestmark = pytest.mark.e2e
INSTALL, PLAY, CREATE = (block for block in shell_blocks() if block.page == PLAYED)
CONTROLLERS = (
    "daemonset-controller",
    "job-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
)
GRACE = 16  # seconds without a renewed Lease after which a node counts as lost
DAEMONSETS = "/apis/apps/v1/namespaces/default/daemonsets"
JOB = "/apis/batch/v1/namespaces/default/jobs/sweep"
NODES = 8  # of examples/clusters/mixed.yaml


class AsThePageSays(TwoSchedulers):
    """A cluster without nodes, installed by the commands of the page."""

    def __init__(self, folder: Path, binaries: Path, helm: Helm) -> None:
        super().__init__(folder, binaries, helm)
        self.reader = reader(folder)

    def install(self) -> None:
        with jobs_run(self.control_plane, NAMESPACE):
            self.run(INSTALL)
        self.mount_extender()
        self.until(self._watches_records, "records can be watched")

    def run(self, block: Block) -> str:
        """What a block of the page prints; each of its commands ends well."""
        given = {"KUBECONFIG": str(self.control_plane.kubeconfig())}
        return "".join(one.stdout for one in ran([block], self.reader, given))

    @contextmanager
    def playing(self) -> Iterator[Popen[str]]:
        """The command of the page, once it plays its nodes."""
        (statement,) = statements(PLAY)
        kubeconfig = {"KUBECONFIG": str(self.control_plane.kubeconfig())}
        words = [str(BINARIES / "gpu-topology"), *shlex.split(statement)[1:]]
        with started(
            words, cwd=ROOT, env={**os.environ, **kubeconfig}, stdout=PIPE, stderr=PIPE
        ) as child:
            assert child.stderr is not None
            for line in child.stderr:
                if line.startswith(f"nodes played: {NODES}"):
                    break
            yield child

    def items(self, path: str) -> list[dict[str, Any]]:
        """The objects of a collection."""
        return list(self.api.get(path).json()["items"])

    def is_empty(self) -> bool:
        """Whether nothing is there that a play makes, and no pod has a node."""
        bound = [pod for pod in self.items("/api/v1/pods") if "nodeName" in pod["spec"]]
        return not any((bound, *map(self.items, ("/api/v1/nodes", RECORDS, LEASES_PATH))))

    def taints(self) -> set[str]:
        """The keys of the nodes' taints."""
        nodes = self.items("/api/v1/nodes")
        return {taint["key"] for node in nodes for taint in node["spec"].get("taints", ())}


@pytest.fixture(scope="module")
def began() -> float:
    return time.monotonic()


@pytest.fixture(scope="module")
def real(
    began: float,
    control_plane_binaries: Path,
    helm: Helm,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AsThePageSays]:
    with AsThePageSays(tmp_path_factory.mktemp("play"), control_plane_binaries, helm) as cluster:
        cluster.control_plane.start_controllers(
            CONTROLLERS, f"--node-monitor-grace-period={GRACE}s", "--node-monitor-period=2s"
        )
        yield cluster


@pytest.mark.usefixtures("interruptible")
def test_the_page_places_pods_on_played_nodes(
    real: AsThePageSays, began: float, record_property: Any
) -> None:
    ready = time.monotonic()
    with real.playing() as child:
        printed = real.run(CREATE)
        now = time.monotonic()
        record_property("seconds from an empty machine", round(now - began, 1))
        record_property("seconds from an installed cluster", round(now - ready, 1))
        print(f"{now - began:.1f} s from nothing, {now - ready:.1f} s from an installed cluster")
        assert "pod/pair condition met" in printed
        assert "quad-a100 " in printed
        pair = real.pod("pair")
        placement = json.loads(pair["metadata"]["annotations"]["gpu-topology.io/placement"])
        assert placement["verdict"] == "guaranteed"
        assert real.who_placed("pair") == "gpu-topology"
        real.until(
            lambda: real.api.get(JOB).json().get("status", {}).get("succeeded") == 6,
            "the pods of the Job have ended",
        )
        assert "nodeName" not in real.pod("quad-a100")["spec"]
        child.send_signal(signal.SIGINT)
        printed, said = child.communicate(timeout=PATIENCE)
        assert child.returncode == 130
    assert said.endswith(f"nodes removed: {NODES}\n")
    assert f"default/pair runs on {pair['spec']['nodeName']}, GPUs " in printed
    assert printed.count(" has ended on ") == 6
    real.until(real.is_empty, "nothing is left")


EVERYWHERE = {
    "metadata": {"name": "everywhere"},
    "spec": {
        "selector": {"matchLabels": {"app": "everywhere"}},
        "template": {
            "metadata": {"labels": {"app": "everywhere"}},
            "spec": {
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "example/work"}],
            },
        },
    },
}


@pytest.mark.usefixtures("interruptible")
def test_nodes_are_alive_while_they_are_played_and_a_killed_play_is_cleaned_up(
    real: AsThePageSays,
) -> None:
    real.create(DAEMONSETS, EVERYWHERE)
    own = {"gpu-topology.io/played"}
    with real.playing() as child:
        real.until(
            lambda: real.items(DAEMONSETS)[0].get("status", {}).get("numberReady") == NODES,
            "a pod of the DaemonSet is ready on each node",
        )
        seen: set[str] = set()

        def renewed() -> bool:
            """Whether a Lease has been renewed for longer than a silent node would be kept."""
            seen.add(real.items(LEASES_PATH)[0]["spec"]["renewTime"])
            assert real.taints() == own
            return len(seen) > 2 + GRACE / RENEWAL

        real.until(renewed, "the Leases are renewed")
        child.kill()
        child.wait(PATIENCE)
    real.until(
        lambda: "node.kubernetes.io/unreachable" in real.taints(), "killed nodes count as lost"
    )
    with real.playing() as child:
        real.until(lambda: real.taints() == own, "new ones are alive")
        assert real.api.delete(f"{DAEMONSETS}/everywhere").is_success
        child.kill()
        child.wait(PATIENCE)
    environment = {"KUBECONFIG": str(real.control_plane.kubeconfig())}
    words = [str(BINARIES / "gpu-topology"), "play", "--remove"]
    with started(words, env={**os.environ, **environment}, stderr=PIPE) as child:
        _, said = child.communicate(timeout=PATIENCE)
    assert (child.returncode, said) == (0, f"nodes removed: {NODES}\n")
    real.until(real.is_empty, "nothing is left")
