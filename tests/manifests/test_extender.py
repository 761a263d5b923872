"""What the extender may, and how it runs."""

from __future__ import annotations

import pytest

from tests.manifests.building import (
    AGENT_NAME,
    EXTENDER_NAME,
    arguments,
    container,
    granted,
    pod_spec,
    the,
)


def test_the_extender_may_do_this_and_no_more() -> None:
    assert granted(EXTENDER_NAME) == [
        ("", "events", "create"),
        ("", "nodes", "get"),
        ("", "nodes", "list"),
        ("", "nodes", "watch"),
        ("", "pods", "get"),
        ("", "pods", "list"),
        ("", "pods", "patch"),
        ("", "pods", "watch"),
        ("", "pods/binding", "create"),
        ("gpu-topology.io", "gputopologies", "get"),
        ("gpu-topology.io", "gputopologies", "list"),
        ("gpu-topology.io", "gputopologies", "watch"),
    ]


@pytest.mark.parametrize(
    ("kind", "name"), [("Deployment", EXTENDER_NAME), ("DaemonSet", AGENT_NAME)]
)
def test_the_right_goes_to_the_account_that_the_pod_runs_as(kind: str, name: str) -> None:
    account = the("ServiceAccount", name)["metadata"]
    binding = the("ClusterRoleBinding", name)
    assert binding["roleRef"]["name"] == the("ClusterRole", name)["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert subject == {
        "kind": "ServiceAccount",
        "name": account["name"],
        "namespace": account["namespace"],
    }
    spec = the(kind, name)["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == account["name"]
    assert spec.get("automountServiceAccountToken", True)


def test_there_is_one_extender_and_never_two() -> None:
    spec = the("Deployment")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_its_arguments_exist_and_fit_the_ports() -> None:
    assert "command" not in container()  # the image's entry point
    assert container()["args"][0] == "extender"
    read = arguments()
    assert read["cluster"] is None
    assert read["kubeconfig"] is None
    assert read["host"] == "0.0.0.0"
    ports = {p["name"]: p["containerPort"] for p in container()["ports"]}
    assert ports == {"scheduler": read["port"], "admin": read["admin_port"]}
    assert ports == {"scheduler": 8888, "admin": 8889}


@pytest.mark.parametrize(
    ("probe", "path"), [("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")]
)
def test_its_probes_ask_the_port_that_the_scheduler_asks(probe: str, path: str) -> None:
    assert container()[probe]["httpGet"] == {"path": path, "port": "scheduler"}


def test_it_runs_with_no_privilege() -> None:
    whole, own = pod_spec()["securityContext"], container()["securityContext"]
    assert whole["runAsNonRoot"] is True
    assert whole["runAsUser"] > 0
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod_spec().keys() & {"hostNetwork", "hostPID", "hostIPC", "volumes"}
    labels = the("Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"  # the agent's need


@pytest.mark.parametrize(
    ("name", "port"), [("gpu-topology", "scheduler"), ("gpu-topology-admin", "admin")]
)
def test_each_port_has_a_service_of_its_own(name: str, port: str) -> None:
    spec = the("Service", name)["spec"]
    (only,) = spec["ports"]
    assert only["targetPort"] == port
    labels = the("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"].items() <= labels.items()
    assert "type" not in spec  # ClusterIP
