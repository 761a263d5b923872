"""The adapter and the fake against each other: what goes over the wire, and what comes of it."""

import json
import logging
import random
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
import urllib3
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import Configuration
from urllib3.response import BaseHTTPResponse

from tests.fakes.apiserver import FakeApiServer
from tests.programs import free_port
from tests.waiting import FOREVER, PATIENCE, eventually
from topology.kubeapi.apiserver import (
    ApiError,
    ApiFailure,
    ApiMisconfigured,
    ApiServer,
    ApiUnreachable,
    ConflictError,
    GoneError,
    NotFoundError,
    WatchStream,
    _OpenConnections,
)

PODS = "/api/v1/namespaces/team-a/pods"
WATCH = [("watch", "true")]

EXEC_PLUGIN = """#!{python}
import json
with open({count!r}, "a+") as calls:
    calls.write("x")
    calls.seek(0)
    token = str(len(calls.read()))
status = {{"token": token, "expirationTimestamp": "2020-01-01T00:00:00Z"}}
version = "client.authentication.k8s.io/v1"
print(json.dumps({{"apiVersion": version, "kind": "ExecCredential", "status": status}}))
"""


EMPTY_STATUS = (
    """echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "x", "status": {}}'"""
)


def with_plugin(server: FakeApiServer, folder: Path, plugin: Path, **more: str) -> Path:
    """A kubeconfig whose user's credentials a command gives."""
    path = server.write_kubeconfig(folder / "config")
    config = json.loads(path.read_text())
    version = "client.authentication.k8s.io/v1"
    asked = {"apiVersion": version, "command": str(plugin), "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": {**asked, **more}}
    path.write_text(json.dumps(config))
    return path


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def pod(name: str, **metadata: object) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": []}}


def binding(name: str, node: str, uid: str, **annotations: str) -> bytes:
    metadata = {"name": name, "uid": uid, "annotations": annotations}
    return json.dumps({"metadata": metadata, "target": {"kind": "Node", "name": node}}).encode()


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with FakeApiServer() as fake:
        yield fake


