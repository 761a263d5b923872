"""The gate before the admin port, with an API server that judges tokens and rights."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message, Receive, Scope, Send

from scheduler_extender.http import gate
from scheduler_extender.http.addresses import Addresses
from scheduler_extender.http.gate import Gate, Remembered
from scheduler_extender.http.strangers import Strangers
from scheduler_extender.kube import reviews
from scheduler_extender.kube.reviews import Reviews
from scheduler_extender.serving import open_doors
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import switched
from tests.scheduler_extender.serving import Running, running
from tests.scheduler_extender.tlsfiles import TlsFiles
from tests.waiting import FOREVER, PATIENCE, eventually
from topology.kubeapi.apiserver import ApiServer

EVERYWHERE = "0.0.0.0"
READ = ["/v1/nodes", "/v1/nodes/switched", "/v1/snapshot", "/v1/explain/a/b", "/metrics"]


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer of the API server is too late or forgotten, unless a test is about that."""
    monkeypatch.setattr(reviews, "REVIEW_TIMEOUT", PATIENCE)
    monkeypatch.setattr(gate, "REMEMBERED_SECONDS", FOREVER)


@pytest.fixture
def fake() -> Iterator[FakeApiServer]:
    with FakeApiServer() as found:
        found.identities.add("the-token-of-ada", "ada", "readers")
        found.identities.add("the-token-of-bob", "bob")
        found.identities.grant("readers", "get", "/v1/*")
        yield found


@pytest.fixture
def judge(fake: FakeApiServer, tmp_path: Path) -> Iterator[Reviews]:
    api = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
    try:
        yield Reviews(api)
    finally:
        api.close()


@pytest.fixture
def service(judge: Reviews) -> Iterator[Running]:
    with running(switched(), where=Addresses(EVERYWHERE), reviews=judge) as found:
        yield found


def ask(service: Running, path: str, token: str | None = None) -> httpx.Response:
    return service.admin.get(path, headers={"Authorization": f"Bearer {token}"} if token else {})


def kinds(fake: FakeApiServer) -> list[str]:
    return [review["kind"] for review in fake.identities.reviewed]


def test_a_token_with_the_right_gets_the_answer(service: Running, fake: FakeApiServer) -> None:
    answer = ask(service, "/v1/nodes", "the-token-of-ada")
    assert answer.status_code == 200
    assert [row["node"] for row in answer.json()] == ["switched"]
    review = fake.identities.reviewed[-1]
    assert review["kind"] == "SubjectAccessReview"
    assert review["spec"]["user"] == "ada"
    assert review["spec"]["groups"] == ["readers", "system:authenticated"]
    assert review["spec"]["nonResourceAttributes"] == {"verb": "get", "path": "/v1/nodes"}


@pytest.mark.parametrize("path", [*READ, "/openapi.json", "/nothing", "/V1/nodes", "//v1/nodes"])
def test_without_a_token_there_is_nothing_but_the_probes(service: Running, path: str) -> None:
    answer = ask(service, path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json() == {"error": "a bearer token is needed: Authorization: Bearer TOKEN"}


@pytest.mark.parametrize("open_metrics", [False, True])
def test_the_description_says_what_asks_for_a_token(
    judge: Reviews, fake: FakeApiServer, open_metrics: bool
) -> None:
    fake.identities.grant("readers", "get", "/openapi.json")
    where = Addresses(EVERYWHERE, open_metrics=open_metrics)
    with running(switched(), where=where, reviews=judge) as service:
        told = ask(service, "/openapi.json", "the-token-of-ada").json()
        (name,) = told["components"]["securitySchemes"]
        assert told["components"]["securitySchemes"][name]["scheme"] == "bearer"
        assert told["security"] == [{name: []}]
        asks = {
            path: "security" not in operation
            for path, operations in told["paths"].items()
            for operation in operations.values()
        }
        assert asks == {path: ask(service, path).status_code == 401 for path in told["paths"]}
        assert not asks["/healthz"]
        assert asks["/metrics"] is not open_metrics


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_the_probes_are_open(service: Running, fake: FakeApiServer, path: str) -> None:
    assert ask(service, path).status_code == 200
    assert fake.identities.reviewed == []


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Basic YWRhOmFkYQ==",
        "the-token-of-ada",
        "Bearer wrong",
        "Bearer the-token-of-ada, Bearer x",
        "Bearer the-token-of-ada x",
        "Bearer " + "x" * 20_000,
    ],
)
def test_no_other_credential_will_do(service: Running, header: str) -> None:
    answer = service.admin.get("/v1/nodes", headers={"Authorization": header})
    assert answer.status_code == 401


