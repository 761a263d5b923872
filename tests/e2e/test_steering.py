"""Which GPU pods the policies of the chart's second scheduler let through, by a real API server.

Helm renders the policies for a server that has MutatingAdmissionPolicy and for an older one; the
API server is asked for pods of tenants, of the GPU operator and of kubelets, without writing them.
"""

from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.controlplane import ControlPlane
from tests.e2e.helm import CHART, IMAGE, RELEASE, Helm
from tests.manifests.building import NAMESPACE, Object
from tests.waiting import eventually

pytestmark = pytest.mark.e2e

MUTATES = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
PODS = "/api/v1/namespaces/default/pods"
OURS, STOCKS = "gpu-topology", "default-scheduler"
VALIDATOR = "system:serviceaccount:gpu-operator:nvidia-operator-validator"
PLURALS = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}


def gpu_pod(annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "example/work", "resources": limits}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "asked-only", "annotations": annotations or {}},
        "spec": {"containers": [container], **spec},
    }


@pytest.fixture(scope="module")
def cluster(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("steering"), control_plane_binaries) as found:
        yield found


class Server:
    """An API server with the policies of one release; its pods are asked for, never written."""

    def __init__(self, api: httpx.Client) -> None:
        self._api = api

    def ask(self, pod: Object, user: str = "") -> httpx.Response:
        """What the server answers to this pod, of an administrator or of another user."""
        asked = {"Impersonate-User": user, "Impersonate-Group": "system:masters"} if user else {}
        return self._api.post(PODS, params={"dryRun": "All"}, json=pod, headers=asked)

    def apply(self, policies: list[Object]) -> None:
        """Write the policies, and wait until the server heeds them."""
        for each in policies:
            answer = self._api.post(f"{POLICIES}/{PLURALS[each['kind']]}", json=each)
            assert answer.is_success, f"{each['kind']}: {answer.text}"
        if policies:
            eventually(self._is_heard, "the policies are in force")
        if any(each["kind"] == "MutatingAdmissionPolicy" for each in policies):
            eventually(self._is_steered, "pods that name no scheduler go to ours")

    def _is_heard(self) -> bool:
        """A pod that names another scheduler is refused, warned of, or given another name."""
        answer = self.ask(gpu_pod(schedulerName="nobodys"))
        return not answer.is_success or "warning" in answer.headers

    def _is_steered(self) -> bool:
        answer = self.ask(gpu_pod())
        return answer.is_success and answer.json()["spec"]["schedulerName"] == OURS

    def clear(self) -> None:
        """Take all policies away, and wait until none has an effect."""
        for plural in PLURALS.values():
            for found in self._api.get(f"{POLICIES}/{plural}").json()["items"]:
                if found["metadata"]["name"] == "gpu-topology-steering":
                    self._api.delete(f"{POLICIES}/{plural}/gpu-topology-steering")
        eventually(lambda: not self._is_heard(), "the policies are gone")
        eventually(
            lambda: self.ask(gpu_pod()).json()["spec"]["schedulerName"] == STOCKS,
            "pods keep their scheduler",
        )


@pytest.fixture
def with_policies(helm: Helm, cluster: ControlPlane) -> Iterator[Callable[..., Server]]:
    with cluster.client() as api:
        server = Server(api)

        def installed(*, new: bool, shadow: bool = False, **scheduler: Any) -> Server:
            words = ["template", RELEASE, str(CHART), "--namespace", NAMESPACE]
            words += [f"--set=image.repository={IMAGE}"]
            words += ["--api-versions", MUTATES] if new else []
            values = {"scheduler": {"enabled": True, **scheduler}, "extender": {"shadow": shadow}}
            done = helm(*words, values=values)
            assert done.returncode == 0, done.stderr
            found = [each for each in yaml.safe_load_all(done.stdout) if each]
            server.apply([e for e in found if e["metadata"]["name"] == "gpu-topology-steering"])
            return server

        yield installed
        server.clear()


