"""What is followed for ``--watch``, and whether it still is."""

import time
from pathlib import Path

from scheduler_extender.kube.reading import live_look
from scheduler_extender.state.answers.decision import Settings
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import switched
from tests.scheduler_extender.cli.kubecluster import Cluster
from tests.waiting import eventually
from topology.kubeapi.apiserver import ApiServer


def test_watches_that_are_open_again_follow_though_nothing_comes_by_them(tmp_path: Path) -> None:
    with FakeApiServer() as fake:
        cluster = Cluster(fake, tmp_path)
        cluster.node(switched(4))
        api = ApiServer.from_kubeconfig(cluster.kubeconfig)
        with live_look(api, "default", Settings(), time.monotonic) as seen:
            eventually(lambda: fake.open_streams == 3)
            assert seen.lost() == 0
            fake.refuse(503, None, path=".*")
            fake.drop_streams()
            eventually(lambda: seen.lost() > 0)
            fake.allow()
            eventually(lambda: fake.open_streams == 3)
            opened = watches(fake)
            eventually(lambda: seen.lost() == 0)
            assert watches(fake) == opened, "they are not those that came when these fell silent"


def watches(fake: FakeApiServer) -> int:
    """How many watches have been asked for."""
    return sum(request.watch for request in fake.requests)
