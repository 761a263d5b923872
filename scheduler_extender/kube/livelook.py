"""The cluster as the API server goes on telling it, with the caller's own rights.

It begins as one look, which says what the caller may read; from then on what may be read is
watched, by the reflectors and sinks of the extender.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from scheduler_extender.kube.onelook import (
    NODES_PATH,
    PAGE,
    PODS_PATH,
    RECORDS_PAGE,
    RECORDS_PATH,
    Seen,
    one_look,
)
from scheduler_extender.kube.sinks import NodeSink, PodSink, RecordSink
from scheduler_extender.state.answers.decision import Settings
from topology.kubeapi.apiserver import ApiServer, path
from topology.kubeapi.reflector import Reflector, Sink


@contextmanager
def live_look(
    api: ApiServer, namespace: str, settings: Settings, clock: Callable[[], float]
) -> Iterator[Seen]:
    """What :func:`.one_look` sees, kept equal to the API server inside the block.

    The cluster changes by other threads, and its ``version`` with it. Raises what ``one_look``
    raises; later failures are retried for as long as the block lasts. The API server's connections
    are closed in the end.
    """
    seen = one_look(api, namespace, settings, clock)
    cluster = seen.cluster
    pods = PODS_PATH
    if seen.namespaces is not None:
        pods = path("/api/v1/namespaces", namespace, "pods")
    watched: list[tuple[str, Sink, int]] = [(pods, PodSink(cluster), PAGE)]
    if seen.sees_nodes:
        watched.append((NODES_PATH, NodeSink(cluster), PAGE))
    if seen.installed:
        watched.append((RECORDS_PATH, RecordSink(cluster), RECORDS_PAGE))
    reflectors = [
        Reflector(api, where, sink, name=where.rpartition("/")[2], page_limit=page)
        for where, sink, page in watched
    ]
    for reflector in reflectors:
        reflector.start()
    try:
        yield replace(seen, lost=lambda: _lost(reflectors, time.monotonic()))
    finally:
        api.close()  # first: it cuts off requests that wait for their answer
        for reflector in reflectors:
            reflector.stop()


def _lost(reflectors: Sequence[Reflector], now: float) -> float:
    """For how many seconds one of these has failed, the one that has for longest; 0 for none.

    A watch that is open is none that fails, though nothing may come by it for a minute.
    """
    states = [reflector.state for reflector in reflectors]
    since = [s.failing_since for s in states if not s.streaming and s.failing_since is not None]
    return max(0.0, now - min(since)) if since else 0.0
