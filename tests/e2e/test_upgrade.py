"""From an older release to this one, while pods run, and back again: with Helm, and with kustomize.

The older resource and an older agent's record are files (``before``): the first ones that there
were, of 2026-11-21. Pods, agent and extender are there all the while. From 0.1.0 on the whole older
release runs: the extender, the agent and the manifests of its commit.
"""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import agentidentity
from tests.e2e.agents import Agent
from tests.e2e.cluster import RECORDS, ROOT, RealCluster
from tests.e2e.helm import RELEASE, Helm
from tests.e2e.nvidiastack import run_plugin_pod
from tests.fakes.kubelet import GPU, FakeKubelet
from tests.waiting import PATIENCE
from topology import codec
from topology.machines import machine

pytestmark = pytest.mark.e2e
BEFORE = Path(__file__).parent / "before"
RESOURCE = BEFORE / "crd.yaml"
TODAY = ROOT / "manifests" / "base" / "crd.yaml"
NAMESPACE = "gpu-topology-system"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAME = "gputopologies.gpu-topology.io"
FIRST_RELEASE = "bb97e263270d8db3c46fec92f032585d9ddeddd3"
"""The commit that cut 0.1.0."""
QUAD = {"link": "nvlink", "shape": "connected"}
PLACEMENT = "gpu-topology.io/placement"


