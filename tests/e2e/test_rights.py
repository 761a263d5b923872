"""Each right of the extender's and the agents' accounts is used, and they have no other.

What they use stands in the audit log of a real API server; what they have is asked of its RBAC,
about every resource that it serves.
"""

import shutil
import ssl
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e import agentidentity
from tests.e2e.agents import Agent
from tests.e2e.cluster import EXTENDER, ROOT, RealCluster
from tests.e2e.controlplane import ControlPlane, Process
from tests.e2e.nvidiastack import run_plugin_pod
from tests.fakes.kubelet import FakeKubelet
from tests.programs import free_port
from tests.waiting import PATIENCE
from topology.core.devices import DeviceId, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Allocation, Report
from topology.machines import machine

pytestmark = pytest.mark.e2e
NAMESPACE = "gpu-topology-system"
ELSEWHERE = "default"
AGENT = f"system:serviceaccount:{NAMESPACE}:gpu-topology-agent"
GROUPS = ["system:serviceaccounts", "system:authenticated"]
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
SPECIAL = (("rbac.authorization.k8s.io", "clusterroles", "escalate"), ("", "users", "impersonate"))
NODE = machine("hgx-h100-8").topology("h100")
BRIDGED = machine("a100-pcie-4-bridged").topology("bridged")


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb over one resource (with its subresource); ``name`` where it holds for one object."""

    group: str
    resource: str
    verb: str
    name: str = ""
    namespace: str = ""


# What Kubernetes lets everybody who is known do: ask about themselves.
RIGHTS_OF_EVERY_ACCOUNT = {
    Right(group, resource, "create")
    for group, resource in (
        ("authentication.k8s.io", "selfsubjectreviews"),
        ("authorization.k8s.io", "selfsubjectaccessreviews"),
        ("authorization.k8s.io", "selfsubjectrulesreviews"),
    )
}
# Rights of the agent for which not the API server is asked, but the kubelet, which asks it.
AT_THE_KUBELET = {Right("", "nodes/configz", "get")}
# What the API server here does not serve: it is older than 1.37.
NOT_SERVED = {"devicetaintrules"}


def granted(path: str) -> set[Right]:
    """The rights in a file of the manifests."""
    found = set()
    for role in yaml.safe_load_all((ROOT / "manifests" / path).read_text()):
        namespace = role["metadata"].get("namespace", "")
        found |= {
            Right(group, resource, verb, name, namespace)
            for rule in role.get("rules", ())
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            for name in rule.get("resourceNames", ("",))
        }
    return found


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """A cluster that writes down what the extender and the agents ask."""
    folder = tmp_path_factory.mktemp("rights")
    with RealCluster(folder, control_plane_binaries, audited=[EXTENDER, AGENT]) as cluster:
        cluster.add_machine(NODE)
        cluster.add_machine(BRIDGED)
        yield cluster


def used(plane: ControlPlane, user: str, rights: Iterable[Right]) -> set[Right]:
    """What a user has asked for and got, each as the right of ``rights`` that it takes, where it
    takes one."""
    found = set()
    for event in plane.audit():
        if event["user"]["username"] != user:
            continue
        asked = event.get("objectRef", {})
        whole = "/".join(filter(None, (asked.get("resource"), asked.get("subresource"))))
        names = {asked.get("name", ""), ""}
        places = {asked.get("namespace", ""), ""}
        fitting = [
            right
            for right in rights
            if (right.group, right.resource, right.verb)
            == (asked.get("apiGroup", ""), whole, event["verb"])
            and right.name in names
            and right.namespace in places
        ]
        assert event["annotations"]["authorization.k8s.io/decision"] == "allow", event
        found |= set(fitting) or {Right(asked.get("apiGroup", ""), whole, event["verb"])}
    return found


def until_used(real: RealCluster, user: str, rights: set[Right]) -> None:
    """Wait until a user has used each of these rights, and no other; a failure names the rest."""

    def left() -> set[Right]:
        found = used(real.control_plane, user, rights)
        assert found <= rights, f"used, but not granted: {sorted(found - rights)}"
        return {right for right in rights - found if right.resource not in NOT_SERVED}

    try:
        real.until(lambda: not left(), "every right is used")
    except AssertionError as error:
        raise AssertionError(f"granted, but not used: {sorted(left())}\n{error}") from error


# --- what the extender uses -------------------------------------------------------------------


@contextmanager
def replica(real: RealCluster, name: str, ip: str, folder: Path, *more: str) -> Iterator[Process]:
    """One of two replicas, with a pod that it takes for its own;
    ``more`` are further flags."""
    container = {"name": "extender", "image": "example/extender"}
    pod = {"metadata": {"name": name}, "spec": {"containers": [container], "schedulerName": "none"}}
    real.create(f"/api/v1/namespaces/{NAMESPACE}/pods", {"kind": "Pod", "apiVersion": "v1", **pod})
    ports = (free_port(), free_port(), free_port())
    own = (f"--pod-namespace={NAMESPACE}", f"--pod-name={name}", f"--pod-ip={ip}")
    flags = ("--host=0.0.0.0", "--leader-elect", "--lease-seconds=3", *own, *more)
    process = Process(name, real.extender_command(ports, *flags), folder / f"{name}.log")
    try:
        with real.people(ports[2]) as metrics:

            def ready() -> bool:
                assert process.alive(), process.text()[-3000:]
                try:
                    return metrics.get("/readyz").is_success
                except httpx.TransportError:
                    return False

            real.until(ready, f"{name} is ready")
            yield process
    finally:
        process.stop()


def leader_ip(real: RealCluster) -> str:
    """The address in the EndpointSlice; empty where there is none."""
    where = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
    answer = real.api.get(f"{where}/gpu-topology-leader-ipv4")
    return str(answer.json()["endpoints"][0]["addresses"][0]) if answer.is_success else ""


def bind_a_pod_that_is_gone(real: RealCluster) -> None:
    """The extender looks a pod up that its watch has not shown."""
    context = ssl.create_default_context(cafile=real.tls / "ca.crt")
    context.load_cert_chain(real.tls / "scheduler.crt", real.tls / "scheduler.key")
    body = {"PodName": "gone", "PodNamespace": "default", "PodUID": "no", "Node": "h100"}
    url = f"https://127.0.0.1:{real.ports[0]}/scheduler/bind"
    answer = httpx.post(url, json=body, verify=context, timeout=PATIENCE, trust_env=False)
    assert answer.json()["Error"]


def report_other_gpus(real: RealCluster, pod: Mapping[str, Any], node: NodeTopology) -> None:
    """The node's kubelet has given a pod GPUs that nobody foresaw: an Event tells its author."""
    ids = tuple(DeviceId(node.gpus[p].uuid) for p in (0, 2))
    uid = PodUid(pod["metadata"]["uid"])
    held = Allocation(uid, "default", pod["metadata"]["name"], "main", "nvidia.com/gpu", ids)
    real.put_report(str(node.name), Report("boot", 2, allocations=(held,)))


