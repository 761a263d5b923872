"""docs/install/kubeadm.md and second-scheduler.md from the first command to the last: Helm installs
the chart on a real API server, ``gpu-topology install`` edits the files of a node, and the real
kube-scheduler starts from them.

A folder stands for the node's ``/``. In what kube-scheduler reads there, paths are those of the
folder, and the extender's port is the one that is free here.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from http.client import NOT_FOUND, OK
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from scheduler_extender.cli import main
from scheduler_extender.installing import k3s, staticpod
from scheduler_extender.installing.schedulerconfig import PORT
from tests.commands import asked
from tests.documents.blocks import ROOT, SECOND, Block, steps
from tests.documents.running import checkout, run, tools
from tests.e2e import building
from tests.e2e.cluster import RealCluster
from tests.e2e.conftest import programs
from tests.e2e.controlplane import SCHEDULER
from tests.e2e.helm import Helm
from tests.e2e.hookjobs import jobs_run
from tests.e2e.test_second_scheduler import TwoSchedulers
from tests.programs import free_port
from tests.waiting import eventually
from topology.machines import machine

pytestmark = pytest.mark.e2e

SAMPLES = ROOT / "tests" / "scheduler_extender" / "installing"
NAMESPACE = "gpu-topology-system"
PLACEMENT = "gpu-topology.io/placement"
ADDRESS = "127.0.0.1"
NOTHING = "#!/bin/sh\n"
CONTAINERD = """#!/bin/sh
# ctr and k3s ctr start the program that stands behind the container's name; crictl pulls.
while [ "$1" != gpu-topology ]; do [ "$1" != crictl ] || exit 0; shift; done
exec "$@"
"""
SUDO = '#!/bin/sh\nexec "$@"\n'
BUILT_IN = ("v1", "apps/v1", "batch/v1")
CONFIGS = {"kubeadm": staticpod.CONFIG, "k3s": k3s.CONFIG}
KUBECONFIGS = {"kubeadm": staticpod.KUBECONFIG, "k3s": k3s.started_with({})["kubeconfig"]}
# How k3s starts its kube-scheduler before it adds what kube-scheduler-arg says.
OF_K3S = [
    *(
        f"--{name}kubeconfig={KUBECONFIGS['k3s']}"
        for name in ("", "authentication-", "authorization-")
    ),
    *("--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false"),
]
HARDENED = """\
    - --leader-elect=true
    - --profiling=false
    - --contention-profiling=false
    - --kube-api-qps=70
    - --kube-api-burst=90
    - --kube-api-content-type=application/json