def test_two_credentials_are_none(service: Running) -> None:
    both = [("Authorization", "Bearer the-token-of-ada"), ("Authorization", "Bearer x")]
    assert service.admin.get("/v1/nodes", headers=both).status_code == 401


@pytest.mark.parametrize("path", READ)
def test_who_has_no_right_is_told_so(service: Running, path: str) -> None:
    answer = ask(service, path, "the-token-of-bob")
    assert answer.status_code == 403
    assert f"bob may not get {path}" in answer.json()["error"]


def test_a_right_holds_for_its_verb_and_its_path(service: Running) -> None:
    ada = {"Authorization": "Bearer the-token-of-ada"}
    assert service.admin.get("/metrics", headers=ada).status_code == 403
    assert service.admin.post("/v1/reports", headers=ada, content=b"{}").status_code == 403
    assert service.admin.get("/v1/explain/a/b", headers=ada).status_code == 404


def test_what_is_judged_is_what_is_served(service: Running, fake: FakeApiServer) -> None:
    fake.identities.add("the-token-of-eve", "eve")
    fake.identities.grant("eve", "get", "/v1/nodes")
    assert ask(service, "/v1/nodes", "the-token-of-eve").status_code == 200
    for path in ("/v1/nodes/switched", "/v1/%6eodes/switched", "/v1/nodes%2fswitched"):
        assert ask(service, path, "the-token-of-eve").status_code == 403
    assert ask(service, "/v1/%6eodes?x=/healthz", "the-token-of-eve").status_code == 200
    assert ask(service, "/v1/snapshot?/healthz", "the-token-of-eve").status_code == 403


def test_answers_are_remembered(service: Running, fake: FakeApiServer) -> None:
    for _ in range(3):
        assert ask(service, "/v1/nodes", "the-token-of-ada").status_code == 200
        assert ask(service, "/v1/nodes", "the-token-of-bob").status_code == 403
        assert ask(service, "/v1/nodes", "wrong").status_code == 401
    both = ["TokenReview", "SubjectAccessReview"]
    assert kinds(fake) == [*both, *both, "TokenReview"]
    assert ask(service, "/v1/snapshot", "the-token-of-ada").status_code == 200
    assert kinds(fake)[5:] == ["SubjectAccessReview"]


def test_a_token_that_is_taken_away_is_good_for_seconds_only(
    judge: Reviews, fake: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "REMEMBERED_SECONDS", 0.05)
    with running(switched(), where=Addresses(EVERYWHERE), reviews=judge) as service:
        assert ask(service, "/v1/nodes", "the-token-of-ada").status_code == 200
        fake.identities.remove("the-token-of-ada")
        eventually(lambda: ask(service, "/v1/nodes", "the-token-of-ada").status_code == 401)


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        pytest.param("tokenreviews", 503, "503 ServiceUnavailable", id="tokens"),
        pytest.param("subjectaccessreviews", 503, "503 ServiceUnavailable", id="rights"),
        pytest.param("tokenreviews", 403, "403 Forbidden", id="we may not ask"),
        pytest.param("tokenreviews", 429, "429 TooManyRequests", id="too many of us"),
    ],
)
def test_if_the_api_server_does_not_judge_nobody_passes(
    service: Running, fake: FakeApiServer, what: str, status: int, said: str
) -> None:
    fake.refuse(status, path=what)
    answer = ask(service, "/v1/nodes", "the-token-of-ada")
    assert answer.status_code == 503
    assert answer.json() == {"error": f"the API server has not judged the token: {said}"}
    assert ask(service, "/healthz").status_code == 200
    fake.allow()
    assert ask(service, "/v1/nodes", "the-token-of-ada").status_code == 200


def test_an_api_server_that_is_gone_lets_nobody_in(tmp_path: Path) -> None:
    with FakeApiServer() as fake:
        api = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
    with running(switched(), where=Addresses(EVERYWHERE), reviews=Reviews(api)) as service:
        answer = ask(service, "/v1/nodes", "the-token-of-ada")
        assert answer.status_code == 503
        assert answer.json() == {"error": "the API server has not judged the token: no answer"}
    api.close()


