"""The certificates by which kube-scheduler and the extender trust each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate, the name of its file or of its place in a Secret, and whom it certifies:
    ``extender``, ``scheduler``, or ``authority`` where it signs others."""

    where: str
    whose: str
    content: x509.Certificate

    @property
    def expires(self) -> float:
        """When it ends, in seconds since 1970."""
        return self.content.not_valid_after_utc.timestamp()

    @property
    def names(self) -> set[str]:
        """The names that it is for."""
        try:
            found = self.content.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return set()
        addresses = found.value.get_values_for_type(x509.IPAddress)
        return {*found.value.get_values_for_type(x509.DNSName), *map(str, addresses)}

    @property
    def common_name(self) -> str:
        """The subject's name, by which the extender knows kube-scheduler."""
        found = self.content.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(found[0].value) if found else ""

    def signed_by(self, authority: Certificate) -> bool:
        """Whether an authority has signed it."""
        try:
            self.content.verify_directly_issued_by(authority.content)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


def certificates_in(where: str, whose: str, pem: bytes) -> Iterator[Certificate]:
    """The certificates of a text. Raises ValueError where there is none."""
    for content in x509.load_pem_x509_certificates(pem):
        yield Certificate(where, whose, content)
