"""Helm takes over what is installed, and removes it; 0.1.0 becomes this release, and back again.

Pods run meanwhile. Of 0.1.0 all runs: the extender, the agent and the manifests of its commit."""

import json
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import agentidentity
from tests.e2e.agents import Agent
from tests.e2e.cluster import ROOT, RealCluster
from tests.e2e.helm import RELEASE, Helm
from tests.e2e.nvidiastack import run_plugin_pod
from tests.e2e.occupiednode import OccupiedNode
from tests.e2e.realnodes import ready
from tests.fakes.kubelet import GPU, FakeKubelet
from tests.waiting import PATIENCE
from topology import codec
from topology.core.graph import NodeTopology
from topology.machines import machine

pytestmark = pytest.mark.e2e
NAMESPACE = "gpu-topology-system"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAME = "gputopologies.gpu-topology.io"
FIRST_RELEASE = "bb97e263270d8db3c46fec92f032585d9ddeddd3"  # the commit that cut 0.1.0
QUAD = {"link": "nvlink", "shape": "connected"}
PLACEMENT = "gpu-topology.io/placement"


@contextmanager
def reporting(topology: NodeTopology) -> Iterator[FakeKubelet]:
    """A node's kubelet that hands out these GPUs, with the NUMA nodes that a plugin names."""
    # Not pytest's folder: a path to a unix socket has at most 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="upgrade-") as socket,
        FakeKubelet(Path(socket)) as kubelet,
    ):
        kubelet.numa = {str(gpu.uuid): gpu.topology_nodes or () for gpu in topology.gpus}
        kubelet.allocatable(*(str(gpu.uuid) for gpu in topology.gpus))
        yield kubelet


@pytest.fixture(scope="module")
def cluster(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RealCluster, Agent]]:
    """A cluster that kubectl has installed: the test is the agent of the node "other", which has a
    promised pod; "today" has a real agent."""
    folder = tmp_path_factory.mktemp("upgrade")
    topology = machine("hgx-h100-4").topology("today")
    with (
        RealCluster(folder, control_plane_binaries) as found,
        reporting(topology) as kubelet,
    ):
        agentidentity.wait_for_the_policy(found.control_plane)
        other = OccupiedNode(found, machine("dgx1-v100").topology("other"))
        found.add_priority_classes(low=1)
        other.hold("runs", 0)
        other.publish()
        found.add_pod("first", 4, {**QUAD, "gpu-model": "*V100*"})
        assert found.node_of("first") == "other"
        found.add_node("today", 4)
        run_plugin_pod(found.api, "today")
        found.add_pod("held", 1, nodeName="today")
        kubelet.show("default", "held", {"main": {GPU: [str(topology.gpus[0].uuid)]}})
        flags = ["--topology-manager-policy=best-effort"]
        with Agent(found.control_plane, topology, kubelet.socket, folder, flags) as agent:
            found.until(lambda: ready(found, "today"), "the record is published")
            yield found, agent


