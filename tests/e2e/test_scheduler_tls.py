"""A real kube-scheduler's certificates; http/test_tls.py tests other clients."""

import json
from datetime import UTC, datetime

import pytest

from scheduler_extender.certificateauthority import Authority, Use
from tests.e2e.cluster import RealCluster
from topology.machines import machine

pytestmark = pytest.mark.e2e
NVLINK = {"link": "nvlink"}


@pytest.fixture(scope="module", autouse=True)
def _fleet(real: RealCluster) -> None:
    real.add_machine(machine("hgx-h100-8").topology("h100"))


def somebody(real: RealCluster) -> None:
    """A certificate of the same authority for another name: somebody.crt and somebody.key."""
    ca, key = (real.tls / name for name in ("ca.crt", "ca.key"))
    now = datetime.now(UTC)
    authority = Authority.load(ca.read_bytes(), key.read_bytes(), now)
    issued = authority.issue("somebody", Use.CLIENT, ["somebody.example"], now, 1)
    (real.tls / "somebody.crt").write_bytes(issued.certificate)
    (real.tls / "somebody.key").write_bytes(issued.key)


def test_the_scheduler_places_a_pod_over_tls(real: RealCluster) -> None:
    real.add_pod("pair", 2, NVLINK)
    assert real.node_of("pair") == "h100"
    placement = real.pod("pair")["metadata"]["annotations"]["gpu-topology.io/placement"]
    assert json.loads(placement)["verdict"] == "guaranteed"


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


def test_kube_scheduler_shows_renewed_certificates_without_a_restart(real: RealCluster) -> None:
    """The new certificate has another name, and the restarted extender accepts only that one."""
    real.stop_extender()
    real.client_name = "second-scheduler"
    real.make_certificates("--ca", real.tls)
    real.start_extender()
    real.add_pod("renewed", 1, NVLINK)
    assert real.node_of("renewed") == "h100"
