"""Who may write the extender's annotations and the agents' records, asked of a real API server."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from scheduler_extender.podlimits import MOST_ANNOTATED, MOST_ANNOTATIONS
from tests.e2e.agentidentity import NAMESPACE, RECORDS, ROOT, record
from tests.e2e.cluster import EXTENDER, PODS
from tests.e2e.controlplane import PERIOD, ControlPlane, create_node
from tests.e2e.pods import gpu_pod
from tests.waiting import eventually

pytestmark = pytest.mark.e2e
MERGE = {"Content-Type": "application/merge-patch+json"}
SOMEONE = "someone"
PARTS = ["pods", "pods/status", "pods/binding"]
OURS = ("placement", "wake", "term")
OURS_NAMESPACE = f"/api/v1/namespaces/{NAMESPACE}/pods"
Object = dict[str, Any]


@pytest.fixture(scope="module")
def plane(
    control_plane_binaries: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A node and our manifests, and someone with every right over pods and records."""
    users = {
        EXTENDER: ["system:serviceaccounts", "system:authenticated"],
        SOMEONE: ["system:authenticated"],
    }
    folder = tmp_path_factory.mktemp("extender-policy")
    with ControlPlane(folder, control_plane_binaries, users) as found, found.client() as admin:
        create_node(admin, "n1", 8)
        found.kubectl("apply", "--server-side", "-k", str(ROOT / "manifests" / "base"))
        verbs = ["get", "create", "update", "patch", "delete"]
        rules = [
            {"apiGroups": [""], "resources": [*PARTS, "bindings"], "verbs": verbs},
            {
                "apiGroups": ["gpu-topology.io"],
                "resources": ["gputopologies", "gputopologies/status"],
                "verbs": verbs,
            },
        ]
        everything = [{"apiGroups": [""], "resources": PARTS, "verbs": verbs}]
        # What the policies refuse, RBAC does not.
        found.grant(SOMEONE, rules)
        found.grant(EXTENDER, everything, name="stolen")
        yield found


@pytest.fixture(scope="module")
def admin(plane: ControlPlane) -> Iterator[httpx.Client]:
    with plane.client() as found:
        yield found


@pytest.fixture(scope="module")
def someone(plane: ControlPlane, admin: httpx.Client) -> Iterator[httpx.Client]:
    """A client that is no extender and no agent, once each policy is in force."""
    dry, stolen = {"dryRun": "All"}, {"Impersonate-User": EXTENDER}
    with plane.client(SOMEONE) as found:
        admin.post(PODS, json=gpu_pod("first", [1])).raise_for_status()

        def in_force() -> bool:
            made = gpu_pod("made", [1])
            tried = {
                "annotations": patch(found, "first", prefixed(placement="{}"), **dry),
                "extender": admin.post(PODS, json=made, params=dry, headers=stolen),
                "records": found.post(RECORDS, json=record("n1"), params=dry),
            }
            return all(f"Policy 'gpu-topology-{n}'" in each.text for n, each in tried.items())

        eventually(in_force, "the policies are in force", every=PERIOD)
        yield found


@pytest.fixture(scope="module")
def extender(plane: ControlPlane, someone: httpx.Client) -> Iterator[httpx.Client]:
    with plane.client(EXTENDER) as found:
        yield found


@pytest.fixture
def pod(admin: httpx.Client, request: pytest.FixtureRequest) -> str:
    """A pod of this test's, by name."""
    name = f"p{abs(hash(request.node.name)) % 10**9}"
    admin.post(PODS, json=gpu_pod(name, [1])).raise_for_status()
    return name


def prefixed(**ours: str | None) -> Object:
    return {"metadata": {"annotations": {f"gpu-topology.io/{key}": v for key, v in ours.items()}}}


def patch(client: httpx.Client, name: str, body: Object, **params: str) -> httpx.Response:
    return client.patch(f"{PODS}/{name}", json=body, headers=MERGE, params=params)


def binding(name: str, **metadata: Any) -> Object:
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, **metadata},
        "target": target,
    }


def refused(answer: httpx.Response, policy: str) -> None:
    assert answer.status_code == 403, answer.text
    assert f"ValidatingAdmissionPolicy '{policy}'" in answer.json()["message"]


@pytest.mark.parametrize("key", OURS)
def test_no_other_client_changes_the_extenders_annotations(
    someone: httpx.Client, extender: httpx.Client, pod: str, key: str
) -> None:
    refused(patch(someone, pod, prefixed(**{key: "forged"})), "gpu-topology-annotations")
    status = someone.patch(f"{PODS}/{pod}/status", json=prefixed(**{key: "forged"}), headers=MERGE)
    refused(status, "gpu-topology-annotations")
    if key != "placement":
        assert patch(extender, pod, prefixed(**{key: "ours"})).status_code == 200
        refused(patch(someone, pod, prefixed(**{key: None})), "gpu-topology-annotations")


