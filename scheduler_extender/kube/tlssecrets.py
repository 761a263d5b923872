"""Keeps a certificate authority and the certificates that it signs in Secrets of the cluster.

A certificate that another authority has signed, such as cert-manager's, is left as it is.
"""

import base64
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from cryptography.x509 import load_pem_x509_certificate

from scheduler_extender.certificateauthority import Authority, AuthorityError, Issued
from topology.kubeapi.apiserver import ApiServer, NotFoundError, path

AUTHORITY = "gpu-topology-authority"  # the Secret with the authority and its key
LABELS = {"app.kubernetes.io/name": "gpu-topology", "app.kubernetes.io/component": "extender"}
TIMEOUT = 10.0  # seconds for one request

Object = dict[str, Any]


def secret(name: str, namespace: str, held: Authority | Issued, authority: Authority) -> Object:
    """Return the Secret with a certificate and its key, and the authority's certificate."""
    content = {"ca.crt": authority.certificate, "tls.crt": held.certificate, "tls.key": held.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": LABELS},
        "type": "kubernetes.io/tls",
        "data": {name: base64.b64encode(pem).decode() for name, pem in content.items()},
    }


class TlsSecrets:
    """The Secrets of one namespace. All methods raise :class:`.ApiFailure`.

    The API server's clock counts. With a clock of ours that is fast, new certificates would not be
    valid yet for the other side.
    """

    def __init__(self, api: ApiServer, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._collection = path("/api/v1/namespaces", namespace, "secrets")

    def now(self) -> datetime:
        """Return the time by the API server's clock, in whole seconds."""
        return datetime.fromtimestamp(int(self._api.today()), UTC)

    def authority(self) -> Authority | None:
        """Return the authority, after its renewal if that is due; None if it has no Secret.

        Raises :class:`AuthorityError` if the Secret has no usable authority.
        """
        found = self._read(AUTHORITY)
        if found is None:
            return None
        now = self.now()
        try:
            held = Authority.load(_pem(found, "tls.crt"), _pem(found, "tls.key"), now)
        except AuthorityError as error:
            raise AuthorityError(f"{AUTHORITY}: {error}") from error
        if (renewed := held.renewed(now)) is None:
            return held
        self._update(found, renewed, renewed)
        return renewed

    def missing(self, names: Iterable[str], authority: Authority | None) -> list[str]:
        """Return those of the names that no Secret has.

        Raises :class:`AuthorityError` if they would not fit the others, because this authority has
        not signed those, or if one of those has no certificate.
        """
        found = {name: self._read(name) for name in names}
        for name, pem in ((n, _pem(secret, "tls.crt")) for n, secret in found.items() if secret):
            try:
                load_pem_x509_certificate(pem)
            except ValueError as error:
                raise AuthorityError(
                    f"{name} has no certificate in tls.crt: delete {name}, or complete it"
                ) from error
        missing = [name for name, secret in found.items() if secret is None]
        others = [
            name
            for name, secret in found.items()
            if secret and not (authority and authority.has_signed(_pem(secret, "tls.crt")))
        ]
        if missing and others:
            raise AuthorityError(
                f"{missing[0]} is missing, and {AUTHORITY} has not signed {others[0]}; create "
                f"{missing[0]} with the authority of {others[0]}, or delete {others[0]}"
            )
        return missing

    def create(self, name: str, held: Authority | Issued, authority: Authority) -> None:
        """Create a Secret. Raises :class:`.ConflictError` if it exists."""
        made = secret(name, self._namespace, held, authority)
        self._api.create(self._collection, msgspec.json.encode(made), timeout=TIMEOUT)

    def renew(self, name: str) -> bool:
        """Renew the certificate in this Secret if that is due, and return whether it was.

        Raises :class:`AuthorityError` and, after a write of another client,
        :class:`.ConflictError`.
        """
        found = self._read(name)
        if found is None or (authority := self.authority()) is None:
            return False
        issued = authority.reissue(_pem(found, "tls.crt"), self.now())
        if issued is not None:
            self._update(found, issued, authority)
        return issued is not None

    def _read(self, name: str) -> Object | None:
        try:
            body = self._api.get(f"{self._collection}/{name}", timeout=TIMEOUT)
        except NotFoundError:
            return None
        return msgspec.json.decode(body, type=Object)

    def _update(self, found: Object, held: Authority | Issued, authority: Authority) -> None:
        name = found["metadata"]["name"]
        data = secret(name, self._namespace, held, authority)["data"]
        body = msgspec.json.encode({**found, "data": {**(found.get("data") or {}), **data}})
        self._api.update(f"{self._collection}/{name}", body, timeout=TIMEOUT)


def _pem(found: Object, key: str) -> bytes:
    """Return a PEM text of a Secret; empty if it has none."""
    return base64.b64decode((found.get("data") or {}).get(key, ""))
