"""Certificates in a folder, as a Secret's volume has them, and what clients show and trust."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

from scheduler_extender.http.certificates import Tls

SCHEDULER = "kube-scheduler.example"  # the client's name that the extender allows


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """``tls.crt``, ``tls.key`` and ``ca.crt`` (of clients) in a folder."""

    folder: Path

    @property
    def tls(self) -> Tls:
        """The extender's TLS settings: these files, and the scheduler's name."""
        folder = self.folder
        return Tls(
            folder / "tls.crt", folder / "tls.key", folder / "ca.crt", frozenset({SCHEDULER})
        )

    @property
    def serving(self) -> Tls:
        """The same, and no client has to show a certificate."""
        return Tls(self.folder / "tls.crt", self.folder / "tls.key")

    def write(self, server: trustme.CA, clients: trustme.CA | None = None) -> None:
        """A new certificate for 127.0.0.1, and the CA whose clients are taken."""
        ours = server.issue_cert("127.0.0.1")
        (self.folder / "tls.crt").write_bytes(ours.cert_chain_pems[0].bytes())
        (self.folder / "tls.key").write_bytes(ours.private_key_pem.bytes())
        (self.folder / "ca.crt").write_bytes((clients or server).cert_pem.bytes())


def trusting(server: trustme.CA, name: str | None, signer: trustme.CA) -> ssl.SSLContext:
    """A client that trusts ``server`` and shows a certificate of ``name``, if it has one."""
    context = ssl.create_default_context()
    server.configure_trust(context)
    if name is not None:
        signer.issue_cert(name).configure_cert(context)
    return context
