"""``gpu-topology unblock`` as people call it."""

from __future__ import annotations

from scheduler_extender.cli import main
from tests.commands import asked
from tests.e2e.cluster import RealCluster


def unblock(real: RealCluster, pod: str, *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the command for a pod."""
    done = asked(main, *words_of(real, pod, *words))
    return done.returncode, done.stdout, done.stderr


def words_of(real: RealCluster, pod: str, *words: str) -> list[str]:
    """What stands behind the program's name on the command line."""
    admin = f"https://127.0.0.1:{real.ports[1]}"
    return ["unblock", pod, "--admin", admin, "--admin-ca", str(real.tls / "ca.crt"), *words]
