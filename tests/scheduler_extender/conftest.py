"""An extender that binds through a fake API server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler_extender.kube.binder import KubeBinder
from scheduler_extender.kube.sinks import PodSink
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import bridged, switched
from tests.scheduler_extender.serving import Clock, Running, running
from tests.waiting import FOREVER, PATIENCE
from topology.kubeapi.apiserver import ApiServer


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is given half, no bind called too late and no request given up, unless by a test.

    A test that is about one of these times sets its own.
    """
    monkeypatch.setattr("scheduler_extender.http.app.VERB_SECONDS", FOREVER)
    monkeypatch.setattr("scheduler_extender.http.app.BIND_STARTS_WITHIN", FOREVER)
    monkeypatch.setattr("scheduler_extender.serving.STARTS_WITHIN", PATIENCE)
    for module in ("binder", "events", "waker"):
        monkeypatch.setattr(f"scheduler_extender.kube.{module}.WRITE_TIMEOUT", PATIENCE)
    monkeypatch.setattr("scheduler_extender.kube.binder.READ_TIMEOUT", PATIENCE)
    monkeypatch.setattr("scheduler_extender.kube.binder.TRIES_WITHIN", PATIENCE)


class Kube:
    """An extender that binds through the fake API server."""

    def __init__(self, fake: FakeApiServer, folder: Path) -> None:
        self.fake = fake
        self.api = ApiServer.from_kubeconfig(fake.write_kubeconfig(folder / "kubeconfig"))
        self.clock = Clock()
        self.cluster = Cache(self.clock, Settings())
        self.binder = KubeBinder(self.api, self.cluster)

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        meta = manifest["metadata"]
        self.fake.put(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", manifest)
        return manifest

    def sees(self, manifest: dict[str, Any]) -> None:
        """The watch of pods brings this."""
        PodSink(self.cluster).apply(raw(manifest))

    def bindings(self) -> int:
        return sum(r.method == "POST" and r.path.endswith("/binding") for r in self.fake.requests)


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[Kube]:
    with FakeApiServer() as fake:
        found = Kube(fake, tmp_path)
        try:
            yield found
        finally:
            found.api.close()


@pytest.fixture
def bound(kube: Kube) -> Iterator[Running]:
    with running(
        switched(), bridged(), binder=kube.binder, cluster=kube.cluster, clock=kube.clock
    ) as found:
        yield found


def raw(manifest: dict[str, Any]) -> msgspec.Raw:
    """An object as a reflector hands it on."""
    return msgspec.Raw(json.dumps(manifest).encode())
