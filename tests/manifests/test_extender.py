"""What the extender may, and how it runs."""

from pathlib import Path

import pytest
import yaml

from scheduler_extender.annotations import PLACEMENT, TERM, WAKE
from scheduler_extender.cli.options import SECRET
from scheduler_extender.leader.address import PORT, Address
from scheduler_extender.leader.leader import DRAINS_WITHIN
from tests.manifests.building import (
    AGENT_NAME,
    EXTENDER_NAME,
    arguments,
    container,
    objects,
    pod_spec,
    the,
)


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


def test_in_its_own_namespace_it_may_elect_a_leader_and_name_it() -> None:
    role = the("Role", EXTENDER_NAME)
    assert role["metadata"]["namespace"] == pod_namespace()
    replication = arguments()
    lease = {"resourceNames": [replication["lease"]], "verbs": ["get", "update"]}
    slices = [f"{replication['service']}-leader-ipv{version}" for version in (4, 6)]
    named, created = role["rules"][:2], role["rules"][2:]
    assert named == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], **lease},
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "resourceNames": slices,
            "verbs": ["get", "patch"],
        },
    ]
    assert [(rule["resources"], rule["verbs"]) for rule in created] == [
        (["leases"], ["create"]),
        (["endpointslices"], ["create"]),
    ]
    binding = the("RoleBinding", EXTENDER_NAME)
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == the("ClusterRoleBinding", EXTENDER_NAME)["subjects"]


def pod_namespace() -> str:
    return str(the("Deployment")["metadata"]["namespace"])


def test_two_run_and_take_part_in_the_election() -> None:
    spec = the("Deployment")["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert arguments()["leader_elect"] is True
    fields = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in container()["env"]}
    assert fields == {
        "POD_NAMESPACE": "metadata.namespace",
        "POD_NAME": "metadata.name",
        "POD_IP": "status.podIP",
    }
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > DRAINS_WITHIN + 10


def test_a_drain_takes_one_replica_at_a_time() -> None:
    spec = the("PodDisruptionBudget")["spec"]
    labels = the("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert spec.pop("unhealthyPodEvictionPolicy") == "AlwaysAllow", "what is down holds up no drain"
    assert spec == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    (spread,) = pod_spec()["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    preferred = pod_spec()["affinity"]["podAntiAffinity"]
    ((term,),) = (preferred["preferredDuringSchedulingIgnoredDuringExecution"],)
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels


def test_its_arguments_exist_and_fit_the_ports() -> None:
    assert "command" not in container()  # the image's entry point
    assert container()["args"][0] == "extender"
    read = arguments()
    assert read["cluster"] is None
    assert read["kubeconfig"] is None
    assert read["host"] == "0.0.0.0"
    ports = {p["name"]: p["containerPort"] for p in container()["ports"]}
    assert ports == {
        "scheduler": read["port"],
        "admin": read["admin_port"],
        "metrics": read["metrics_port"],
    }
    assert ports == {"scheduler": 8888, "admin": 8889, "metrics": 8891}


@pytest.mark.parametrize(
    ("probe", "path"), [("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")]
)
def test_its_probes_ask_the_port_that_wants_no_certificate(probe: str, path: str) -> None:
    assert container()[probe]["httpGet"] == {"path": path, "port": "metrics"}


def test_tls_comes_from_the_secret_that_the_command_makes() -> None:
    (volume,) = pod_spec()["volumes"]
    (mount,) = container()["volumeMounts"]
    assert volume["secret"]["secretName"] == SECRET
    assert mount == {"name": volume["name"], "mountPath": mount["mountPath"], "readOnly": True}
    # Its pods read the keys as the group that the volume gets, and nobody else does.
    assert volume["secret"]["defaultMode"] == 0o440
    assert pod_spec()["securityContext"]["fsGroup"] == pod_spec()["securityContext"]["runAsGroup"]
    read, folder = arguments(), Path(mount["mountPath"])
    assert (read["tls_cert"], read["tls_key"]) == (folder / "tls.crt", folder / "tls.key")
    assert read["client_ca"] == folder / "ca.crt"
    assert read["client_name"] == [arguments(["certificates", "--output=x"])["client_name"]]


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
    assert not pod_spec().keys() & {"hostNetwork", "hostPID", "hostIPC"}
    labels = the("Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"  # the agent's need


def test_each_port_has_a_service_of_its_own() -> None:
    """The leader writes the endpoints of the scheduler's; both replicas are scraped. The port for
    people has none: it is on loopback."""
    services = {o["metadata"]["name"] for o in objects() if o["kind"] == "Service"}
    assert services == {"gpu-topology", "gpu-topology-metrics"}
    scheduler, metrics = (the("Service", name)["spec"] for name in sorted(services))
    labels = the("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert "selector" not in scheduler
    assert metrics["selector"].items() <= labels.items()
    (port,) = scheduler["ports"]
    address = Address("10.0.0.1", port["port"], arguments()["service"])
    assert (port["name"], port["targetPort"]) == (PORT, arguments()["port"])
    assert address.service == the("Service", "gpu-topology")["metadata"]["name"]
    assert [port["targetPort"] for port in metrics["ports"]] == ["metrics"]
    assert not {"type"} & (scheduler.keys() | metrics.keys())  # ClusterIP


def test_the_role_for_the_map_forwards_ports_and_does_nothing_else() -> None:
    role = the("Role", "gpu-topology-map")
    assert role["metadata"]["namespace"] == pod_namespace()
    rights = {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert rights == {
        ("pods", "get"),
        ("pods", "list"),
        ("deployments", "get"),
        ("pods/portforward", "get"),
        ("pods/portforward", "create"),
    }


def test_the_network_policy_is_about_the_open_ports_of_the_extender() -> None:
    policy = the("NetworkPolicy", "gpu-topology-extender")["spec"]
    labels = the("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"] == {"matchLabels": labels}
    assert policy["policyTypes"] == ["Ingress"]
    scheduler, metrics = policy["ingress"]
    ports = {p["name"]: p["containerPort"] for p in container()["ports"]}
    assert scheduler == {"ports": [{"protocol": "TCP", "port": ports["scheduler"]}]}
    assert metrics["ports"] == [{"protocol": "TCP", "port": ports["metrics"]}]
    (source,) = metrics["from"]  # an empty list would be everybody
    assert source.keys() == {"namespaceSelector"}
    assert source["namespaceSelector"]["matchLabels"]


def test_the_policies_name_the_accounts_and_keys_that_there_are() -> None:
    expressions = {
        o["metadata"]["name"]: yaml.safe_dump(o["spec"], width=10_000)
        for o in objects()
        if o["kind"] == "ValidatingAdmissionPolicy"
    }
    account = f"system:serviceaccount:{pod_namespace()}:"
    for policy in ("gpu-topology-annotations", "gpu-topology-extender"):
        assert f"{account}{EXTENDER_NAME}" in expressions[policy]
    assert f"{account}{AGENT_NAME}" in expressions["gpu-topology-records"]
    for key in (PLACEMENT, WAKE, TERM):
        assert key in expressions["gpu-topology-annotations"]
    bound = {o["spec"]["policyName"] for o in objects() if "policyName" in o.get("spec", {})}
    assert bound == expressions.keys()
