"""The certificates of the scheduler's port, which are read again when their files change.

A Secret's volume changes while the extender runs: cert-manager or a person renews the certificate,
and the kubelet swaps a symlink. New connections get the new certificates, and open connections keep
theirs. If the new files cannot be used, the former certificates stay in use, and a log line and a
metric report it.
"""

import hashlib
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog

from topology import regularfile

log = structlog.get_logger(__name__)

# Seconds between two reads of the files. The kubelet itself takes up to a minute or two to update
# a changed Secret in a pod.
LOOK_EVERY = 5.0
WARN_BEFORE = timedelta(days=14)
MAX_FILE = 1024 * 1024  # bytes of a certificate or key


@dataclass(frozen=True, slots=True)
class Tls:
    """The settings of TLS on the scheduler's port.

    With ``client_ca`` a client must show a certificate that this CA has signed. With
    ``client_names`` the certificate's common name or one of its DNS names must also be among these
    names, because the CA may have signed other certificates.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_names: frozenset[str] = frozenset()


class CertificatesError(Exception):
    """The files cannot be used. The message names the file or the fault."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """The TLS context that new connections get.

    ``expires`` is the time at which our own certificate expires. ``authority`` is a digest of the
    client CA's file.
    """

    context: ssl.SSLContext
    expires: datetime
    authority: bytes


class Certificates:
    """The last usable content of the files of ``tls``.

    The constructor raises :class:`CertificatesError` if the files cannot be used. :meth:`look`
    reads files, so one thread at a time may call it, and never the event loop. Any thread may use
    the rest.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._seen: bytes | None = _digest(tls)
        self.contexts = contexts(tls)
        self.client_names = tls.client_names
        self.problem: str | None = None
        self.renewed = self.failed = 0

    def expiry_warning(self, now: datetime) -> str | None:
        """Return a warning if the certificate expires soon or has expired; otherwise None."""
        expires = self.contexts.expires
        if expires - now > WARN_BEFORE:
            return None
        verb = "expires" if expires > now else "expired"
        return f"the certificate of the scheduler's port {verb} on {expires:%Y-%m-%d}: renew it"

    def look(self) -> None:
        """Load the files if they have changed since the last call.

        The digest is computed before the files are loaded. If the files change in between, the next
        call finds another digest and loads them again.
        """
        try:
            seen = _digest(self._tls)
            if seen == self._seen:
                return
            renewed = contexts(self._tls)
        except CertificatesError as error:
            self._keep(str(error))
            self._seen = None  # load again next time, even if the former files come back unchanged
            return
        self._seen, self.contexts, self.problem = seen, renewed, None
        self.renewed += 1
        log.info("certificates reloaded", expires=renewed.expires.isoformat())

    def _keep(self, problem: str) -> None:
        if problem == self.problem:
            return  # already logged
        self.problem = problem
        self.failed += 1
        log.error(
            "the changed TLS files are unusable; the previous certificates stay in use",
            reason=problem,
            expires=self.contexts.expires.isoformat(),
        )


def contexts(tls: Tls) -> Contexts:
    """Load the files into a TLS context. Raises :class:`CertificatesError`."""
    context = _serving(tls)
    authority = b""
    if tls.client_ca is not None:
        # The file is read once, so the digest belongs to the CA that is trusted, even if the file
        # changes meanwhile.
        trusted = _bytes(tls.client_ca)
        try:
            context.load_verify_locations(cadata=trusted.decode(errors="replace"))
        except (OSError, ValueError) as error:
            raise CertificatesError(f"{tls.client_ca}: {_reason(error)}") from error
        context.verify_mode = ssl.CERT_REQUIRED
        authority = hashlib.sha256(trusted).digest()
    return Contexts(context, _expiry(tls.certificate), authority)


def check_client(tls: Tls) -> None:
    """Raise :class:`CertificatesError` if a server with this ``client_ca`` refuses the certificate.

    A client shows the certificate in a real handshake, which stays in memory.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The server is only there to check the client, so it shows the same certificate.
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    server = contexts(tls).context
    _load(client, tls)
    sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = client.wrap_bio(received, sent)
    checks = server.wrap_bio(sent, received, server_side=True)
    try:
        for end in (asks, checks, asks):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
        checks.do_handshake()
    except ssl.SSLError as error:
        raise CertificatesError(
            f"an extender that trusts {tls.client_ca} refuses the client {tls.certificate}: "
            f"{_reason(error)}"
        ) from error


def _serving(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Without tickets and without renegotiation, each connection shows its certificate exactly once,
    # and the current CA verifies it. A TLS 1.2 session that is resumed without a ticket began in
    # this same context, under the same CA.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    _load(context, tls)
    return context


def _load(context: ssl.SSLContext, tls: Tls) -> None:
    """Make a context show the certificate. Raises :class:`CertificatesError`."""
    try:
        with _path(tls.certificate) as certificate, _path(tls.key) as key:
            context.load_cert_chain(certificate, key, _no_password(tls.key))
    except (OSError, ValueError) as error:
        raise CertificatesError(f"{tls.certificate}, {tls.key}: {_reason(error)}") from error


def _no_password(key: Path) -> Callable[[], str]:
    def refuse() -> str:  # without this callback OpenSSL prompts on the terminal
        raise ValueError(f"{key} is encrypted with a password; an unencrypted key is needed")

    return refuse


def _expiry(path: Path) -> datetime:
    from cryptography import x509  # loads slowly, so it is loaded only with TLS

    try:
        return x509.load_pem_x509_certificate(_bytes(path)).not_valid_after_utc.astimezone(UTC)
    except ValueError as error:
        raise CertificatesError(f"{path}: {error}") from error


def _digest(tls: Tls) -> bytes:
    whole = hashlib.sha256()
    for path in filter(None, (tls.certificate, tls.key, tls.client_ca)):
        whole.update(hashlib.sha256(_bytes(path)).digest())
    return whole.digest()


def _bytes(path: Path) -> bytes:
    try:
        return regularfile.content(path, MAX_FILE)
    except OSError as error:
        raise CertificatesError(f"{path}: {error.strerror}") from error


@contextmanager
def _path(path: Path) -> Iterator[str]:
    """Open the regular file at ``path``, and yield a path by which OpenSSL can open the same file.

    OpenSSL takes only a path, and the file at ``path`` can be replaced at any time.
    """
    descriptor = regularfile.opened(path)
    try:
        yield f"/dev/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLError):
        word = (error.reason or "not PEM").replace("_", " ").lower()
        return {"key values mismatch": "the key does not belong to the certificate"}.get(word, word)
    return getattr(error, "strerror", None) or str(error)