"""


class Reader:
    """Types the page's commands in a checkout; ``root`` is the node's ``/``."""

    def __init__(self, folder: Path, root: Path) -> None:
        folder.mkdir()
        self.here = checkout(folder)
        self.tls = folder / "gpu-topology-tls"
        beside = tools(
            folder / "bin",
            sudo=SUDO,
            systemctl=NOTHING,
            crictl=NOTHING,
            ctr=CONTAINERD,
            k3s=CONTAINERD,
        )
        (beside / "helm").symlink_to(programs(building.HELM) / "helm")
        self._path = [beside]
        home = {f"HELM_{kind}_HOME": str(folder / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        self._given = {**home, "NODE": str(root)}

    def types(self, blocks: list[Block], kubeconfig: Path) -> str:
        """What these commands print; all of them end well."""
        ran = run(blocks, self.here, self._path, {**self._given, "KUBECONFIG": str(kubeconfig)})
        failed = [str(one) for one in ran if not one.is_well()]
        assert not failed, "\n\n".join(failed)
        return "".join(one.stdout for one in ran)


class Node(RealCluster):
    """A cluster whose kube-scheduler starts from the files of a node of one kind."""

    def __init__(self, folder: Path, binaries: Path, kind: str) -> None:
        super().__init__(folder, binaries)
        self.kind = kind
        self.root = folder / "root"
        self.reader = Reader(folder / "reader", self.root)
        self.printed = ""
        pod = (SAMPLES / "kube-scheduler.yaml").read_text()
        kubeadm = {staticpod.PATH: pod.replace("    - --leader-elect=true\n", HARDENED)}
        self.port = free_port()  # kube-scheduler's own
        files = kubeadm if kind == "kubeadm" else {"/etc/rancher/k3s/k3s.yaml": "kind: Config\n"}
        for path, text in files.items():
            self.put(path, text)

    def put(self, path: str, text: str) -> None:
        """A file of the node."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def read(self, path: str) -> str:
        """A file of the node."""
        return (self.root / path.lstrip("/")).read_text()

    def make_certificates(self, *words: object) -> None:
        """The page's commands up to the one that asks for GPUs: they make the certificates, too."""
        kubeconfig = self.control_plane.kubeconfig(SCHEDULER).read_text()
        self.put(KUBECONFIGS[self.kind], kubeconfig)
        self.printed = self.types(steps(self.kind)[:-1])
        self.tls = self.reader.tls

    def types(self, blocks: list[Block]) -> str:
        """What commands of the page print here."""
        return self.reader.types(blocks, self.control_plane.kubeconfig())

    def install(self) -> None:
        """Helm has installed the chart already."""
        self.until(self._watches_records, "records can be watched")

    def edit(self, *words: object) -> None:
        """``gpu-topology install`` once more."""
        tls = ("--tls", self.tls, "--address", ADDRESS)
        given = words if "--remove" in words else (*tls, *words)
        done = asked(main, "install", self.kind, "--root", self.root, *given)
        assert (done.returncode, done.stderr) == (0, "")

    def start_scheduler(self, tls: Mapping[str, str | None] | None = None) -> None:
        """Start kube-scheduler with the words of the node's files."""
        words = self._words()
        config = next((w.partition("=")[2] for w in words if w.startswith("--config=")), None)
        if config is not None:
            given = yaml.safe_load(self.read(config))
            for entry in given.get("extenders", []):
                if f":{PORT}/" in entry["urlPrefix"]:
                    entry["urlPrefix"] = f"https://127.0.0.1:{self.asked_port}/scheduler"
            self.put("/read.yaml", self._rooted(yaml.safe_dump(given)))
            words = [f"--config={self.root}/read.yaml" if "--config=" in w else w for w in words]
        port = f"--secure-port={self.port}"
        self.control_plane.start_scheduler_with(*map(self._rooted, words), port)

    def profiling(self) -> int:
        """What kube-scheduler answers an administrator who asks for its profiles."""
        url = f"https://127.0.0.1:{self.port}/debug/pprof/"
        header = {"Authorization": f"Bearer {self.control_plane.tokens['admin']}"}

        answers: list[int] = []

        def asked_well() -> list[int]:
            with suppress(httpx.TransportError):
                answers.append(httpx.get(url, headers=header, verify=False).status_code)
            return answers

        eventually(asked_well, "kube-scheduler answers")
        return answers[0]

    def _words(self) -> list[str]:
        if self.kind == "kubeadm":
            (container,) = yaml.safe_load(self.read(staticpod.PATH))["spec"]["containers"]
            program, *words = container["command"]
            assert program == "kube-scheduler"
            return list(words)
        ours = self.root / k3s.OURS.lstrip("/")
        given = yaml.safe_load(ours.read_text())["kube-scheduler-arg+"] if ours.exists() else []
        return [*OF_K3S, *(f"--{word}" for word in given)]

    def _rooted(self, text: str) -> str:
        """A text of the node with paths that hold here."""
        for folder in ("/etc/kubernetes/", "/etc/rancher/", "/var/lib/rancher/"):
            text = text.replace(folder, f"{self.root}{folder}")
        return text

    def placement(self, pod: str) -> dict[str, Any] | None:
        """What a bound pod was promised; None if kube-scheduler placed it by itself."""
        self.node_of(pod)
        message = self.pod(pod)["metadata"].get("annotations", {}).get(PLACEMENT)
        return None if message is None else dict(json.loads(message))


