"""One control plane for all tests of this folder; each has replicas and nodes of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.chaos.network import Network
from tests.e2e.chaos.replicas import ReplicatedCluster


@pytest.fixture(scope="package")
def cluster(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicatedCluster]:
    """Two replicas of the extender as it is, and no nodes yet."""
    folder = tmp_path_factory.mktemp("replicated")
    with Network() as network, ReplicatedCluster(folder, control_plane_binaries, network) as found:
        yield found
