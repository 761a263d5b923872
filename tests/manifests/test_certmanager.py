"""cert-manager makes what `gpu-topology certificates` makes: the same names, the same Secret."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from scheduler_extender.cli import main
from scheduler_extender.cli.options import SECRET
from scheduler_extender.kube.tlssecrets import LABELS
from tests.commands import asked
from tests.manifests.building import BASE, NAMESPACE, arguments

COMPONENT = BASE / "options" / "cert-manager"


def found() -> dict[tuple[str, str], dict[str, Any]]:
    text = (COMPONENT / "certificates.yaml").read_text()
    return {(o["kind"], o["metadata"]["name"]): o for o in yaml.safe_load_all(text)}


def test_every_object_is_cert_managers_and_in_our_namespace() -> None:
    for (kind, name), made in found().items():
        assert made["apiVersion"] == "cert-manager.io/v1"
        assert kind in ("Issuer", "Certificate")
        assert made["metadata"] == {"name": name, "namespace": NAMESPACE, "labels": LABELS}


def test_every_certificate_has_an_issuer_that_there_is() -> None:
    made = found()
    for (kind, name), one in made.items():
        if kind != "Certificate":
            continue
        issuer = one["spec"]["issuerRef"]
        assert made[issuer["kind"], issuer["name"]]
        signed_by_itself = issuer["name"] == "gpu-topology-selfsigned"
        assert signed_by_itself == (name == "gpu-topology-ca")
    authority = made["Issuer", "gpu-topology"]["spec"]["ca"]["secretName"]
    assert authority == made["Certificate", "gpu-topology-ca"]["spec"]["secretName"]


@pytest.mark.parametrize(
    ("which", "secret", "use", "files"),
    [
        ("gpu-topology-tls", SECRET, "server auth", "extender"),
        ("gpu-topology-scheduler", "gpu-topology-scheduler", "client auth", "scheduler"),
    ],
)
def test_the_names_are_those_of_the_command(
    which: str, secret: str, use: str, files: str, tmp_path: Path
) -> None:
    assert asked(main, "certificates", "--output", tmp_path).returncode == 0
    ours = x509.load_pem_x509_certificate((tmp_path / f"{files}.crt").read_bytes())
    names = ours.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    spec = found()["Certificate", which]["spec"]
    assert spec["secretName"] == secret
    assert use in spec["usages"]
    assert not {"server auth", "client auth"} <= set(spec["usages"])
    assert spec["dnsNames"] == names.get_values_for_type(x509.DNSName)
    addresses = [str(a) for a in names.get_values_for_type(x509.IPAddress)]
    assert spec.get("ipAddresses", []) == addresses


def test_the_scheduler_has_the_name_that_the_extender_allows() -> None:
    spec = found()["Certificate", "gpu-topology-scheduler"]["spec"]
    assert [spec["commonName"]] == arguments()["client_name"]
