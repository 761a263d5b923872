"""A certificate authority of our own, small enough for two certificates.

It signs the certificate of the extender's server and the client certificate of kube-scheduler.
Neither of the two needs the authority's key. Keys are ECDSA over
P-256. Certificates follow RFC 5280 as far as OpenSSL and Go check it.
"""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NAME = "gpu-topology"  # the common name of a new authority
AUTHORITY_DAYS = 3650  # how long a new authority is valid
# The validity of a certificate begins this long before it is made, for machines whose clock is
# slow.
EARLIER = timedelta(hours=1)
MAX_COMMON_NAME = 64  # characters, by RFC 5280

# Keys that an authority may sign with. Ours are elliptic; RSA keys come from other tools.
SigningKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class AuthorityError(Exception):
    """The authority cannot be used. The message says why, without naming files."""


class Use(Enum):
    """The use of a certificate. A certificate for one use is not accepted for the other."""

    SERVER = ExtendedKeyUsageOID.SERVER_AUTH
    CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its private key, both PEM. The key is PKCS 8 and not encrypted."""

    certificate: bytes
    key: bytes
    expires: datetime


class Authority:
    """An authority that signs certificates. :meth:`new` makes one; :meth:`load` reads one back."""

    def __init__(self, certificate: x509.Certificate, key: SigningKey) -> None:
        self._certificate = certificate
        self._key = key
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)
        self.key = _pem(key)
        self.expires = certificate.not_valid_after_utc

    @classmethod
    def new(cls, name: str, now: datetime, kept: bytes | None = None) -> Self:
        """Make a self-signed authority, valid for :data:`AUTHORITY_DAYS` from ``now``.

        It has the key ``kept``, or a new key if that is None. Raises :class:`AuthorityError`.
        """
        key = ec.generate_private_key(ec.SECP256R1()) if kept is None else _loaded(kept)
        subject = _common_name(name)
        builder = (
            _dated(key.public_key(), now, now + timedelta(days=AUTHORITY_DAYS))
            .subject_name(subject)
            .issuer_name(subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes, now: datetime) -> Self:
        """Load an existing authority from two PEM texts. Raises :class:`AuthorityError`."""
        try:
            loaded = x509.load_pem_x509_certificate(certificate)
        except ValueError as error:
            raise AuthorityError("the certificate is not PEM") from error
        secret = _loaded(key)
        if secret.public_key() != loaded.public_key():
            raise AuthorityError("the key does not belong to the certificate")
        try:
            constraints = loaded.extensions.get_extension_for_class(x509.BasicConstraints).value
        except (x509.ExtensionNotFound, ValueError) as error:
            raise AuthorityError("the certificate is not that of an authority") from error
        if not constraints.ca:
            raise AuthorityError("the certificate is not that of an authority")
        if loaded.issuer != loaded.subject:  # OpenSSL trusts only roots
            raise AuthorityError("the certificate is not signed by itself: a root is needed")
        if (expires := loaded.not_valid_after_utc) <= now:
            raise AuthorityError(f"the certificate expired on {expires:%Y-%m-%d}")
        return cls(loaded, secret)

    def renewed(self, now: datetime) -> Self | None:
        """Return this authority with the same key and a new validity; None if it is not yet due.

        Clients that trust the former certificate trust what the new one signs, until the former
        expires. So an authority of another name, which others have made, is not renewed.
        """
        ours = self._certificate.subject == _common_name(NAME)
        due = ours and _due(self._certificate, now)
        return type(self).new(NAME, now, self.key) if due else None

    def has_signed(self, certificate: bytes) -> bool:
        """Check whether this authority has signed a certificate."""
        try:
            x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def reissue(self, certificate: bytes, now: datetime) -> Issued | None:
        """Issue a certificate again, with a new key and the same names, use and days.

        None if it is not yet due, or if this authority has not signed it.
        """
        try:
            old = x509.load_pem_x509_certificate(certificate)
            old.verify_directly_issued_by(self._certificate)
            found = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            (use,) = old.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            (common,) = old.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            return None
        if not _due(old, now):
            return None
        names = found.get_values_for_type(x509.DNSName)
        names += map(str, found.get_values_for_type(x509.IPAddress))
        days = (old.not_valid_after_utc - old.not_valid_before_utc).days
        return self.issue(str(common.value), Use(use), names, now, days)

    def issue(
        self, name: str, use: Use, names: Collection[str], now: datetime, days: int
    ) -> Issued:
        """Make a key and sign a certificate for it, with ``name`` as its common name.

        ``names`` are DNS names and IP addresses for the subject alternative names. The certificate
        is valid for ``days``, but no longer than the authority.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        expires = min(now + timedelta(days=days), self.expires)
        builder = (
            _dated(key.public_key(), now, expires)
            .subject_name(_common_name(name))
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use.value]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .add_extension(
                x509.SubjectAlternativeName([_general_name(n) for n in names]), critical=False
            )
        )
        signed = builder.sign(self._key, hashes.SHA256())
        pem = signed.public_bytes(serialization.Encoding.PEM)
        return Issued(pem, _pem(key), signed.not_valid_after_utc)


def _due(certificate: x509.Certificate, now: datetime) -> bool:
    """Check whether less than a third of a certificate's validity is left, or it begins later."""
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now < since or (until - now) * 3 < until - since


def _loaded(key: bytes) -> SigningKey:
    try:
        secret = serialization.load_pem_private_key(key, None)
    except TypeError as error:
        raise AuthorityError("the key is encrypted with a password") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise AuthorityError("the key is not PEM, or of an unknown kind") from error
    if not isinstance(secret, SigningKey):
        raise AuthorityError("the key is neither elliptic nor RSA")
    return secret


def _dated(
    key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: SigningKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
