"""Asks the extender's admin port, as a person does: with a token."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import msgspec
import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.forwarding import SYSTEM
from scheduler_extender.cli.kubeconfig import Access

ADMIN = "https://localhost:8889"
# What makes the admin port of an installed extender answer at :data:`ADMIN`.
FORWARD = f"kubectl -n {SYSTEM} port-forward service/gpu-topology-admin 8889"
CREATE_TOKEN = f"kubectl -n {SYSTEM} create token gpu-topology-reader"
TOKEN_VARIABLE = "GPU_TOPOLOGY_TOKEN"  # noqa: S105
TIMEOUT = 10.0  # seconds


T = TypeVar("T")


class _Told(msgspec.Struct):
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What the command shows to the extender's admin port, and by which CA it trusts the port."""

    admin_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The CA of the admin port's certificate, where it is our own."
        ),
    ] = None
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar=TOKEN_VARIABLE,
            help="Token to show to the admin port. Others on this machine can read what stands on "
            "a command line, but not the variable.",
        ),
    ] = None


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


def port_at(
    url: str, credentials: Credentials, access: Access, *, needed: bool = True
) -> AdminPort:
    """The admin port at a URL. Where no token is given it is that of the kubeconfig."""
    token = credentials.token or token_of(access.kubeconfig, access.context, needed=needed)
    return AdminPort(url.rstrip("/"), credentials.admin_ca, token)


def token_of(kubeconfig: Path | str | None, context: str | None, *, needed: bool) -> str | None:
    """The token that a kubeconfig has or gets, as from a plugin. Where it has none that is bad
    input if it is ``needed``, and else None."""
    from topology.kubeapi.apiserver import ApiFailure, ApiServer

    if kubeconfig is None:
        return None
    try:
        api = ApiServer.from_kubeconfig(kubeconfig, context)
        try:
            shown = api.authorization().values()
        finally:
            api.close()
    except ApiFailure as error:
        raise BadInputError(str(error)) from error
    tokens = [value.partition(" ")[2] for value in shown if value.lower().startswith("bearer ")]
    if not tokens and not needed:
        return None
    if not tokens:
        raise BadInputError(
            f"--kubeconfig: {kubeconfig} has no token; give --token, or set "
            f"{TOKEN_VARIABLE}, to what this prints: {CREATE_TOKEN}"
        )
    return tokens[0]
