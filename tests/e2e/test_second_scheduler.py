"""The chart's second kube-scheduler places GPU pods where the first cannot be configured.

Helm installs the chart on a real API server; the first kube-scheduler is as it comes, the second
one has the configuration and the rights that the chart gives it.
"""

import base64
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.certificateauthority import Use
from scheduler_extender.cli.options import SCHEDULER_SECRET, SECRET
from scheduler_extender.kube.tlssecrets import AUTHORITY, TlsSecrets, secret
from tests.e2e.cluster import EXTENDER, PODS, STOCK, RealCluster
from tests.e2e.controlplane import SCHEDULER, Process
from tests.e2e.helm import Helm
from tests.e2e.hookjobs import jobs_run
from tests.manifests.building import NAMESPACE
from topology.kubeapi.apiserver import ApiServer
from topology.machines import machine

pytestmark = pytest.mark.e2e

SECOND = f"system:serviceaccount:{NAMESPACE}:gpu-topology-scheduler"
GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated")
OURS, STOCKS = "gpu-topology", "default-scheduler"
NVLINK = {"link": "nvlink"}
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


class TwoSchedulers(RealCluster):
    """A cluster with the release, the first kube-scheduler as it comes, and the second one."""

    def __init__(self, folder: Path, binaries: Path, helm: Helm) -> None:
        super().__init__(folder, binaries, {SECOND: GROUPS}, audited=(SCHEDULER, SECOND))
        self._program = binaries / "kube-scheduler"
        self._helm = helm
        self._second: Process | None = None

    def make_certificates(self, *words: object) -> None:
        """Leave them to the chart's Job: :meth:`install`."""

    def install(self) -> None:
        self.upgrade()
        self.mount_extender()

    def upgrade(self) -> list[str]:
        """Install or upgrade the release, and return what the chart's Job prints."""
        values = {"scheduler": {"enabled": True}}
        with jobs_run(self.control_plane, NAMESPACE) as printed:
            where = (self.control_plane.kubeconfig(), NAMESPACE)
            self._helm.install(*where, values=values, hooks=True)
        return printed

    def mount_extender(self) -> None:
        """Write the files of the extender's Secret where the extender reads them."""
        files = {"ca.crt": "ca.crt", "tls.crt": "extender.crt", "tls.key": "extender.key"}
        self.mount(SECRET, self.tls, files)

    def mount(self, secret: str, folder: Path, files: Mapping[str, str]) -> None:
        """Write the files of a Secret, by the names that the process reads."""
        folder.mkdir(exist_ok=True)
        found = self.api.get(f"{SECRETS}/{secret}").raise_for_status().json()["data"]
        for key, name in files.items():
            (folder / name).write_bytes(base64.b64decode(found[key]))

    def start_schedulers(self, stack: ExitStack) -> None:
        self.control_plane.start_scheduler(STOCK)
        stack.callback(self.stop_second)
        self.start_second()

    def start_second(self) -> None:
        """Start the second kube-scheduler with what the ConfigMap says, as its account."""
        maps = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        shipped = self.api.get(f"{maps}/gpu-topology-scheduler").json()["data"]["config.yaml"]
        config = self.adapted(yaml.safe_load(shipped), self.mount_schedulers())
        kubeconfig = str(self.control_plane.kubeconfig(SECOND))
        config["clientConnection"] = {"kubeconfig": kubeconfig}  # its pod needs none
        path = self._folder / "second.yaml"
        path.write_text(yaml.safe_dump(config))
        flags = (f"--config={path}", "--secure-port=0", "-v=3")
        log = self._folder / "second.log"
        self._second = Process("second", [str(self._program), *flags], log)

    def mount_schedulers(self) -> dict[str, str]:
        """The files of the scheduler's Secret, as its pod mounts them."""
        folder = self._folder / "mounted"
        files = {"caFile": "ca.crt", "certFile": "tls.crt", "keyFile": "tls.key"}
        self.mount(SCHEDULER_SECRET, folder, {name: name for name in files.values()})
        return {field: str(folder / name) for field, name in files.items()}

    def _logs(self) -> str:
        second = self._folder / "second.log"
        log = second.read_text(errors="replace")[-2500:] if second.exists() else "(none)"
        return f"{super()._logs()}\n--- second\n{log}"

    def stop_second(self) -> None:
        """Stop the second kube-scheduler."""
        if self._second is not None:
            self._second.stop()
            self._second = None

    def who_placed(self, pod: str) -> str:
        """The scheduler that says of itself to have placed a pod."""
        fields = f"involvedObject.name={pod},reason=Scheduled"
        events = "/api/v1/namespaces/default/events"

        def found() -> list[dict[str, Any]]:
            return list(self.api.get(events, params={"fieldSelector": fields}).json()["items"])

        self.until(found, f"a scheduler says that it has placed {pod}")
        return str(found()[0]["reportingComponent"])

    def bindings_of(self, user: str) -> set[str]:
        """The pods for which a user has created a Binding."""
        return {
            event["objectRef"]["name"]
            for event in self.control_plane.audit()
            if event["user"]["username"] == user
            and event["verb"] == "create"
            and event["objectRef"].get("subresource") == "binding"
        }


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, helm: Helm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoSchedulers]:
    with TwoSchedulers(tmp_path_factory.mktemp("two"), control_plane_binaries, helm) as cluster:
        cluster.add_machine(machine("hgx-h100-8").topology("gpus"))
        cluster.add_node("cpus", 0)
        cluster.until(lambda: _steered(cluster), "the policy is in force")
        yield cluster