def test_the_extender_uses_each_of_its_rights_and_asks_for_no_other(
    real: RealCluster, tmp_path: Path
) -> None:
    rights = {
        right
        for right in granted("base/rbac.yaml")
        if right.name != "gpu-topology-leader-ipv6"  # its replicas here have addresses of IPv4
    }
    # A pair that is promised and then gets other GPUs, and a bind of nobody.
    selector = {"nodeSelector": {"kubernetes.io/hostname": "bridged"}}
    real.add_pod("pair", 2, {"link": "nvlink"}, **selector)
    assert real.node_of("pair") == "bridged"
    report_other_gpus(real, real.pod("pair"), BRIDGED)
    bind_a_pod_that_is_gone(real)
    real.until(
        lambda: "GPUPlacementMispredicted" in real.kubectl("get", "events", "-A"), "the pod is told"
    )
    real.stop_extender()
    # Two replicas, one after the other.
    with ExitStack() as stack:
        first = stack.enter_context(replica(real, "first", "10.1.0.1", tmp_path))
        real.until(lambda: leader_ip(real) == "10.1.0.1", "the first leads")
        stack.enter_context(replica(real, "second", "10.1.0.2", tmp_path))
        first.stop()
        real.until(lambda: leader_ip(real) == "10.1.0.2", "the second has taken over")
        until_used(real, EXTENDER, rights)


