"""The manifests: they build, they validate, and they say what the code and the design say."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer
import yaml

from scheduler_extender.annotations import KEYS, MANAGED, PREFIX, Malformed, parse
from scheduler_extender.cli import commands as cli
from scheduler_extender.demo import FLEET, how_to_call
from scheduler_extender.files import clusterfile as filecluster
from scheduler_extender.files.clusterfile import read_pod
from scheduler_extender.kube import binder as kube
from scheduler_extender.kube.source import RECORDS_PATH
from tests.crd import faults, nodes_of, plain, schema
from topology import codec
from topology.core.devices import DeviceId, GpuUuid, PodUid
from topology.core.report import Allocation, Health, Report
from topology.machines import MACHINES, machine

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
BASE = ROOT / "manifests" / "base"
AGENT = ROOT / "manifests" / "agent"
OPTIONS = sorted(p.name for p in (AGENT / "options").iterdir())
SAMPLES = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))
KUBERNETES = "1.36"
NAMESPACE = "gpu-topology-system"

EXTENDER_NAME = "gpu-topology-extender"
AGENT_NAME = "gpu-topology-agent"

Object = dict[str, Any]

every_sample = pytest.mark.parametrize("path", [pytest.param(p, id=p.stem) for p in SAMPLES])


@cache
def _built(folder: Path) -> tuple[Object, ...]:
    kubectl = Path(sys.executable).with_name("kubectl")
    command = [str(kubectl), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def objects(folder: Path = BASE) -> list[Object]:
    """What `kubectl apply -k` would send for a folder; ours to change."""
    return copy.deepcopy(list(_built(folder)))


def the(kind: str, name: str | None = None) -> Object:
    """The one object of a kind (and name)."""
    found = [o for o in objects() if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    assert len(found) == 1, (kind, name, len(found))
    return found[0]


def pod_spec() -> Object:
    return the("Deployment")["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def container() -> Object:
    (only,) = pod_spec()["containers"]
    return only  # type: ignore[no-any-return]


def scheduler_config() -> Object:
    path = ROOT / "manifests" / "scheduler" / "kube-scheduler-config.yaml"
    return yaml.safe_load(path.read_text())  # type: ignore[no-any-return]


def extender() -> Object:
    (only,) = scheduler_config()["extenders"]
    return only  # type: ignore[no-any-return]


def sample(path: Path) -> Object:
    (only,) = yaml.safe_load_all(path.read_text())
    return only  # type: ignore[no-any-return]


# --- everything -------------------------------------------------------------------------------


def test_the_base_builds_into_these_objects_and_no_others() -> None:
    assert sorted((o["kind"], o["metadata"]["name"]) for o in objects()) == [
        ("ClusterRole", AGENT_NAME),
        ("ClusterRole", EXTENDER_NAME),
        ("ClusterRoleBinding", AGENT_NAME),
        ("ClusterRoleBinding", EXTENDER_NAME),
        ("CustomResourceDefinition", "gputopologies.gpu-topology.io"),
        ("DaemonSet", AGENT_NAME),
        ("Deployment", EXTENDER_NAME),
        ("Namespace", NAMESPACE),
        ("Service", "gpu-topology"),
        ("Service", "gpu-topology-admin"),
        ("ServiceAccount", AGENT_NAME),
        ("ServiceAccount", EXTENDER_NAME),
        ("ValidatingAdmissionPolicy", AGENT_NAME),
        ("ValidatingAdmissionPolicyBinding", AGENT_NAME),
    ]


def test_the_agents_folder_builds_into_the_agents_objects_of_the_base() -> None:
    """Without namespace and resource: deleting the agent's objects then deletes no record."""
    agents = [o for o in objects() if o["metadata"]["name"] == AGENT_NAME]
    assert sorted(objects(AGENT), key=str) == sorted(agents, key=str)


