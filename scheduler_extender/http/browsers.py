"""Refuses requests that a web page of another site sends through somebody's browser.

Whoever connects on a loopback address is on this machine and needs no token. But a browser on this
machine connects there for any page that it shows: a page may send a POST anywhere, and with a host
name of its own that leads to 127.0.0.1 (DNS rebinding) it may read the answer, too. A browser says
which page asks (``Origin``), and which host name it has used (``Host``). kube-scheduler, kubectl
and Prometheus send no ``Origin``."""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from topology.core.remembering import remembered

MAX_SHOWN = 100  # characters that we repeat of a header


def refusal(headers: Iterable[tuple[bytes, bytes]], *, local: bool) -> str | None:
    """Why a request is refused that a page of another site may have sent; None if it is not.

    The names of ``headers`` are in lower case. ``local`` says that we listen on loopback without
    TLS: then ``Host`` must be an IP address or localhost.
    """
    hosts = [value for name, value in headers if name == b"host"]
    for name, value in headers:
        if name == b"origin" and value.partition(b"://")[2] not in hosts:
            return f"Origin: a page of {_shown(value)} may not ask here"
    if local:
        for host in hosts:
            if not _is_local(host.decode("latin-1")):
                return f"Host: {_shown(host)} is neither localhost nor an IP address"
    return None


@remembered
def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost" or name.endswith(".localhost"):
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _shown(value: bytes) -> str:
    return value[:MAX_SHOWN].decode("latin-1")