# --- what the agents use ----------------------------------------------------------------------


def test_an_agent_uses_each_of_its_rights_and_asks_for_no_other(
    real: RealCluster, tmp_path: Path
) -> None:
    topology = machine("l40s-4").topology("agents-node")
    other = machine("a30-4-bridged").topology("agents-node")
    agentidentity.install(real.control_plane)
    real.add_node("agents-node", len(topology.gpus))
    run_plugin_pod(real.api, "agents-node")
    # Not pytest's folder: a path to a unix socket has at most 107 bytes.
    socket = Path(tempfile.mkdtemp(prefix="rights-"))
    try:
        with (
            FakeKubelet(socket) as kubelet,
            Agent(real.control_plane, topology, kubelet.socket, tmp_path) as agent,
        ):
            kubelet.allocatable(*(str(gpu.uuid) for gpu in topology.gpus))
            real.until(lambda: real.record("agents-node"), "the node is published")
            agent.reboot(other)  # so that the spec changes
            kubelet.allocatable(*(str(gpu.uuid) for gpu in other.gpus))
            until_used(real, AGENT, granted("agent/rbac.yaml") - AT_THE_KUBELET)
    finally:
        shutil.rmtree(socket)


# --- what they have ---------------------------------------------------------------------------


def served(api: httpx.Client) -> dict[tuple[str, str], bool]:
    """Every resource of the API server, with its group, and whether it is in a namespace."""
    groups = api.get("/apis").raise_for_status().json()["groups"]
    versions = ["/api/v1", *(f"/apis/{v['groupVersion']}" for g in groups for v in g["versions"])]
    found = {}
    for version in versions:
        group = version.split("/")[2] if version.startswith("/apis/") else ""
        for resource in api.get(version).raise_for_status().json()["resources"]:
            found[group, resource["name"]] = bool(resource["namespaced"])
    return found


def allowed(api: httpx.Client, user: str, right: Right) -> bool:
    """What the API server's authorizer says."""
    resource, _, subresource = right.resource.partition("/")
    asked = {
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "verb": right.verb,
        "name": right.name,
        "namespace": right.namespace,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": GROUPS, "resourceAttributes": asked},
    }
    answer = api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review)
    return bool(answer.raise_for_status().json()["status"]["allowed"])


def questions(api: httpx.Client, rights: set[Right]) -> set[Right]:
    """Every verb over every resource, in both namespaces, for any object and for each that a right
    names, with another one beside it."""
    names: dict[tuple[str, str], set[str]] = {}
    for right in rights:
        names.setdefault((right.group, right.resource), {"another"}).add(right.name)
    asked = {Right(*special) for special in SPECIAL}
    for (group, resource), namespaced in served(api).items():
        asked |= {
            Right(group, resource, verb, name, namespace)
            for verb in VERBS
            for name in names.get((group, resource), {""})
            for namespace in ((NAMESPACE, ELSEWHERE) if namespaced else ("",))
        }
    return asked


def has(rights: set[Right], asked: Right) -> bool:
    """Whether one of the rights covers what is asked."""
    return any(
        (right.group, right.resource, right.verb) == (asked.group, asked.resource, asked.verb)
        and right.name in ("", asked.name)
        and right.namespace in ("", asked.namespace)
        for right in rights
    )


@pytest.mark.parametrize(
    ("user", "path"),
    [(EXTENDER, "base/rbac.yaml"), (AGENT, "agent/rbac.yaml")],
    ids=["extender", "agent"],
)
def test_an_account_has_the_rights_of_its_manifest_and_no_other(
    real: RealCluster, user: str, path: str
) -> None:
    rights = granted(path) | RIGHTS_OF_EVERY_ACCOUNT
    asked = questions(real.api, rights)
    assert {r.resource for r in rights} <= {r.resource for r in asked} | {
        "nodes/configz",
        *NOT_SERVED,
    }
    wrong = [r for r in sorted(asked) if allowed(real.api, user, r) != has(rights, r)]
    assert wrong == []