@pytest.mark.parametrize(("folder", "also"), [(BASE, {"../agent"}), (AGENT, set())])
def test_every_manifest_of_a_folder_is_built(folder: Path, also: set[str]) -> None:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    here = {p.name for p in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == here | also


def test_every_object_says_whose_it_is() -> None:
    for found in objects():
        labels = found["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "gpu-topology"
        whose = {AGENT_NAME: "agent"}.get(found["metadata"]["name"], "extender")
        assert labels.get("app.kubernetes.io/component", whose) == whose


def test_every_object_validates_strictly() -> None:
    for found in objects():
        kubernetes_validate.validate(found, KUBERNETES, strict=True)


def test_validation_refuses_a_field_nobody_knows() -> None:
    broken = the("Deployment")
    broken["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES, strict=True)


def test_namespaced_objects_are_in_our_namespace() -> None:
    for found in objects():
        if found["kind"] in ("DaemonSet", "Deployment", "Service", "ServiceAccount"):
            assert found["metadata"]["namespace"] == NAMESPACE
        else:
            assert "namespace" not in found["metadata"]


# --- the custom resource ----------------------------------------------------------------------


def crd() -> Object:
    return the("CustomResourceDefinition")["spec"]  # type: ignore[no-any-return]


EXAMPLE = """
apiVersion: gpu-topology.io/v1alpha1
kind: GPUTopology
metadata: {name: train-01}
spec:
  resources: [{name: nvidia.com/gpu, strategy: none, replicas: 1}]
  allocator: {policy: best-effort, pluginVersion: 0.20.0, topologyManagerPolicy: none,
    topologyManagerScope: container}
  devices:
  - {index: 0, vendor: nvidia, uuid: GPU-5f, product: NVIDIA A100-SXM4-40GB,
     memoryBytes: 42949672960, pciBusId: "0000:07:00.0", numaNode: 0, migMode: disabled}
  - {index: 1, vendor: nvidia, uuid: GPU-77, product: NVIDIA A100-SXM4-40GB,
     memoryBytes: 42949672960, pciBusId: "0000:0b:00.0", numaNode: 1, migMode: disabled}
  links:
  - {a: 0, b: 1, pcie: SYS, nvlinks: 12, via: direct, nvlinkGBps: 25}
  nics:
  - {name: mlx5_0, numaNode: 0, distances: [{index: 0, pcie: PIX}, {index: 1, pcie: NODE}]}
  fabric: {clusterUUID: 3f6d8a52-5c1e-4c44-9a0b-6f0d6c8b9d11, cliqueId: 1}
status:
  bootID: 0c8c2b57-2b5f-4b3c-a2cf-2f0b6a1d0e55
  sequence: 41
  allocatable: [GPU-5f]
  allocations:
  - {podUID: 6c9f, namespace: team-a, pod: train-0, container: main, resource: nvidia.com/gpu,
     deviceIds: [GPU-5f]}
  health:
  - {uuid: GPU-77, healthy: false, reason: Xid79}
  conditions: []
"""
"""The object of the design, with values where it has dots."""


def example() -> Object:
    return yaml.safe_load(EXAMPLE)  # type: ignore[no-any-return]


def test_the_resource_is_named_as_the_design_says() -> None:
    names = crd()["names"]
    assert (crd()["group"], crd()["scope"]) == ("gpu-topology.io", "Cluster")
    assert (names["kind"], names["shortNames"], names["categories"]) == (
        codec.KIND,
        ["gputopo"],
        ["gpu"],
    )
    (version,) = crd()["versions"]
    assert f"{crd()['group']}/{version['name']}" == codec.API_VERSION
    assert f"/apis/{codec.API_VERSION}/{names['plural']}" == RECORDS_PATH
    assert version["served"]
    assert version["storage"]
    assert version["subresources"] == {"status": {}}


def test_printer_columns_stand_over_fields_of_the_schema() -> None:
    (version,) = crd()["versions"]
    columns = {c["name"]: c for c in version["additionalPrinterColumns"]}
    assert list(columns) == ["GPUs", "Free", "Links", "Allocator", "Ready", "Age"]
    fields = {path: found.get("type") for path, found in nodes_of(schema())}
    for column in columns.values():
        path = re.sub(r"\[\?\(.*\)\]", "[]", column["jsonPath"])
        assert fields.get(path, "date") == column["type"], column
        assert path in fields or path == ".metadata.creationTimestamp"


def test_the_schema_is_structural() -> None:
    allowed = {
        "array": {"items", "minItems", "maxItems"},
        "boolean": set(),
        "integer": {"minimum", "maximum", "format", "default"},
        "number": {"minimum", "maximum"},
        "object": {"properties", "required", "default"},
        "string": {"enum", "pattern", "minLength", "maxLength", "format", "default"},
    }
    extensions = {"map-keys", "type", "validations"}
    for path, found in nodes_of(schema()):
        own = {k for k in found if not k.startswith("x-kubernetes-")} - {"type", "description"}
        assert own <= allowed[found["type"]], path
        ours = {re.sub("^x-kubernetes-(list-)?", "", k) for k in found if k.startswith("x-")}
        assert ours <= extensions, path
        if found["type"] == "object" and path != ".metadata":
            assert found["properties"], path
            assert set(found.get("required", ())) <= set(found["properties"]), path


def test_every_list_and_string_is_bounded() -> None:
    """Without bounds the API server takes the worst case for the cost of a CEL rule."""
    for path, found in nodes_of(schema()):
        if path in (".apiVersion", ".kind"):
            continue
        if found["type"] == "array":
            assert found["maxItems"] <= 4096, path
        if found["type"] == "string":
            assert found.keys() & {"maxLength", "enum", "format"}, path


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        (".spec.resources", ["name"]),
        (".spec.devices", ["index"]),
        (".spec.devices[].migInstances", ["uuid"]),
        (".spec.links", ["a", "b"]),
        (".spec.nics", ["name"]),
        (".spec.nics[].distances", ["index"]),
        (".status.allocations", ["podUID", "namespace", "pod", "container", "resource"]),
        (".status.health", ["uuid"]),
        (".status.conditions", ["type"]),
    ],
)
def test_lists_are_maps_by_key(path: str, keys: list[str]) -> None:
    found = dict(nodes_of(schema()))[path]
    assert found["x-kubernetes-list-type"] == "map"
    assert found["x-kubernetes-list-map-keys"] == keys
    assert set(keys) <= set(found["items"]["required"])


def test_the_words_are_the_designs() -> None:
    classes = ["BOARD", "PIX", "PXB", "PHB", "NODE", "SYS"]
    assert {path: found["enum"] for path, found in nodes_of(schema()) if "enum" in found} == {
        ".spec.resources[].strategy": ["none", "time-slicing", "mps", "mig"],
        ".spec.allocator.policy": ["best-effort", "distributed", "packed", "any", "exact"],
        ".spec.allocator.topologyManagerPolicy": [
            *("none", "best-effort", "restricted", "single-numa-node", "unknown")
        ],
        ".spec.allocator.topologyManagerScope": ["container", "pod"],
        ".spec.allocator.cpuManagerPolicy": ["none", "static"],
        ".spec.allocator.memoryManagerPolicy": ["None", "Static"],
        ".spec.devices[].migMode": ["disabled", "enabled"],
        ".spec.links[].pcie": classes,
        ".spec.links[].via": ["direct", "switch"],
        ".spec.nics[].distances[].pcie": classes,
        ".status.conditions[].status": ["True", "False", "Unknown"],
    }


def test_every_list_says_its_type() -> None:
    for path, found in nodes_of(schema()):
        if found["type"] == "array":
            assert found["x-kubernetes-list-type"] in ("map", "set"), path


def test_the_rules_are_these() -> None:
    rules = [
        (path, rule["rule"])
        for path, found in nodes_of(schema())
        for rule in found.get("x-kubernetes-validations", ())
    ]
    assert rules == [
        (".spec.devices", "self.all(d, self.exists_one(e, e.uuid == d.uuid))"),
        (".spec.links[]", "self.a < self.b"),
    ]


def test_defaults_are_valid_and_the_same_as_the_codecs() -> None:
    for path, found in nodes_of(schema()):
        if "default" in found:
            jsonschema.validate(found["default"], plain(found), jsonschema.Draft202012Validator)
            assert found["type"] != "object" or path == ".spec.allocator"
    bare = {
        "metadata": {"name": "n"},
        "spec": {
            "resources": [{"name": "nvidia.com/gpu"}],
            "devices": [
                {"index": i, "uuid": f"GPU-{i}", "product": "P", "memoryBytes": 1} for i in (0, 1)
            ],
            "links": [{"a": 0, "b": 1}],
        },
    }
    defaulted = copy.deepcopy(bare)
    fill(schema(), defaulted)
    assert defaulted != bare
    assert codec.decode(defaulted) == codec.decode(bare)


def fill(found: Object, value: Any) -> None:
    """Set defaults, as the API server does."""
    if isinstance(value, dict):
        for name, part in found.get("properties", {}).items():
            if name not in value and "default" in part:
                value[name] = copy.deepcopy(part["default"])
            if name in value:
                fill(part, value[name])
    elif isinstance(value, list):
        for item in value:
            fill(found["items"], item)


def test_the_designs_example_is_accepted_and_read() -> None:
    assert faults(example()) == []
    record = codec.decode(example(), strict=True)
    assert len(record.topology.gpus) == 2
    assert record.report is not None
    assert record.report.sequence == 41


def test_the_schema_has_the_designs_fields_and_only_these_more() -> None:
    def paths(value: Any, path: str = "") -> set[str]:
        if isinstance(value, dict):
            return {path}.union(*(paths(v, f"{path}.{k}") for k, v in value.items()))
        if isinstance(value, list):
            return {path}.union(*(paths(v, f"{path}[]") for v in value))
        return {path}

    ours = {path for path, _ in nodes_of(schema())}
    designed = paths(example()) - {".metadata.name"}
    assert designed <= ours
    assert ours - designed == {
        ".spec.allocator.cpuManagerPolicy",
        ".spec.allocator.memoryManagerPolicy",
        ".spec.devices[].migInstances",
        ".spec.devices[].migInstances[]",
        ".spec.devices[].migInstances[].memoryBytes",
        ".spec.devices[].migInstances[].profile",
        ".spec.devices[].migInstances[].uuid",
        ".spec.links[].oneSided",
        ".status.conditions[]",
        ".status.conditions[].lastTransitionTime",
        ".status.conditions[].message",
        ".status.conditions[].observedGeneration",
        ".status.conditions[].reason",
        ".status.conditions[].status",
        ".status.conditions[].type",
        ".status.health[].energyMillijoules",
        ".status.health[].linksDown",
        ".status.health[].linksDown[]",
        ".status.health[].since",
        ".status.observedAt",
        ".status.podsResourceVersion",
        ".status.summary",
        ".status.summary.free",
        ".status.summary.gpus",
        ".status.summary.links",
    }


@pytest.mark.parametrize("name", MACHINES)
def test_whatever_the_codec_writes_is_accepted_whole(name: str) -> None:
    topology = machine(name).topology("node")
    first = topology.gpus[0].uuid
    report = Report(
        boot_id="0c8c2b57",
        sequence=1,
        allocatable=frozenset(DeviceId(f"{first}::{n}") for n in range(4)),
        allocations=(
            Allocation(PodUid("u"), "ns", "p", "c", "nvidia.com/gpu", (DeviceId(first),)),
            Allocation(PodUid(""), "ns", "q", "c", "nvidia.com/gpu", (DeviceId(f"{first}::1"),)),
            Allocation(PodUid(""), "ns", "r", "c", "nvidia.com/gpu", (DeviceId(f"{first}::2"),)),
        ),
        health=(Health(GpuUuid(first), healthy=False, reason="Xid79"),),
    )
    written = json.loads(json.dumps(codec.encode(topology, report)))
    assert faults(written) == []


def test_a_published_status_is_accepted() -> None:
    record = example()
    record["status"]["summary"] = {"gpus": 2, "free": 1, "links": "NVLink 12"}
    record["status"]["conditions"] = [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Published",
            "message": "",
            "lastTransitionTime": "2026-01-31T12:00:00Z",
            "observedGeneration": 1,
        }
    ]
    assert faults(record) == []


