"""The check of kube-scheduler's certificate agrees with a handshake with the extender."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from scheduler_extender.certificateauthority import Authority, Use
from scheduler_extender.http.certificates import CertificatesError, Tls, check_client
from scheduler_extender.http.servers import Addresses
from tests.nodes import switched
from tests.scheduler_extender.serving import running
from tests.waiting import PATIENCE

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
SERVER = Authority.new("of the server", NOW)
SERVES = SERVER.issue("gpu-topology", Use.SERVER, ("127.0.0.1",), NOW, 1)
ROOT_KEY, CLIENT_KEY = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
USAGES = [
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
]


def usage(name: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{each: each == name for each in USAGES})


def signed(
    name: str,
    *extensions: x509.ExtensionType,
    issuer: str = "root",
    begins: datetime = NOW - 2 * DAY,
    ends: datetime = NOW + DAY,
) -> bytes:
    """A certificate, signed with the key of the root."""
    subject, by = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer)
    )
    key = ROOT_KEY if name == "root" else CLIENT_KEY
    builder = x509.CertificateBuilder(
        by, subject, key.public_key(), x509.random_serial_number(), begins, ends
    )
    for each in extensions:
        builder = builder.add_extension(each, critical=isinstance(each, x509.UnrecognizedExtension))
    return builder.sign(ROOT_KEY, hashes.SHA256()).public_bytes(Encoding.PEM)


IS_CA = x509.BasicConstraints(ca=True, path_length=None)
ROOT = signed("root", IS_CA)
CLIENT = signed("client")
FOR_CLIENTS, FOR_SERVERS, FOR_ANY = (
    x509.ExtendedKeyUsage([use])
    for use in (
        ExtendedKeyUsageOID.CLIENT_AUTH,
        ExtendedKeyUsageOID.SERVER_AUTH,
        ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,
    )
)
UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
PURPOSE, NOT_CA = "unsuitable certificate purpose", "invalid CA certificate"
UNSIGNED = "unable to get local issuer certificate"


@pytest.mark.parametrize(
    ("authority", "client", "refusal"),
    [
        pytest.param(ROOT, CLIENT, None, id="no-usages"),
        pytest.param(SERVER.certificate + ROOT, CLIENT, None, id="one-of-two-authorities"),
        pytest.param(ROOT, signed("client", FOR_CLIENTS), None, id="for-clients"),
        pytest.param(ROOT, signed("client", FOR_SERVERS), PURPOSE, id="for-servers"),
        pytest.param(ROOT, signed("client", FOR_ANY), PURPOSE, id="for-any"),
        pytest.param(ROOT, signed("client", usage("digital_signature")), None, id="signs"),
        pytest.param(ROOT, signed("client", usage("key_agreement")), None, id="agrees"),
        pytest.param(ROOT, signed("client", usage("key_encipherment")), PURPOSE, id="enciphers"),
        pytest.param(ROOT, signed("client", usage("key_cert_sign")), PURPOSE, id="signs-others"),
        pytest.param(ROOT, signed("client", UNKNOWN), "unhandled critical", id="unknown-critical"),
        pytest.param(
            ROOT,
            signed("client", begins=NOW + DAY, ends=NOW + 2 * DAY),
            "not yet valid",
            id="early",
        ),
        pytest.param(ROOT, signed("client", ends=NOW - DAY), "has expired", id="expired"),
        pytest.param(signed("root", IS_CA, ends=NOW - DAY), CLIENT, "has expired", id="old-root"),
        pytest.param(signed("root"), CLIENT, NOT_CA, id="no-authority"),
        pytest.param(
            signed("root", IS_CA, usage("crl_sign")), CLIENT, NOT_CA, id="authority-may-not-sign"
        ),
        pytest.param(
            signed("root", IS_CA, FOR_SERVERS), CLIENT, PURPOSE, id="authority-of-servers"
        ),
        pytest.param(
            signed("root", IS_CA, issuer="other"), CLIENT, "get issuer certificate", id="no-root"
        ),
        pytest.param(SERVER.certificate, CLIENT, UNSIGNED, id="another-authority"),
    ],
)
def test_the_check_agrees_with_a_handshake(
    tmp_path: Path, authority: bytes, client: bytes, refusal: str | None
) -> None:
    key = CLIENT_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    texts = {
        "ca.crt": authority,
        "scheduler.crt": client,
        "scheduler.key": key,
        "tls.crt": SERVES.certificate,
        "tls.key": SERVES.key,
    }
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    ca, certificate, private = (tmp_path / name for name in list(texts)[:3])
    context = ssl.create_default_context(cadata=SERVER.certificate.decode())
    context.load_cert_chain(certificate, private)
    with running(
        switched(), where=Addresses(tls=Tls(tmp_path / "tls.crt", tmp_path / "tls.key", ca))
    ) as service:
        url = f"https://127.0.0.1:{service.ports[0]}/healthz"
        try:
            answered = httpx.get(url, verify=context, timeout=PATIENCE, trust_env=False).is_success
        except httpx.TransportError:
            answered = False
    assert answered == (refusal is None)
    if refusal is None:
        check_client(Tls(certificate, private, ca))
    else:
        with pytest.raises(CertificatesError, match=refusal):
            check_client(Tls(certificate, private, ca))
