"""The node agent's identity, as a DaemonSet's pod on a node would have it.

No controller and no kubelet run beside the API server here, so this module does what they would do
for the agent: make its pod from the DaemonSet's template, and ask for the token bound to that pod.
"""

from pathlib import Path
from typing import Any

import httpx

from tests.e2e.controlplane import PERIOD, ControlPlane
from tests.waiting import eventually

ROOT = Path(__file__).parent.parent.parent
NAMESPACE = "gpu-topology-system"
ACCOUNT = "gpu-topology-agent"
# What stands in every refusal of the policy.
POLICY = "ValidatingAdmissionPolicy 'gpu-topology-agent'"
RECORDS = "/apis/gpu-topology.io/v1alpha1/gputopologies"
_OURS = f"/api/v1/namespaces/{NAMESPACE}"
_DAEMON_SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/gpu-topology-agent"


def install(control_plane: ControlPlane) -> None:
    """Apply ``manifests/base``, and wait until the agent's rights and its policy are in force."""
    control_plane.kubectl("apply", "--server-side", "-k", str(ROOT / "manifests" / "base"))
    wait_for_the_policy(control_plane)


def wait_for_the_policy(control_plane: ControlPlane) -> None:
    """Wait until the agent's rights and its policy, which are applied, are in force."""
    unbound = {"Authorization": f"Bearer {unbound_token(control_plane)}"}
    with control_plane.client() as client:

        def refused_by_the_policy() -> bool:
            # Before that it is RBAC that refuses, or the resource is not served yet.
            body, dry = record("nobody"), {"dryRun": "All"}
            answer = client.post(RECORDS, json=body, params=dry, headers=unbound)
            return answer.status_code == 403 and POLICY in answer.text

        eventually(refused_by_the_policy, "the agent's policy is in force", every=PERIOD)


def record(name: str, **metadata: Any) -> dict[str, Any]:
    """The smallest GPUTopology; an empty ``name`` leaves it out."""
    return {
        "apiVersion": "gpu-topology.io/v1alpha1",
        "kind": "GPUTopology",
        "metadata": {**({"name": name} if name else {}), **metadata},
        "spec": {},
    }


def agent_pod(control_plane: ControlPlane, node: str) -> dict[str, Any]:
    """The agent's pod on a node, made from the DaemonSet's template where it is not there yet."""
    name = f"gpu-topology-agent-{node}"
    with control_plane.client() as client:
        found = client.get(f"{_OURS}/pods/{name}")
        if found.is_success:
            return found.json()  # type: ignore[no-any-return]
        template = client.get(_DAEMON_SET).raise_for_status().json()["spec"]["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": template["metadata"]["labels"]},
            "spec": {**template["spec"], "nodeName": node},
        }
        made = client.post(f"{_OURS}/pods", json=pod)
        assert made.status_code == 201, made.text
        return made.json()  # type: ignore[no-any-return]


def bound_token(control_plane: ControlPlane, node: str) -> str:
    """A fresh token of the agent's pod on a node: what the kubelet would mount into it.

    Needs :func:`install`, and the Node. Good for an hour, and as long as the pod is there.
    """
    meta = agent_pod(control_plane, node)["metadata"]
    pod = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
    return _token(control_plane, {"boundObjectRef": pod})


def unbound_token(control_plane: ControlPlane) -> str:
    """A token of the agent's account that belongs to no pod, and so names no node."""
    return _token(control_plane, {})


def kubeconfig(control_plane: ControlPlane, node: str) -> Path:
    """A kubeconfig file with :func:`bound_token`, for an agent that runs as a process."""
    return control_plane.kubeconfig(_user(control_plane, node))


def client(control_plane: ControlPlane, node: str) -> httpx.Client:
    """A client of the API with :func:`bound_token`."""
    return control_plane.client(_user(control_plane, node))


def _user(control_plane: ControlPlane, node: str) -> str:
    user = f"agent-of-{node}"
    control_plane.add_issued(user, bound_token(control_plane, node))
    return user


def _token(control_plane: ControlPlane, spec: dict[str, Any]) -> str:
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [], **spec},
    }
    with control_plane.client() as admin:
        answer = admin.post(f"{_OURS}/serviceaccounts/{ACCOUNT}/token", json=request)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["status"]["token"])
