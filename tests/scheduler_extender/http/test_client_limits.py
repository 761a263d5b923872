"""Clients that send too much, too slowly or not at all, over real sockets."""

import json
import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import pytest

from scheduler_extender.clientlimits import MIB, Bodies
from scheduler_extender.http.servers import PortError, listen
from tests.nodes import pod, switched
from tests.scheduler_extender.serving import UNHURRIED, Running, running
from tests.waiting import PATIENCE, eventually, everything

NODE = switched(4, "node")
SHORT_HEADERS = replace(UNHURRIED, header_seconds=0.3)
SHORT_BODY = replace(UNHURRIED, body_seconds=0.3)
ASK = {"Pod": pod(2, {"link": "nvlink"}), "Nodes": None, "NodeNames": ["node"]}
PORTS = pytest.mark.parametrize("port", [0, 1], ids=["scheduler", "admin"])
WITH_PROBES = pytest.mark.parametrize("port", [0, 2], ids=["scheduler", "metrics"])


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as found:
        yield found


def head(size: int, path: str = "/scheduler/filter", more: str = "") -> bytes:
    first = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
    return f"{first}{more}Content-Length: {size}\r\n\r\n".encode()


def status_and_error(answer: bytes) -> tuple[int, str]:
    first, _, body = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(body)["error"]


def asks(service: Running) -> int:
    """A scheduler's ordinary request, on a connection of its own."""
    body = json.dumps(ASK).encode()
    with connected(service.ports[0]) as client:
        client.sendall(head(len(body), more="Connection: close\r\n") + body)
        return int(everything(client).split()[1])


@PORTS
@pytest.mark.parametrize(
    "sent",
    [b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Half: y", b"\r\n\r\nG"],
)
def test_headers_that_never_end_are_cut_off(port: int, sent: bytes) -> None:
    with running(NODE, limits=SHORT_HEADERS) as service, ExitStack() as stack:
        clients = [stack.enter_context(connected(service.ports[port])) for _ in range(20)]
        for client in clients:
            client.sendall(sent)
        for client in clients:
            status, error = status_and_error(everything(client))
            assert (status, error) == (408, "request headers not complete within 0.3 s")
        assert asks(service) == 200


@PORTS
@pytest.mark.parametrize("what", ["headers", "body"])
def test_a_byte_now_and_then_gains_no_time(port: int, what: str) -> None:
    path = ("/scheduler/filter", "/v1/reports")[port]
    begin = {"headers": b"GET /healthz HTTP/1.1\r\nX: ", "body": head(1_000_000, path)}
    limits = {"headers": SHORT_HEADERS, "body": SHORT_BODY}
    with (
        running(NODE, limits=limits[what]) as service,
        connected(service.ports[port]) as client,
    ):
        client.sendall(begin[what])
        while not select.select([client], [], [], 0.01)[0]:
            client.sendall(b"x")
        status, error = status_and_error(everything(client))
        assert (status, error) == (408, f"request {what} not complete within 0.3 s")
        eventually(lambda: service.service.bodies.held == 0)
        assert asks(service) == 200


@WITH_PROBES
def test_a_connection_without_a_request_is_closed(port: int) -> None:
    with (
        running(NODE, limits=replace(UNHURRIED, idle_seconds=1.0)) as service,
        connected(service.ports[port]) as silent,
    ):
        assert everything(silent) == b""

        def is_served() -> bool:
            """If it asks in time; a slow machine may stand still between the two."""
            with connected(service.ports[port]) as served:
                served.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return everything(served).endswith(b'{"status":"ok"}')

        eventually(is_served, "a connection is closed after its request is answered")


@PORTS
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([b"GET /", b"x" * 40_000], id="url"),
        pytest.param([b"GET / HTTP/1.1\r\nX-Long: ", b"x" * 200_000], id="one header"),
        pytest.param([b"GET / HTTP/1.1\r\n", b"X-Many: x\r\n" * 4_000], id="many headers"),
        pytest.param([b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * 40_000 + b"\r\n\r\n"], id="complete"),
        pytest.param(
            [
                b"POST /scheduler/bind HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
                b"X-Trailer: x\r\n" * 4_000,
            ],
            id="trailers",
        ),
        pytest.param(
            [
                b"POST /scheduler/bind HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                b"1;" + b"x" * 200_000,
            ],
            id="chunk extension",
        ),
    ],
)
def test_headers_are_bounded(port: int, sent: list[bytes]) -> None:
    with running(NODE) as service, connected(service.ports[port]) as client:
        answered = b""
        try:
            for part in sent:
                client.sendall(part)
        except (ConnectionResetError, BrokenPipeError):
            pass  # it has refused already
        answered = everything(client)
        if port == 0 or b"scheduler" not in sent[0]:
            assert status_and_error(answered) == (431, "headers are longer than 32768 bytes")
        assert asks(service) == 200