def _steered(cluster: RealCluster) -> bool:
    log = cluster.api.post(PODS, params={"dryRun": "All"}, json=gpu_pod("asked-only"))
    return log.is_success and log.json()["spec"]["schedulerName"] == OURS


def gpu_pod(name: str, resource: str = "nvidia.com/gpu", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "example/work", "resources": {"limits": {resource: "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


def test_a_gpu_pod_without_a_scheduler_name_goes_through_ours(real: TwoSchedulers) -> None:
    real.add_pod("pair", 2, NVLINK)
    assert real.pod("pair")["spec"]["schedulerName"] == OURS
    assert real.node_of("pair") == "gpus"
    assert (
        '"verdict":"guaranteed"'
        in real.pod("pair")["metadata"]["annotations"]["gpu-topology.io/placement"]
    )
    assert real.who_placed("pair") == OURS


def test_a_pod_without_gpus_stays_with_the_clusters_own(real: TwoSchedulers) -> None:
    asked = real.calls("filter")
    real.add_pod("plain", 0)
    assert real.pod("plain")["spec"]["schedulerName"] == STOCKS
    real.node_of("plain")
    assert real.who_placed("plain") == STOCKS
    assert real.calls("filter") == asked


@pytest.mark.parametrize(
    ("pod", "scheduler"),
    [
        pytest.param(gpu_pod("a", "nvidia.com/gpu.shared"), OURS, id="shared"),
        pytest.param(gpu_pod("a", "nvidia.com/mig-1g.10gb"), OURS, id="mig"),
        pytest.param(gpu_pod("a", "example.com/fpga"), STOCKS, id="another-device"),
        pytest.param(gpu_pod("a", schedulerName=OURS), OURS, id="named-by-hand"),
        pytest.param(
            {
                **gpu_pod("a"),
                "spec": {
                    "initContainers": gpu_pod("a")["spec"]["containers"],
                    "containers": [{"name": "app", "image": "example/work"}],
                },
            },
            OURS,
            id="init-container",
        ),
    ],
)
def test_pods_are_steered_by_what_they_ask_for(
    real: TwoSchedulers, pod: dict[str, Any], scheduler: str
) -> None:
    log = real.api.post(PODS, params={"dryRun": "All"}, json=pod)
    assert log.is_success, log.text
    assert log.json()["spec"]["schedulerName"] == scheduler


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        pytest.param(
            gpu_pod("a", schedulerName="another"),
            "pods that request GPUs need spec.schedulerName: gpu-topology, not another",
            id="another-scheduler",
        ),
        pytest.param(gpu_pod("a", nodeName="gpus"), "leave spec.nodeName out", id="a-node-by-hand"),
    ],
)
def test_a_gpu_pod_that_would_go_another_way_is_refused(
    real: TwoSchedulers, pod: dict[str, Any], message: str
) -> None:
    log = real.api.post(PODS, json=pod)
    assert log.status_code == HTTPStatus.FORBIDDEN
    assert message in log.json()["message"]


def test_a_pod_that_cannot_be_promised_waits_and_the_stock_one_leaves_it_alone(
    real: TwoSchedulers,
) -> None:
    real.add_pod("too-many", 2, {"link": "nvlink", "gpu-model": "A100*"})
    assert ", not a100*" in real.unschedulable("too-many")
    assert "too-many" not in real.bindings_of(SCHEDULER)
    real.remove_pod("too-many")


def test_gpu_pods_wait_for_our_scheduler_and_others_do_not(real: TwoSchedulers) -> None:
    real.stop_second()
    try:
        real.add_pod("later", 1)
        real.add_pod("at-once", 0)
        real.node_of("at-once")
        assert not real.pod("later")["spec"].get("nodeName")
    finally:
        real.start_second()
    assert real.node_of("later") == "gpus"
    assert real.who_placed("later") == OURS


def test_the_stock_one_has_bound_no_gpu_pod_and_the_second_none_at_all(real: TwoSchedulers) -> None:
    """The extender binds in the second one's place, so that promise and bind are one write."""
    pods = real.api.get(PODS).json()["items"]
    with_gpus = {
        pod["metadata"]["name"]
        for pod in pods
        if "limits" in pod["spec"]["containers"][0].get("resources", {})
    }
    assert len(with_gpus) >= 2
    assert real.bindings_of(SCHEDULER)
    assert not real.bindings_of(SCHEDULER) & with_gpus
    assert not real.bindings_of(SECOND)


def test_the_second_one_has_a_lease_of_its_own(real: TwoSchedulers) -> None:
    lease = real.api.get(f"{LEASES}/gpu-topology-scheduler").json()
    assert lease["spec"]["holderIdentity"]


def test_the_second_one_asks_for_nothing_that_it_may_not(real: TwoSchedulers) -> None:
    refused = {
        (event["verb"], event["objectRef"]["resource"])
        for event in real.control_plane.audit()
        if event["user"]["username"] == SECOND
        and event.get("responseStatus", {}).get("code") == HTTPStatus.FORBIDDEN
    }
    assert refused == set()


def test_an_upgrade_keeps_the_certificates_and_the_extender_may_only_renew_them(
    real: TwoSchedulers,
) -> None:
    names = {AUTHORITY, SECRET, SCHEDULER_SECRET}
    before = {name: real.api.get(f"{SECRETS}/{name}").json() for name in names}
    assert real.upgrade() == [""]
    assert {name: real.api.get(f"{SECRETS}/{name}").json() for name in names} == before
    real.kubectl("-n", NAMESPACE, "create", "secret", "generic", "of-another")
    with real.control_plane.client(EXTENDER) as client:
        for name in names:
            assert client.get(f"{SECRETS}/{name}").is_success
            assert client.delete(f"{SECRETS}/{name}").status_code == HTTPStatus.FORBIDDEN
        for path in (SECRETS, f"{SECRETS}/of-another"):
            assert client.get(path).status_code == HTTPStatus.FORBIDDEN
        again = {"metadata": {"name": "new"}}
        assert client.post(SECRETS, json=again).status_code == HTTPStatus.FORBIDDEN


def test_nothing_is_left_of_the_job_and_its_rights(real: TwoSchedulers) -> None:
    job = "gpu-topology-certificates-job"
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
    for path in (
        f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/gpu-topology-certificates",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{job}",
        f"{rbac}/roles/{job}",
        f"{rbac}/rolebindings/{job}",
    ):
        assert real.api.get(path).status_code == HTTPStatus.NOT_FOUND, path


def test_a_renewal_by_the_leaders_account_reaches_a_scheduler_that_runs(
    real: TwoSchedulers,
) -> None:
    """kube-scheduler was started with a certificate that had expired; it stays up."""
    now = datetime.now(UTC).replace(microsecond=0)
    api = ApiServer.from_kubeconfig(real.control_plane.kubeconfig(EXTENDER))
    secrets = TlsSecrets(api, NAMESPACE)
    authority = secrets.authority()
    assert authority is not None
    names, early = ["kube-scheduler"], now - timedelta(days=11)
    expired = authority.issue("kube-scheduler", Use.CLIENT, names, early, 10)
    real.stop_second()
    made = secret(SCHEDULER_SECRET, NAMESPACE, expired, authority)
    real.api.put(f"{SECRETS}/{SCHEDULER_SECRET}", json=made).raise_for_status()
    real.start_second()
    real.add_pod("waits", 1)
    real.until(
        lambda: "SchedulerError" in str(real.pod("waits")["status"]), "the certificate is refused"
    )
    assert not secrets.renew(SECRET)
    assert secrets.renew(SCHEDULER_SECRET)
    api.close()
    real.mount_schedulers()
    assert real.node_of("waits") == "gpus"
