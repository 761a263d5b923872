"""The agent's port, with clients of every kind on real sockets."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tests.waiting import FOREVER, PATIENCE, everything
from topology.agent import serving
from topology.agent.serving import MetricsServer, PortError

METRICS = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
PROBE = b"GET /healthz HTTP/1.1\r\nHost: x\r\nUser-Agent: kube-probe/1.36\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"


class Counting(Collector):
    """A collector that counts how often it was asked; its text has so many lines."""

    def __init__(self, lines: int = 1) -> None:
        self.asked = 0
        self._lines = lines

    def collect(self) -> Iterator[Metric]:
        self.asked += 1
        family = GaugeMetricFamily("asked", "How often.", labels=["line"])
        for line in range(self._lines):
            family.add_metric([str(line)], self.asked)
        yield family


class Agent:
    """What the port shows, and a clock that moves when a test says so."""

    def __init__(self, lines: int = 1) -> None:
        self.collector = Counting(lines)
        self.registry = CollectorRegistry()
        self.registry.register(self.collector)
        self.unwell: str | None = None
        self.unready: str | None = None
        self.now = 0.0


@contextmanager
def served(agent: Agent, host: str = "127.0.0.1") -> Iterator[int]:
    server = MetricsServer(
        agent.registry, lambda: agent.unwell, lambda: agent.unready, host, 0, lambda: agent.now
    )
    try:
        server.start()
        yield server.port
    finally:
        server.stop()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE)


def asked(port: int, sent: bytes = PROBE) -> bytes:
    with connected(port) as client:
        client.sendall(sent)
        return everything(client)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([], id="silent"),
        pytest.param([b"GET /", b"a", b"a"], id="a byte at a time"),
        pytest.param([METRICS], id="reads no answer"),
    ],
)
def test_slow_clients_keep_no_probe_out(sent: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PLACES", 20)
    monkeypatch.setattr(serving, "CLIENT_SECONDS", FOREVER)
    agent = Agent(lines=30_000)
    with served(agent) as port, ExitStack() as stack:
        for number in range(3 * serving.PLACES):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            for part in sent:
                client.sendall(part)
            if number % 10 == 9:
                assert asked(port).startswith(OK), f"beside {number + 1} slow clients"


def test_connections_are_bounded_and_the_oldest_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "PLACES", 4)
    monkeypatch.setattr(serving, "CLIENT_SECONDS", FOREVER)
    with served(Agent()) as port, ExitStack() as stack:
        clients = [stack.enter_context(connected(port)) for _ in range(10)]
        for first in clients[:6]:
            assert everything(first) == b""
        for last in clients[6:]:
            last.sendall(PROBE)
            assert everything(last).startswith(OK)


def test_a_head_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CLIENT_SECONDS", FOREVER)
    with served(Agent()) as port:
        assert asked(port, b"GET / HTTP/1.1\r\nX: " + b"x" * serving.MAX_HEAD) == b""


def test_a_client_has_so_many_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CLIENT_SECONDS", 0.05)
    with served(Agent()) as port:
        assert asked(port, b"GET /heal") == b""


def test_one_text_answers_all_requests_within_a_second() -> None:
    agent = Agent()
    with served(agent) as port:
        answers = [asked(port, METRICS) for _ in range(5)]
        assert {answer.rpartition(b" ")[2] for answer in answers} == {b"1.0\n"}
        agent.now = serving.FRESH
        assert asked(port, METRICS).endswith(b" 2.0\n")
    assert agent.collector.asked == 2


def test_health_is_reported_in_words() -> None:
    agent = Agent()
    with served(agent) as port:
        assert asked(port).endswith(b"\r\n\r\nok\n")
        agent.unwell = "the agent's loop does not run"
        answer = asked(port)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert answer.endswith(b"\r\n\r\nthe agent's loop does not run\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz?verbose HTTP/1.1\r\n\r\n", 200),
        (b"GET /healthz/ HTTP/1.1\r\n\r\n", 404),
        (b"GET http://x/healthz HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\n", 405),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET  /healthz HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\n", 400),
        (b"\x16\x03\x01\x00\xff\xfe\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
    ],
)
def test_what_is_asked(sent: bytes, status: int) -> None:
    with served(Agent()) as port:
        assert int(asked(port, sent).split(b" ")[1]) == status


def test_a_port_that_is_taken_is_reported_in_one_line() -> None:
    with served(Agent()) as port, pytest.raises(PortError, match=f"127.0.0.1:{port}: Address"):
        MetricsServer(CollectorRegistry(), lambda: None, lambda: None, "127.0.0.1", port)


def test_ipv6_serves_ipv4_too() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with served(Agent(), "::") as port:
        assert asked(port).startswith(OK)
