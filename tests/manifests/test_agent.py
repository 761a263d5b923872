"""What the agent may, and how it runs."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer

from scheduler_extender.cli import commands as cli
from tests.manifests.building import (
    AGENT,
    AGENT_NAME,
    KUBERNETES,
    OPTIONS,
    ROOT,
    Object,
    agent_container,
    agent_spec,
    arguments,
    container,
    daemon_sets,
    objects,
    the,
    with_option,
)


def test_the_agent_runs_as_root_without_what_makes_root_dangerous() -> None:
    """The kubelet's socket is its owner's, root's."""
    assert agent_spec()["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert agent_container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not agent_spec().keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}
    assert agent_spec().get("automountServiceAccountToken", True)
    assert agent_spec()["enableServiceLinks"] is False


def test_the_agent_sees_these_folders_of_its_host_and_writes_to_none() -> None:
    """Not /sys: a read-only mount leaves writable what is mounted below, the cgroups there."""
    assert {v["name"]: v["hostPath"]["path"] for v in agent_spec()["volumes"]} == {
        "pod-resources": "/var/lib/kubelet/pod-resources",
        "sys-class": "/sys/class",
        "sys-devices": "/sys/devices",
    }
    for volume, mount in zip(
        agent_spec()["volumes"], agent_container()["volumeMounts"], strict=True
    ):
        assert volume.keys() == {"name", "hostPath"}
        assert volume["hostPath"]["type"] == "Directory"
        assert (mount["name"], mount["mountPath"]) == (volume["name"], volume["hostPath"]["path"])
        assert mount["readOnly"] is True


def test_the_agent_knows_its_node_and_asks_for_nvml_only() -> None:
    command, *flags = agent_container()["args"]
    assert "command" not in agent_container()  # the image's entry point
    assert command == "agent"
    environment = {e["name"]: e for e in agent_container()["env"]}
    assert "--node-name=$(NODE_NAME)" in flags
    field = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert environment.pop("NODE_NAME")["valueFrom"] == field
    assert {name: e["value"] for name, e in environment.items()} == {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "utility",
    }
    assert agent_container()["image"] == container()["image"].replace(":", "-agent:")


@pytest.mark.parametrize("option", [None, *OPTIONS])
def test_the_agents_arguments_exist(option: str | None, tmp_path: Path) -> None:
    spec = agent_spec(with_option(option, tmp_path)) if option else agent_spec()
    read = arguments(spec["containers"][0]["args"])
    assert read["kubelet_insecure_tls"] is (option == "kubelet-insecure-tls")
    assert read["metrics_port"] == 8890
    mounts = {m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
    assert str(read["pod_resources"].parent) in mounts


def test_the_agents_page_names_flags_that_there_are() -> None:
    page = (ROOT / "docs" / "reference" / "agent.md").read_text()
    group: Any = typer.main.get_command(cli.app)
    known = {flag for option in group.commands["agent"].params for flag in option.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page))
    assert named <= known


def test_the_agent_is_probed_on_the_port_that_it_opens() -> None:
    (port,) = agent_container()["ports"]
    assert port == {"name": "metrics", "containerPort": 8890}
    assert {"--host=0.0.0.0", "--metrics-port=8890"} <= set(agent_container()["args"])
    assert agent_container()["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert agent_container()["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}


def test_only_clients_that_may_scrape_reach_the_agents_port() -> None:
    (policy,) = (o["spec"] for o in objects(AGENT) if o["kind"] == "NetworkPolicy")
    for each in daemon_sets().values():
        pod = each["spec"]["template"]["metadata"]["labels"].items()
        assert policy["podSelector"]["matchLabels"].items() <= pod
    (ingress,) = policy["ingress"]
    (port,) = agent_container()["ports"]
    assert [opened["port"] for opened in ingress["ports"]] == [port["containerPort"]]
    admin = the("NetworkPolicy", "gpu-topology-extender")["spec"]["ingress"][1]
    assert ingress["from"] == admin["from"], "one label for both ports"


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_builds_and_validates(name: str, tmp_path: Path) -> None:
    folder = with_option(name, tmp_path)
    for found in objects(folder):
        kubernetes_validate.validate(found, KUBERNETES, strict=True)
    assert [o for o in objects(folder) if o["kind"] != "DaemonSet"] == [
        o for o in objects(AGENT) if o["kind"] != "DaemonSet"
    ]


def test_an_option_changes_what_it_says(tmp_path: Path) -> None:
    specs = {}
    for name in OPTIONS:
        (tmp_path / name).mkdir()
        specs[name] = agent_spec(with_option(name, tmp_path / name))
    plain, driver, devices = agent_spec(), specs.pop("host-driver"), specs.pop("device-mounts")
    selector = plain.pop("nodeSelector")
    assert specs == {
        "every-node": {**plain, "nodeSelector": {}},
        "kubelet-insecure-tls": {
            **plain,
            "nodeSelector": selector,
            "containers": [
                {**own, "args": [*own["args"], "--kubelet-insecure-tls"]}
                for own in plain["containers"]
            ],
        },
        "host-pid": {**plain, "nodeSelector": selector, "hostPID": True},
        "runtime-class": {**plain, "nodeSelector": selector, "runtimeClassName": "nvidia"},
        "selinux": {
            **plain,
            "nodeSelector": selector,
            "securityContext": {**plain["securityContext"], "seLinuxOptions": {"type": "spc_t"}},
        },
    }
    (volume,) = (v for v in devices.pop("volumes") if v not in plain["volumes"])
    assert volume["hostPath"] == {"path": "/dev/null", "type": "CharDevice"}
    (own,) = driver["containers"]
    assert own["securityContext"]["privileged"] is True
    assert [v["name"] for v in driver["volumes"]] == [
        "driver",
        *(v["name"] for v in plain["volumes"]),
    ]
    assert {"name": "LD_LIBRARY_PATH", "value": "/usr/local/nvidia/lib64"} in own["env"]


def test_the_agents_pods_are_the_daemonsets_alone() -> None:
    deployment = the("Deployment")["spec"]["selector"]["matchLabels"]
    for found in daemon_sets().values():
        labels = found["spec"]["template"]["metadata"]["labels"]
        assert found["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert not deployment.items() <= labels.items()


def runs_on(spec: Object, labels: dict[str, str]) -> bool:
    """Whether a DaemonSet's controller has a pod on a node with these labels."""
    if not spec["nodeSelector"].items() <= labels.items():
        return False
    wanted = spec.get("affinity", {"nodeAffinity": {}})["nodeAffinity"]
    terms = wanted.get("requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": []})
    keys = [e for term in terms["nodeSelectorTerms"] for e in term["matchExpressions"]]
    assert all(each["operator"] == "DoesNotExist" for each in keys)
    return not any(each["key"] in labels for each in keys)


CLIENT = "nvidia.com/gpu.deploy.client"


@pytest.mark.parametrize("option", [None, *OPTIONS])
def test_a_gpu_node_has_one_agent_and_none_while_the_gpu_operator_wants_none(
    option: str | None, tmp_path: Path
) -> None:
    """The GPU operator knows its clients by the nodeSelector, an affinity it does not read."""
    folder = with_option(option, tmp_path) if option else AGENT
    specs = {name: agent_spec(folder, name) for name in daemon_sets(folder)}
    gpu = {} if option == "every-node" else {"nvidia.com/gpu.present": "true"}
    where = {
        value: [name for name, s in specs.items() if runs_on(s, gpu | labels)]
        for value, labels in {
            "": dict[str, str](),
            **{v: {CLIENT: v} for v in ("true", "false", "paused-for-driver-upgrade")},
        }.items()
    }
    assert where == {
        "": [AGENT_NAME],
        "true": [f"{AGENT_NAME}-client"],
        "false": [],
        "paused-for-driver-upgrade": [],
    }
    plain, client = specs[AGENT_NAME], specs[f"{AGENT_NAME}-client"]
    assert client["nodeSelector"].pop(CLIENT) == "true"
    assert client == {name: part for name, part in plain.items() if name != "affinity"}


def test_the_document_names_every_option_and_every_part_of_the_host() -> None:
    text = (ROOT / "docs" / "reference" / "agent.md").read_text()
    for name in OPTIONS:
        assert f"`{name}`" in text
    for volume in agent_spec()["volumes"]:
        assert f"`{volume['hostPath']['path']}`" in text