def only(node: str) -> dict[str, Any]:
    """The affinity of a pod that may run on one node and nowhere else."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [{"matchFields": [field]}]
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def holders(cluster: RealCluster, node: str) -> list[str]:
    report = codec.decode(cluster.record(node)).report
    return [] if report is None else [a.pod for a in report.allocations]


def test_helm_takes_over_what_kubectl_has_applied(
    helm: Helm, cluster: tuple[RealCluster, Agent]
) -> None:
    """The way of docs/install/upgrade.md, under records and pods."""
    real, agent = cluster
    before = {name: real.record(name)["metadata"]["uid"] for name in ("other", "today")}
    helm.install(real.control_plane.kubeconfig(), NAMESPACE, "--take-ownership")
    assert {name: real.record(name)["metadata"]["uid"] for name in before} == before
    assert holders(real, "other") == ["runs"]
    sequence = int(real.record("today")["status"]["sequence"])
    agent.stop()
    agent.start()  # as its DaemonSet does with a new image
    real.until(
        lambda: int(real.record("today")["status"]["sequence"]) > sequence, "the agent reports"
    )
    assert holders(real, "today") == ["held"]
    explained = real.admin.get("/v1/explain/default/first").json()
    assert explained["node"] == "other", explained


def test_after_uninstalling_there_is_what_the_page_says(
    helm: Helm, cluster: tuple[RealCluster, Agent]
) -> None:
    real, agent = cluster
    where = (real.control_plane.kubeconfig(), NAMESPACE)
    named = ("--kubeconfig", str(where[0]), "--namespace", where[1])
    with real.stock():
        agent.stop()  # its DaemonSet goes, and so does the account that its token is of
        done = helm("uninstall", RELEASE, *named)
        assert done.returncode == 0, done.stderr
        assert real.api.get(f"{DEFINITIONS}/{NAME}").is_success
        assert holders(real, "other") == ["runs"]
        placement = real.pod("first")["metadata"]["annotations"][PLACEMENT]
        assert json.loads(placement)["verdict"] == "guaranteed"
        for kind in ("clusterroles", "clusterrolebindings"):
            assert "gpu-topology" not in real.kubectl("get", kind, "-o", "name")
        policies = real.kubectl("get", "validatingadmissionpolicies", "-o", "name")
        assert "gpu-topology" not in policies
        # kube-scheduler goes on alone: our annotations are words to it.
        real.add_pod("alone", 1, {"link": "nvlink"}, affinity=only("today"))
        assert real.node_of("alone") == "today"
        helm.install(*where)
        agentidentity.wait_for_the_policy(real.control_plane)
        agent.start()
    assert real.record("other")["metadata"]["name"] == "other"
    real.add_pod("again", 1, {"gpu-model": "*H100*"})
    assert real.node_of("again") == "today"


@pytest.fixture(scope="module")
def first_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout of 0.1.0, from the history; a clone without one skips."""

    def git(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)

    archive = git("archive", FIRST_RELEASE)
    if archive.returncode:
        shallow = git("rev-parse", "--is-shallow-repository").stdout.strip() != b"false"
        assert shallow, f"the history lacks 0.1.0: {archive.stderr.decode()}"
        pytest.skip("0.1.0 is not in this clone's history")
    folder = tmp_path_factory.mktemp("release")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


class Releases(RealCluster):
    """A cluster that one release runs at a time, with an agent on the node "today"."""

    def __init__(self, folder: Path, binaries: Path, first: Path) -> None:
        super().__init__(folder, binaries)
        self._first = first
        self.agent: Agent | None = None
        self._take(first)

    def _take(self, release: Path) -> None:
        """Whose code and manifests are run from now on."""
        self._manifests = release / "manifests" / "base"
        # Python finds it before the code that is installed here.
        old = {"PYTHONPATH": str(release), "PYTHONSAFEPATH": "1"}
        self.release = old if release == self._first else {}

    def extender_command(self, ports: tuple[int, int, int], *flags: str) -> list[str]:
        """The command of the release that runs: 0.1.0 has no port for metrics."""
        command = super().extender_command(ports, *flags)
        if not self.release:
            return command
        return [word for word in command if not word.startswith("--metrics-port=")]

    def start_extender(self) -> None:
        """Start the release's extender, and ask it where it listens."""
        for client in (self.admin, self.metrics):  # of the release before
            client.close()
        self.admin, self.metrics = self.people(), self.people(self.ports[2])
        if self.release:  # one port, which speaks TLS
            context = ssl.create_default_context(cafile=self.tls / "ca.crt")
            url = f"https://127.0.0.1:{self.ports[1]}"
            self.admin.close()
            self.metrics.close()
            client = httpx.Client(base_url=url, verify=context, timeout=PATIENCE, trust_env=False)
            self.admin = self.metrics = client
        super().start_extender()

    def install(self) -> None:
        self.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(self._manifests))
        self.until(self._watches_records, "records can be watched")

    def change(self, release: Path) -> None:
        """Apply another release's manifests, and let its agent and its extender take over."""
        assert self.agent is not None
        before = self.record("today")["status"]["observedAt"]
        self._take(release)
        self.install()
        self.stop_extender()
        self.start_extender()
        self.agent.stop()
        self.agent.release = self.release
        self.agent.start()
        self.until(
            lambda: self.record("today")["status"]["observedAt"] != before, "the agent reports"
        )

    def kept(self) -> float:
        """How many promises this extender has seen kept; none is broken."""
        lines = self.metrics.get("/metrics").text.splitlines()
        values = {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in lines
            if not line.startswith("#")
        }
        assert not values.get('gpu_topology_mispredictions_total{kind="promise-broken"}')
        return values["gpu_topology_promises_kept_total"]


