"""What an agent may do with the token of its pod, asked of a real API server."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import agentidentity
from tests.e2e.agentidentity import NAMESPACE, POLICY, RECORDS, ROOT, record
from tests.e2e.controlplane import ControlPlane, create_node
from tests.waiting import eventually

pytestmark = pytest.mark.e2e
NODES = ("n1", "n2")
MERGE = {"Content-Type": "application/merge-patch+json"}
JSON_PATCH = {"Content-Type": "application/json-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}

RECORD = "gpu-topology.io/gputopologies"
Object = dict[str, Any]
Clients = dict[str, httpx.Client]
Call = Callable[[httpx.Client, str], httpx.Response]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
AGENT = f"system:serviceaccount:{NAMESPACE}:gpu-topology-agent"


@pytest.fixture(scope="module")
def plane(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """Two nodes and our manifests; no scheduler and no extender."""
    with ControlPlane(tmp_path_factory.mktemp("policy"), control_plane_binaries) as control_plane:
        with control_plane.client() as admin:
            for name in NODES:
                create_node(admin, name, 8)
            agentidentity.install(control_plane)
            # What the policy refuses the agents, RBAC does not.
            wider = ["gputopologies", "gputopologies/status"]
            control_plane.grant(AGENT, [rule(["patch", "delete"], wider)], name="wider")
        yield control_plane


def rule(verbs: list[str], resources: list[str]) -> Object:
    return {"apiGroups": ["gpu-topology.io"], "resources": resources, "verbs": verbs}


@pytest.fixture(scope="module")
def clients(plane: ControlPlane) -> Iterator[Clients]:
    """The admin, the agents by node, and the agents' account without a node."""
    plane.add_issued("nowhere", agentidentity.unbound_token(plane))
    with ExitStack() as stack:
        found = {
            "admin": stack.enter_context(plane.client()),
            "nowhere": stack.enter_context(plane.client("nowhere")),
            **{n: stack.enter_context(agentidentity.client(plane, n)) for n in NODES},
        }
        for what in (RECORD, f"{RECORD}/status"):
            eventually(partial(may, found["n1"], what, "delete"), "the wider rights are there")
        yield found


@pytest.fixture
def admin(clients: Clients) -> httpx.Client:
    """The admin, who finds no record and leaves none."""
    clients["admin"].delete(RECORDS).raise_for_status()
    return clients["admin"]


def put(client: httpx.Client, name: str, **change: Any) -> httpx.Response:
    """Read a record, change it, write it back: the resourceVersion goes along."""
    found = client.get(f"{RECORDS}/{name}").raise_for_status().json()
    return client.put(f"{RECORDS}/{name}", json={**found, **change})


def put_status(client: httpx.Client, name: str) -> httpx.Response:
    found = client.get(f"{RECORDS}/{name}").raise_for_status().json()
    body = {**found, "status": {"bootID": "b", "sequence": 2}}
    return client.put(f"{RECORDS}/{name}/status", json=body)


def patch(
    client: httpx.Client, path: str, kind: dict[str, str], body: Any, **params: str
) -> httpx.Response:
    return client.patch(f"{RECORDS}/{path}", content=json.dumps(body), headers=kind, params=params)


def apply(client: httpx.Client, name: str, path: str = "", **more: Any) -> httpx.Response:
    body = {**record(name), **more}
    return patch(client, path or name, APPLY, body, fieldManager="gpu-topology", force="true")


SPEC: Object = {"spec": {"allocator": {"policy": "packed"}}}
STATUS: Object = {"status": {"sequence": 3}}
SEQUENCE = [{"op": "add", "path": "/status", "value": {"sequence": 4}}]

# Every way to change a record that is there, once it is there.
WRITES: dict[str, Call] = {
    "put": lambda c, n: put(c, n, **SPEC),
    "put-status": put_status,
    "merge-patch": lambda c, n: patch(c, n, MERGE, SPEC),
    "merge-patch-status": lambda c, n: patch(c, f"{n}/status", MERGE, STATUS),
    "json-patch": lambda c, n: patch(
        c, n, JSON_PATCH, [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]
    ),
    "json-patch-status": lambda c, n: patch(c, f"{n}/status", JSON_PATCH, SEQUENCE),
    "apply": lambda c, n: apply(c, n, **SPEC),
    "apply-status": lambda c, n: apply(c, n, f"{n}/status", **STATUS),
    "delete": lambda c, n: c.delete(f"{RECORDS}/{n}"),
}
# Every way to make one.
CREATIONS: dict[str, Call] = {
    "post": lambda c, n: c.post(RECORDS, json=record(n)),
    "apply": lambda c, n: apply(c, n),
}

every_write = pytest.mark.parametrize("write", [pytest.param(f, id=k) for k, f in WRITES.items()])
every_creation = pytest.mark.parametrize(
    "create", [pytest.param(f, id=k) for k, f in CREATIONS.items()]
)


