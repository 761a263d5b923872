"""TLS on both ports: who is let in, and certificates that change while we run."""

import hashlib
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization as form

from scheduler_extender.http import certificates
from scheduler_extender.http.certificates import Certificates, CertificatesError, Tls, contexts
from scheduler_extender.http.servers import Addresses
from tests.nodes import switched
from tests.scheduler_extender.serving import UNHURRIED, Running, running
from tests.scheduler_extender.tlsfiles import SCHEDULER, TlsFiles, trusting
from tests.waiting import PATIENCE, eventually, everything

CA = trustme.CA()
OTHER = trustme.CA()
NODE = switched(4, "node")


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    found = TlsFiles(tmp_path)
    found.write(CA)
    return found


@pytest.fixture
def service(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(certificates, "LOOK_EVERY", 0.02)
    with running(NODE, where=Addresses(tls=files.tls)) as found:
        yield found


def ask(service: Running, context: ssl.SSLContext) -> int:
    """The status of a request on a connection of its own."""
    url = f"https://127.0.0.1:{service.ports[0]}/healthz"
    return httpx.get(url, verify=context, timeout=PATIENCE, trust_env=False).status_code


def answers(service: Running, context: ssl.SSLContext) -> bool:
    """Whether the scheduler's port takes such a client."""
    try:
        return ask(service, context) == 200
    except httpx.TransportError:
        return False


def scheduler(server: trustme.CA = CA, signer: trustme.CA = CA) -> ssl.SSLContext:
    return trusting(server, SCHEDULER, signer)


def shown(service: Running, metric: str) -> float:
    text = service.metrics.get("/metrics").text
    (line,) = (line for line in text.splitlines() if line.startswith(f"gpu_topology_{metric} "))
    return float(line.rsplit(" ", 1)[1])


@pytest.mark.parametrize("path", ["/healthz", "/scheduler/filter", "/nothing"])
def test_a_certificate_of_another_name_gets_403(service: Running, path: str) -> None:
    url = f"https://127.0.0.1:{service.ports[0]}{path}"
    foreign = trusting(CA, "somebody.example", CA)
    with httpx.Client(verify=foreign, timeout=PATIENCE, trust_env=False) as client:
        answer = client.post(url, content=b"{}")
        assert answer.status_code == 403
        assert answer.headers["connection"] == "close"
        assert "somebody.example" in answer.json()["error"]


@pytest.mark.parametrize(
    ("name", "signer"),
    [
        pytest.param(SCHEDULER, OTHER, id="another CA"),
        pytest.param(None, CA, id="no certificate"),
    ],
)
def test_without_a_certificate_of_the_ca_there_is_no_connection(
    service: Running, name: str | None, signer: trustme.CA
) -> None:
    with pytest.raises(httpx.TransportError):
        ask(service, trusting(CA, name, signer))
    assert ask(service, scheduler()) == 200


def test_the_other_ports_speak_no_tls(service: Running) -> None:
    assert service.admin.get("/v1/nodes").status_code == 200
    assert service.metrics.get("/readyz").status_code == 200


def test_tls_older_than_1_2_is_not_spoken(service: Running) -> None:
    old = scheduler()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(httpx.TransportError):
        ask(service, old)
    assert ask(service, scheduler()) == 200


def test_plain_http_is_not_answered(service: Running) -> None:
    with socket.create_connection(("127.0.0.1", service.ports[0]), timeout=PATIENCE) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in everything(client)
    assert ask(service, scheduler()) == 200


# Certificates that change.


def test_a_changed_certificate_is_served_to_new_connections_and_old_ones_go_on(
    service: Running, files: TlsFiles
) -> None:
    with httpx.Client(verify=scheduler(), timeout=PATIENCE, trust_env=False) as client:
        url = f"https://127.0.0.1:{service.ports[0]}/healthz"
        assert client.get(url).status_code == 200
        files.write(OTHER, CA)
        eventually(lambda: answers(service, scheduler(OTHER, CA)))
        assert shown(service, "tls_reloads_total") >= 1
        # A new connection would fail: this client trusts the former certificate alone.
        assert client.get(url).status_code == 200


def test_a_changed_authority_ends_the_connections_of_the_former_one(
    service: Running, files: TlsFiles
) -> None:
    port = service.ports[0]
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
        scheduler().wrap_socket(plain, server_hostname="127.0.0.1") as client,
    ):
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        files.write(OTHER)
        while client.recv(65536):
            pass  # the rest of the answer, and then the end
    eventually(lambda: answers(service, scheduler(OTHER, OTHER)))
    with pytest.raises(httpx.TransportError):
        ask(service, trusting(OTHER, SCHEDULER, CA))  # a client of the CA that was taken out


