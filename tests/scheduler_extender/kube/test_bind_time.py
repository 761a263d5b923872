"""A bind ends within kube-scheduler's httpTimeout, whatever it had to wait for before its write."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from scheduler_extender.clientlimits import BIND_STARTS_WITHIN
from scheduler_extender.kube import binder
from scheduler_extender.kube.binder import (
    READ_TIMEOUT,
    TRIES_WITHIN,
    VERSION_WITHIN,
    WRITE_TIMEOUT,
    KubeBinder,
)
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.verbs import BindError, Binding
from tests.nodes import pod
from tests.scheduler_extender.serving import Clock
from topology.core.devices import NodeName, PodUid
from topology.kubeapi.apiserver import ApiServer, ConflictError, Query

HTTP_TIMEOUT = 10.0  # seconds, as manifests/scheduler/kube-scheduler-config.yaml has it
POD = pod(2, uid="u")


class SlowWatch:
    """Shows each version of the pod only after so many seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.shown = clock, seconds, 0

    def version(self, uid: PodUid, *, other_than: str, within: float) -> str | None:
        self.clock.now += min(self.seconds, within)
        self.shown += 1
        return str(self.shown)

    @contextmanager
    def writing(self, term: int) -> Iterator[None]:
        yield


class BusyApi(ApiServer):
    """Takes as long for each request as it may, at most ``seconds``, and then says that the pod has
    changed."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.server_limits: list[str] = []

    def create(self, path: str, body: bytes, query: Query = (), *, timeout: float) -> bytes:
        self.clock.now += min(self.seconds, timeout)
        self.server_limits.append(dict(query)["timeout"])
        raise ConflictError(409, "Conflict", "the object has been modified")

    def get(self, path: str, query: Query = (), *, timeout: float) -> bytes:
        self.clock.now += min(self.seconds, timeout)
        return msgspec.json.encode(POD)

    def patch(self, path: str, body: bytes, *, timeout: float) -> bytes:
        raise AssertionError


@pytest.mark.parametrize("watch", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("api", [0.1, 0.3, 0.45, 2.0, 60.0])
def test_it_ends_in_time(watch: float, api: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    shipped = {
        "READ_TIMEOUT": READ_TIMEOUT,
        "TRIES_WITHIN": TRIES_WITHIN,
        "VERSION_WITHIN": VERSION_WITHIN,
        "WRITE_TIMEOUT": WRITE_TIMEOUT,
    }
    for name, seconds in shipped.items():  # other tests have more patience
        monkeypatch.setattr(binder, name, seconds)
    monkeypatch.setattr("scheduler_extender.kube.binder.time.monotonic", clock)
    busy, slow = BusyApi(clock, api), SlowWatch(clock, watch)
    found = KubeBinder(busy, Cache(clock), slow)
    metadata = POD["metadata"]
    binding = Binding(
        metadata["namespace"], metadata["name"], PodUid(metadata["uid"]), NodeName("n"), "{}"
    )
    with pytest.raises(BindError, match="the pod changed at each attempt to bind it"):
        found.write(binding)
    assert clock.now + BIND_STARTS_WITHIN <= HTTP_TIMEOUT, busy.server_limits
    for limit in busy.server_limits:
        assert limit.endswith("ms")
        assert 1000 <= int(limit.removesuffix("ms")) <= 3000
