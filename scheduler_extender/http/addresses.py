"""Where a service listens, and with which certificates."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS on both ports, with one certificate.

    ``client_ca`` and ``client_names`` are about the scheduler-facing port. With ``client_ca`` a
    client must show a certificate of that CA; with ``client_names`` also one whose common name or
    DNS name is among them, since the CA may have signed others.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a service listens: one host, the port for kube-scheduler and the one for people.

    ``open_metrics`` lets everybody read /metrics, where the admin port asks for tokens.
    """

    host: str = "127.0.0.1"
    port: int = 0
    admin_port: int = 0
    tls: Tls | None = None
    open_metrics: bool = False