MIG = {"uuid": "MIG-5f6d8a52", "profile": "1g.10gb+me", "memoryBytes": 10468982784}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param("spec.devices.0.migInstances", [], id="mig-without-instances"),
        pytest.param("spec.devices.0.migInstances", [MIG], id="mig-instance"),
        pytest.param("spec.devices.0.migInstances", [{"uuid": "MIG-5f"}], id="mig-unknown"),
        pytest.param("spec.allocator.topologyManagerPolicy", "unknown", id="topology-manager"),
        pytest.param("status.health.0.since", "2026-01-31T12:00:00Z", id="since"),
        pytest.param("status.health.0.energyMillijoules", 2**53, id="energy"),
        pytest.param("status.health.0.linksDown", [0, 17], id="links-down"),
    ],
)
def test_what_an_agent_adds_is_accepted(path: str, value: Any) -> None:
    assert faults(changed(path, value)) == []


GOOD = {
    "no-resources-is-dra-only": ("spec.resources", []),
    "two-resources": ("spec.resources", [{"name": "a.b/c"}, {"name": "a.b/mig-1g.10gb"}]),
    "pcie-unknown": ("spec.links.0.pcie", None),
    "through-a-switch": ("spec.links.0.via", "switch"),
    "allocatable-absent": ("status.allocatable", None),
    "pod-uid-unknown": ("status.allocations.0.podUID", ""),
    "shared-device": ("status.allocations.0.deviceIds", ["GPU-5f::3"]),
    "mig-device": ("status.allocations.0.deviceIds", ["MIG-5f"]),
    "numa-unknown": ("spec.devices.0.numaNode", None),
    "no-fabric": ("spec.fabric", None),
    "no-status": ("status", None),
    "wide-pci-domain": ("spec.devices.0.pciBusId", "00010000:07:00.0"),
}

