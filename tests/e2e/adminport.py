"""The admin port as people meet it in a cluster: over TLS, and asking for a token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.e2e.cluster import RealCluster
from tests.e2e.controlplane import Process
from tests.programs import free_port


@contextmanager
def outside(real: RealCluster, folder: Path, *flags: str) -> Iterator[httpx.Client]:
    """A second extender, that listens on every address as in a pod, and asks for tokens."""
    ports = (free_port(), free_port())
    command = real.extender_command(ports, "--host=0.0.0.0", *flags)
    process = Process("outside", command, folder / "outside.log")
    try:
        with real.people(ports[1]) as people:

            def ready() -> bool:
                assert process.alive(), process.text()[-3000:]
                try:
                    return people.get("/readyz").is_success
                except httpx.TransportError:
                    return False

            real.until(ready, "the second extender is ready")
            yield people
    finally:
        process.stop()


def token(real: RealCluster) -> str:
    """As docs/settings.md has it."""
    namespace = ("-n", "gpu-topology-system")
    return real.kubectl(*namespace, "create", "token", "gpu-topology-reader").strip()
