"""Refuses requests that a web page of another site sends through somebody's browser.

The people's port lets in all that connect on a loopback address. A browser on this machine, or one
of an operator who forwards the port, connects there for any page that it shows: a page may send a
POST anywhere, and with a host name of its own that leads to 127.0.0.1 (DNS rebinding) it may read
the answer, too. A browser says which page asks (``Origin``; of a GET only ``Sec-Fetch-Site`` and
``Sec-Fetch-Dest``), and which host name it has used (``Host``). kube-scheduler, kubectl and
Prometheus send no ``Origin``."""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from topology.core.memo import memoized

OTHER_SITES = (b"cross-site", b"same-site")
MAX_SHOWN = 100  # characters that we repeat of a header


def refusal(
    headers: Collection[tuple[bytes, bytes]], *, local: bool, public_host: str = ""
) -> str | None:
    """Why a request is refused that a page of another site may have sent; None if it is not.

    The names of ``headers`` are in lower case. ``local`` says that we listen on loopback without
    TLS: then ``Host`` must be an IP address, localhost, or ``public_host``, by which a proxy that
    runs beside us serves our pages: over https, on its usual port. Another site may link to a page,
    but neither show a part of it nor frame it.
    """
    hosts = [value for name, value in headers if name == b"host"]
    public = [public_host.lower().encode()] if public_host else []
    others = [host for host in hosts if host.lower().removesuffix(b":443") not in public]
    origins = {scheme + host for host in others for scheme in (b"http://", b"https://")}
    origins.update(b"https://" + name for name in public)
    linked = (b"sec-fetch-dest", b"document") in headers
    for name, value in headers:
        if name == b"origin" and value not in origins:
            return f"Origin: a page of {_shown(value)} may not ask here"
        if name == b"sec-fetch-site" and value in OTHER_SITES and not linked:
            return "Sec-Fetch-Site: a page of another site may only link here"
    if local:
        for host in others:
            if not _is_local(host.decode("latin-1")):
                return f"Host: {_shown(host)} is neither localhost nor an IP address"
    return None


@memoized
def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name != "localhost" and not name.endswith(".localhost"):
            ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _shown(value: bytes) -> str:
    return value[:MAX_SHOWN].decode("latin-1")
