"""Claims at admission, on kube-apiserver, kube-scheduler and kube-controller-manager 1.37.

The nodes' driver is played, as in ``test_dra.py``: ResourceSlices in a chosen order.
"""

from __future__ import annotations

import random
import signal
import ssl
import string
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from scheduler_extender.annotations import KEYS, PREFIX
from scheduler_extender.claims import ESCAPED, LABEL, MATTER, WANTED, template_name
from scheduler_extender.kube.claimtemplates import MANAGER, OURS
from tests.e2e.cluster import EXTENDER, ROOT, RealCluster
from tests.e2e.drakubelet import API, device_class
from tests.e2e.draslices import add_node
from tests.e2e.gangcluster import gang_cluster
from tests.e2e.test_rights import EVERYBODYS, allowed, granted, has, questions, replica, used
from tests.waiting import PATIENCE, eventually
from topology.machines import machine

pytestmark = pytest.mark.e2e
Json = dict[str, Any]
PODS = "/api/v1/namespaces/team/pods"
TEMPLATES = f"{API}/namespaces/team/resourceclaimtemplates"
COMPONENT = "base/options/claims/claims.yaml"
PAIR = "gpu-topology-2.link.nvlink"
WANTS = {LABEL: WANTED}


@pytest.fixture(scope="module")
def real(dra_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A node of two bridged pairs whose devices are published in a scrambled order, and a node of
    pairs with a device plugin."""
    folder = tmp_path_factory.mktemp("claims")
    with gang_cluster(folder, dra_binaries, None, audited=[EXTENDER]) as (found, _):
        found.kubectl("apply", "--server-side", "-f", str(ROOT / "manifests" / COMPONENT))
        found.stop_extender()
        found.extender_flags = ["--claim-templates"]
        found.start_extender()
        found.control_plane.start_controllers(["resourceclaim-controller"])
        found.create(f"{API}/deviceclasses", device_class())
        add_node(found, "mixed", (0, 2, 1, 3))
        found.add_machine(machine("a30-4-bridged").topology("plugin"))
        found.create("/api/v1/namespaces", {"metadata": {"name": "team", "labels": WANTS}})
        found.create("/api/v1/namespaces", {"metadata": {"name": "others"}})
        yield found


def pod(name: str, asked: Mapping[str, str], gpus: int = 2, **spec: Any) -> Json:
    """A pod that wants a claim; annotations come without our prefix."""
    resources = {"limits": {"nvidia.com/gpu": str(gpus), "cpu": "1"}}
    main = {"name": "main", "image": "example/work", "resources": resources}
    side = {"name": "side", "image": "example/side"}
    ours = {PREFIX + key: value for key, value in asked.items()}
    metadata = {"name": name, "labels": {**WANTS}, "annotations": ours}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [side, main], **spec}}


def admitted(real: RealCluster, asked: Json, namespace: str = "team") -> Json:
    """The pod as the API server would take it."""
    where = f"/api/v1/namespaces/{namespace}/pods"
    answer = real.api.post(where, params={"dryRun": "All"}, json=asked)
    assert answer.is_success, answer.text
    return answer.json()  # type: ignore[no-any-return]


def named(found: Json) -> str | None:
    """The template that a pod names; None if it was left as it is."""
    claims = found["spec"].get("resourceClaims")
    amounts = [
        each["resources"].get(kind, {}).get("nvidia.com/gpu")
        for each in found["spec"]["containers"]
        for kind in ("limits", "requests")
    ]
    if claims is None:
        assert "0" not in amounts
        assert all("claims" not in each["resources"] for each in found["spec"]["containers"])
        return None
    assert amounts == [None, None, "0", "0"]
    side, main = found["spec"]["containers"]
    assert "claims" not in side["resources"]
    assert main["resources"]["claims"] == [{"name": "gpus"}]
    ((claim, name),) = [(e["name"], e["resourceClaimTemplateName"]) for e in claims]
    assert claim == "gpus"
    return str(name)


@pytest.fixture(scope="module")
def policy(real: RealCluster) -> None:
    """The policy is in force."""
    asked = pod("tried", {"link": "nvlink"})
    eventually(lambda: named(admitted(real, asked)), "the policy gives claims", every=0.2)


def test_policy_and_extender_build_the_same_name(real: RealCluster, policy: None) -> None:
    rng = random.Random(27)
    letters = string.ascii_lowercase + string.digits + ESCAPED
    hostile = "\n\t;:='\"\\{}$%\u00e9\u212a\U0001f4a5"
    left = 0
    for _ in range(400):
        keys = rng.sample(MATTER, rng.randint(1, 4))
        values = {
            key: "".join(rng.choices(letters, k=rng.choice((1, 3, 9, 40, 200, 201))))
            for key in keys
        }
        if rng.random() < 0.25:
            key = rng.choice(keys)
            at = rng.randrange(len(values[key]) + 1)
            values[key] = values[key][:at] + rng.choice(hostile) + values[key][at:]
        count = rng.randint(1, 99)
        expected = template_name(count, {PREFIX + key: value for key, value in values.items()})
        assert named(admitted(real, pod("tried", values, count))) == expected, values
        left += expected is None
    assert 40 < left < 360


def with_init(container: Json) -> Json:
    return pod("tried", {"link": "nvlink"}, initContainers=[container])


def asking(name: str, resource: str) -> Json:
    return {"name": name, "image": "x", "resources": {"limits": {resource: "1"}}}


def changed(change: Any, **asked: str) -> Json:
    found = pod("tried", asked or {"link": "nvlink"})
    change(found)
    return found


LEFT = {
    "no-annotation": pod("tried", {}),
    "no-gpus": pod("tried", {"link": "nvlink"}, 0),
    "too-many": pod("tried", {"link": "nvlink"}, 100),
    "preferred": pod("tried", {"link": "nvlink", "policy": " Preferred"}),
    "unknown-key": pod("tried", {"link": "nvlink", "lnk": "nvlink"}),
    "a-group": pod("tried", {"link": "nvlink", "group": "g"}),
    "empty": pod("tried", {"link": ""}),
    "long": pod("tried", {"gpu-model": "A" * 90}),
    "init-container": with_init(asking("init", "nvidia.com/gpu")),
    "init-shared": with_init(asking("init", "nvidia.com/gpu.shared")),
    "two-containers": changed(
        lambda p: p["spec"]["containers"].append(asking("more", "nvidia.com/gpu"))
    ),
    "mig": changed(
        lambda p: p["spec"]["containers"].append(asking("more", "nvidia.com/mig-1g.10gb"))
    ),
    "own-claims": changed(
        lambda p: p["spec"].update(
            resourceClaims=[{"name": "nic", "resourceClaimTemplateName": "nic"}]
        )
    ),
    "named-node": changed(lambda p: p["spec"].update(nodeName="mixed")),
    "gang": changed(
        lambda p: p["metadata"]["labels"].update({"scheduling.x-k8s.io/pod-group": "g"})
    ),
    "no-label": changed(lambda p: p["metadata"].update(labels={})),
    "another-label": changed(lambda p: p["metadata"].update(labels={LABEL: "true"})),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_pod_that_is_left_as_it_is(real: RealCluster, policy: None, name: str) -> None:
    found = admitted(real, LEFT[name])
    claims = [each["name"] for each in found["spec"].get("resourceClaims", ())]
    assert claims == (["nic"] if name == "own-claims" else [])
    main = found["spec"]["containers"][1]["resources"]
    assert main["limits"]["nvidia.com/gpu"] == LEFT[name]["spec"]["containers"][1]["resources"][
        "limits"]["nvidia.com/gpu"]  # fmt: skip
    assert "claims" not in main


def test_in_other_namespaces_pods_are_left_as_they_are(real: RealCluster, policy: None) -> None:
    assert named(admitted(real, pod("tried", {"link": "nvlink"}), "others")) is None


def test_every_key_but_the_policy_matters() -> None:
    assert {*MATTER, "policy"} == KEYS.keys()


# The whole way.


def template_names(real: RealCluster) -> set[str]:
    return {each["metadata"]["name"] for each in real.api.get(TEMPLATES).json()["items"]}


def node_of(real: RealCluster, name: str) -> str:
    def node() -> str:
        return str(real.api.get(f"{PODS}/{name}").json()["spec"].get("nodeName", ""))

    real.until(node, f"{name} is bound")
    return node()


def gpus_of(real: RealCluster, name: str) -> list[int]:
    found = real.api.get(f"{PODS}/{name}").json()
    (status,) = found["status"]["resourceClaimStatuses"]
    where = f"{API}/namespaces/team/resourceclaims/{status['resourceClaimName']}"
    claim = real.api.get(where).json()
    results = claim["status"]["allocation"]["devices"]["results"]
    return sorted(int(each["device"].removeprefix("gpu-")) for each in results)


def end(real: RealCluster, name: str) -> None:
    answer = real.api.delete(f"{PODS}/{name}", params={"gracePeriodSeconds": 0})
    assert answer.is_success, answer.text


def test_pods_get_pairs_by_claims_of_their_own(real: RealCluster, policy: None) -> None:
    for name in ("one", "two"):
        real.create(PODS, pod(name, {"link": "nvlink"}))
    assert [node_of(real, name) for name in ("one", "two")] == ["mixed", "mixed"]
    assert sorted(gpus_of(real, name) for name in ("one", "two")) == [[0, 1], [2, 3]]
    assert template_names(real) == {PAIR}
    made = real.api.get(f"{TEMPLATES}/{PAIR}").json()
    assert made["metadata"]["labels"] == {MANAGER: OURS}
    for name in ("one", "two"):
        annotations = real.api.get(f"{PODS}/{name}").json()["metadata"]["annotations"]
        assert '"verdict":"guaranteed"' in annotations["gpu-topology.io/placement"].replace(" ", "")


def test_a_pod_without_the_label_goes_where_it_did(real: RealCluster, policy: None) -> None:
    found = pod("plain", {"link": "nvlink"})
    found["metadata"]["labels"] = {}
    real.create(PODS, found)
    assert node_of(real, "plain") == "plugin"


def test_a_pod_with_a_claim_goes_to_no_node_with_a_plugin(real: RealCluster, policy: None) -> None:
    real.create(PODS, pod("third", {"link": "nvlink"}))

    def conditions() -> str:
        return str(real.api.get(f"{PODS}/third").json()["status"].get("conditions", ""))

    real.until(lambda: "cannot allocate all claims" in conditions(), "it fits nowhere")
    found = real.api.get(f"{PODS}/third").json()
    assert "nodeName" not in found["spec"]
    body = {"PodName": "third", "PodNamespace": "team", "PodUID": found["metadata"]["uid"]}
    answer = asked_to_bind(real, {**body, "Node": "plugin"})
    assert "the pod's claim has GPUs of a node whose record says nothing of claims" in answer
    end(real, "third")


def asked_to_bind(real: RealCluster, body: Json) -> str:
    """What the extender answers to whoever shows kube-scheduler's certificate."""
    context = ssl.create_default_context(cafile=real.tls / "ca.crt")
    context.load_cert_chain(real.tls / "scheduler.crt", real.tls / "scheduler.key")
    url = f"https://127.0.0.1:{real.ports[0]}/scheduler/bind"
    answer = httpx.post(url, json=body, verify=context, timeout=PATIENCE, trust_env=False)
    return str(answer.json()["Error"])


def test_why_none_is_made_stands_in_an_event(real: RealCluster, policy: None) -> None:
    real.create(PODS, pod("wrong", {"link": "nvlnk"}))
    events = "/api/v1/namespaces/team/events"

    def told() -> list[str]:
        return [
            each["message"]
            for each in real.api.get(events).json()["items"]
            if each["involvedObject"]["name"] == "wrong" and each["reason"] == "GPUPlacementWaits"
        ]

    real.until(told, "the pod is told")
    assert told() == [
        'no ResourceClaimTemplate is made for it: annotation gpu-topology.io/link="nvlnk": '
        "allowed are nvlink, pix, pxb, phb, node"
    ]
    end(real, "wrong")


def test_a_template_of_others_is_left_and_an_unused_one_removed(
    real: RealCluster, policy: None
) -> None:
    """The one in use survives."""
    theirs = "gpu-topology-4.link.nvlink"
    devices = {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}
    body = {"metadata": {"name": theirs}, "spec": {"spec": {"devices": devices}}}
    before = real.create(TEMPLATES, body)
    real.create(PODS, pod("brief", {"gpu-model": "A100*"}, 1))
    model = "gpu-topology-1.gpu-model.z11100z42"
    real.until(lambda: model in template_names(real), "its template is made")
    end(real, "brief")
    real.until(lambda: model not in template_names(real), "its template is removed")
    assert template_names(real) == {PAIR, theirs}
    assert real.api.get(f"{TEMPLATES}/{theirs}").json() == before


def test_the_extender_uses_each_right_of_the_component_and_has_no_other(
    real: RealCluster, policy: None
) -> None:
    rights = granted(COMPONENT)
    whole = rights | granted("base/rbac.yaml") | EVERYBODYS
    real.until(lambda: rights <= used(real.control_plane, EXTENDER, whole), "each is used")
    wrong = [
        right
        for right in sorted(questions(real.api, whole))
        if right.group == "resource.k8s.io" or right.resource == "namespaces"
        if allowed(real.api, EXTENDER, right) != has(whole, right)
    ]
    assert wrong == []


def test_the_extender_touches_no_other_template(real: RealCluster, policy: None) -> None:
    """Its right is for all of them, and the policy for its own."""
    spec: Json = {"spec": {"devices": {"requests": []}}}
    ours = {"name": "gpu-topology-9", "labels": {MANAGER: OURS}}
    with real.control_plane.client(EXTENDER) as client:
        client.headers["Content-Type"] = "application/json"
        answer = client.delete(f"{TEMPLATES}/gpu-topology-4.link.nvlink")
        assert answer.status_code == 403, answer.text
        assert "only ResourceClaimTemplates of its own" in answer.text
        answer = client.post(TEMPLATES, json={"metadata": {"name": "x"}, "spec": spec})
        assert answer.status_code == 403, answer.text
        elsewhere = TEMPLATES.replace("team", "others")
        answer = client.post(elsewhere, json={"metadata": ours, "spec": spec})
        assert answer.status_code == 403, answer.text
        assert "in namespaces labelled gpu-topology.io/claims=dra" in answer.text


def test_the_right_is_lost_and_given_back(real: RealCluster, policy: None) -> None:
    binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    kept = real.api.get(f"{binding}/gpu-topology-claims").json()
    assert real.api.delete(f"{binding}/gpu-topology-claims").is_success
    real.create(PODS, pod("later", {"gpu-model": "A100*,A30*"}, 1))
    found = pod("plain-too", {"link": "nvlink"})
    found["metadata"]["labels"] = {}
    real.create(PODS, found)
    assert node_of(real, "plain-too") == "plugin", "all else goes on"
    del kept["metadata"]["resourceVersion"], kept["metadata"]["uid"]
    real.create(binding, kept)
    for name in ("one", "two"):  # no kubelet is there to say that they have ended
        end(real, name)
    assert node_of(real, "later") == "mixed"


def test_the_second_of_two_replicas_goes_on(
    real: RealCluster, policy: None, tmp_path: Path
) -> None:
    """Both see the pods, and the one that leads makes the templates."""

    def has_made(name: str) -> bool:
        return "ResourceClaimTemplate is made" in (tmp_path / f"{name}.log").read_text()

    real.stop_extender()
    real.extender_flags = []
    with ExitStack() as stack:
        more = ("--claim-templates",)
        first = stack.enter_context(replica(real, "first", "10.1.0.1", tmp_path, *more))
        stack.enter_context(replica(real, "second", "10.1.0.2", tmp_path, *more))
        for name, leads in (("one", "first"), ("two", "second")):
            model = f"A100*,{name.upper()}"
            real.create(PODS, pod(f"of-{name}", {"gpu-model": model}, 1))
            template = template_name(1, {PREFIX + "gpu-model": model})
            real.until(partial(made, real, template), f"{template} is made")
            real.until(partial(has_made, leads), f"{leads} has made it")
            assert leads == "second" or not has_made("second")
            first.process.stop(signal.SIGKILL)
    real.start_extender()


def made(real: RealCluster, template: str | None) -> bool:
    return template in template_names(real)
