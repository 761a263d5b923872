"""A cluster of the release whose scheduler places gangs, with a witness before the extender."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.building import ProgramSet
from tests.e2e.cluster import RealCluster
from tests.e2e.podgroups import Stage
from tests.e2e.recordingproxy import RecordingProxy
from tests.programs import free_port


def together(folder: Path, sets: Sequence[tuple[Path, ProgramSet]]) -> Path:
    """A folder with links to the programs of several sets; where two have one, the last counts."""
    folder.mkdir()
    for built, programs in sets:
        for name in programs.programs:
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(built / name)
    return folder


@contextmanager
def gang_cluster(
    folder: Path,
    binaries: Path,
    stage: Stage | None,
    users: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[tuple[RealCluster, RecordingProxy]]:
    """Control plane, extender and witness; ``stage`` turns gang scheduling on."""
    real = RealCluster(folder, binaries, users)
    # From 1.37 on kube-apiserver announces no address of this machine's own to others.
    real.control_plane.apiserver_flags = ["--endpoint-reconciler-type=none"]
    if stage is not None:
        real.control_plane.apiserver_flags += [stage.flag, stage.served]
        real.control_plane.scheduler_flags = [stage.flag]
    with real:
        port = free_port()
        with RecordingProxy(port, real.tls, real.ports[0]) as witness:
            real.asked_port = port
            real.restart_scheduler()
            yield real, witness
