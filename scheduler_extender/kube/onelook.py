"""The cluster as the API server tells it at one moment, with the caller's own rights.

The same sinks take the objects in as when they are watched, so the answers are the extender's. What
the caller may not read is left out, and said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from scheduler_extender.kube.sinks import NodeSink, PodSink, RecordSink
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cluster import Cluster
from topology.kubeapi.apiserver import ApiError, NotFoundError, Query, path

RECORDS_PATH = "/apis/gpu-topology.io/v1alpha1/gputopologies"
PODS_PATH = "/api/v1/pods"
NODES_PATH = "/api/v1/nodes"
PAGE = 500
RECORDS_PAGE = 100
TIMEOUT = 30.0  # seconds for one page
FORBIDDEN = (401, 403)
NOT_INSTALLED = "the cluster has no GPUTopology records: is gpu-topology installed?"


class Reader(Protocol):
    """What is asked of an API server here."""

    def get(self, path: str, query: Query = (), *, timeout: float) -> bytes:
        """An object or a list. Raises :class:`~topology.kubeapi.apiserver.ApiFailure`."""
        ...


class _ListMeta(msgspec.Struct, rename="camel", frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster, as far as it could be read.

    ``namespaces`` are those whose pods could be listed; None for all. ``notes`` say what the caller
    may not read, and what that leaves out. ``sees_nodes`` says whether nodes could be listed,
    ``installed`` whether the API server knows GPUTopology records at all. ``lost`` says
    for how many seconds a cluster that is followed has not been read; 0 where it is read.
    """

    cluster: Cluster
    namespaces: frozenset[str] | None = None
    notes: list[str] = field(default_factory=list)
    sees_nodes: bool = True
    installed: bool = True
    lost: Callable[[], float] = lambda: 0.0


def one_look(api: Reader, namespace: str, settings: Settings, clock: Callable[[], float]) -> Seen:
    """Read nodes, pods and records once.

    Where the pods of all namespaces may not be listed those of ``namespace`` are, and whatever else
    a report shows counts as running. Raises :class:`~topology.kubeapi.apiserver.ApiFailure` where
    not even these, or the records, may be read.
    """
    notes: list[str] = []
    try:
        pods, version = listed(api, PODS_PATH, PAGE)
        namespaces = None
    except ApiError as error:
        if error.status not in FORBIDDEN:
            raise
        pods, version = listed(api, path("/api/v1/namespaces", namespace, "pods"), PAGE)
        namespaces = frozenset({namespace})
        notes.append(
            f"you may list the pods of the namespace {namespace} only: pods of other namespaces "
            "that no report shows yet are not counted"
        )
    cluster = Cluster(clock, replace(settings, all_pods_known=namespaces is None))
    sees_nodes = installed = True
    try:
        NodeSink(cluster).replace(*listed(api, NODES_PATH, PAGE))
    except ApiError as error:
        if error.status not in FORBIDDEN:
            raise
        sees_nodes = False
        notes.append(
            "you may not list nodes: nodes without a topology record are not known to this answer"
        )
    PodSink(cluster).replace(pods, version)
    try:
        RecordSink(cluster).replace(*listed(api, RECORDS_PATH, RECORDS_PAGE))
    except NotFoundError:
        installed = False
        notes.append(NOT_INSTALLED)
    return Seen(cluster, namespaces, notes, sees_nodes, installed)


def listed(api: Reader, where: str, page: int, query: Query = ()) -> tuple[list[msgspec.Raw], str]:
    """All objects of a collection that ``query`` selects, page by page, and the list's
    resourceVersion."""
    found: list[msgspec.Raw] = []
    version = ""
    for part in _pages(api, where, page, query):
        found += part.items or []
        version = part.metadata.resource_version
    return found, version


def _pages(api: Reader, where: str, page: int, query: Query) -> Iterator[_Page]:
    following = ""
    while True:
        asked = [*query, ("limit", str(page))]
        if following:
            asked.append(("continue", following))
        part = msgspec.json.decode(api.get(where, asked, timeout=TIMEOUT), type=_Page)
        yield part
        following = part.metadata.continue_
        if not following:
            return