BAD = {
    "no-spec": ("spec", None),
    "resource-nameless": ("spec.resources.0.name", None),
    "resource-without-domain": ("spec.resources.0.name", "gpu"),
    "resource-twice": ("spec.resources", [{"name": "a.b/c"}, {"name": "a.b/c"}]),
    "strategy-unknown": ("spec.resources.0.strategy", "vgpu"),
    "no-replicas": ("spec.resources.0.replicas", 0),
    "policy-unknown": ("spec.allocator.policy", "random"),
    "topology-manager-policy-unknown": ("spec.allocator.topologyManagerPolicy", "strict"),
    "topology-manager-scope-unknown": ("spec.allocator.topologyManagerScope", "node"),
    "device-without-uuid": ("spec.devices.0.uuid", None),
    "device-uuid-is-a-replica": ("spec.devices.0.uuid", "GPU-5f::1"),
    "device-twice": ("spec.devices.1.index", 0),
    "device-index-negative": ("spec.devices.0.index", -1),
    "device-index-text": ("spec.devices.0.index", "0"),
    "memory-absent": ("spec.devices.0.memoryBytes", None),
    "memory-negative": ("spec.devices.0.memoryBytes", -1),
    "memory-as-quantity": ("spec.devices.0.memoryBytes", "40Gi"),
    "bus-id-short": ("spec.devices.0.pciBusId", "07:00.0"),
    "numa-minus-one": ("spec.devices.0.numaNode", -1),
    "mig-instance-nameless": ("spec.devices.0.migInstances", [{"profile": "1g.10gb"}]),
    "mig-instance-twice": ("spec.devices.0.migInstances", [{"uuid": "M"}, {"uuid": "M"}]),
    "mig-mode-unknown": ("spec.devices.0.migMode", "Enabled"),
    "too-many-devices": (
        "spec.devices",
        [{"index": i, "uuid": f"GPU-{i}", "product": "P", "memoryBytes": 1} for i in range(65)],
    ),
    "link-without-an-end": ("spec.links.0.b", None),
    "link-twice": ("spec.links", [{"a": 0, "b": 1}, {"a": 0, "b": 1, "pcie": "PIX"}]),
    "pcie-class-unknown": ("spec.links.0.pcie", "NV12"),
    "pcie-class-lower-case": ("spec.links.0.pcie", "sys"),
    "via-unknown": ("spec.links.0.via", "bridge"),
    "nvlinks-negative": ("spec.links.0.nvlinks", -1),
    "nvlinks-too-many": ("spec.links.0.nvlinks", 65),
    "bandwidth-negative": ("spec.links.0.nvlinkGBps", -25),
    "too-many-links": (
        "spec.links",
        [{"a": a, "b": b} for a in range(65) for b in range(a + 1, 65)][:2017],
    ),
    "nic-nameless": ("spec.nics.0.name", ""),
    "nic-distance-nvlink": ("spec.nics.0.distances.0.pcie", "NVLINK"),
    "nic-distance-twice": ("spec.nics.0.distances.1.index", 0),
    "too-many-nics": ("spec.nics", [{"name": f"mlx5_{i}"} for i in range(65)]),
    "fabric-without-clique": ("spec.fabric.cliqueId", None),
    "sequence-negative": ("status.sequence", -1),
    "sequence-text": ("status.sequence", "41"),
    "allocatable-twice": ("status.allocatable", ["GPU-5f", "GPU-5f"]),
    "allocatable-empty-id": ("status.allocatable", [""]),
    "allocation-of-nobody": ("status.allocations.0.pod", ""),
    "allocation-without-container": ("status.allocations.0.container", None),
    "allocation-without-devices": ("status.allocations.0.deviceIds", []),
    "allocation-device-twice": ("status.allocations.0.deviceIds", ["GPU-5f", "GPU-5f"]),
    "allocation-twice": ("status.allocations", example()["status"]["allocations"] * 2),
    "health-without-verdict": ("status.health.0.healthy", None),
    "health-as-text": ("status.health.0.healthy", "no"),
    "health-twice": ("status.health", [{"uuid": "G", "healthy": h} for h in (True, False)]),
    "link-down-twice": ("status.health.0.linksDown", [3, 3]),
    "link-down-negative": ("status.health.0.linksDown", [-1]),
    "energy-negative": ("status.health.0.energyMillijoules", -1),
    "condition-without-reason": ("status.conditions", [{"type": "Ready", "status": "True"}]),
    "summary-links-as-number": ("status.summary", {"gpus": 8, "free": 8, "links": 12}),
    "unknown-field-that-would-be-pruned": ("status.unhealthy", ["GPU-77"]),
}


