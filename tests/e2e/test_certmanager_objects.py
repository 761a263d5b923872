"""Our cert-manager objects, held against cert-manager's own schemas by a real API server."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.controlplane import ControlPlane
from tests.manifests.building import BASE, NAMESPACE

pytestmark = pytest.mark.e2e
OBJECTS = BASE / "options" / "cert-manager" / "certificates.yaml"
PATHS = {"Issuer": "issuers", "Certificate": "certificates"}


def test_cert_managers_schemas_take_every_field_of_ours(
    control_plane_binaries: Path, cert_manager_source: Path, tmp_path: Path
) -> None:
    misspelt = tmp_path / "misspelt.yaml"
    misspelt.write_text(OBJECTS.read_text().replace("rotationPolicy", "rotatePolicy"))
    with ControlPlane(tmp_path, control_plane_binaries) as plane, plane.client() as api:
        plane.kubectl("apply", "--server-side", "-f", str(cert_manager_source / "deploy" / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all")
        plane.kubectl("create", "namespace", NAMESPACE)
        strict = ("apply", "--server-side", "--validate=strict", "-f")
        with pytest.raises(AssertionError, match="rotatePolicy"):
            plane.kubectl(*strict, str(misspelt))
        plane.kubectl(*strict, str(OBJECTS))
        for ours in yaml.safe_load_all(OBJECTS.read_text()):
            kind, name = ours["kind"], ours["metadata"]["name"]
            path = f"/apis/cert-manager.io/v1/namespaces/{NAMESPACE}/{PATHS[kind]}/{name}"
            assert _holds(api.get(path).raise_for_status().json()["spec"], ours["spec"]), name


def _holds(stored: Any, written: Any) -> bool:
    """Whether everything that was written is there; schemas may have added their defaults."""
    if isinstance(written, dict):
        return all(key in stored and _holds(stored[key], value) for key, value in written.items())
    return bool(stored == written)