def refused(answer: httpx.Response, *words: str) -> None:
    """Assert that our policy refused, with a message that helps."""
    assert answer.status_code == 403, answer.text
    message = answer.json()["message"]
    for word in (POLICY, *words):
        assert word in message


def may(client: httpx.Client, what: str, verb: str) -> bool:
    """What the authorizer answers; ``what`` is resource[/subresource], after the group if any."""
    words = what.split("/")
    group = words.pop(0) if "." in words[0] else ""
    names = dict(zip(("resource", "subresource"), words, strict=False))
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"group": group, **names, "verb": verb}},
    }
    answer = client.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json=review)
    return bool(answer.raise_for_status().json()["status"]["allowed"])


# --- its own record ---------------------------------------------------------------------------


@every_creation
def test_an_agent_makes_its_own_record(admin: httpx.Client, clients: Clients, create: Call) -> None:
    answer = create(clients["n1"], "n1")
    assert answer.status_code == 201, answer.text


@every_write
def test_an_agent_writes_its_own_record(admin: httpx.Client, clients: Clients, write: Call) -> None:
    admin.post(RECORDS, json=record("n1")).raise_for_status()
    answer = write(clients["n1"], "n1")
    assert answer.status_code == 200, answer.text


def test_the_node_may_own_the_record(admin: httpx.Client, clients: Clients) -> None:
    """Set with neither the right to Node finalizers nor the wish to block the Node's deletion."""
    node = clients["n1"].get("/api/v1/nodes/n1").raise_for_status().json()
    made = clients["n1"].post(
        RECORDS, json=record("n1", ownerReferences=[owner(uid=node["metadata"]["uid"])])
    )
    assert made.status_code == 201, made.text
    assert put_status(clients["n1"], "n1").status_code == 200


def test_everything_that_an_agent_writes_is_stored(admin: httpx.Client, clients: Clients) -> None:
    strict = {"fieldValidation": "Strict"}
    mig = {"uuid": "MIG-5f6d8a52", "profile": "1g.10gb", "memoryBytes": 10468982784}
    device = {"index": 0, "uuid": "GPU-5f", "product": "P", "memoryBytes": 1, "migInstances": [mig]}
    spec = {"devices": [device], "allocator": {"topologyManagerPolicy": "unknown"}}
    health = {
        "uuid": "GPU-5f",
        "healthy": False,
        "reason": "Xid79",
        "since": "2026-01-31T12:00:00Z",
        "energyMillijoules": 2**53,
        "linksDown": [0, 17],
    }
    made = clients["n1"].post(RECORDS, json={**record("n1"), "spec": spec}, params=strict)
    assert made.status_code == 201, made.text
    assert made.json()["spec"]["devices"][0]["migInstances"] == [mig]

    def tell(health: list[Object]) -> httpx.Response:
        body = {**made.json(), "status": {"health": health}}
        return clients["n1"].put(f"{RECORDS}/n1/status", json=body, params=strict)

    for broken in ({"since": "yesterday"}, {"linksDown": [3, 3]}, {"energyMillijoules": -1}):
        assert tell([{**health, **broken}]).status_code == 422
    answer = tell([health])
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"]["health"] == [health]


# --- and no other -----------------------------------------------------------------------------


@every_creation
def test_an_agent_makes_no_other_record(
    admin: httpx.Client, clients: Clients, create: Call
) -> None:
    refused(create(clients["n1"], "n2"), "the agent of node n1", "n1 only", "not n2")
    assert admin.get(f"{RECORDS}/n2").status_code == 404


@every_write
def test_an_agent_writes_no_other_record(
    admin: httpx.Client, clients: Clients, write: Call
) -> None:
    before = admin.post(RECORDS, json=record("n2")).raise_for_status().json()
    refused(write(clients["n1"], "n2"), "the agent of node n1", "n1 only", "not n2")
    assert admin.get(f"{RECORDS}/n2").json() == before


@every_creation
def test_without_a_node_nothing_is_made(
    admin: httpx.Client, clients: Clients, create: Call
) -> None:
    refused(create(clients["nowhere"], "n1"), "this token names no node")


@every_write
def test_without_a_node_nothing_is_written(
    admin: httpx.Client, clients: Clients, write: Call
) -> None:
    admin.post(RECORDS, json=record("n1")).raise_for_status()
    refused(write(clients["nowhere"], "n1"), "this token names no node")


@pytest.mark.parametrize("prefix", ["n1", "n2", "n"])
def test_a_generated_name_is_refused(admin: httpx.Client, clients: Clients, prefix: str) -> None:
    answer = clients["n1"].post(RECORDS, json=record("", generateName=prefix))
    refused(answer, "n1 only", f"not {prefix}")


def owner(**change: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "0c8c2b57", **change}


OWNERS = {
    "another-node": [owner(name="n2")],
    "two-nodes": [owner(), owner(name="n2", uid="1c8c2b57")],
    "no-node": [owner(kind="Pod")],
    "a-node-of-another-group": [owner(apiVersion="example.com/v1")],
}