@pytest.fixture(scope="module", params=["kubeadm", "k3s"])
def node(
    request: pytest.FixtureRequest,
    control_plane_binaries: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        found = stack.enter_context(Node(folder, control_plane_binaries, request.param))
        found.add_machine(machine("hgx-h100-8").topology("h100"))
        yield found


def test_five_steps_lead_to_a_promise(node: Node) -> None:
    assert len(steps(node.kind)) == 5
    services = f"/api/v1/namespaces/{NAMESPACE}/services"
    address = node.api.get(f"{services}/gpu-topology").json()["spec"]["clusterIP"]
    assert f"urlPrefix: https://{address}:8888/scheduler\n" in node.read(CONFIGS[node.kind])
    assert f"{CONFIGS[node.kind]}: new\n" in node.printed
    node.types(steps(node.kind)[-1:])
    placement = node.placement("pair-nvlink")
    assert placement is not None
    assert placement["verdict"] == "guaranteed"


def test_step_4_once_more_changes_nothing(node: Node) -> None:
    before = {path: path.read_bytes() for path in node.root.rglob("*") if path.is_file()}
    again = [block for block in steps(node.kind) if "gpu-topology install" in block.text]
    assert node.types(again) == "nothing to change\n"
    assert {path: path.read_bytes() for path in node.root.rglob("*") if path.is_file()} == before


def test_profiling_that_was_off_stays_off(node: Node) -> None:
    """Beside --config kube-scheduler passes over --profiling=false."""
    assert node.profiling() == NOT_FOUND
    path = CONFIGS[node.kind]
    text = node.read(path)
    node.put(path, text.replace("enableProfiling: false", "enableProfiling: true"))
    node.restart_scheduler()
    assert node.profiling() == OK
    node.put(path, text)
    node.restart_scheduler()


def test_the_way_back_is_a_scheduler_without_us(node: Node) -> None:
    node.edit("--remove")
    node.restart_scheduler()
    try:
        assert node.profiling() == NOT_FOUND
        binds = node.calls("bind")
        node.add_pod("alone", 1, {"link": "nvlink"})
        assert node.placement("alone") is None
        assert node.calls("bind") == binds
    finally:
        node.edit()
        node.restart_scheduler()
    node.add_pod("again", 1)
    assert node.placement("again") is not None


def test_a_configuration_with_another_extender_and_more_profiles_takes_us_in(node: Node) -> None:
    """kube-scheduler starts with both extenders, and both profiles ask ours."""
    node.edit("--remove")
    config = CONFIGS[node.kind]
    text = (SAMPLES / "foreign.yaml").read_text()
    text = text.replace(KUBECONFIGS["kubeadm"], KUBECONFIGS[node.kind])
    node.put(config, text)
    node.edit()
    assert "# the storage people's" in node.read(config)
    node.restart_scheduler()
    node.add_pod("usual", 1)
    node.add_pod("batch", 1, schedulerName="batch")
    assert node.placement("usual") is not None
    assert node.placement("batch") is not None


def test_the_api_server_takes_the_samples_of_kinds_that_it_knows(node: Node) -> None:
    for path in sorted((ROOT / "examples" / "workloads").glob("*.yaml")):
        if all(found["apiVersion"] in BUILT_IN for found in yaml.safe_load_all(path.read_text())):
            node.kubectl("apply", "--dry-run=server", "-f", str(path))


class Beside(TwoSchedulers):
    """A control plane that cannot be configured, and the second kube-scheduler of the page."""

    def __init__(self, folder: Path, binaries: Path, helm: Helm) -> None:
        super().__init__(folder, binaries, helm)
        self.reader = Reader(folder / "reader", folder)

    def make_certificates(self, *words: object) -> None:
        """The Job of the chart, which the page's commands install, makes them."""
        with jobs_run(self.control_plane, NAMESPACE):
            self.reader.types(steps(SECOND)[:-1], self.control_plane.kubeconfig())
        self.mount_extender()

    def install(self) -> None:
        """Helm has installed the chart already."""
        self.until(self._watches_records, "records can be watched")


def test_four_steps_beside_a_managed_control_plane(
    control_plane_binaries: Path, helm: Helm, tmp_path: Path
) -> None:
    assert len(steps(SECOND)) == 4
    with Beside(tmp_path, control_plane_binaries, helm) as cluster:
        cluster.add_machine(machine("hgx-h100-8").topology("h100"))
        cluster.reader.types(steps(SECOND)[-1:], cluster.control_plane.kubeconfig())
        cluster.node_of("pair-nvlink")
        pod = cluster.pod("pair-nvlink")
        assert pod["spec"]["schedulerName"] == "gpu-topology"
        assert json.loads(pod["metadata"]["annotations"][PLACEMENT])["verdict"] == "guaranteed"
