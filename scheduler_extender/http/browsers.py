"""Web pages do not speak for whoever looks at them.

Who connects on a loopback address is on this machine, and is asked for no token. But a browser on
this machine connects there for any page that it shows: a page may send a POST anywhere, and under
a name of its own that leads to 127.0.0.1 (DNS rebinding) it may read the answer, too. A browser
says which page asks (``Origin``), and by which name it has come (``Host``). kube-scheduler, kubectl
and Prometheus send no ``Origin``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

MAX_SHOWN = 100  # characters that we repeat of a header


def refusal(headers: Iterable[tuple[bytes, bytes]], *, local: bool) -> str | None:
    """Why a request is refused that a page of another site may have sent; None where it is not.

    The names of ``headers`` are in lower case. ``local`` says that we listen on loopback, without
    TLS: then only names of this machine lead to us, an IP address or localhost.
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
