"""The scheduler's configuration fits the service and the code."""

import re
from pathlib import Path

from cryptography import x509

from scheduler_extender.annotations import MANAGED, managed_among
from scheduler_extender.cli import main
from scheduler_extender.kube import binder as kube
from tests.commands import asked
from tests.manifests.building import (
    extender,
    the,
)
from topology.machines.mig import PROFILES, resource_name


def test_the_url_is_that_of_the_service() -> None:
    service = the("Service", "gpu-topology")
    meta, (port,) = service["metadata"], service["spec"]["ports"]
    where = f"{meta['name']}.{meta['namespace']}.svc:{port['port']}"
    assert extender()["urlPrefix"] == f"https://{where}/scheduler"


def test_the_scheduler_shows_a_certificate_and_asks_for_ours(tmp_path: Path) -> None:
    assert extender()["enableHTTPS"] is True
    files = dict(extender()["tlsConfig"])
    server = files.pop("serverName")
    assert files.keys() == {"caFile", "certFile", "keyFile"}  # insecure is not among them
    assert asked(main, "certificates", "--output", tmp_path).returncode == 0
    assert all((tmp_path / Path(path).name).exists() for path in files.values())
    ours = x509.load_pem_x509_certificate((tmp_path / "extender.crt").read_bytes())
    names = ours.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert server in names.get_values_for_type(x509.DNSName)


def test_the_scheduler_waits_longer_than_a_bind_may_take() -> None:
    (seconds,) = re.fullmatch(r"(\d+)s", extender()["httpTimeout"]).groups()  # type: ignore[union-attr]
    look_up, write, settle = kube.READ_TIMEOUT, kube.WRITE_TIMEOUT, kube.READ_TIMEOUT
    assert int(seconds) > look_up + write + settle


def test_the_weight_neither_drowns_nor_rules() -> None:
    """Ten points of ours against the in-tree plugins, which weigh 12 at least."""
    assert 3 <= extender()["weight"] <= 6


def test_the_managed_resources_are_those_that_the_code_manages() -> None:
    found = extender()["managedResources"]
    names = [r["name"] for r in found]
    assert names == [*MANAGED[:2], *map(resource_name, PROFILES)]
    assert managed_among(names, MANAGED) == [*MANAGED[:2], *sorted(names[2:])]
    assert not any(r["ignoredByScheduler"] for r in found)
