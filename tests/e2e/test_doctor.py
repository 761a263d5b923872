"""``gpu-topology doctor`` of a real control plane. What it says of each thing that can be wrong is
tried in ``scheduler_extender/test_doctor.py``."""

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from scheduler_extender.cli import main
from tests import installation
from tests.commands import Done, asked
from tests.e2e.cluster import RealCluster
from tests.e2e.forwarding import own_address
from tests.fakes.httpserver import answering
from tests.installation import NODES, RECORD, SYSTEM, Json
from tests.kubectl import Kubectl
from tests.waiting import PATIENCE

pytestmark = pytest.mark.e2e
READER = "reader"
LEADS = ("--leader-elect", "--lease-seconds=3")
OWN = (f"--pod-namespace={SYSTEM}", "--pod-name=gpu-topology-1", "--pod-ip=10.1.0.1")
MADE = ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
GPU_CLUSTERS: Json = {
    "metadata": {"name": "gpuclusters.nvidia.com"},
    "spec": {
        "group": "nvidia.com",
        "scope": "Cluster",
        "names": {"kind": "GPUCluster", "plural": "gpuclusters", "singular": "gpucluster"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": ANYTHING},
            }
        ],
    },
}
LABELS = {"app.kubernetes.io/name": "gpu-topology", "app.kubernetes.io/component": "extender"}
WITH_STATUS = (NODES, installation.RECORDS, installation.DEPLOYMENTS)


class Cluster(RealCluster):
    """A cluster whose extender leads as the pod gpu-topology-1."""

    def install(self) -> None:
        """Also the extender's pod, a Secret with its certificate, and the GPU operator's kind."""
        super().install()
        self.create(DEFINITIONS, GPU_CLUSTERS)
        container = {"name": "extender", "image": "example/extender"}
        spec = {"containers": [container], "schedulerName": "none"}
        name, pods = "gpu-topology-1", f"/api/v1/namespaces/{SYSTEM}/pods"
        self.create(pods, {"metadata": {"name": name, "labels": LABELS}, "spec": spec})
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.patch(f"{pods}/{name}/status", {"status": ready})
        self.extender_flags = (*LEADS, *OWN)