def test_ordinary_long_headers_are_taken() -> None:
    with running(NODE) as service:
        answer = service.http.get("/healthz", headers={"Authorization": "x" * 30_000})
        assert answer.status_code == 200


def test_a_body_that_is_refused_may_not_go_on_for_ever() -> None:
    with running(NODE, limits=SHORT_BODY) as service, connected(service.ports[0]) as client:
        client.sendall(head(1 << 40))
        answer = everything(client)
        assert status_and_error(answer) == (413, "body is larger than 67108864 bytes")


def test_a_report_to_the_admin_port_is_bounded() -> None:
    with running(NODE) as service:
        answer = service.admin.post("/v1/reports", content=b" " * (5 * MIB))
        assert answer.status_code == 413
        assert answer.json() == {"error": "body is larger than 4194304 bytes"}


def test_a_report_that_nests_without_end_is_refused() -> None:
    with running(NODE) as service:
        body = b'{"node":"node","status":' + b'{"a":' * 5000 + b"1" + b"}" * 5001
        answer = service.admin.post("/v1/reports", content=body)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("body: ")


def test_no_address_is_not_every_address() -> None:
    with pytest.raises(PortError, match="the address to listen on is empty"):
        listen("", 0)


def test_unfinished_uploads_share_one_budget() -> None:
    small = MIB // 64  # so much of each upload may take from what large ones leave
    bodies = Bodies(total=2 * MIB, spare=MIB // 2, small=small)
    with (
        running(NODE, bodies=bodies) as service,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(connected(service.ports[0])) for _ in range(10)]
        for client in clients:
            client.sendall(head(8 * MIB) + b" " * (MIB // 2))

        def refused() -> list[socket.socket]:
            return select.select(clients, [], [], 0)[0]

        eventually(lambda: bodies.held > MIB and refused())
        assert bodies.held <= 2 * MIB - MIB // 2 + len(clients) * small
        assert asks(service) == 200  # while they are open
        assert {client.recv(12) for client in refused()} == {b"HTTP/1.1 503"}
        assert len(refused()) < len(clients)
        for client in clients:
            client.close()
        eventually(lambda: bodies.held == 0)
        assert asks(service) == 200


def test_a_client_that_does_not_read_is_cut_off() -> None:
    names = [f"{'n' * 200}{i}" for i in range(90_000)]
    body = json.dumps({**ASK, "NodeNames": names}).encode()
    limits = replace(UNHURRIED, write_seconds=0.3)
    with running(NODE, limits=limits) as service, connected(service.ports[0]) as client:
        client.sendall(head(len(body), "/scheduler/prioritize") + body)
        client.recv(1)
        eventually(lambda: service.service.bodies.held == 0)
        assert len(everything(client)) < len(body)


def test_unread_answers_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them may wait for write_seconds; 512 of the admin port's would fill the memory."""
    monkeypatch.setattr("scheduler_extender.http.endpoint.PIECE", 1 << 30)  # as the admin port's
    names = [f"{'n' * 200}{i}" for i in range(50_000)]
    body = json.dumps({**ASK, "NodeNames": names}).encode()
    limits = replace(UNHURRIED, unread=2 * len(body))
    with running(NODE, limits=limits) as service, ExitStack() as stack:
        # Sockets hold some of each answer, but not two thirds of it.
        clients = [stack.enter_context(connected(service.ports[0])) for _ in range(6)]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            client.sendall(head(len(body), "/scheduler/prioritize", "Connection: close\r\n") + body)
            assert client.recv(1)
        first, *_, last = [len(everything(client)) for client in clients]
        assert first < len(body) < last, "the one that was asked for first is cut off"


def test_a_long_answer_that_is_read_arrives_whole() -> None:
    names = [f"{'n' * 200}{i}" for i in range(20_000)]
    with running(NODE) as service:
        answer = service.http.post("/scheduler/prioritize", json={**ASK, "NodeNames": names})
        assert [row["Host"] for row in answer.json()] == names


def test_an_idle_connection_makes_room() -> None:
    with running(NODE, limits=replace(UNHURRIED, connections=4)) as service, ExitStack() as stack:
        half = [stack.enter_context(connected(service.ports[0])) for _ in range(4)]
        for client in half:
            client.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert asks(service) == 200
        assert everything(half[0]) == b""
        half[-1].sendall(b"\r\n")
        assert half[-1].recv(12) == b"HTTP/1.1 200"


@WITH_PROBES
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nX: ", id="half a head"),
        pytest.param(head(1000), id="a head and no body"),
        pytest.param(head(1000, "/v1/reports"), id="a report without a body"),
        pytest.param(head(1000, "/v1/nodes").replace(b"POST", b"GET"), id="get, no body"),
        pytest.param(head(1000) + b"{" * 999, id="all but a byte"),
        pytest.param(head(1000, more="Expect: 100-continue\r\n"), id="expects"),
        pytest.param(
            b"POST /scheduler/filter HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{",
            id="chunks",
        ),
        pytest.param(b"GET /healthz HTTP/1.1\r\n\r\n" + head(1000), id="the second one"),
    ],
)
def test_slow_clients_exclude_no_other(port: int, sent: bytes) -> None:
    limits = replace(UNHURRIED, connections=8)
    with running(NODE, limits=limits) as service, ExitStack() as stack:
        for number in range(45):  # more than are taken for probes where all are busy
            # Both connect before one of them sends: where the first makes room, the second is in.
            clients = [stack.enter_context(connected(service.ports[port])) for _ in range(2)]
            for client in clients:
                with suppress(ConnectionError):
                    client.sendall(sent)
            if number % 9:
                continue
            with connected(service.ports[port]) as probe:
                probe.sendall(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
                assert everything(probe).startswith(b"HTTP/1.1 200")
        if port == 0:
            assert asks(service) == 200
        eventually(lambda: service.service.bodies.held <= 8 * 1000)


def test_many_clients_that_come_and_go_leave_no_connection(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A client that is cut off as the connection begins is forgotten, too."""
    with running(NODE, limits=replace(UNHURRIED, handshakes=1)) as service:
        for _ in range(20):
            with ExitStack() as stack:
                for _ in range(20):
                    stack.enter_context(connected(service.ports[1]))
        assert asks(service) == 200
    assert "graceful shutdown exceeded" not in capfd.readouterr().err


def test_where_all_are_busy_the_probes_are_answered() -> None:
    limits = replace(UNHURRIED, connections=4)
    size = len(json.dumps(ASK))
    with running(NODE, limits=limits) as service, ThreadPoolExecutor(4) as pool:
        with service.cluster.lock:
            busy = [pool.submit(asks, service) for _ in range(4)]
            # Two are worked on, the others wait for a thread: all four wait for the lock.
            eventually(lambda: service.service.bodies.held == 4 * size)
            assert asks(service) == 503
            with connected(service.ports[0]) as probe:
                probe.sendall(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
                assert everything(probe).startswith(b"HTTP/1.1 200")
            with connected(service.ports[2]) as probe:
                probe.sendall(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
                assert everything(probe).startswith(b"HTTP/1.1 200")
        assert [one.result() for one in busy] == [200] * 4
        assert asks(service) == 200


def test_requests_behind_one_another_are_bounded() -> None:
    one = b"POST /scheduler/filter HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    with running(NODE) as service, connected(service.ports[0]) as client:
        with service.cluster.lock:
            body = json.dumps(ASK).encode()
            client.sendall(head(len(body)) + body + one * 1000)
            assert everything(client) == b""
        assert asks(service) == 200


def test_a_few_requests_behind_one_another_are_answered_in_order() -> None:
    with running(NODE) as service, connected(service.ports[0]) as client:
        get = b"GET /healthz HTTP/1.1\r\n\r\n"
        client.sendall(get * 3 + b"GET /readyz HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert everything(client).count(b"HTTP/1.1 200 OK") == 4


@pytest.mark.parametrize(
    ("body", "what"),
    [
        pytest.param(b'{"Pod":{},"x":[' + b"1," * 4_000_001 + b"1]}", "body", id="anything"),
        pytest.param(
            b'{"Pod":{"spec":{"containers":[' + b"{}," * 90_000 + b"{}]}}}", "Pod", id="pod"
        ),
        pytest.param(
            b'{"Pod":{},"NodeNames":[' + b'"a",' * 100_001 + b'"a"]}', "NodeNames", id="names"
        ),
    ],
)
def test_a_body_of_tiny_values_is_not_decoded(body: bytes, what: str) -> None:
    with running(NODE) as service:
        answer = service.http.post("/scheduler/filter", content=body)
        assert answer.status_code == 413
        assert answer.json()["error"].startswith(f"{what}: more than ")


@WITH_PROBES
@pytest.mark.parametrize("first", [b"", b"GET /healthz HTTP/1.1\r\n\r\n"], ids=["first", "second"])
def test_a_target_that_is_no_url_is_refused(
    port: int, first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with running(NODE) as service, connected(service.ports[port]) as client:
        client.sendall(first)
        if first:
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(b"CONNECT x:1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = everything(client)
        assert status_and_error(answer) == (400, "this is not an HTTP/1.1 request")
    assert "Fatal error" not in caplog.text


@pytest.mark.long
@pytest.mark.parametrize("then", [b"", b"no request\r\n\r\n"], ids=["closed", "refused"])
def test_an_answer_read_late_leaves_nothing_behind(
    then: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("scheduler_extender.http.connection.LAST_WORD", 4.0)
    monkeypatch.setattr("scheduler_extender.http.endpoint.PIECE", 1 << 30)  # more than sockets hold
    names = [f"{'n' * 200}{i}" for i in range(50_000)]
    body = json.dumps({**ASK, "NodeNames": names}).encode()
    more = "" if then else "Connection: close\r\n"
    limits = replace(UNHURRIED, idle_seconds=4.5, write_seconds=4.0)
    with running(NODE, limits=limits) as service, connected(service.ports[0]) as client:
        client.sendall(head(len(body), "/scheduler/prioritize", more) + body)
        size = len(client.recv(1))
        client.sendall(then)
        while data := client.recv(1024 * 1024):
            size += len(data)
        assert size > len(body)
        with connected(service.ports[0]) as later:
            assert everything(later) == b""  # closed after both of the other's timers
    assert "Exception in callback" not in caplog.text


def test_what_clients_send_is_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    """A line for each request would fill the disk of the node."""
    upgrade = b"GET /healthz HTTP/1.1\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
    with running(switched()) as service:
        for port in (service.ports[0], service.ports[2]):
            for sent, status in ((b"\x16\x03\x01 no HTTP\r\n\r\n", b" 400 "), (upgrade, b" 200 ")):
                with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
                    client.sendall(sent)
                    assert status in client.recv(4096).partition(b"\r\n")[0]
    out, err = capfd.readouterr()
    assert not (out + err).strip()
