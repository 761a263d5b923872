"""Forwards the extender's admin port with kubectl, to ask it or to open it in the browser."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import threading
import webbrowser
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer

from scheduler_extender.cli.adminport import CREATE_TOKEN, FORWARD, SYSTEM, AdminPort
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.kubeconfig import path_of
from scheduler_extender.cli.options import Access, Where
from scheduler_extender.cli.tokens import token_of

SERVICE = "service/gpu-topology-admin"
PORT = 8889
_FORWARDED = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")
TLS_TIMEOUT = 5.0  # seconds


def open_map(access: Access, system: str) -> NoReturn:
    """Open the map in the browser, and forward the port to it until Ctrl-C or until that breaks.

    Raises :class:`BadInputError` where the port cannot be forwarded.
    """
    with forwarded("--open", access, system) as (port, lines):
        url = f"{scheme_of(port)}://localhost:{port}/map"
        typer.echo(f"The map is at {url} until you press Ctrl-C.")
        typer.echo(f"It asks for a token. This prints one: {_token_command(system)}")
        if not webbrowser.open(url):
            typer.echo("No browser could be started here: open the address yourself.", err=True)
        raise BadInputError(f"kubectl port-forward has ended: {_last(lines)}")


def _token_command(system: str) -> str:
    return CREATE_TOKEN.replace(SYSTEM, system, 1)


@contextmanager
def asked_over(where: Where) -> Iterator[AdminPort]:
    """The admin port, forwarded inside the block. Raises :class:`BadInputError`."""
    found, given = path_of(where.access.kubeconfig), where.credentials
    usual = Access(kubeconfig=Path(found) if found else None, context=where.access.context)
    token = given.token or token_of(usual, needed=False)
    with forwarded("--forward", where.access, where.system) as (port, lines):
        # kubectl says a line for each connection, and waits where nobody reads them.
        threading.Thread(target=deque, args=(lines, 0), daemon=True).start()
        yield AdminPort(f"{scheme_of(port)}://localhost:{port}", given.admin_ca, token)


@contextmanager
def forwarded(flag: str, access: Access, system: str) -> Iterator[tuple[int, Iterator[str]]]:
    """The port of this machine's loopback that is forwarded, and what kubectl says from then on.

    kubectl ends with the block. Raises :class:`BadInputError`, which names the ``flag``.
    """
    program = shutil.which("kubectl")
    if program is None:
        raise BadInputError(f"{flag}: there is no kubectl; forward the port yourself: {FORWARD}")
    command = [program]
    command += [] if access.kubeconfig is None else ["--kubeconfig", str(access.kubeconfig)]
    command += [] if access.context is None else ["--context", access.context]
    command += ["--namespace", system, "port-forward", "--address=127.0.0.1", SERVICE, f":{PORT}"]
    with subprocess.Popen(  # noqa: S603 (kubectl, with the user's own words)
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        assert child.stdout is not None  # noqa: S101 (asked for)
        try:
            said: list[str] = []
            for line in child.stdout:
                found = _FORWARDED.match(line)
                if found is not None:
                    yield int(found[1]), child.stdout
                    return
                said.append(line)
            raise BadInputError(f"{flag}: the port cannot be forwarded: {_last(iter(said))}")
        finally:
            child.terminate()


def _last(lines: Iterator[str]) -> str:
    """The last line, once there are no more; they are read all the time, lest kubectl waits."""
    found = deque((line.strip() for line in lines), maxlen=1)
    return found[0] if found else "kubectl says nothing"


def scheme_of(port: int) -> str:
    """https where TLS is spoken on the port, else http.

    Nothing is sent but a greeting, so whose certificate it is does not matter here; the browser
    asks the user about it.
    """
    try:
        ssl.get_server_certificate(("127.0.0.1", port), timeout=TLS_TIMEOUT)
    except (ssl.SSLError, OSError):
        return "http"
    return "https"
