"""Refuses requests that a web page of another site sends through a user's browser.

The port for people accepts every connection on a loopback address. A browser on this machine, or
the browser of an operator who forwards the port, can connect there on behalf of any page that it
shows. A page may send a POST to any address. If the page's own host name resolves to 127.0.0.1 (DNS
rebinding), the page may also read the answer. A browser names the page that sends the request
(``Origin``; for a GET only ``Sec-Fetch-Site`` and ``Sec-Fetch-Dest``), and the host name that it
used (``Host``). kube-scheduler, kubectl and Prometheus send no ``Origin``.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from topology.core.memo import memoized

OTHER_SITES = (b"cross-site", b"same-site")
MAX_SHOWN = 100  # characters of a header that an error repeats


def refusal(
    headers: Collection[tuple[bytes, bytes]], *, local: bool, public_host: str = ""
) -> str | None:
    """Return why a request is refused that a page of another site may have sent; None if allowed.

    The names of ``headers`` are in lower case. ``local`` is true if we listen on loopback without
    TLS. Then ``Host`` must be an IP address, localhost, or ``public_host``. ``public_host`` is the
    name under which a proxy in the same pod serves our pages, over https on its usual port. Another
    site may link to one of our pages, but may neither embed a part of it nor frame it.
    """
    hosts = [value for name, value in headers if name == b"host"]
    public = [public_host.lower().encode()] if public_host else []
    others = [host for host in hosts if host.lower().removesuffix(b":443") not in public]
    origins = {scheme + host for host in others for scheme in (b"http://", b"https://")}
    origins.update(b"https://" + name for name in public)
    linked = (b"sec-fetch-dest", b"document") in headers
    for name, value in headers:
        if name == b"origin" and value not in origins:
            return f"Origin: pages of {_shown(value)} may not send requests here"
        if name == b"sec-fetch-site" and value in OTHER_SITES and not linked:
            return "Sec-Fetch-Site: pages of other sites may only link here"
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