@pytest.fixture
def api(server: FakeApiServer, tmp_path: Path) -> Iterator[ApiServer]:
    client = ApiServer.from_kubeconfig(server.write_kubeconfig(tmp_path / "config", token="s3cret"))
    yield client
    client.close()


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread while the block runs, and have it done at the end."""
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()


class TestRequests:
    def test_get_returns_the_object_as_bytes(self, server: FakeApiServer, api: ApiServer) -> None:
        server.put(PODS, pod("p"))
        assert json.loads(api.get(f"{PODS}/p", timeout=PATIENCE))["metadata"]["name"] == "p"

    def test_credentials_and_query_are_sent(self, server: FakeApiServer, api: ApiServer) -> None:
        api.get(PODS, [("limit", "5"), ("note", "a=b&c/d é")], timeout=PATIENCE)
        (request,) = server.requests
        assert request.authorization == "Bearer s3cret"
        assert request.user_agent == "gpu-topology"
        assert request.query == {"limit": "5", "note": "a=b&c/d é"}

    def test_create_then_patch_then_conflict(self, server: FakeApiServer, api: ApiServer) -> None:
        made = json.loads(api.create(PODS, json.dumps(pod("p")).encode(), timeout=PATIENCE))
        version = made["metadata"]["resourceVersion"]
        change = {"metadata": {"resourceVersion": version, "labels": {"a": "b"}}}
        body = json.dumps(change).encode()
        assert json.loads(api.patch(f"{PODS}/p", body, timeout=PATIENCE))["metadata"]["labels"] == {
            "a": "b"
        }
        with pytest.raises(ConflictError):
            api.patch(f"{PODS}/p", body, timeout=PATIENCE)

    def test_connections_stay_open_and_are_reused(
        self, server: FakeApiServer, api: ApiServer
    ) -> None:
        for _ in range(20):
            api.get(PODS, timeout=PATIENCE)
        assert server.connections_accepted == 1

    def test_eight_connections_stay_open(self, server: FakeApiServer, api: ApiServer) -> None:
        slow = PODS.replace("team-a", "slow")
        with ThreadPoolExecutor(8) as pool:
            for done in (0, 8, 16):
                server.delay("slow", FOREVER)
                under_way = [pool.submit(api.get, slow, timeout=PATIENCE) for _ in range(8)]
                eventually(lambda done=done: len(server.requests) == done + 8)  # type: ignore[misc]
                server.allow()
                for one in under_way:
                    one.result()
        assert server.connections_accepted == 8

    def test_an_error_answer_keeps_the_connection(
        self, server: FakeApiServer, api: ApiServer
    ) -> None:
        for _ in range(5):
            with pytest.raises(NotFoundError):
                api.get(f"{PODS}/none", timeout=PATIENCE)
            with pytest.raises(NotFoundError):
                api.stream(
                    f"{PODS}/no/such/path", WATCH, connect_timeout=PATIENCE, read_timeout=PATIENCE
                )
        assert server.connections_accepted == 1


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            pytest.param(400, ApiError, id="bad-request"),
            pytest.param(401, ApiError, id="unauthorized"),
            pytest.param(403, ApiError, id="forbidden"),
            pytest.param(404, NotFoundError, id="not-found"),
            pytest.param(409, ConflictError, id="conflict"),
            pytest.param(410, GoneError, id="gone"),
            pytest.param(429, ApiError, id="too-many"),
            pytest.param(503, ApiError, id="unavailable"),
        ],
    )
    @pytest.mark.parametrize("streamed", [False, True], ids=["get", "stream"])
    def test_status_objects_become_errors(
        self,
        server: FakeApiServer,
        api: ApiServer,
        status: int,
        kind: type[ApiError],
        streamed: bool,
    ) -> None:
        server.refuse(status)
        ask: Callable[[], object] = (
            partial(api.stream, PODS, WATCH, connect_timeout=PATIENCE, read_timeout=PATIENCE)
            if streamed
            else partial(api.get, PODS, timeout=PATIENCE)
        )
        with pytest.raises(ApiError) as caught:
            ask()
        assert type(caught.value) is kind
        assert caught.value.status == status
        assert caught.value.message == "refused by the fake"
        assert str(caught.value).startswith(f"{status} {caught.value.reason}: ")
        assert len(server.requests) == 1, "nothing is retried behind our back"

    @pytest.mark.parametrize(
        ("answer", "status", "message"),
        [
            pytest.param(b"<html>bad gateway", 502, "<html>bad gateway", id="proxy-page"),
            pytest.param(b"[1]", 500, "[1]", id="other-json"),
            pytest.param(b"\xff", 500, "�", id="not-text"),
            pytest.param(b"", 302, "GET /x: {url} answered without a message", id="redirect"),
        ],
    )
    def test_an_answer_without_a_status_object(
        self, tmp_path: Path, answer: bytes, status: int, message: str
    ) -> None:
        head = b"HTTP/1.1 %d Nope\r\nLocation: /elsewhere\r\nContent-Length: %d\r\n\r\n"
        with canned(head % (status, len(answer)), answer) as url:
            client = client_for(url)
            with pytest.raises(ApiError) as caught:
                client.get("/x", timeout=PATIENCE)
            client.close()
        assert (caught.value.status, caught.value.reason) == (status, "Nope")
        assert caught.value.message == message.format(url=url)

    def test_no_server_listens(self) -> None:
        client = client_for(f"http://127.0.0.1:{free_port()}")
        with pytest.raises(ApiUnreachable, match=r"^GET /x: http://[^ ]*: Connection refused$"):
            client.get("/x", timeout=PATIENCE)

    def test_an_answer_that_breaks_off(self) -> None:
        with canned(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", b"12345") as url:
            client = client_for(url)
            with pytest.raises(ApiUnreachable):
                client.get("/x", timeout=PATIENCE)
            client.close()

    def test_a_late_answer_is_no_answer(self, server: FakeApiServer, api: ApiServer) -> None:
        server.delay("pods", FOREVER)
        with pytest.raises(ApiUnreachable):
            api.get(PODS, timeout=0.3)
        eventually(lambda: server.requests)
        assert len(server.requests) == 1, "nothing is retried behind our back"
        server.allow()
        api.get(PODS, timeout=PATIENCE)

    def test_a_write_may_be_done_without_an_answer(
        self, server: FakeApiServer, api: ApiServer
    ) -> None:
        server.commit_then_hang("/binding$")
        uid = server.put(PODS, pod("p"))["metadata"]["uid"]
        with pytest.raises(ApiUnreachable):
            api.create(f"{PODS}/p/binding", binding("p", "n1", uid), timeout=1)
        eventually(lambda: "nodeName" in json.loads(api.get(f"{PODS}/p", timeout=PATIENCE))["spec"])

    def test_an_unknown_authority_is_unreachable(self, tmp_path: Path) -> None:
        with FakeApiServer(tls=server_tls()[0]) as fake:
            client = client_for(fake.url)
            with pytest.raises(ApiUnreachable, match=r"(?i)certificate"):
                client.get(PODS, timeout=PATIENCE)
            client.close()


class TestConfiguration:
    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(None, id="no-file"),
            pytest.param("", id="empty"),
            pytest.param("{", id="not-yaml"),
            pytest.param("[]", id="not-a-config"),
            pytest.param('{"current-context": "x", "contexts": []}', id="no-context"),
        ],
    )
    def test_a_bad_kubeconfig_is_refused_with_its_path(
        self, tmp_path: Path, content: str | None
    ) -> None:
        path = tmp_path / "config"
        if content is not None:
            path.write_text(content)
        with pytest.raises(ApiMisconfigured, match=str(path)) as caught:
            ApiServer.from_kubeconfig(path)
        assert isinstance(caught.value, ApiFailure)
        if content is None:
            assert str(caught.value) == f"kubeconfig {path}: there is no such file"
        else:
            assert caught.value.__cause__ is not None

    def test_a_folder_is_reported_to_be_one(self, tmp_path: Path) -> None:
        with pytest.raises(ApiMisconfigured, match=f"^kubeconfig {tmp_path}: Is a directory$"):
            ApiServer.from_kubeconfig(tmp_path)

    def test_the_context_can_be_chosen(self, server: FakeApiServer, tmp_path: Path) -> None:
        path = server.write_kubeconfig(tmp_path / "config", token="one")
        config = json.loads(path.read_text())
        config["users"].append({"name": "two", "user": {"token": "two"}})
        config["contexts"].append({"name": "two", "context": {"cluster": "fake", "user": "two"}})
        path.write_text(json.dumps(config))
        client = ApiServer.from_kubeconfig(path, "two")
        client.get(PODS, timeout=PATIENCE)
        client.close()
        assert server.requests[0].authorization == "Bearer two"
        with pytest.raises(
            ApiMisconfigured, match=f"^kubeconfig {path}: it has no context 'three'$"
        ):
            ApiServer.from_kubeconfig(path, "three")

    def test_an_exec_plugin_is_asked_again_when_its_token_expires(
        self, server: FakeApiServer, tmp_path: Path
    ) -> None:
        count = tmp_path / "count"
        count.touch()
        plugin = tmp_path / "plugin"
        plugin.write_text(EXEC_PLUGIN.format(python=sys.executable, count=str(count)))
        plugin.chmod(0o755)
        client = ApiServer.from_kubeconfig(with_plugin(server, tmp_path, plugin))
        for _ in range(2):
            client.get(PODS, timeout=PATIENCE)
        client.close()
        sent = [request.authorization for request in server.requests]
        assert sent == ["Bearer 2", "Bearer 3"], "once to build the client, then for each request"

    @pytest.mark.parametrize(
        ("script", "why"),
        [
            (None, "cannot be started: No such file or directory"),
            ("echo no session >&2; exit 3", "ended with exit code 3 and said: no session"),
            ("exit 1", "ended with exit code 1$"),
            ("echo nonsense", "failed to decode process output"),
            ('echo "{}"', "missing key 'apiVersion'"),
            (EMPTY_STATUS, "missing token or clientCertificateData"),
        ],
        ids=["missing", "fails", "fails-silently", "no-json", "no-credential", "no-token"],
    )
    def test_a_plugin_without_credentials_is_named(
        self,
        server: FakeApiServer,
        tmp_path: Path,
        capfd: pytest.CaptureFixture[str],
        script: str | None,
        why: str,
    ) -> None:
        plugin = tmp_path / "plugin"
        if script is not None:
            plugin.write_text(f"#!/bin/sh\n{script}\n")
            plugin.chmod(0o755)
        path = with_plugin(server, tmp_path, plugin, installHint="ask\nyour admin")
        handlers = list(logging.getLogger().handlers)
        with pytest.raises(ApiMisconfigured, match=why) as caught:
            ApiServer.from_kubeconfig(path)
        message = f"kubeconfig {path}: the command {plugin} gives no credentials for the user fake"
        assert str(caught.value).startswith(f"{message} (to install it: ask your admin): ")
        assert capfd.readouterr() == ("", "")
        assert logging.getLogger().handlers == handlers
        assert not logging.getLogger().filters

    def test_a_plugin_that_fails_later_is_named_too(
        self, server: FakeApiServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        count = tmp_path / "count"
        count.touch()
        plugin = tmp_path / "plugin"
        plugin.write_text(EXEC_PLUGIN.format(python=sys.executable, count=str(count)))
        plugin.chmod(0o755)
        client = ApiServer.from_kubeconfig(with_plugin(server, tmp_path, plugin))
        client.get(PODS, timeout=PATIENCE)
        plugin.unlink()
        with pytest.raises(ApiMisconfigured, match=f"the command {plugin} gives no credentials"):
            client.get(PODS, timeout=PATIENCE)
        client.close()
        assert capfd.readouterr() == ("", "")

    def test_a_service_account_token_is_renewed_and_its_loss_is_ours(
        self, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        from kubernetes.config import incluster_config as incluster

        token, authority = tmp_path / "token", tmp_path / "ca.crt"
        token.write_text("one\n")
        authority.write_text("unused")
        monkeypatch.setattr(incluster, "SERVICE_TOKEN_FILENAME", str(token))
        monkeypatch.setattr(incluster, "SERVICE_CERT_FILENAME", str(authority))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
        client = ApiServer.in_cluster()
        with pytest.raises(ApiUnreachable):  # everything but the server is there
            client.get("/x", timeout=PATIENCE)
        assert client.authorization() == {"authorization": "bearer one"}
        token.write_text("two")
        assert client.authorization() == {"authorization": "bearer one"}, "read once a minute"
        expire_service_account(client)
        assert client.authorization() == {"authorization": "bearer two"}
        token.unlink()
        expire_service_account(client)
        with pytest.raises(ApiMisconfigured):
            client.get("/x", timeout=PATIENCE)

    def test_outside_a_pod_there_is_no_service_account(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        with pytest.raises(
            ApiMisconfigured, match=r"^service account: there is none outside a pod"
        ):
            ApiServer.in_cluster()


class TestStreams:
    def test_lines_arrive_as_they_happen(self, server: FakeApiServer, api: ApiServer) -> None:
        stream = api.stream(PODS, WATCH, connect_timeout=PATIENCE, read_timeout=PATIENCE)
        for name in ("a", "b"):
            server.put(PODS, pod(name, annotations={"long": "x" * 200_000}))
            event = json.loads(next(stream))
            assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", name)
        server.end_streams()
        assert list(stream) == []
        stream.close()

    def test_silence_ends_in_a_failure(self, server: FakeApiServer, api: ApiServer) -> None:
        # The wait for the server's first line is bounded, too, and is not to end this test.
        stream = api.stream(PODS, WATCH, connect_timeout=PATIENCE, read_timeout=1)
        with pytest.raises(ApiUnreachable):
            next(stream)
        with pytest.raises((StopIteration, ApiUnreachable)):
            next(stream)
        stream.close()

    def test_a_broken_stream_is_not_an_ended_one(
        self, server: FakeApiServer, api: ApiServer
    ) -> None:
        stream = api.stream(PODS, WATCH, connect_timeout=PATIENCE, read_timeout=PATIENCE)
        server.drop_streams()
        with pytest.raises(ApiUnreachable):
            next(stream)
        stream.close()

    def test_close_closes_the_connection(self, server: FakeApiServer, api: ApiServer) -> None:
        stream = api.stream(PODS, WATCH, connect_timeout=PATIENCE, read_timeout=PATIENCE)
        assert server.open_streams == 1
        stream.close()
        stream.close()
        eventually(lambda: server.open_streams == 0)
        assert list(stream) == []

    @pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
    @pytest.mark.parametrize("closing", ["stream", "client"])
    def test_close_from_another_thread_ends_the_wait_at_once(
        self, secure: bool, closing: str
    ) -> None:
        tls, authority = server_tls() if secure else (None, None)
        with FakeApiServer(tls=tls) as fake:
            client = client_for(fake.url, authority)
            stream = client.stream(PODS, WATCH, connect_timeout=PATIENCE, read_timeout=FOREVER)

            def close() -> None:
                time.sleep(0.1)  # the wait has begun by then, most likely
                (stream if closing == "stream" else client).close()

            started = time.monotonic()
            with meanwhile(close):
                if closing == "stream":
                    assert list(stream) == []
                else:
                    with pytest.raises(ApiUnreachable):
                        list(stream)
            assert time.monotonic() - started < PATIENCE, "it was the read's own time limit"
            stream.close()
            client.close()

    def test_closing_the_client_ends_every_wait(
        self, server: FakeApiServer, api: ApiServer
    ) -> None:
        server.delay("pods", FOREVER)

        def close() -> None:
            eventually(lambda: server.requests)
            api.close()

        started = time.monotonic()
        with meanwhile(close), pytest.raises(ApiUnreachable):
            api.get(PODS, timeout=FOREVER)
        assert time.monotonic() - started < PATIENCE, "it was the request's own time limit"
        with pytest.raises(ApiUnreachable, match="closed"):
            api.get(PODS, timeout=PATIENCE)
        assert server.connections_accepted == 1

    def test_a_connection_that_comes_up_during_close_is_closed(self, server: FakeApiServer) -> None:
        connections = _OpenConnections()
        pool = connections.watched(urllib3.HTTPConnectionPool)
        connection = pool.ConnectionCls("127.0.0.1", int(server.url.rpartition(":")[2]))
        connections.shut()
        with pytest.raises(ConnectionAbortedError):
            connection.connect()
        assert connection.is_closed

    def test_a_dead_peer_is_probed_for(self, api: ApiServer) -> None:
        options = api._pools.connection_pool_kw["socket_options"]
        assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in options

    @given(
        lines=st.lists(st.binary(min_size=1, max_size=30).filter(lambda b: b"\n" not in b)),
        ended=st.booleans(),
        seed=st.integers(),
    )
    def test_lines_do_not_depend_on_how_bytes_arrive(
        self, lines: list[bytes], ended: bool, seed: int
    ) -> None:
        whole = b"\n".join(lines) + (b"\n" if ended else b"")
        cut = random.Random(seed)
        assert list(WatchStream(cast(BaseHTTPResponse, _Pieces(whole, cut)))) == lines


class _Pieces:
    """Just enough of a response: gives its bytes away in pieces of random size."""

    def __init__(self, data: bytes, cut: random.Random) -> None:
        self._data = data
        self._cut = cut

    def read1(self, amt: int, decode_content: bool) -> bytes:
        size = self._cut.randint(1, 7)
        piece, self._data = self._data[:size], self._data[size:]
        return piece

    def close(self) -> None:
        pass


class canned:  # noqa: N801
    """A server that gives one answer, whatever it is asked, and hangs up."""

    def __init__(self, *answer: bytes) -> None:
        self._answer = b"".join(answer)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the wait for a client that never came
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        with connection:
            connection.recv(65536)
            connection.sendall(self._answer)


def server_tls() -> tuple[ssl.SSLContext, str]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context, authority.cert_pem.bytes().decode()


def client_for(url: str, authority: str | None = None) -> ApiServer:
    configuration = Configuration(host=url, no_proxy="*")
    configuration.ca_cert_data = authority
    return ApiServer(configuration)


def expire_service_account(client: ApiServer) -> None:
    """Let the package believe that the minute is over."""
    import datetime

    hook = client._configuration.refresh_api_key_hook
    loader = next(cell.cell_contents for cell in hook.__closure__)
    loader.token_expires_at = datetime.datetime.min  # noqa: DTZ901 (naive, as the package has it)