def test_guessed_tokens_do_not_keep_out_those_that_were_good(
    judge: Reviews, fake: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "REVIEW_RATE", 1e-6)  # what is spent does not come back
    monkeypatch.setattr(gate, "REVIEW_BURST", 3)
    with running(switched(), where=Addresses(EVERYWHERE), reviews=judge) as service:
        assert ask(service, "/v1/nodes", "the-token-of-ada").status_code == 200
        statuses = [ask(service, "/v1/nodes", f"guess-{i}").status_code for i in range(5)]
        assert statuses == [401, 401, 503, 503, 503]
        assert kinds(fake).count("TokenReview") == 3
        assert ask(service, "/v1/snapshot", "the-token-of-ada").status_code == 200


def test_who_may_not_read_does_not_keep_out_those_who_may(
    judge: Reviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pod of the cluster has a token that the API server accepts."""
    monkeypatch.setattr(gate, "REVIEW_RATE", 1e-6)  # what is spent does not come back
    monkeypatch.setattr(gate, "REVIEW_BURST", 3)
    with running(switched(), where=Addresses(EVERYWHERE), reviews=judge) as service:
        assert ask(service, "/v1/nodes", "the-token-of-ada").status_code == 200
        statuses = [ask(service, f"/v1/{i}", "the-token-of-bob").status_code for i in range(4)]
        assert statuses == [403, 403, 503, 503]
        assert ask(service, "/v1/snapshot", "the-token-of-ada").status_code == 200


def test_a_right_to_what_we_do_not_serve_lets_nobody_in(
    judge: Reviews, fake: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes grants /api/* to every account (system:discovery): any pod's token has a right to
    as many paths as it likes, and must not use up what is there for those who were let in."""
    monkeypatch.setattr(gate, "REVIEW_RATE", 1e-6)  # what is spent does not come back
    monkeypatch.setattr(gate, "REVIEW_BURST", 3)
    fake.identities.grant("system:authenticated", "get", "/api/*")
    with running(switched(), where=Addresses(EVERYWHERE), reviews=judge) as service:
        assert ask(service, "/v1/nodes", "the-token-of-ada").status_code == 200
        statuses = [ask(service, f"/api/{i}", "the-token-of-bob").status_code for i in range(5)]
        assert statuses == [404, 404, 503, 503, 503]
        assert ask(service, "/v1/snapshot", "the-token-of-ada").status_code == 200


def test_tokens_that_wait_to_be_judged_do_not_keep_out_those_that_were_good(
    service: Running, fake: FakeApiServer
) -> None:
    assert ask(service, "/v1/nodes", "the-token-of-ada").status_code == 200
    fake.delay("tokenreviews", FOREVER)
    most = gate.REVIEW_THREADS + gate.REVIEWS_WAITING
    with ThreadPoolExecutor(most + 1) as pool:
        waiting = [pool.submit(ask, service, "/v1/nodes", f"token-{i}") for i in range(most + 1)]
        # One more than may wait: its refusal says that all the others do.
        eventually(lambda: any(one.done() for one in waiting))
        assert ask(service, "/v1/snapshot", "the-token-of-ada").status_code == 200
        fake.allow()
        assert sorted(one.result().status_code for one in waiting) == [401] * most + [503]


def test_no_more_wait_to_be_judged_although_all_come_at_once(
    judge: Reviews, fake: FakeApiServer
) -> None:
    """All requests start in one turn of the event loop: none waits yet when the last one asks."""
    most = gate.REVIEW_THREADS + gate.REVIEWS_WAITING

    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("nobody has a good token")

    async def go() -> list[int]:
        statuses: list[int] = []

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                if message["status"] == 503:
                    fake.allow()  # this one need not wait, so the others need not either

        async def one(number: int) -> None:
            token = (b"authorization", f"Bearer token-{number}".encode())
            scope: Scope = {"type": "http", "method": "GET", "path": "/v1/nodes"}
            await door({**scope, "headers": [token], "client": ("10.0.0.1", 1)}, receive, send)

        await asyncio.gather(*(one(number) for number in range(most + 1)))
        return statuses

    fake.delay("tokenreviews", PATIENCE / 20)
    door = Gate(nothing, judge, Strangers(CollectorRegistry()), lambda scope: True)
    assert sorted(asyncio.run(go())) == [401] * most + [503]


def test_a_slow_api_server_holds_up_no_probe(service: Running, fake: FakeApiServer) -> None:
    fake.delay("tokenreviews", FOREVER)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(ask, service, "/v1/nodes", f"token-{i}") for i in range(8)]
        eventually(lambda: sum(r.path.endswith("tokenreviews") for r in fake.requests) == 4)
        assert ask(service, "/healthz").status_code == 200
        fake.allow()
        assert {one.result().status_code for one in waiting} == {401}


