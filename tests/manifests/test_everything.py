"""Every object: it builds, it validates, and it says whose it is."""

import os
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.manifests.building import (
    AGENT,
    AGENT_NAME,
    BASE,
    KUBERNETES,
    NAMESPACE,
    objects,
)

NAMESPACED = (
    "DaemonSet",
    "Deployment",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Role",
    "RoleBinding",
    "Service",
    "ServiceAccount",
)


def test_the_agents_folder_builds_into_the_agents_objects_of_the_base() -> None:
    """Without namespace and resource: deleting the agent's objects then deletes no record."""
    agents = [o for o in objects() if o["metadata"]["name"].startswith(AGENT_NAME)]
    assert sorted(objects(AGENT), key=str) == sorted(agents, key=str)


@pytest.mark.parametrize(
    ("folder", "also"), [(BASE, {"../agent"}), (AGENT, {"daemonset", "client"})]
)
def test_every_manifest_of_a_folder_is_built(folder: Path, also: set[str]) -> None:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    here = {p.name for p in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == here | also


def test_every_object_names_its_owner() -> None:
    for found in objects():
        labels = found["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "gpu-topology"
        name = found["metadata"]["name"]
        of_agents = name.startswith(AGENT_NAME) or name == "gpu-topology-records"
        whose = "agent" if of_agents else "extender"
        assert labels.get("app.kubernetes.io/component", whose) == whose


def test_every_object_validates_strictly() -> None:
    for found in objects():
        kubernetes_validate.validate(found, KUBERNETES, strict=True)


def test_namespaced_objects_are_in_our_namespace() -> None:
    for found in objects():
        if found["kind"] in NAMESPACED:
            assert found["metadata"]["namespace"] == NAMESPACE
        else:
            assert "namespace" not in found["metadata"]


@pytest.mark.parametrize("option", sorted(p.name for p in (BASE / "options").iterdir()))
def test_a_component_of_the_base_labels_no_object_of_the_base(option: str, tmp_path: Path) -> None:
    """A component's labels would go to all objects of the overlay. It adds flags at most."""
    base = os.path.relpath(BASE, tmp_path.resolve())
    overlay = {"resources": [base], "components": [f"{base}/options/{option}"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    found = objects(tmp_path)
    for each in (*found, *(before := objects())):
        if each["kind"] == "Deployment":
            del each["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [each for each in found if each in before] == before
