"""Pods that come and go while things break: created at a rate, with a seed, whatever the outage."""

import random
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from scheduler_extender.annotations import PLAY_SECONDS
from tests.chaos.history import Created, Recorder, Removed
from tests.e2e.chaos.kubelets import RESOURCE, WRITE_TIMEOUT
from tests.e2e.cluster import PODS
from tests.e2e.controlplane import ControlPlane
from tests.waiting import PATIENCE

LINKED = {"gpu-topology.io/link": "nvlink"}
KINDS: tuple[tuple[int, int, bool], ...] = (
    # weight, GPUs, whether all are to be joined by NVLink
    (35, 1, False),
    (10, 2, False),
    (35, 2, True),
    (8, 3, True),
    (8, 4, True),
)
REMOVED = 0.06  # the share of pods after which another pod is deleted
AGAIN = 0.3


def pod_body(
    name: str, gpus: int, seconds: float, *, linked: bool, spec: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A pod of one container that runs for so many seconds; ``spec`` is what it has besides."""
    limits = {RESOURCE: str(gpus)}
    container = {"name": "main", "image": "example/work", "resources": {"limits": limits}}
    notes = {PLAY_SECONDS: f"{seconds:.2f}", **(LINKED if linked else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": notes},
        "spec": {"containers": [container], **(spec or {})},
    }


class Submitter:
    """Creates pods and notes each in the history; one for each thread."""

    def __init__(self, plane: ControlPlane, history: Recorder) -> None:
        self._api = plane.client()
        self._api.timeout = httpx.Timeout(WRITE_TIMEOUT)
        self._history = history

    def create(
        self,
        name: str,
        gpus: int,
        seconds: float,
        *,
        linked: bool,
        spec: Mapping[str, Any] | None = None,
    ) -> str:
        """Create a pod, however often it takes, and return its UID."""
        body = pod_body(name, gpus, seconds, linked=linked, spec=spec)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                answer = self._api.post(PODS, json=body)
                if answer.status_code == 409:  # an earlier try was carried out without an answer
                    answer = self._api.get(f"{PODS}/{name}")
                if answer.is_success:
                    uid = str(answer.json()["metadata"]["uid"])
                    self._history.add(Created(self._history.now, uid, name, gpus, linked))
                    return uid
            except httpx.HTTPError:
                pass
            assert time.monotonic() < deadline, f"{name} could not be created"
            time.sleep(AGAIN)

    def remove(self, name: str) -> None:
        """Try once to delete a pod; a failure does not matter."""
        self._history.add(Removed(self._history.now, name))
        try:
            self._api.delete(f"{PODS}/{name}")
        except httpx.HTTPError:
            return

    def close(self) -> None:
        """Close its connections."""
        self._api.close()


class Workload:
    """Creates pods in a thread while the context is open, ``rate`` a second.

    Each runs for some of these ``seconds``, from and to.
    """

    def __init__(
        self,
        plane: ControlPlane,
        history: Recorder,
        seed: int,
        rate: float,
        prefix: str = "pod",
        seconds: tuple[float, float] = (0.5, 4.0),
    ) -> None:
        self._submitter = Submitter(plane, history)
        self._rng = random.Random(seed)
        self._rate = rate
        self._prefix = prefix
        self._seconds = seconds
        self.created = 0
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workload", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE)
        self._submitter.close()
        if self.error is not None and error is None:
            raise self.error

    def _run(self) -> None:
        rng = self._rng
        try:
            while not self._stopping.wait(rng.uniform(0.5, 1.5) / self._rate):
                _, gpus, linked = rng.choices(KINDS, [kind[0] for kind in KINDS])[0]
                name = f"{self._prefix}-{self.created}"
                self._submitter.create(name, gpus, rng.uniform(*self._seconds), linked=linked)
                self.created += 1
                if rng.random() < REMOVED:
                    self._submitter.remove(f"{self._prefix}-{rng.randrange(self.created)}")
        except BaseException as error:
            self.error = error
            raise
