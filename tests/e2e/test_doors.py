"""The port for kube-scheduler is closed to strangers: a real scheduler's certificates."""

from __future__ import annotations

import json
import ssl
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from cryptography import x509

from scheduler_extender.authority import Authority, Use
from tests.e2e.cluster import RealCluster
from tests.waiting import PATIENCE
from topology.machines import machine

pytestmark = pytest.mark.e2e
NVLINK = {"link": "nvlink"}


@pytest.fixture(scope="module", autouse=True)
def _fleet(real: RealCluster) -> None:
    real.add_machine(machine("hgx-h100-8").topology("h100"))


def client(real: RealCluster, which: str | None) -> ssl.SSLContext:
    """A client that trusts the authority and shows ``which`` of the folder's certificates."""
    context = ssl.create_default_context(cafile=real.tls / "ca.crt")
    if which is not None:
        context.load_cert_chain(real.tls / f"{which}.crt", real.tls / f"{which}.key")
    return context


def somebody(real: RealCluster) -> None:
    """A certificate of the same authority for another name: somebody.crt and somebody.key."""
    ca, key = (real.tls / name for name in ("ca.crt", "ca.key"))
    now = datetime.now(UTC)
    authority = Authority.load(ca.read_bytes(), key.read_bytes(), now)
    issued = authority.issue("somebody", Use.CLIENT, ["somebody.example"], now, 1)
    (real.tls / "somebody.crt").write_bytes(issued.certificate)
    (real.tls / "somebody.key").write_bytes(issued.key)


def bind(real: RealCluster, pod: dict[str, Any], context: ssl.SSLContext) -> httpx.Response:
    """What a stranger would ask: the pod on the node, now."""
    meta = pod["metadata"]
    body = {"PodName": meta["name"], "PodNamespace": meta["namespace"]}
    body |= {"PodUID": meta["uid"], "Node": "h100"}
    url = f"https://127.0.0.1:{real.ports[0]}/scheduler/bind"
    return httpx.post(url, json=body, verify=context, timeout=PATIENCE, trust_env=False)


def waiting(real: RealCluster, name: str) -> dict[str, Any]:
    """A pod that kube-scheduler leaves alone."""
    return real.add_pod(name, 1, schedulerName="nobody")


def test_the_scheduler_places_a_pod_over_tls(real: RealCluster) -> None:
    real.add_pod("pair", 2, NVLINK)
    assert real.node_of("pair") == "h100"
    placement = real.pod("pair")["metadata"]["annotations"]["gpu-topology.io/placement"]
    assert json.loads(placement)["verdict"] == "guaranteed"


def test_a_stranger_binds_no_pod(real: RealCluster) -> None:
    pod = waiting(real, "bait")
    somebody(real)
    with pytest.raises(httpx.TransportError):
        bind(real, pod, client(real, None))
    with pytest.raises(httpx.TransportError):  # the extender's own is for serving only
        bind(real, pod, client(real, "extender"))
    assert bind(real, pod, client(real, "somebody")).status_code == 403
    assert "nodeName" not in real.pod("bait")["spec"]
    # The scheduler's certificate is what makes the difference.
    assert bind(real, pod, client(real, "scheduler")).json() == {"Error": ""}
    assert real.pod("bait")["spec"]["nodeName"] == "h100"


@pytest.mark.parametrize(
    "which", [pytest.param(None, id="none"), pytest.param("somebody", id="foreign")]
)
def test_a_scheduler_without_the_right_certificate_places_no_pod(
    real: RealCluster, which: str | None
) -> None:
    somebody(real)
    name = f"pod-{which or 'none'}"
    files = {
        field: str(real.tls / f"{which}.{suffix}") if which else None
        for field, suffix in (("certFile", "crt"), ("keyFile", "key"))
    }
    real.restart_scheduler(**files)
    real.add_pod(name, 1, NVLINK)
    real.until(lambda: scheduler_error(real, name), "the scheduler has said so")
    assert "nodeName" not in real.pod(name)["spec"]
    real.restart_scheduler()
    assert real.node_of(name) == "h100"


def scheduler_error(real: RealCluster, name: str) -> bool:
    """Whether kube-scheduler has told the pod that it could not ask."""
    conditions = real.pod(name)["status"].get("conditions", [])
    return any(c["type"] == "PodScheduled" and c.get("reason") for c in conditions)


def served(real: RealCluster) -> int:
    """The serial number of the certificate on the scheduler's port."""
    where = ("127.0.0.1", real.ports[0])
    pem = ssl.get_server_certificate(where, ca_certs=str(real.tls / "ca.crt"), timeout=PATIENCE)
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


def test_the_extender_serves_renewed_certificates_without_a_restart(real: RealCluster) -> None:
    old = served(real)
    real.make_certificates("--ca", real.tls)
    new = x509.load_pem_x509_certificate((real.tls / "extender.crt").read_bytes()).serial_number
    assert new != old
    real.until(lambda: served(real) == new, "the renewed certificate is served")


def test_kube_scheduler_shows_renewed_certificates_without_a_restart(real: RealCluster) -> None:
    """Its new one has another name, and the extender that starts anew takes no other."""
    real.stop_extender()
    real.client_name = "second-scheduler"
    real.make_certificates("--ca", real.tls)
    real.start_extender()
    real.add_pod("renewed", 1, NVLINK)
    assert real.node_of("renewed") == "h100"