class Cluster(RealCluster):
    """A cluster that begins with the resource of before, and one node with an agent of today."""

    agent: Agent

    def install(self) -> None:
        """Apply today's manifests, but the older resource."""
        super().install()
        self.put_resource(RESOURCE)

    def put_resource(self, path: Path) -> None:
        """Apply a definition of the resource, and wait until the API server keeps its fields only.

        It takes a moment to serve a changed schema.
        """
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
        known = "numaNodes" in path.read_text()
        self.until(lambda: self._keeps_numa_nodes() == known, f"{path} is served")

    def _keeps_numa_nodes(self) -> bool:
        body = agentidentity.record("probe") | {"spec": {"numaNodes": [{"id": 0}]}}
        answer = self.api.post(RECORDS, json=body, params={"dryRun": "All"})
        return answer.is_success and "numaNodes" in answer.json()["spec"]

    def helm_flags(self) -> tuple[Path, str]:
        """Where Helm finds this cluster, and the namespace of the release."""
        return self.control_plane.kubeconfig(), NAMESPACE

    def placement(self, pod: str) -> dict[str, Any]:
        """What the extender has promised a pod."""
        return json.loads(self.pod(pod)["metadata"]["annotations"][PLACEMENT])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def cluster(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("upgrade")
    with ExitStack() as stack:
        found = stack.enter_context(Cluster(folder, control_plane_binaries))
        agentidentity.wait_for_the_policy(found.control_plane)
        # A node of before, whose agent has not been replaced yet, with a pod on it.
        record = json.loads((BEFORE / "record.json").read_text())
        found.add_node("before", 8)
        found.create(RECORDS, {k: v for k, v in record.items() if k != "status"})
        runs = found.add_pod("runs", 1, nodeName="before")
        record["status"]["allocations"][0]["podUID"] = runs["metadata"]["uid"]
        found.patch(f"{RECORDS}/before/status", {"status": record["status"]})
        # And one of today.
        topology = machine("hgx-h100-4").topology("today")
        found.add_node("today", 4)
        run_plugin_pod(found.api, "today")
        # Not pytest's folder: a path to a unix socket has at most 107 bytes.
        socket = Path(tempfile.mkdtemp(prefix="upgrade-"))
        stack.callback(shutil.rmtree, socket)
        kubelet = stack.enter_context(FakeKubelet(socket))
        kubelet.numa = {str(gpu.uuid): gpu.topology_nodes or () for gpu in topology.gpus}
        kubelet.allocatable(*(str(gpu.uuid) for gpu in topology.gpus))
        held = found.add_pod("held", 1, nodeName="today")
        kubelet.show("default", "held", {"main": {GPU: [str(topology.gpus[0].uuid)]}})
        assert held["spec"]["nodeName"] == "today"
        flags = ["--topology-manager-policy=best-effort"]
        found.agent = stack.enter_context(
            Agent(found.control_plane, topology, kubelet.socket, folder, flags)
        )
        yield found


def ready(cluster: RealCluster, node: str) -> bool:
    """Whether its record can be relied on."""
    found = cluster.record(node)
    report = codec.decode(found).report if found else None
    return report is not None and bool(report.conditions) and not report.not_ready


def told_of_numa(cluster: Cluster) -> bool:
    """Whether today's record has a field that the older resource does not know."""
    return all("topologyNodes" in device for device in cluster.record("today")["spec"]["devices"])


def only(node: str) -> dict[str, Any]:
    """The affinity of a pod that may run on one node and nowhere else."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [{"matchFields": [field]}]
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def holders(cluster: RealCluster, node: str) -> list[str]:
    report = codec.decode(cluster.record(node)).report
    return [] if report is None else [a.pod for a in report.allocations]


def test_the_record_of_an_older_agent_is_used(cluster: Cluster) -> None:
    cluster.add_pod("first", 4, {**QUAD, "gpu-model": "*V100*"})
    assert cluster.node_of("first") == "before"
    assert cluster.placement("first")["verdict"] == "guaranteed"


def test_an_agent_of_today_works_under_the_older_resource(cluster: Cluster) -> None:
    cluster.until(lambda: ready(cluster, "today"), "the record is published")
    assert holders(cluster, "today") == ["held"]
    assert not told_of_numa(cluster)
    cluster.add_pod("second", 2, {"link": "nvlink", "gpu-model": "*H100*"})
    assert cluster.node_of("second") == "today"


def test_helm_takes_over_what_kubectl_has_applied(helm: Helm, cluster: Cluster) -> None:
    """The way of docs/helm.md, and with it the upgrade of the resource under records and pods."""
    before = {name: cluster.record(name)["metadata"]["uid"] for name in ("before", "today")}
    helm.install(*cluster.helm_flags(), "--take-ownership")
    cluster.until(lambda: cluster._keeps_numa_nodes(), "the new resource is served")
    assert {name: cluster.record(name)["metadata"]["uid"] for name in before} == before
    assert holders(cluster, "before") == ["runs"]
    cluster.agent.stop()
    cluster.agent.start()  # as its DaemonSet does with a new image
    cluster.until(lambda: told_of_numa(cluster), "the agent tells what the older one did not know")
    assert holders(cluster, "today") == ["held"]
    explained = cluster.admin.get("/v1/explain/default/first").json()
    assert explained["node"] == "before", explained


def test_the_resource_of_before_may_come_back(helm: Helm, cluster: Cluster) -> None:
    """As in a rollback: it drops the new fields, and nothing else changes."""
    cluster.put_resource(RESOURCE)
    cluster.agent.stop()
    cluster.agent.start()
    cluster.until(lambda: ready(cluster, "today"), "the record is published")
    cluster.remove_pod("second")
    cluster.add_pod("third", 2, {"link": "nvlink", "gpu-model": "*H100*"})
    assert cluster.node_of("third") == "today"
    cluster.put_resource(TODAY)
    helm.install(*cluster.helm_flags(), "--take-ownership")


def test_after_uninstalling_there_is_what_the_page_says(helm: Helm, cluster: Cluster) -> None:
    kubeconfig, namespace = cluster.helm_flags()
    named = ("--kubeconfig", str(kubeconfig), "--namespace", namespace)
    with cluster.stock():
        cluster.agent.stop()  # its DaemonSet goes, and so does the account that its token is of
        done = helm("uninstall", RELEASE, *named)
        assert done.returncode == 0, done.stderr
        assert cluster.api.get(f"{DEFINITIONS}/{NAME}").is_success
        assert holders(cluster, "before") == ["runs"]
        assert cluster.placement("first")["verdict"] == "guaranteed"
        for kind in ("clusterroles", "clusterrolebindings"):
            names = cluster.kubectl("get", kind, "-o", "name")
            assert "gpu-topology" not in names
        policies = cluster.kubectl("get", "validatingadmissionpolicies", "-o", "name")
        assert "gpu-topology" not in policies
        # kube-scheduler goes on alone: our annotations are words to it.
        cluster.add_pod("alone", 1, {"link": "nvlink"}, affinity=only("today"))
        assert cluster.node_of("alone") == "today"
        helm.install(*cluster.helm_flags())
        agentidentity.wait_for_the_policy(cluster.control_plane)
        cluster.agent.start()
    assert cluster.record("before")["metadata"]["name"] == "before"
    cluster.remove_pod("third")
    cluster.add_pod("again", 1, {"gpu-model": "*H100*"})
    assert cluster.node_of("again") == "today"


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
        assert not values.get('gpu_topology_surprises_total{kind="promise-broken"}')
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
        socket = Path(tempfile.mkdtemp(prefix="upgrade-"))
        stack.callback(shutil.rmtree, socket)
        kubelet = stack.enter_context(FakeKubelet(socket))
        kubelet.numa = {str(gpu.uuid): gpu.topology_nodes or () for gpu in topology.gpus}
        kubelet.allocatable(*(str(gpu.uuid) for gpu in topology.gpus))
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

        def well() -> None:
            """No promise is lost, whoever made it, and each record can be read."""
            for name, placement in promised.items():
                assert cluster.pod(name)["metadata"]["annotations"][PLACEMENT] == placement
                assert cluster.admin.get(f"/v1/explain/default/{name}").json()["node"] == "today"
            assert sorted(holders(cluster, "today")) == sorted(promised)
            (row,) = [r for r in cluster.admin.get("/v1/nodes").json() if r["node"] == "today"]
            assert row["left"] == 8 - 2 * len(promised)

        group = {"group": "both", "group-size": "2", "group-domain": "node"}
        bound("first", **group)
        well()
        cluster.change(ROOT)
        well()
        bound("second", **group)
        well()
        assert cluster.kept() >= 1
        cluster.change(first_release)
        well()
        bound("third")
        well()
        assert cluster.kept() >= 1
