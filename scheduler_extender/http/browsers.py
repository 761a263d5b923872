"""Refuses requests that a web page of another site sends through somebody's browser.

The people's port lets in all that connect on a loopback address. A browser on this machine, or one
of an operator who forwards the port, connects there for any page that it shows: a page may send a
POST anywhere, and with a host name of its own that leads to 127.0.0.1 (DNS rebinding) it may read
the answer, too. A browser says which page asks (``Origin``), and which host name it has used
(``Host``). kube-scheduler, kubectl and Prometheus send no ``Origin``."""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from topology.core.remembering import remembered

MAX_SHOWN = 100  # characters that we repeat of a header


def refusal(
    headers: Iterable[tuple[bytes, bytes]], *, local: bool, public_host: str = ""
) -> str | None:
    """Why a request is refused that a page of another site may have sent; None if it is not.

    The names of ``headers`` are in lower case. ``local`` says that we listen on loopback without
    TLS: then ``Host`` must be an IP address, localhost, or ``public_host``, by which a proxy that
    runs beside us serves our pages.
    """
    hosts = [value for name, value in headers if name == b"host"]
    for name, value in headers:
        page = value.partition(b"://")[2]
        if name == b"origin" and page not in hosts and not _is_public(page, public_host):
            return f"Origin: a page of {_shown(value)} may not ask here"
    if local:
        for host in hosts:
            if not _is_local(host.decode("latin-1")) and not _is_public(host, public_host):
                return f"Host: {_shown(host)} is neither localhost nor an IP address"
    return None


@remembered
def _is_local(host: str) -> bool:
    name = _name(host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_public(host: bytes, public_host: str) -> bool:
    return bool(public_host) and _name(host.decode("latin-1")) == public_host.lower()


def _name(host: str) -> str:
    """The name or address before the port, in lower case; empty where it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _shown(value: bytes) -> str:
    return value[:MAX_SHOWN].decode("latin-1")
