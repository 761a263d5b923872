"""Asks the extender's admin port, as a person does: forwarded to this machine, with a token."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from scheduler_extender.cli.commandline import BadInputError

SYSTEM = "gpu-topology-system"  # the namespace of an installed extender
ADMIN = "https://localhost:8889"
FORWARD = f"kubectl -n {SYSTEM} port-forward service/gpu-topology-admin 8889"
"""What makes the admin port of an installed extender answer at :data:`ADMIN`."""
CREATE_TOKEN = f"kubectl -n {SYSTEM} create token gpu-topology-reader"
TOKEN_VARIABLE = "GPU_TOPOLOGY_TOKEN"  # noqa: S105
TIMEOUT = 10.0  # seconds


T = TypeVar("T")


class _Told(msgspec.Struct):
    error: str = ""


@dataclass(frozen=True, slots=True)
class AdminPort:
    """Where the port is, which CA its certificate is of (None: one that this machine knows), and
    the token to show, if there is one."""

    url: str
    ca: Path | None = None
    token: str | None = None

    def get(self, path: str, kind: type[T]) -> T | None:
        """What it answers, or None for 404. Raises :class:`BadInputError` for anything else."""
        return self._read(path, lambda body: msgspec.json.decode(body, type=kind))

    def text(self, path: str) -> str | None:
        """The same for an answer that is text."""
        return self._read(path, bytes.decode)

    def _read(self, path: str, read: Callable[[bytes], T]) -> T | None:
        answer = self._answer(path)
        try:
            return None if answer is None else read(answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadInputError(f"--admin: {self.url} is not the extender's admin port") from error

    def _answer(self, path: str) -> bytes | None:
        import urllib3

        self._check()
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            with urllib3.PoolManager(ca_certs=str(self.ca) if self.ca else None) as pools:
                answer = pools.request(
                    "GET", self.url + path, headers=headers, timeout=TIMEOUT, retries=False
                )
        except urllib3.exceptions.NewConnectionError as error:
            raise BadInputError(
                f"--admin: {self.url}: nobody listens there; forward the port: {FORWARD}"
            ) from error
        except urllib3.exceptions.SSLError as error:
            raise BadInputError(f"--admin: {self.url}: {self._tls_trouble(str(error))}") from error
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise BadInputError(f"--admin: {self.url}: {error}") from error
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise BadInputError(self._refusal(answer.status, answer.data))
        return answer.data

    def _check(self) -> None:
        """The URL is one, and a token is not shown to everybody on the way."""
        try:
            parts = urlsplit(self.url)
        except ValueError as error:
            raise BadInputError(f"--admin: {self.url}: a URL is needed, as {ADMIN}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadInputError(f"--admin: {self.url}: a URL is needed, as {ADMIN}")
        if self.token and not (self.token.isascii() and self.token.isprintable()):
            # Nobody repeats it: what is on a terminal or in a log is read by others.
            raise BadInputError("--token: it has characters that no token has, such as line ends")
        if self.token and parts.scheme == "http" and not _is_loopback(parts.hostname):
            raise BadInputError(
                f"--admin: {self.url}: the token would be sent for everybody to read; use https, "
                f"or forward the port: {FORWARD}"
            )
        if self.ca is not None and not self.ca.is_file():
            raise BadInputError(f"--admin-ca: {self.ca}: no such file")

    def _tls_trouble(self, error: str) -> str:
        if "CERTIFICATE_VERIFY_FAILED" in error:
            return (
                "its certificate is not of a CA that we know, or not of that name: give "
                "--admin-ca FILE, the ca.crt that gpu-topology certificates has made"
            )
        if "WRONG_VERSION_NUMBER" in error or "RECORD_LAYER" in error:
            plain = self.url.replace("https:", "http:", 1)
            return f"no TLS is spoken there: give --admin {plain} if that is meant to be so"
        return error

    def _refusal(self, status: int, body: bytes) -> str:
        try:
            told = msgspec.json.decode(body, type=_Told).error
        except msgspec.DecodeError:
            told = ""
        if status == 401:
            how = f"give --token, or set {TOKEN_VARIABLE}, to what this prints: {CREATE_TOKEN}"
            return f"--admin: {self.url}: {told or 'it asks for a token'}; {how}"
        return f"--admin: {self.url} answers {status}{': ' + told if told else ''}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