def changed(path: str, value: Any) -> Object:
    """The example with one field set, or removed where ``value`` is None."""
    record = example()
    *way, last = path.split(".")
    at: Any = record
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return record


@pytest.mark.parametrize(("path", "value"), [pytest.param(*GOOD[k], id=k) for k in GOOD])
def test_a_good_record_is_accepted(path: str, value: Any) -> None:
    assert faults(changed(path, value)) == []
    codec.decode(changed(path, value), strict=True)


@pytest.mark.parametrize(("path", "value"), [pytest.param(*BAD[k], id=k) for k in BAD])
def test_a_bad_record_is_refused(path: str, value: Any) -> None:
    found = faults(changed(path, value))
    assert found
    for where in found:  # it is that field that is refused, and nothing else
        assert f".{path}".startswith(where) or where.startswith(f".{path}")


# --- what the extender may and how it runs ----------------------------------------------------


def granted(name: str) -> list[tuple[str, str, str]]:
    """Group, resource and verb of all that a ClusterRole grants, sorted."""
    rules = the("ClusterRole", name)["rules"]
    for rule in rules:
        assert rule.keys() == {"apiGroups", "resources", "verbs"}
    return sorted(
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
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


def arguments(words: list[str] | None = None) -> dict[str, Any]:
    """The extender's arguments, or these, as the command line itself reads them."""
    command, *rest = words or container()["args"]
    group: Any = typer.main.get_command(cli.app)
    context = group.commands[command].make_context(command, list(rest))
    return dict(context.params)


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


def test_it_is_kept_running() -> None:
    assert pod_spec()["priorityClassName"] == "system-cluster-critical"
    tolerated = {(t["key"], t["operator"]) for t in pod_spec()["tolerations"]}
    assert ("node-role.kubernetes.io/control-plane", "Exists") in tolerated
    assert container()["resources"]["requests"].keys() == {"cpu", "memory"}
    assert container()["resources"]["limits"].keys() == {"memory"}
    assert "nvidia.com/gpu" not in container()["resources"]["requests"]


def test_services_do_not_become_environment_variables() -> None:
    assert pod_spec()["enableServiceLinks"] is False


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


# --- what the agent may and how it runs -------------------------------------------------------


def agent_spec(folder: Path = AGENT) -> Object:
    (found,) = (o for o in objects(folder) if o["kind"] == "DaemonSet")
    return found["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def agent_container(folder: Path = AGENT) -> Object:
    (only,) = agent_spec(folder)["containers"]
    return only  # type: ignore[no-any-return]


def test_the_agent_may_do_this_and_no_more() -> None:
    assert granted(AGENT_NAME) == [
        ("", "nodes", "get"),
        ("", "nodes/configz", "get"),
        ("", "pods", "list"),
        ("", "pods", "watch"),
        ("gpu-topology.io", "gputopologies", "create"),
        ("gpu-topology.io", "gputopologies", "get"),
        ("gpu-topology.io", "gputopologies", "update"),
        ("gpu-topology.io", "gputopologies/status", "update"),
    ]


def test_the_policy_is_about_the_agent_and_refuses_what_it_cannot_judge() -> None:
    """What it refuses is asked of a real API server: tests/e2e/test_agent_policy.py."""
    spec = the("ValidatingAdmissionPolicy")["spec"]
    assert spec["failurePolicy"] == "Fail"
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert rule["resources"] == ["gputopologies", "gputopologies/*"]
    assert set(rule["operations"]) == {"CREATE", "UPDATE", "DELETE"}
    (condition,) = spec["matchConditions"]
    account = f"system:serviceaccount:{NAMESPACE}:{AGENT_NAME}"
    assert condition["expression"] == f"request.userInfo.username == '{account}'"
    for validation in spec["validations"]:
        assert validation["reason"] == "Forbidden"
        assert validation.keys() & {"message", "messageExpression"}
    binding = the("ValidatingAdmissionPolicyBinding")["spec"]
    assert binding == {"policyName": AGENT_NAME, "validationActions": ["Deny"]}


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


def test_the_agent_is_on_every_gpu_node_and_stays() -> None:
    (found,) = (o for o in objects(AGENT) if o["kind"] == "DaemonSet")
    assert found["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "10%"},
    }
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert found["spec"]["selector"]["matchLabels"].items() <= labels.items()
    deployment = the("Deployment")["spec"]["selector"]["matchLabels"]
    assert not deployment.items() <= labels.items()
    assert agent_spec()["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert agent_spec()["tolerations"] == [{"operator": "Exists"}]
    assert agent_spec()["priorityClassName"] == "system-node-critical"
    resources = agent_container()["resources"]
    assert resources["requests"] == {"cpu": "20m", "memory": "96Mi"}
    assert resources["limits"] == {"memory": "256Mi"}


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
    assert agent_container()["image"] == container()["image"]


@pytest.mark.parametrize("option", [None, *OPTIONS])
def test_the_agents_arguments_exist(option: str | None, tmp_path: Path) -> None:
    spec = agent_spec(with_option(option, tmp_path)) if option else agent_spec()
    read = arguments(spec["containers"][0]["args"])
    assert read["kubelet_insecure_tls"] is (option == "kubelet-insecure-tls")
    assert read["metrics_port"] == 8890
    mounts = {m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
    assert str(read["pod_resources"].parent) in mounts


def test_the_agents_page_names_flags_that_there_are() -> None:
    page = (ROOT / "docs" / "agent.md").read_text()
    group: Any = typer.main.get_command(cli.app)
    known = {flag for option in group.commands["agent"].params for flag in option.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page))
    assert named - known == {"--service-account-extend-token-expiration"}  # kube-apiserver's


def test_the_agent_is_probed_on_the_port_that_it_opens() -> None:
    (port,) = agent_container()["ports"]
    assert port == {"name": "metrics", "containerPort": 8890}
    assert {"--host=0.0.0.0", "--metrics-port=8890"} <= set(agent_container()["args"])
    assert agent_container()["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}


def with_option(name: str, folder: Path) -> Path:
    """An overlay of the agent with an option, as docs/agent.md has it."""
    # Kustomize takes relative paths only.
    agent = os.path.relpath(AGENT, folder.resolve())
    overlay = {"resources": [agent], "components": [f"{agent}/options/{name}"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return folder


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
        "every-node": plain,
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


# --- the scheduler's configuration ------------------------------------------------------------


def test_the_configuration_has_only_fields_that_the_scheduler_knows() -> None:
    """It decodes strictly: a field it does not know keeps it from starting."""
    config = scheduler_config()
    assert config["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    assert config["kind"] == "KubeSchedulerConfiguration"
    assert config.keys() == {
        *("apiVersion", "kind", "clientConnection", "percentageOfNodesToScore"),
        *("profiles", "extenders"),
    }
    assert extender().keys() == {
        *("urlPrefix", "enableHTTPS", "filterVerb", "prioritizeVerb", "bindVerb"),
        *("preemptVerb", "weight"),
        *("nodeCacheCapable", "httpTimeout", "ignorable", "managedResources"),
    }
    assert config["profiles"] == [{"schedulerName": "default-scheduler"}]


def test_the_scheduler_reads_its_kubeconfig_from_the_file() -> None:
    """With --config it ignores --kubeconfig; kubeadm's would not start without this."""
    assert scheduler_config()["clientConnection"] == {
        "kubeconfig": "/etc/kubernetes/scheduler.conf"
    }


def test_the_extender_is_called_for_every_verb() -> None:
    for verb in ("filter", "prioritize", "bind", "preempt"):
        assert extender()[f"{verb}Verb"] == verb


def test_the_extender_is_called_by_names_and_never_skipped() -> None:
    assert extender()["nodeCacheCapable"] is True
    assert extender()["ignorable"] is False


def test_the_url_is_that_of_the_service() -> None:
    service = the("Service", "gpu-topology")
    meta, (port,) = service["metadata"], service["spec"]["ports"]
    where = f"{meta['name']}.{meta['namespace']}.svc:{port['port']}"
    assert extender()["urlPrefix"] == f"http://{where}/scheduler"
    assert extender()["enableHTTPS"] is False


def test_the_scheduler_waits_longer_than_a_bind_may_take() -> None:
    (seconds,) = re.fullmatch(r"(\d+)s", extender()["httpTimeout"]).groups()  # type: ignore[union-attr]
    look_up, write, settle = kube.READ_TIMEOUT, kube.WRITE_TIMEOUT, kube.READ_TIMEOUT
    assert int(seconds) > look_up + write + settle


def test_the_weight_neither_drowns_nor_rules() -> None:
    """Ten points of ours against the in-tree plugins, which weigh 12 at least."""
    assert 3 <= extender()["weight"] <= 6


def test_the_managed_resources_are_those_that_the_code_manages() -> None:
    found = extender()["managedResources"]
    assert tuple(r["name"] for r in found) == MANAGED
    assert [r["ignoredByScheduler"] for r in found] == [False, False]


def test_the_scheduler_chooses_how_many_nodes_it_offers() -> None:
    assert scheduler_config()["percentageOfNodesToScore"] == 0


# --- samples ----------------------------------------------------------------------------------

TABLE = {
    *("link", "min-nvlinks", "shape", "min-bandwidth", "min-gpu-memory", "gpu-model"),
    *("same-numa", "nic", "policy"),
}
"""The design's table."""


def test_these_samples_are_shipped() -> None:
    assert [p.stem for p in SAMPLES] == [
        "pair-nvlink",
        "plain",
        "quad-preferred",
        "ring-bandwidth",
        "single-model-memory",
    ]


@every_sample
def test_a_sample_is_a_valid_pod_of_its_files_name(path: Path) -> None:
    pod = sample(path)
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    assert (pod["kind"], pod["metadata"]["name"]) == ("Pod", path.stem)


@every_sample
def test_a_sample_carries_only_keys_of_the_table(path: Path) -> None:
    pod = sample(path)
    ours = {k.removeprefix(PREFIX) for k in pod["metadata"].get("annotations", {})}
    assert ours <= TABLE
    assert not isinstance(parse(read_pod(pod)), Malformed | None)


def test_the_table_is_the_codes() -> None:
    assert KEYS.keys() == TABLE


TAKEN = {
    "pair-nvlink": ({"dgx-a100", "dgx-h100"}, {"v100-pcie-4", "rtx4090-8"}),
    "plain": ({"dgx-a100", "dgx-h100", "rtx4090-8"}, set[str]()),
    "quad-preferred": ({"dgx-a100", "dgx-h100", "rtx4090-8"}, set[str]()),
    "ring-bandwidth": ({"dgx-a100", "dgx-h100"}, {"dgx1-v100", "rtx4090-8-allsys"}),
    "single-model-memory": ({"dgx-h100", "dgx-a100-80"}, {"dgx-a100", "rtx4090-8"}),
}
"""Machines of the catalogue that take the sample, and some that do not."""


@every_sample
def test_a_sample_goes_where_its_comment_says(path: Path, tmp_path: Path) -> None:
    takes, refuses = TAKEN[path.stem]
    groups = [
        {"kind": "MachineGroup", "machine": m, "count": 1, "namePrefix": f"{m}-"}
        for m in sorted(takes | refuses)
    ]
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump_all(groups))
    check = ["check", str(path), f"--cluster={cluster}", "--output=json"]
    command = [sys.executable, "-m", "scheduler_extender", *check]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["nodes"]
    passed = {row["node"].rpartition("-")[0] for row in rows if not row["reason"]}
    assert passed == takes
    assert len(rows) == len(groups)


# --- the page ---------------------------------------------------------------------------------


def test_the_page_names_flags_and_files_that_there_are() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    group: Any = typer.main.get_command(cli.app)
    known = {flag for option in group.commands["extender"].params for flag in option.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page))
    assert named - known == {"--config"}  # kube-scheduler's
    assert named >= {"--host", "--stale-after", "--tls-cert", "--client-ca", "--client-name"}
    files = set(re.findall(r"(?<![\w/])manifests/[\w./-]*\w", page)) - {"manifests/base"}
    assert files
    assert all((ROOT / name).exists() for name in files)


def test_the_commands_of_the_page_work_in_their_order(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    first = "\n".join(blocks[:2])
    order = ("docker build", "docker push", "kustomization.yaml", "kubectl apply -k", "rollout")
    assert [first.index(word) for word in order] == sorted(first.index(word) for word in order)
    # Docker and the cluster are not here: what they are told is written down instead.
    checkout, tools = tmp_path / "checkout", tmp_path / "bin"
    shutil.copytree(ROOT / "manifests", checkout / "manifests")
    tools.mkdir()
    for name in ("docker", "kubectl"):
        (tools / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/said\n')
        (tools / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-eu", "-c", first], check=True, cwd=checkout, env=environment)
    said = (tmp_path / "said").read_text().splitlines()
    assert said[1] == "docker push registry.example.com/team/gpu-topology:0.1.0"
    assert said[2] == "kubectl apply -k ../gpu-topology-site"
    built = objects(tmp_path / "gpu-topology-site")
    images = {
        c["image"]
        for o in built
        if o["kind"] in ("Deployment", "DaemonSet")
        for c in o["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"registry.example.com/team/gpu-topology:0.1.0"}
    assert len(built) == len(objects())


def test_make_serve_prints_the_extender_of_the_manifest() -> None:
    content = filecluster.load(FLEET)
    said = how_to_call("http://gpu-topology.example:8888", "http://admin", content)
    printed = yaml.safe_load(said[said.index("  apiVersion: kubescheduler") : said.index("(this")])
    assert {k: printed[k] for k in ("apiVersion", "kind")} == {
        k: scheduler_config()[k] for k in ("apiVersion", "kind")
    }
    (told,) = printed["extenders"]
    assert told.pop("urlPrefix") == "http://gpu-topology.example:8888/scheduler"
    shipped = {k: v for k, v in extender().items() if k not in ("urlPrefix", "enableHTTPS")}
    named = [{"name": resource["name"]} for resource in shipped["managedResources"]]
    assert told == {**shipped, "managedResources": named}


# --- the image --------------------------------------------------------------------------------


def test_images_name_no_registry() -> None:
    images = {container()["image"]}
    images |= {c["image"] for p in SAMPLES for c in sample(p)["spec"]["containers"]}
    for image in images:
        first = image.partition("/")[0] if "/" in image else ""
        assert not re.search(r"[.:]", first), image
        assert re.search(r":[^:/]+$", image), f"{image} has no tag"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert container()["image"] == f"gpu-topology:{project['version']}"


def service_stages() -> list[str]:
    """The Dockerfile's lines that make the service's image: the stage base, and the last."""
    lines = [
        line
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    starts = [i for i, line in enumerate(lines) if line.startswith("FROM ")]
    return lines[: starts[1]] + lines[starts[-1] :]


def test_the_dockerfile_installs_hashed_packages_and_then_ours() -> None:
    steps = service_stages()
    assert steps[0] == "FROM python:3.12-slim AS base"
    installs = [line for line in steps if "pip install" in line]
    assert len(installs) == 2
    assert installs[0].endswith("--require-hashes -r requirements/run.txt")
    assert re.search(r"--no-deps --no-build-isolation \.$", installs[1])
    copied = {line.split()[1] for line in steps if line.startswith("COPY")}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(build["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= copied
    (entry,) = (json.loads(s.removeprefix("ENTRYPOINT ")) for s in steps if "ENTRYPOINT" in s)
    assert entry == ["gpu-topology"]
    assert entry[0] in build["project"]["scripts"]


def test_the_image_runs_as_the_user_that_the_pod_asks_for() -> None:
    (user,) = re.findall(r"^USER (\d+):(\d+)$", "\n".join(service_stages()), re.MULTILINE)
    whole = pod_spec()["securityContext"]
    assert user == (str(whole["runAsUser"]), str(whole["runAsGroup"]))
    users = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert set(users) == {user}  # the simulation's image, too


# --- documents --------------------------------------------------------------------------------


def test_the_document_names_every_option_and_every_part_of_the_host() -> None:
    text = (ROOT / "docs" / "agent.md").read_text()
    for name in OPTIONS:
        assert f"`{name}`" in text
    for volume in agent_spec()["volumes"]:
        assert f"`{volume['hostPath']['path']}`" in text


# --- a sweep of simulations -------------------------------------------------------------------


def test_the_sweep_is_an_indexed_job_that_may_do_nothing_else() -> None:
    found = {o["kind"]: o for o in objects(ROOT / "manifests" / "sweep")}
    assert sorted(found) == ["ConfigMap", "Job"]
    for each in found.values():
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    job = found["Job"]["spec"]
    assert (job["completionMode"], job["completions"]) == ("Indexed", job["parallelism"])
    pod = job["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["volumes"][0]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    (only,) = pod["containers"]
    assert f"/{job['completions']}" in next(a for a in only["args"] if a.startswith("--shard="))
    # The image that the args are for is a stage of the Dockerfile.
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert stages == ["base", "benchmarks", "service"]  # the last is what `docker build .` builds
    assert only["image"].startswith("gpu-topology-benchmarks:")
