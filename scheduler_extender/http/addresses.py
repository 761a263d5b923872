"""Where a service listens, and with which certificates."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS on the scheduler's port. With ``client_ca`` a client must show a certificate of that CA;
    with ``client_names`` also one whose common name or DNS name is among them, since the CA may
    have signed others.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a service listens.

    ``host`` is the address of the ports for kube-scheduler and for metrics and probes. The one for
    people is on loopback; ``public_host`` is the name by which a proxy beside us serves it.
    """

    host: str = "127.0.0.1"
    port: int = 0
    admin_port: int = 0
    metrics_port: int = 0
    tls: Tls | None = None
    public_host: str = ""