def test_everything_else_of_a_pod_is_its_authors(someone: httpx.Client, pod: str) -> None:
    assert patch(someone, pod, prefixed(link="nvlink")).status_code == 200
    changed = {"metadata": {"labels": {"a": "b"}, "annotations": {"example.com/a": "b"}}}
    assert patch(someone, pod, changed).status_code == 200


def test_a_copy_of_a_pod_can_be_made(someone: httpx.Client) -> None:
    """With what was written on the other one: it is not believed."""
    copy = gpu_pod("copy", [1], annotations={"placement": "{}", "wake": "1"})
    assert someone.post(PODS, json=copy).status_code == 201


def test_no_pod_of_the_extenders_namespace_is_born_with_a_term(someone: httpx.Client) -> None:
    forged = gpu_pod("forged", [1], annotations={"term": "99"})
    refused(someone.post(OURS_NAMESPACE, json=forged), "gpu-topology-annotations")
    assert someone.post(PODS, json=forged).status_code == 201, "elsewhere it means nothing"


@pytest.mark.parametrize("path", ["/pods/{}/binding", "/bindings"])
def test_no_other_client_binds_a_pod_with_a_promise(
    someone: httpx.Client, pod: str, path: str
) -> None:
    where = PODS.removesuffix("/pods") + path.format(pod)
    promise = {"annotations": {"gpu-topology.io/placement": "{}"}}
    refused(someone.post(where, json=binding(pod, **promise)), "gpu-topology-annotations")
    assert someone.post(where, json=binding(pod)).status_code == 201


def test_the_extender_binds(extender: httpx.Client, pod: str) -> None:
    promise = {"annotations": {"gpu-topology.io/placement": "{}"}}
    where = f"{PODS}/{pod}/binding"
    for more in ({"labels": {"a": "b"}}, {"annotations": {"example.com/a": "b"}}):
        refused(
            extender.post(where, json=binding(pod, **{**promise, **more})), "gpu-topology-extender"
        )
    assert extender.post(where, json=binding(pod, **promise)).status_code == 201


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"example.com/a": "b"}}},
        {"metadata": {"annotations": {"gpu-topology.io/link": None}}},
        {"metadata": {"finalizers": ["example.com/stuck"]}},
        {"spec": {"activeDeadlineSeconds": 100}},
        {"metadata": {"annotations": {"gpu-topology.io/placement": "{}"}}},
    ],
)
def test_the_extender_changes_nothing_else_of_a_pod(
    admin: httpx.Client, extender: httpx.Client, pod: str, change: Object
) -> None:
    patch(admin, pod, prefixed(link="nvlink")).raise_for_status()
    refused(patch(extender, pod, change), "gpu-topology-extender")
    refused(
        extender.patch(f"{PODS}/{pod}/status", json=change, headers=MERGE), "gpu-topology-extender"
    )


def annotated(count: int) -> dict[str, str]:
    return {f"{n:x}": "" for n in range(count)}


def test_the_extender_changes_pods_with_as_many_annotations_as_it_reads(
    admin: httpx.Client, extender: httpx.Client, pod: str
) -> None:
    """The policy's cost grows with them; :mod:`scheduler_extender.podlimits` bounds them."""
    many = {"metadata": {"annotations": annotated(8 * MOST_ANNOTATIONS)}}
    patch(admin, pod, many).raise_for_status()
    assert patch(extender, pod, prefixed(wake="1")).status_code == 200
    other = {"metadata": {"annotations": {"0": None, "example.com/a": ""}}}
    refused(patch(extender, pod, other), "gpu-topology-extender")


def test_our_annotations_have_room_where_a_pod_is_read(
    admin: httpx.Client, extender: httpx.Client, pod: str
) -> None:
    """An API server bounds the bytes of all annotations: where they are full none is added."""
    for size, status in ((MOST_ANNOTATED - 100, 200), (262_000, 422)):
        full = {"metadata": {"annotations": {"example.com/full": "x" * size}}}
        patch(admin, pod, full).raise_for_status()
        assert patch(extender, pod, prefixed(wake=str(status) * 50)).status_code == status
        assert patch(extender, pod, prefixed(wake=None)).status_code == 200


def test_the_extender_makes_no_pods(extender: httpx.Client) -> None:
    refused(extender.post(PODS, json=gpu_pod("made", [1])), "gpu-topology-extender")


def test_agents_and_clients_that_may_override_them_write_records(
    someone: httpx.Client, admin: httpx.Client
) -> None:
    refused(someone.post(RECORDS, json=record("n1")), "gpu-topology-records")
    admin.post(RECORDS, json=record("n1")).raise_for_status()
    status = {"status": {"bootID": "b", "sequence": 1}}
    where = f"{RECORDS}/n1/status"
    refused(someone.patch(where, json=status, headers=MERGE), "gpu-topology-records")
    assert admin.patch(where, json=status, headers=MERGE).status_code == 200
    assert someone.delete(f"{RECORDS}/n1").status_code == 200
