"""Which port answers what, and from where it is reached."""

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from scheduler_extender.http.servers import Addresses, PortError, listen, listen_on_loopback
from scheduler_extender.serving import open_doors
from tests.nodes import switched
from tests.programs import free_port
from tests.scheduler_extender.serving import Running, running
from tests.scheduler_extender.tlsfiles import TlsFiles
from tests.waiting import PATIENCE

EVERYWHERE = "0.0.0.0"
OTHER_ADDRESS = "127.0.0.2"  # of this machine, and not the one that loopback means


@pytest.fixture
def service() -> Iterator[Running]:
    with running(switched()) as found:
        yield found


def status(port: int, path: str, host: str = "127.0.0.1") -> int:
    url = f"http://{host}:{port}{path}"
    return httpx.get(url, timeout=PATIENCE, trust_env=False).status_code


def test_people_are_served_on_loopback_whatever_the_host() -> None:
    with running(switched(), where=Addresses(EVERYWHERE)) as service:
        verbs, people, metrics = service.ports
        assert status(people, "/v1/nodes") == 200
        assert status(verbs, "/readyz", OTHER_ADDRESS) == 200
        assert status(metrics, "/readyz", OTHER_ADDRESS) == 200
        with pytest.raises(httpx.ConnectError):
            status(people, "/v1/nodes", OTHER_ADDRESS)


def test_people_are_served_on_both_loopback_addresses() -> None:
    if not socket.has_ipv6 or not _has_ipv6_loopback():
        pytest.skip("this machine has no ::1")
    port = free_port()
    with running(switched(), where=Addresses(admin_port=port)):
        assert status(port, "/map", "[::1]") == 200
        assert status(port, "/map") == 200


def _has_ipv6_loopback() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_a_port_that_is_taken_on_one_of_the_two_is_refused() -> None:
    if not _has_ipv6_loopback():
        pytest.skip("this machine has no ::1")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortError, match=f"cannot listen on ::1:{port}"):
            listen_on_loopback(port)
        listen("127.0.0.1", port).close()  # it is let go of


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_and_metrics_are_not_for_people(service: Running, path: str) -> None:
    _, people, metrics = service.ports
    assert status(metrics, path) == 200
    assert status(people, path) == 404


@pytest.mark.parametrize(
    "path", ["/map", "/v1/nodes", "/v1/snapshot", "/openapi.json", "/docs", "/scheduler/filter"]
)
def test_the_metrics_port_names_no_pod(service: Running, path: str) -> None:
    assert status(service.ports[2], path) == 404


def test_a_replica_that_is_not_ready_says_so_to_the_kubelet(service: Running) -> None:
    service.unready.append("not synced")
    answer = service.metrics.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"error": "not synced"})
    assert service.metrics.get("/healthz").status_code == 200
    assert "gpu_topology_ready 0.0" in service.metrics.get("/metrics").text


def test_it_is_loud_about_what_is_open(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    (plain,) = open_doors(Addresses(EVERYWHERE, 8888, 8889))
    assert "every client that reaches port 8888 can have pods bound" in plain
    (unasked,) = open_doors(Addresses(EVERYWHERE, 8888, tls=files.serving))
    assert "no --client-ca" in unasked
    assert open_doors(Addresses(EVERYWHERE, tls=files.tls)) == []


def raw(service: Running, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", service.ports[1]), PATIENCE) as client:
        client.sendall(sent)
        found = b""
        while data := client.recv(65536):
            found += data
        return found


ODD = [
    b"[",
    b"http://[",
    b"//[",
    b"]",
    b"\xff",
    b"\x80abc",
    b"=;;,",
    b'"',
    b"%",
    b"-1",
    b"a" * 9000,
]


@pytest.mark.parametrize("name", ["Host", "Origin", "Cookie"])
@pytest.mark.parametrize("path", ["/map", "/map/what-if", "/v1/nodes"])
def test_no_header_is_a_fault_of_ours(
    service: Running, name: str, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for value in ODD:
        for method in ("GET", "POST"):
            host = value if name == "Host" else b"localhost"
            given = {"Host": host, "Origin": b"http://" + host} | {name: value}
            lines = b"".join(b"%s: %s\r\n" % (k.encode(), v) for k, v in given.items())
            head = f"{method} {path} HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n"
            answer = raw(service, head.encode() + lines + b"\r\n")
            assert b"HTTP/1.1 500" not in answer, (value, method)
    assert "Traceback" not in capfd.readouterr().err


def test_many_fields_of_a_query_are_no_fault(service: Running) -> None:
    assert service.admin.get("/map?" + "a&" * 2000).status_code == 200


def test_trailers_are_no_headers(service: Running) -> None:
    answer = raw(
        service,
        b"GET /v1/nodes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        b"Connection: close\r\nTrailer: Origin\r\n\r\n"
        b"1\r\nx\r\n0\r\nOrigin: http://evil.example\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_request_has_one_host(service: Running) -> None:
    answer = raw(service, b"GET /v1/nodes HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"more than one Host header" in answer


def test_a_fault_of_ours_is_logged_once_in_a_while(
    service: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr("scheduler_extender.web.routes._filters", fails)
    monkeypatch.setattr("scheduler_extender.wire.encode", fails)
    for _ in range(20):
        assert service.admin.get("/map").status_code == 500
        body: dict[str, object] = {"Pod": {}, "Nodes": None, "NodeNames": []}
        assert service.http.post("/scheduler/filter", json=body).status_code == 500
    out, err = capfd.readouterr()
    assert (out + err).count("request failed") == 2
