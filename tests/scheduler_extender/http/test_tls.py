"""TLS on the scheduler-facing port: the chain alone lets nobody in."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from scheduler_extender.http.addresses import Addresses, Tls
from scheduler_extender.serving import in_memory, in_thread
from scheduler_extender.state.cluster import Cluster
from tests.waiting import PATIENCE

CA = trustme.CA()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    ours = CA.issue_cert("127.0.0.1")
    key, certificate, ca = tmp_path / "key", tmp_path / "cert", tmp_path / "ca"
    ours.private_key_pem.write_to_path(key)
    ours.cert_chain_pems[0].write_to_path(certificate)
    CA.cert_pem.write_to_path(ca)
    service, _ = in_memory(Cluster(lambda: 0.0))
    tls = Tls(certificate, key, ca, frozenset({"kube-scheduler.example"}))
    with in_thread(service, Addresses(tls=tls)) as serving:
        yield f"https://127.0.0.1:{serving.ports[0]}/healthz"


def _context(name: str | None, signer: trustme.CA = CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    CA.configure_trust(context)
    if name is not None:
        signer.issue_cert(name).configure_cert(context)
    return context


def test_the_named_client_is_answered(url: str) -> None:
    with httpx.Client(verify=_context("kube-scheduler.example"), timeout=PATIENCE) as client:
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
        httpx.Client(verify=_context(name, signer), timeout=PATIENCE) as client,
        pytest.raises(httpx.TransportError),
    ):
        client.get(url)
