"""Both ports are closed to strangers: a real scheduler's certificates, a real API server's word."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509

from scheduler_extender.authority import Authority, Use
from tests.e2e.adminport import outside, token
from tests.e2e.cluster import RealCluster
from tests.e2e.controlplane import SCHEDULER
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
    ("which", "lacks"),
    [pytest.param(None, "handshake", id="none"), pytest.param("somebody", "name", id="foreign")],
)
def test_a_scheduler_without_the_right_certificate_places_no_pod(
    real: RealCluster, which: str | None, lacks: str
) -> None:
    somebody(real)
    before, name = refused(real.admin, lacks), f"pod-{lacks}"
    files = {
        field: str(real.tls / f"{which}.{suffix}") if which else None
        for field, suffix in (("certFile", "crt"), ("keyFile", "key"))
    }
    real.restart_scheduler(**files)
    real.add_pod(name, 1, NVLINK)
    real.until(lambda: refused(real.admin, lacks) > before, "the extender has refused it")
    real.until(lambda: scheduler_error(real, name), "the scheduler has said so")
    assert "nodeName" not in real.pod(name)["spec"]
    real.restart_scheduler()
    assert real.node_of(name) == "h100"


def scheduler_error(real: RealCluster, name: str) -> bool:
    """Whether kube-scheduler has told the pod that it could not ask."""
    conditions = real.pod(name)["status"].get("conditions", [])
    return any(c["type"] == "PodScheduled" and c.get("reason") for c in conditions)


def refused(people: httpx.Client, why: str) -> int:
    """Clients that the extender has refused, by what they lacked."""
    start = f'gpu_topology_clients_refused_total{{why="{why}"}} '
    text = people.get("/metrics").text
    (line,) = (line for line in text.splitlines() if line.startswith(start))
    return int(float(line.removeprefix(start)))


def served(real: RealCluster) -> int:
    """The serial number of the certificate on the scheduler's port."""
    where = ("127.0.0.1", real.ports[1])
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


# The admin port.


def status(people: httpx.Client, path: str, shown: str | None = None) -> int:
    headers = {"Authorization": f"Bearer {shown}"} if shown else {}
    return people.get(path, headers=headers).status_code


@pytest.fixture(scope="module")
def people(real: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with outside(real, tmp_path_factory.mktemp("outside")) as found:
        yield found


PATHS = ("/v1/nodes", "/v1/nodes/h100", "/v1/snapshot", "/metrics")


def test_the_readers_token_reads_and_others_do_not(real: RealCluster, people: httpx.Client) -> None:
    reader, scheduler = token(real), real.control_plane.tokens[SCHEDULER]
    for path in PATHS:
        assert status(people, path) == 401
        assert status(people, path, "wrong") == 401
        assert status(people, path, f"{reader[:-4]}AAAA") == 401
        assert status(people, path, reader) == 200
        assert status(people, path, real.control_plane.tokens["admin"]) == 200
        if path != "/metrics":  # which Kubernetes lets its own parts read
            assert status(people, path, scheduler) == 403
    assert status(people, "/openapi.json", reader) == 200
    assert status(people, "/openapi.json", scheduler) == 403
    for probe in ("/healthz", "/readyz"):
        assert status(people, probe) == 200


def test_prometheus_reads_metrics_only(real: RealCluster, people: httpx.Client) -> None:
    namespace = ("-n", "default")
    real.kubectl(*namespace, "create", "serviceaccount", "prometheus")
    shown = real.kubectl(*namespace, "create", "token", "prometheus").strip()
    assert status(people, "/metrics", shown) == 403
    real.kubectl(
        *("create", "clusterrolebinding", "prometheus"),
        *("--clusterrole=gpu-topology-metrics-reader", "--serviceaccount=default:prometheus"),
    )
    real.until(lambda: status(people, "/metrics", shown) == 200, "the right is known")
    assert status(people, "/v1/nodes", shown) == 403


def test_metrics_are_open_where_it_is_told_so(real: RealCluster, tmp_path: Path) -> None:
    with outside(real, tmp_path, "--open-metrics") as found:
        assert status(found, "/metrics") == 200
        assert status(found, "/v1/nodes") == 401


def test_without_the_api_server_nobody_reads(real: RealCluster, people: httpx.Client) -> None:
    reader = token(real)
    assert status(people, "/v1/nodes", reader) == 200
    real.control_plane.stop_apiserver()
    try:

        def told(shown: str, word: str) -> Callable[[], bool]:
            def says() -> bool:
                answer = people.get("/v1/nodes", headers={"Authorization": f"Bearer {shown}"})
                return answer.status_code == 503 and word in answer.json()["error"]

            return says

        # What it said before holds for some seconds more.
        real.until(told(reader, "has not judged the token"), "its answers are forgotten")
        real.until(told("wrong", "has not judged the token"), "others have no better luck")
        assert status(people, "/healthz") == 200
    finally:
        real.control_plane.start_apiserver()
    real.until(lambda: status(people, "/v1/nodes", reader) == 200, "it answers again")