@pytest.mark.parametrize("owners", [pytest.param(o, id=k) for k, o in OWNERS.items()])
def test_nothing_but_the_node_owns_the_record(
    admin: httpx.Client, clients: Clients, owners: list[Object]
) -> None:
    message = "may be owned by the Node n1 only"
    refused(clients["n1"].post(RECORDS, json=record("n1", ownerReferences=owners)), message)
    clients["n1"].post(RECORDS, json=record("n1")).raise_for_status()
    change = {"metadata": {"ownerReferences": owners}}
    refused(patch(clients["n1"], "n1", MERGE, change), message)
    refused(apply(clients["n1"], "n1", **record("n1", ownerReferences=owners)), message)


def test_a_collection_is_not_deleted(
    plane: ControlPlane, admin: httpx.Client, clients: Clients
) -> None:
    """RBAC refuses it, and the policy does where the right is granted all the same."""
    admin.post(RECORDS, json=record("n1")).raise_for_status()
    answer = clients["n1"].delete(RECORDS)
    assert answer.status_code == 403
    assert POLICY not in answer.text
    plane.grant(AGENT, [rule(["deletecollection"], ["gputopologies"])], name="too-much")
    try:
        eventually(lambda: may(clients["n1"], RECORD, "deletecollection"), "the right is there")
        answer = clients["n1"].delete(RECORDS)
        refused(answer, "deletes its own GPUTopology by name")
        assert admin.get(f"{RECORDS}/n1").status_code == 200
    finally:
        for kind in ("clusterrolebindings", "clusterroles"):
            admin.delete(f"{RBAC}/{kind}/too-much").raise_for_status()


# --- everybody else ---------------------------------------------------------------------------


@every_creation
def test_others_make_what_they_like(admin: httpx.Client, create: Call) -> None:
    assert create(admin, "n2").status_code == 201


@every_write
def test_others_write_what_they_like(admin: httpx.Client, write: Call) -> None:
    admin.post(RECORDS, json=record("", generateName="n")).raise_for_status()
    admin.post(RECORDS, json=record("n2", ownerReferences=[owner()])).raise_for_status()
    answer = write(admin, "n2")
    assert answer.status_code == 200, answer.text


def test_another_account_on_the_node_is_not_the_agent(
    plane: ControlPlane, admin: httpx.Client
) -> None:
    """Rights are RBAC's there; the policy neither adds any nor takes them."""
    headers = {"Impersonate-User": "system:serviceaccount:default:other"}
    answer = admin.post(RECORDS, json=record("n1"), headers=headers)
    assert answer.status_code == 403
    assert POLICY not in answer.text


def test_a_client_with_the_agents_identity_is_judged_as_the_agent(admin: httpx.Client) -> None:
    headers = {"Impersonate-User": AGENT}
    refused(admin.post(RECORDS, json=record("n1"), headers=headers), "this token names no node")


# --- the manifests ----------------------------------------------------------------------------

FOLDER = ROOT / "manifests" / "agent"


def test_the_agents_folder_can_be_applied_by_itself(plane: ControlPlane) -> None:
    assert dry_run(plane, FOLDER).count("serverside-applied") == 8


@pytest.mark.parametrize("option", sorted(p.name for p in (FOLDER / "options").iterdir()))
def test_an_option_is_accepted(plane: ControlPlane, tmp_path: Path, option: str) -> None:
    agent = os.path.relpath(FOLDER, tmp_path.resolve())  # kustomize takes no other
    overlay = {"resources": [agent], "components": [f"{agent}/options/{option}"]}
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay))
    assert "daemonset.apps/gpu-topology-agent serverside-applied" in dry_run(plane, tmp_path)


def dry_run(plane: ControlPlane, folder: Path) -> str:
    return plane.kubectl("apply", "--server-side", "--dry-run=server", "-k", str(folder))


# --- pod security -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [("deployments/gpu-topology-extender", 201), ("daemonsets/gpu-topology-agent", 403)],
)
def test_only_the_agent_needs_a_privileged_namespace(
    admin: httpx.Client, path: str, status: int
) -> None:
    name = f"restricted-for-{path.partition('/')[0]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    admin.post("/api/v1/namespaces", json={"metadata": {"name": name, "labels": labels}})
    found = admin.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/{path}").raise_for_status().json()
    pod = {"metadata": {"name": "tried"}, "spec": found["spec"]["template"]["spec"]}
    answer = admin.post(f"/api/v1/namespaces/{name}/pods", json=pod)
    assert answer.status_code == status, answer.text


def test_a_runtime_class_must_exist(admin: httpx.Client, plane: ControlPlane) -> None:
    """Why it is an option and not the default."""
    spec = {**agentidentity.agent_pod(plane, "n1")["spec"], "runtimeClassName": "nvidia"}
    pod = {"metadata": {"name": "tried"}, "spec": spec}
    path, dry = f"/api/v1/namespaces/{NAMESPACE}/pods", {"dryRun": "All"}
    answer = admin.post(path, json=pod, params=dry)
    assert answer.status_code == 403, answer.text
    assert "RuntimeClass" in answer.json()["message"]
