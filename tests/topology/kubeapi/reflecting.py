"""A reflector between a server that can be made to misbehave and a sink that remembers."""

import dataclasses
import json
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from tests.fakes.apiserver import FakeApiServer, Request, status_object
from tests.waiting import FOREVER, PATIENCE, eventually
from topology.kubeapi.apiserver import ApiServer
from topology.kubeapi.reflector import Reflector, ReflectorState, Timing, Watched

NODES = "/api/v1/nodes"
ALL_NODES = Watched(NODES)

# No request and no watch ends because the machine is slow.
PATIENT = Timing(
    list_timeout_s=FOREVER,
    connect_timeout_s=FOREVER,
    watch_timeout_s=FOREVER,
    stall_timeout_s=FOREVER,
)
# And hardly any wait between two requests.
QUICK = dataclasses.replace(PATIENT, healthy_s=0.02, backoff_initial_s=0.005, backoff_cap_s=0.02)
NEVER_HEALTHY = dataclasses.replace(PATIENT, healthy_s=FOREVER)


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    resource_version: str


class _Object(msgspec.Struct):
    metadata: _Metadata


class Picture:
    """A sink that records its calls; it raises for the objects in ``fail_on``."""

    def __init__(self) -> None:
        self.objects: dict[str, str] = {}
        self.calls: list[str] = []
        self.fail_on: set[str] = set()

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        found = dict(map(self._decode, objects))  # where the list breaks off nothing is replaced
        self.calls.append("replace")
        if "replace" in self.fail_on:
            raise ValueError("replace")
        self.objects = found

    def apply(self, obj: msgspec.Raw) -> None:
        name, version = self._decode(obj)
        self.calls.append(f"apply {name}")
        self.objects[name] = version

    def delete(self, obj: msgspec.Raw) -> None:
        name, _ = self._decode(obj)
        self.calls.append(f"delete {name}")
        del self.objects[name]

    def _decode(self, obj: msgspec.Raw) -> tuple[str, str]:
        metadata = msgspec.json.decode(obj, type=_Object).metadata
        if metadata.name in self.fail_on:
            raise ValueError(metadata.name)
        return metadata.name, metadata.resource_version


class Waits(random.Random):
    """Randomness that makes no wait and records how long each could have been."""

    def __init__(self) -> None:
        super().__init__(0)
        self.ceilings: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        if a == 0.0:
            self.ceilings.append(b)
        return a


class Halving(random.Random):
    """Randomness without any: always the middle, which of ``FOREVER`` is longer than a test."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


class Page(bytearray):
    """An answer that knows whether it is still referenced."""


class Rig:
    """A server, a client, a sink and the reflector between them."""

    def __init__(self) -> None:
        self.server = FakeApiServer()
        self.sink = Picture()
        self.api: ApiServer
        self.reflector: Reflector

    def start(
        self, timing: Timing = QUICK, watched: Watched = ALL_NODES, **options: Any
    ) -> Reflector:
        self.reflector = Reflector(self.api, watched, self.sink, timing, **options)
        self.reflector.start()
        return self.reflector

    def stop(self) -> None:
        """Stop the reflector, if one was started."""
        self.api.close()
        if hasattr(self, "reflector"):
            assert self.reflector.stop(PATIENCE)

    def synced(
        self, timing: Timing = QUICK, watched: Watched = ALL_NODES, **options: Any
    ) -> Reflector:
        """Start, and return when the first watch is open and healthy."""
        reflector = self.start(timing, watched, **options)
        eventually(lambda: reflector.state.streaming and self.server.open_streams == 1)
        time.sleep(timing.healthy_s)
        return reflector

    @property
    def state(self) -> ReflectorState:
        return self.reflector.state

    def watching(self, number: int) -> bool:
        """Whether the server has accepted the watch of that number, which is open."""
        state = self.state
        return state.streaming and state.watches == number

    @property
    def lists(self) -> list[Request]:
        return [request for request in self.server.requests if not request.watch]

    @property
    def watches(self) -> list[Request]:
        return [request for request in self.server.requests if request.watch]

    def put(self, name: str, **fields: object) -> None:
        self.server.put(NODES, node(name, **fields))

    def in_step(self) -> bool:
        return self.sink.objects == {
            item["metadata"]["name"]: item["metadata"]["resourceVersion"]
            for item in self.server.items(NODES)
        }


def node(name: str, **fields: object) -> dict[str, Any]:
    return {"metadata": {"name": name}, **fields}


@contextmanager
def following(reflector: Reflector) -> Iterator[Reflector]:
    """A reflector that runs within the block."""
    reflector.start()
    try:
        yield reflector
    finally:
        assert reflector.stop(PATIENCE)


def error_line(code: int) -> bytes:
    return json.dumps({"type": "ERROR", "object": status_object(code)}).encode()


def stalling(seconds: float) -> Timing:
    """``QUICK``, but impatient with silence."""
    return dataclasses.replace(QUICK, stall_timeout_s=seconds)


def waiting_long(healthy_s: float = 1.0) -> Timing:
    """Waits after a failure for longer than a test does, unless by chance."""
    return dataclasses.replace(
        PATIENT, healthy_s=healthy_s, backoff_initial_s=FOREVER, backoff_cap_s=FOREVER
    )


def away(rig: Rig, status: int = 503) -> None:
    """Break the watch and refuse all others until ``allow()``."""
    rig.server.refuse(status, times=None)
    rig.server.drop_streams()
    eventually(lambda: rig.server.open_streams == 0)