class Site(installation.Installation):
    """The installation in it; a kubelet answers, and nothing else of it runs."""

    def __init__(self, real: Cluster, folder: Path, port: int) -> None:
        super().__init__(folder, real.tls)
        self.real = real
        self.file.write_text(yaml.safe_dump(real.scheduler_config()))
        node = installation.node(**{"nvidia.com/gpu.present": "true"})
        node["status"] |= {
            "conditions": [{"type": "Ready", "status": "True", "reason": "E2e"}],
            "addresses": [{"type": "InternalIP", "address": own_address()}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        flag = f"--config={self.file}"
        for path, found in (
            (f"{NODES}/{installation.NODE}", node),
            (RECORD, installation.record()),
            (f"{installation.DAEMON_SETS}/plugin", installation.plugin()),
            (installation.SECRET, installation.secret(real.tls)),
            (installation.SCHEDULER, installation.static_pod(flag)),
        ):
            self.write(path, found)
        self.write(installation.EXTENDER, self.read(installation.EXTENDER) | RUNS)

    def read(self, path: str) -> Json:
        answer = self.real.api.get(path)
        assert answer.is_success, answer.text
        return answer.json()  # type: ignore[no-any-return]

    def write(self, path: str, found: Json) -> None:
        there = self.real.api.get(path)
        metadata = {k: v for k, v in found["metadata"].items() if k not in MADE}
        body = {**found, "metadata": metadata}
        collection = path.rpartition("/")[0]
        if not there.is_success:
            self.real.create(collection, body)
        for part in ("", "/status") if collection in WITH_STATUS else ("",):
            if there.is_success or part:
                version = self.read(path)["metadata"]["resourceVersion"]
                body["metadata"] = {**metadata, "resourceVersion": version}
                answer = self.real.api.put(f"{path}{part}", json=body)
                assert answer.is_success, answer.text

    def delete(self, path: str) -> None:
        answer = self.real.api.delete(path, params={"gracePeriodSeconds": 0})
        assert answer.is_success, answer.text

    def doctor(self, *words: object, user: str = "admin") -> Done:
        """What the command says about the cluster."""
        kubeconfig = self.real.control_plane.kubeconfig(user)
        named = ("--scheduler-config", self.file, "--kubeconfig", kubeconfig)
        return asked(main, "doctor", *named, "-o", "json", *words)

    def asks(self, body: bytes) -> httpx.Response:
        """What the extender answers to a filter call of kube-scheduler's certificate."""
        context = ssl.create_default_context(cafile=self.tls / "ca.crt")
        context.load_cert_chain(self.tls / "scheduler.crt", self.tls / "scheduler.key")
        url = f"https://127.0.0.1:{self.real.ports[0]}/scheduler/filter"
        return httpx.post(url, content=body, verify=context, timeout=PATIENCE, trust_env=False)


RUNS: Json = {"status": {"replicas": 2, "readyReplicas": 2}}


@contextmanager
def kubelet(tls: Path, answer: Callable[[], Json]) -> Iterator[int]:
    """The port at which a kubelet tells its configuration."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls / "extender.crt", tls / "extender.key")
    told = lambda *_: (200, json.dumps({"kubeletconfig": answer()}).encode())  # noqa: E731
    with answering(told, context, host="") as port:
        yield port


@pytest.fixture(scope="module")
def led(control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Everything is well, and the extender leads."""
    folder = tmp_path_factory.mktemp("doctor")
    users: dict[str, list[str]] = {READER: []}
    with ExitStack() as stack:
        real = stack.enter_context(Cluster(folder, control_plane_binaries, users))
        answer: Json = {}
        port = stack.enter_context(kubelet(real.tls, lambda: answer))
        site = Site(real, folder, port)
        answer |= site.kubelet
        site.kubelet = answer
        yield site


def lines(done: Done, check: str, state: str) -> list[str]:
    """What a check says in a state."""
    found: list[dict[str, Any]] = json.loads(done.stdout)["lines"]
    return [line["text"] for line in found if (line["check"], line["state"]) == (check, state)]


def test_all_is_well(led: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    led.real.add_pod("asks", 1)
    led.real.until_bound("asks")
    led.report()
    Kubectl(tmp_path, monkeypatch).forwards(led.real.ports[-1])
    done = led.doctor("--forward")
    answer = json.loads(done.stdout)["lines"]
    assert [line for line in answer if line["state"] != "ok"] == []
    assert done.returncode == 0
    assert "1 of 1 nodes take a pod with one GPU" in lines(done, "probe", "ok")[0]
    assert "bind 1, filter" in lines(done, "scheduler", "ok")[1]
    (message,) = lines(done, "extender", "ok")
    assert message.startswith("gpu-topology-1")
    assert lines(done, "kubelets", "ok") == [
        "1 of 1 nodes: the kubelet's configuration matches the record"
    ]


def test_a_client_that_the_extender_does_not_let_in_learns_what_it_says(led: Site) -> None:
    with led.restored():
        led.call_scheduler("somebody")
        assert "403" in lines(led.doctor(), "probe", "fail")[0]
    with led.restored():
        led.configure(lambda entry: entry["tlsConfig"].update(serverName="elsewhere"))
        assert "Hostname mismatch" in lines(led.doctor(), "probe", "fail")[0]


def test_requests_that_fail_are_counted(
    led: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):  # more than the probes of the other tests
        assert led.asks(b"{").status_code == 400
    Kubectl(tmp_path, monkeypatch).forwards(led.real.ports[-1])
    assert "requests failed" in lines(led.doctor("--forward"), "scheduler", "fail")[0]


def test_a_reader_learns_what_was_not_checked(led: Site) -> None:
    rules = [
        {"apiGroups": [group], "resources": [*resources], "verbs": ["get", "list"]}
        for group, resources in (("", ("pods", "nodes")), ("gpu-topology.io", ("gputopologies",)))
    ]
    led.real.control_plane.grant(READER, rules)
    led.real.until(lambda: led.doctor(user=READER).returncode == 0, "the reader may read")
    done = led.doctor(user=READER)
    dark = {line["check"] for line in json.loads(done.stdout)["lines"] if line["state"] != "ok"}
    assert dark == {"resource", "policies", "extender", "certificates", "kubelets"}
    assert all(f'"state": "{word}"' not in done.stdout for word in ("warn", "fail"))


def test_a_leader_that_is_gone_is_missed(led: Site) -> None:
    led.real.kill_extender()

    def missed() -> list[str]:
        return lines(led.doctor(), "extender", "fail")

    led.real.until(missed, "nobody leads")
    assert "no replica leads: its Lease is" in missed()[0]
    assert "does not answer a request" in lines(led.doctor(), "probe", "fail")[0]