BOTH = pytest.mark.parametrize(
    "new", [pytest.param(True, id="1.36"), pytest.param(False, id="older")]
)
OTHER_WAYS = {
    "names-nobody": gpu_pod(),
    "another-scheduler": gpu_pod(schedulerName="another"),
    "a-node-by-hand": gpu_pod(nodeName="gpus"),
    "ours-and-a-node": gpu_pod(nodeName="gpus", schedulerName=OURS),
}


@BOTH
@pytest.mark.parametrize("steering", ["auto", "refuse"])
def test_in_shadow_no_pod_is_refused(
    with_policies: Callable[..., Server], new: bool, steering: str
) -> None:
    server = with_policies(new=new, shadow=True, steering=steering)
    for name, pod in OTHER_WAYS.items():
        answer = server.ask(pod)
        assert answer.is_success, f"{name}: {answer.text}"
    reported = server.ask(OTHER_WAYS["another-scheduler"]).headers["warning"]
    assert "pods that request GPUs need spec.schedulerName: gpu-topology, not another" in reported


def test_in_shadow_pods_are_steered_where_the_server_can(
    with_policies: Callable[..., Server],
) -> None:
    server = with_policies(new=True, shadow=True)
    answer = server.ask(gpu_pod())
    assert answer.json()["spec"]["schedulerName"] == OURS
    assert "warning" not in answer.headers


@BOTH
def test_out_of_shadow_the_other_ways_are_refused(
    with_policies: Callable[..., Server], new: bool
) -> None:
    server = with_policies(new=new)
    refused = {name for name, pod in OTHER_WAYS.items() if not server.ask(pod).is_success}
    assert refused == OTHER_WAYS.keys() - ({"names-nobody"} if new else set())
    for name in refused:
        assert server.ask(OTHER_WAYS[name]).status_code == HTTPStatus.FORBIDDEN


@BOTH
def test_the_gpu_operator_may_test_a_node(with_policies: Callable[..., Server], new: bool) -> None:
    """Its validator makes a GPU pod with the node's name, and waits until that has ended."""
    server = with_policies(new=new)
    answer = server.ask(gpu_pod(nodeName="gpus"), VALIDATOR)
    assert answer.is_success, answer.text
    assert answer.json()["spec"]["schedulerName"] == STOCKS  # as it was made
    # It may name a node. It may not leave the choice of the node to another scheduler.
    assert not server.ask(gpu_pod(schedulerName="another"), VALIDATOR).is_success
    others = VALIDATOR.replace(":gpu-operator:", ":a-tenants:")
    assert not server.ask(gpu_pod(nodeName="gpus"), others).is_success


@BOTH
def test_a_chart_value_says_which_clients_may_name_nodes(
    with_policies: Callable[..., Server], new: bool
) -> None:
    others = VALIDATOR.replace(":gpu-operator:", ":nvidia:")
    server = with_policies(new=new, mayNameNodes=[others, "somebody@example.com"])
    pod = gpu_pod(nodeName="gpus")
    assert server.ask(pod, others).is_success
    assert server.ask(pod, "somebody@example.com").is_success
    assert not server.ask(pod, VALIDATOR).is_success


@BOTH
def test_no_client_may_name_nodes_with_an_empty_list(
    with_policies: Callable[..., Server], new: bool
) -> None:
    server = with_policies(new=new, mayNameNodes=[])
    assert not server.ask(gpu_pod(nodeName="gpus"), VALIDATOR).is_success


@BOTH
def test_a_static_pod_is_shown_by_its_kubelet(
    with_policies: Callable[..., Server], new: bool
) -> None:
    server = with_policies(new=new)
    mirror = gpu_pod({"kubernetes.io/config.mirror": "x"}, nodeName="gpus")
    answer = server.ask(mirror)
    assert answer.is_success, answer.text