def test_a_handshake_that_began_under_a_former_authority_is_given_up(
    service: Running, files: TlsFiles
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = scheduler().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", service.ports[0]), timeout=PATIENCE) as plain:
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        plain.sendall(outgoing.read())
        while True:  # up to the client's own certificate, which is not sent yet
            incoming.write(plain.recv(65536))
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
                break
        files.write(OTHER)
        eventually(lambda: answers(service, scheduler(OTHER, OTHER)))
        client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        with suppress(ConnectionResetError, BrokenPipeError):
            plain.sendall(outgoing.read())
            answer = plain.recv(65536)
        incoming.write(answer)
        with suppress(ssl.SSLWantReadError):
            answer = client.read(65536)
        assert answer == b""


def test_files_that_change_while_they_are_read_give_the_digest_of_what_is_trusted(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = certificates._serving

    def changing(tls: Tls) -> ssl.SSLContext:
        files.write(OTHER)
        return serving(tls)

    monkeypatch.setattr(certificates, "_serving", changing)
    found = contexts(files.tls)
    trusted = OTHER.cert_pem.bytes()
    assert found.context.get_ca_certs(binary_form=True) == [
        ssl.PEM_cert_to_DER_cert(trusted.decode())
    ]
    assert found.authority == hashlib.sha256(trusted).digest()


def test_two_authorities_in_one_file_are_both_trusted(service: Running, files: TlsFiles) -> None:
    """So an authority is changed without a gap."""
    assert files.tls.client_ca is not None
    files.tls.client_ca.write_bytes(CA.cert_pem.bytes() + OTHER.cert_pem.bytes())
    eventually(lambda: answers(service, scheduler(signer=OTHER)))
    assert answers(service, scheduler(signer=CA))


def test_a_certificate_that_expires_soon_is_reported(files: TlsFiles) -> None:
    found = certificates.Certificates(files.tls)
    expires = found.contexts.expires
    assert found.expiry_warning(expires - timedelta(days=15)) is None
    assert "expires on" in (found.expiry_warning(expires - timedelta(days=13)) or "")
    assert "expired on" in (found.expiry_warning(expires) or "")


def test_a_secret_is_swapped_as_the_kubelet_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "LOOK_EVERY", 0.02)
    volume = tmp_path / "volume"
    volume.mkdir()

    def publish(stamp: str, ca: trustme.CA) -> None:
        (volume / stamp).mkdir()
        TlsFiles(volume / stamp).write(ca)
        (volume / "..data_tmp").symlink_to(stamp)
        (volume / "..data_tmp").rename(volume / "..data")

    publish("..2026_1", CA)
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (volume / name).symlink_to(f"..data/{name}")
    with running(NODE, where=Addresses(tls=TlsFiles(volume).tls)) as service:
        assert ask(service, scheduler()) == 200
        publish("..2026_2", OTHER)
        eventually(lambda: answers(service, scheduler(OTHER, OTHER)))


def _cut(files: TlsFiles) -> None:
    whole = files.tls.certificate.read_bytes()
    files.tls.certificate.write_bytes(whole[: len(whole) // 2])


def _foreign_key(files: TlsFiles) -> None:
    files.tls.key.write_bytes(OTHER.issue_cert("127.0.0.1").private_key_pem.bytes())


def _no_ca(files: TlsFiles) -> None:
    assert files.tls.client_ca is not None
    files.tls.client_ca.write_text("")


@pytest.mark.parametrize(
    ("breaks", "entry"),
    [
        pytest.param(_cut, "tls.crt", id="half a certificate"),
        pytest.param(_foreign_key, "the key does not belong to the certificate", id="another key"),
        pytest.param(_no_ca, "ca.crt", id="an empty CA"),
        pytest.param(lambda files: files.tls.key.unlink(), "tls.key", id="a file is gone"),
    ],
)
def test_unusable_files_change_nothing_and_are_logged(
    service: Running,
    files: TlsFiles,
    breaks: object,
    entry: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = files.tls.certificate.read_bytes(), files.tls.key.read_bytes()
    assert callable(breaks)
    breaks(files)
    answer = ""

    def is_logged() -> bool:
        """A look in the middle of a write tells of that first, and then of what came of it."""
        nonlocal answer
        answer += capsys.readouterr().out
        return entry in answer

    eventually(is_logged, f"it says {entry!r}", detail=lambda: answer)
    assert "changed TLS files are unusable" in answer
    eventually(lambda: shown(service, "tls_reload_failing") == 1)
    assert shown(service, "tls_reloads_failed_total") >= 1
    assert ask(service, scheduler()) == 200
    files.tls.certificate.write_bytes(before[0])
    files.tls.key.write_bytes(before[1])
    files.write(CA)
    eventually(lambda: shown(service, "tls_reload_failing") == 0)
    assert ask(service, scheduler()) == 200


def test_the_same_problem_is_logged_once(
    files: TlsFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    found = certificates.Certificates(files.tls)
    _cut(files)
    for _ in range(3):
        found.look()
    assert (found.failed, found.renewed) == (1, 0)
    assert capsys.readouterr().out.count("unusable") == 1
    files.write(CA)
    found.look()
    found.look()
    assert (found.failed, found.renewed, found.problem) == (1, 1, None)


def test_the_metric_says_when_the_certificate_expires(service: Running, files: TlsFiles) -> None:
    ours = x509.load_pem_x509_certificate(files.tls.certificate.read_bytes())
    expires = ours.not_valid_after_utc.timestamp()
    assert shown(service, "tls_expires_timestamp_seconds") == expires


def test_an_encrypted_key_is_refused_without_a_prompt(files: TlsFiles) -> None:
    key = form.load_pem_private_key(files.tls.key.read_bytes(), None)
    sealed = form.BestAvailableEncryption(b"secret")
    files.tls.key.write_bytes(
        key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, sealed)
    )
    with pytest.raises(CertificatesError, match="encrypted with a password"):
        contexts(files.tls)


def test_a_key_that_is_an_endless_file_is_refused(files: TlsFiles) -> None:
    tls = Tls(files.tls.certificate, Path("/dev/zero"))
    with pytest.raises(CertificatesError, match="this is no regular file"):
        certificates.Certificates(tls)


# Limits before and under TLS.


def quiet(service: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.ports[0]), timeout=PATIENCE)


def ends(client: socket.socket) -> bool:
    """Wait until the service closes the connection; whether it said nothing before."""
    try:
        return client.recv(4096) == b""
    except ConnectionResetError:
        return True


def test_a_client_that_begins_no_handshake_is_cut_off(files: TlsFiles) -> None:
    limits = replace(UNHURRIED, handshake_seconds=0.3)
    with (
        running(NODE, where=Addresses(tls=files.tls), limits=limits) as service,
        ExitStack() as stack,
    ):
        silent = [stack.enter_context(quiet(service)) for _ in range(5)]
        silent[0].sendall(b"\x16\x03\x01")  # the first bytes of a hello
        assert all(ends(client) for client in silent)


def test_the_handshake_that_has_taken_longest_makes_room(files: TlsFiles) -> None:
    limits = replace(UNHURRIED, handshakes=4)
    with (
        running(NODE, where=Addresses(tls=files.tls), limits=limits) as service,
        ExitStack() as stack,
    ):
        silent = [stack.enter_context(quiet(service)) for _ in range(4)]
        assert ask(service, scheduler()) == 200
        assert ends(silent[0])


@pytest.mark.parametrize(
    ("limits", "sent", "status"),
    [
        pytest.param({"header_seconds": 0.3}, b"GET /healthz HT", b"408", id="headers"),
        pytest.param(
            {"body_seconds": 0.3},
            b"POST /scheduler/filter HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
            b"408",
            id="body",
        ),
        pytest.param({"idle_seconds": 1.0}, b"", b"", id="idle"),
    ],
)
def test_the_limits_hold_under_tls(
    files: TlsFiles, limits: dict[str, float], sent: bytes, status: bytes
) -> None:
    bounds = replace(UNHURRIED, **limits)  # type: ignore[arg-type]
    with running(NODE, where=Addresses(tls=files.tls), limits=bounds) as service:
        raw = quiet(service)
        with scheduler().wrap_socket(raw, server_hostname="127.0.0.1") as client:
            client.sendall(sent)
            answer = b""
            while data := client.recv(65536):
                answer += data
            assert answer.startswith(b"HTTP/1.1 " + status if status else b"")
            assert bool(answer) == bool(status)


def test_a_client_that_does_not_read_is_cut_off_under_tls(files: TlsFiles) -> None:
    names = [f"{'n' * 200}{i}" for i in range(90_000)]
    body = json.dumps({"Pod": {}, "Nodes": None, "NodeNames": names}).encode()
    head = f"POST /scheduler/prioritize HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    limits = replace(UNHURRIED, write_seconds=0.3)
    with running(NODE, where=Addresses(tls=files.tls), limits=limits) as service:
        raw = quiet(service)
        with scheduler().wrap_socket(raw, server_hostname="127.0.0.1") as client:
            client.sendall(head.encode() + body)
            client.recv(1)
            eventually(lambda: service.service.bodies.held == 0)


def test_a_client_that_does_not_say_goodbye_holds_up_no_stop(
    files: TlsFiles, capfd: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        with running(NODE, where=Addresses(tls=files.tls)) as service:
            raw = stack.enter_context(quiet(service))
            client = scheduler().wrap_socket(raw, server_hostname="127.0.0.1")
            stack.enter_context(client)
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
        assert "graceful shutdown exceeded" not in capfd.readouterr().err


def test_many_clients_that_come_and_go_leave_the_port_open(files: TlsFiles) -> None:
    """Descriptors are used again while handshakes are cut off: each belongs to one connection."""
    limits = replace(UNHURRIED, handshakes=2)
    with running(NODE, where=Addresses(tls=files.tls), limits=limits) as service:
        for i in range(150):
            with ExitStack() as stack:
                for _ in range(4):
                    raw = stack.enter_context(quiet(service))
                    raw.sendall(b"\x16\x03\x01\x02\x00" if i % 2 else b"GET / HTTP/1.1\r\n\r\n")
        with httpx.Client(verify=scheduler(), timeout=PATIENCE, trust_env=False) as client:
            url = f"https://127.0.0.1:{service.ports[0]}/healthz"
            assert [client.get(url).status_code for _ in range(5)] == [200] * 5


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(files: TlsFiles, name: str) -> None:
    """To open a pipe waits for a writer, and no signal ended a process that waited so."""
    found = Certificates(files.tls)
    before = found.contexts
    (files.folder / name).unlink()
    os.mkfifo(files.folder / name)
    look = threading.Thread(target=found.look, daemon=True)
    look.start()
    look.join(PATIENCE)
    assert not look.is_alive()
    assert found.problem is not None
    assert found.problem.endswith(f"{name}: this is no regular file")
    assert found.contexts is before
    (files.folder / name).unlink()
    files.write(CA)
    found.look()
    assert found.problem is None