def test_those_who_are_refused_are_counted(service: Running, fake: FakeApiServer) -> None:
    ask(service, "/v1/nodes")
    ask(service, "/v1/nodes", "the-token-of-bob")
    fake.identities.grant("ada", "get", "/metrics")
    text = ask(service, "/metrics", "the-token-of-ada").text
    for why in ("token", "right"):
        assert f'gpu_topology_clients_refused_total{{why="{why}"}} 1.0' in text


def test_metrics_may_be_opened_and_nothing_else(judge: Reviews) -> None:
    where = Addresses(EVERYWHERE, open_metrics=True)
    with running(switched(), where=where, reviews=judge) as service:
        assert "gpu_topology_ready" in ask(service, "/metrics").text
        for path in ("/metrics/", "/metrics/x", "/v1/nodes"):
            assert ask(service, path).status_code == 401


def test_on_loopback_nobody_is_asked(judge: Reviews, fake: FakeApiServer) -> None:
    for host in ("127.0.0.1", "127.0.0.7", "localhost"):
        with running(switched(), where=Addresses(host), reviews=judge) as service:
            url = f"http://{host}:{service.ports[1]}/v1/nodes"
            assert httpx.get(url, timeout=PATIENCE, trust_env=False).status_code == 200
    assert fake.identities.reviewed == []


def test_a_cluster_file_outside_loopback_has_nobody_who_judges() -> None:
    with running(switched(), where=Addresses(EVERYWHERE)) as service:
        answer = ask(service, "/v1/nodes", "the-token-of-ada")
        assert answer.status_code == 503
        assert "there is no API server" in answer.json()["error"]
        assert service.admin.post("/v1/reports", content=b"{}").status_code == 503
        assert ask(service, "/readyz").status_code == 200


def test_it_is_loud_about_what_is_open(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    (plain,) = open_doors(Addresses(EVERYWHERE, 8888, 8889))
    assert "everybody who reaches port 8888 can have pods bound" in plain
    (unasked,) = open_doors(Addresses(EVERYWHERE, 8888, tls=files.serving))
    assert "no --client-ca" in unasked
    assert open_doors(Addresses(EVERYWHERE, tls=files.tls)) == []


def test_what_is_remembered_is_bounded_in_number_and_time() -> None:
    kept = Remembered[int](10.0, 3)
    for i in range(5):
        kept.put(i, i, float(i))
    assert [kept.get(i, 5.0) for i in range(5)] == [None, None, (2,), (3,), (4,)]
    assert kept.get(2, 11.9) == (2,)
    assert kept.get(2, 12.0) is None


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


@pytest.mark.parametrize("name", ["Host", "Origin", "Cookie", "Authorization", "Sec-Fetch-Site"])
@pytest.mark.parametrize("path", ["/map", "/map/login", "/map/what-if", "/v1/nodes", "/healthz"])
def test_no_header_is_a_fault_of_ours(
    service: Running, name: str, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for value in ODD:
        for method in ("GET", "POST"):
            host = value if name == "Host" else b"x"
            given = {"Host": host, "Origin": b"http://" + host} | {name: value}
            lines = b"".join(b"%s: %s\r\n" % (k.encode(), v) for k, v in given.items())
            head = f"{method} {path} HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n"
            answer = raw(service, head.encode() + lines + b"\r\n")
            assert b"HTTP/1.1 500" not in answer, (value, method)
    assert "Traceback" not in capfd.readouterr().err


def test_many_fields_of_a_query_are_no_fault(service: Running) -> None:
    answer = service.admin.get("/map/login?" + "a&" * 2000)
    assert answer.status_code == 200


def test_trailers_are_no_headers(service: Running) -> None:
    answer = raw(
        service,
        b"GET /v1/nodes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        b"Connection: close\r\nTrailer: Authorization\r\n\r\n"
        b"1\r\nx\r\n0\r\nAuthorization: Bearer the-token-of-ada\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 401 ")


def test_a_request_has_one_host(service: Running) -> None:
    answer = raw(service, b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"more than one Host header" in answer


def test_a_fault_of_ours_is_told_once_in_a_while(
    service: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr("scheduler_extender.web.sessions._form", fails)
    monkeypatch.setattr("scheduler_extender.wire.encode", fails)
    for _ in range(20):
        answer = service.admin.get("/map/login")
        assert answer.status_code == 500
        body: dict[str, object] = {"Pod": {}, "Nodes": None, "NodeNames": []}
        assert service.http.post("/scheduler/filter", json=body).status_code == 500
    out, err = capfd.readouterr()
    assert (out + err).count("request failed") == 2
