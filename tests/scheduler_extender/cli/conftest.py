"""An empty cluster for commands that read one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_extender.cli.kubecluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with FakeApiServer() as fake:
        yield Cluster(fake, tmp_path)