def test_0_1_0_and_this_release_read_what_the_other_has_left(
    control_plane_binaries: Path, tmp_path: Path, first_release: Path
) -> None:
    """A pod that is promised GPUs by one release is judged by the other, and a group that one has
    begun is finished by the other on the same node."""
    with ExitStack() as stack:
        last = stack.enter_context(ExitStack())
        cluster = stack.enter_context(Releases(tmp_path, control_plane_binaries, first_release))
        last.callback(lambda: cluster.metrics.close())
        last.callback(lambda: cluster.admin.close())
        agentidentity.wait_for_the_policy(cluster.control_plane)
        topology = machine("hgx-h100-8").topology("today")
        cluster.add_node("today", 8)
        cluster.add_machine(machine("hgx-h100-8").topology("other"))
        run_plugin_pod(cluster.api, "today")
        kubelet = stack.enter_context(reporting(topology))
        flags = ["--topology-manager-policy=none"]
        agent = Agent(cluster.control_plane, topology, kubelet.socket, tmp_path, flags)
        agent.release = cluster.release
        cluster.agent = stack.enter_context(agent)
        cluster.until(lambda: ready(cluster, "today"), "0.1.0's agent reports")

        free = [str(gpu.uuid) for gpu in topology.gpus]
        promised: dict[str, str] = {}

        def bound(name: str, **group: str) -> str:
            """Place a pod that is promised two linked GPUs, and admit it; its node."""
            cluster.add_pod(name, 2, {"link": "nvlink", **group}, affinity=only("today"))
            assert cluster.node_of(name) == "today"
            given = [free.pop(0), free.pop(0)]
            kubelet.show("default", name, {"main": {GPU: given}})
            cluster.until(lambda: name in holders(cluster, "today"), f"{name} is reported")
            promised[name] = cluster.pod(name)["metadata"]["annotations"][PLACEMENT]
            assert json.loads(promised[name])["verdict"] == "guaranteed"
            return "today"

        def seen() -> tuple[list[str], int]:
            """Where the extender sees the promised pods, and how many GPUs remain there."""
            pods = [cluster.admin.get(f"/v1/explain/default/{name}").json() for name in promised]
            (row,) = [r for r in cluster.admin.get("/v1/nodes").json() if r["node"] == "today"]
            remaining = row.get("remaining", row.get("left"))  # 0.1.0 calls it so
            return [pod.get("node", "") for pod in pods], remaining

        def well() -> None:
            """No promise of either version is lost, and each record can be read."""
            for name, placement in promised.items():
                assert cluster.pod(name)["metadata"]["annotations"][PLACEMENT] == placement
            assert sorted(holders(cluster, "today")) == sorted(promised)
            pods = len(promised)
            cluster.until(lambda: seen() == (["today"] * pods, 8 - 2 * pods), "all are seen")

        group = {"group": "both", "group-size": "2", "group-domain": "node"}
        bound("first", **group)
        well()
        cluster.change(ROOT)
        well()
        bound("second", **group)
        well()
        cluster.until(lambda: cluster.kept() >= 1, "a promise is seen kept")
        cluster.change(first_release)
        well()
        bound("third")
        well()
        cluster.until(lambda: cluster.kept() >= 1, "a promise is seen kept")
