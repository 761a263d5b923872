"""TLS on the scheduler-facing port: the chain alone lets nobody in."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from scheduler_extender.app import Metrics, Service, create_admin_app, create_app
from scheduler_extender.cluster import Cluster
from scheduler_extender.filecluster import FileBinder
from scheduler_extender.serving import Serving, Tls, listen

CA = trustme.CA()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    ours = CA.issue_cert("127.0.0.1")
    key, certificate, ca = tmp_path / "key", tmp_path / "cert", tmp_path / "ca"
    ours.private_key_pem.write_to_path(key)
    ours.cert_chain_pems[0].write_to_path(certificate)
    CA.cert_pem.write_to_path(ca)
    cluster = Cluster(lambda: 0.0)
    service = Service(cluster, FileBinder(cluster), lambda: None, Metrics())
    sockets = (listen("127.0.0.1", 0), listen("127.0.0.1", 0))
    tls = Tls(certificate, key, ca, frozenset({"kube-scheduler.example"}))
    serving = Serving(create_app(service), create_admin_app(service), sockets, tls)
    started = threading.Event()
    thread = threading.Thread(target=lambda: serving.run(started.set, signals=False))
    thread.start()
    assert started.wait(10)
    yield f"https://127.0.0.1:{sockets[0].getsockname()[1]}/healthz"
    serving.stop()
    thread.join(10)


def _context(name: str | None, signer: trustme.CA = CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    CA.configure_trust(context)
    if name is not None:
        signer.issue_cert(name).configure_cert(context)
    return context


def test_the_named_client_is_answered(url: str) -> None:
    with httpx.Client(verify=_context("kube-scheduler.example")) as client:
        assert client.get(url).status_code == 200


@pytest.mark.parametrize(
    ("name", "signer"),
    [
        pytest.param("somebody.example", CA, id="another name"),
        pytest.param("kube-scheduler.example", trustme.CA(), id="another CA"),
        pytest.param(None, CA, id="no certificate"),
    ],
)
def test_others_are_not(url: str, name: str | None, signer: trustme.CA) -> None:
    with (
        httpx.Client(verify=_context(name, signer)) as client,
        pytest.raises(httpx.TransportError),
    ):
        client.get(url)
