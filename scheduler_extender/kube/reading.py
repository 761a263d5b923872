"""Read the cluster from the API server with the caller's own rights, once or continuously.

The extender's own sinks take in the objects, so the answers are the extender's. What the caller may
not read is left out and reported.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import structlog

from scheduler_extender.kube.dra import DraNodes
from scheduler_extender.kube.sinks import (
    BUDGETS_PATH,
    NODES_PATH,
    PAGE,
    PODS_PATH,
    RECORDS_PAGE,
    RECORDS_PATH,
    BudgetSink,
    NodeSink,
    PodSink,
    RecordSink,
)
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.attributes import Amounts, requests_of
from scheduler_extender.state.pods.record import ENDED, counting_record
from scheduler_extender.wire import UNREADABLE, Event, event_decoder, pod_decoder
from topology.core.devices import NodeName
from topology.kubeapi.apiserver import ApiError, ApiFailure, ApiServer, NotFoundError, Query, path
from topology.kubeapi.reflector import Reflector, Sink, Watched, decode_list

log = structlog.get_logger(__name__)

TIMEOUT = 30.0  # seconds for one page
OTHERS_TIMEOUT = 2.0  # seconds for the pods of one node
FORBIDDEN = (401, 403)
EVENTS_PATH = "/api/v1/events"
NO_NODES = "this answer leaves out nodes without a topology record"
NO_DRA = "this answer leaves out the devices of nodes with DRA"
NOT_INSTALLED = "the cluster has no GPUTopology records: is gpu-topology installed?"


class MissingRightError(ApiFailure):
    """The caller may not list a collection without which there is no answer."""

    def __init__(self, where: str, error: ApiError) -> None:
        kind = where.rpartition("/")[2]
        super().__init__(f"you need permission to list {kind} in the whole cluster: {error}")


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster, as far as it could be read.

    ``notes`` say what the caller may not read, and what is missing because of that. ``watched`` are
    the collections that were read, each with its sink. ``installed`` says whether the API server
    knows GPUTopology records at all. ``dra_unread`` says why the objects of DRA could not be read;
    it is empty if they could. ``lost`` returns for how many seconds a followed cluster could not be
    read, 0 while it can.
    """

    cluster: Cache
    notes: list[str] = field(default_factory=list)
    watched: list[tuple[str, Sink]] = field(default_factory=list)
    installed: bool = True
    lost: Callable[[], float] = lambda: 0.0
    dra_unread: str = ""


def one_look(
    api: ApiServer, namespace: str | None, settings: Settings, clock: Callable[[], float]
) -> Seen:
    """Read nodes, pods and records once.

    If the caller may not list the pods of all namespaces, only the pods of ``namespace`` are read.
    All other pods that a report shows then count as running. With ``namespace`` None, everything
    must be readable, and what plans of evictions need is read, too: PodDisruptionBudgets, and, when
    they are needed, the pods without GPUs of a node.

    Raises :class:`~topology.kubeapi.apiserver.ApiFailure` if not even these pods, or not the
    records, may be read; it is a :class:`MissingRightError` if everything must be readable.
    """
    notes: list[str] = []
    pods_path = PODS_PATH
    try:
        pods, version = listed(api, pods_path, PAGE)
    except ApiError as error:
        if error.status not in FORBIDDEN:
            raise
        if namespace is None:
            raise MissingRightError(PODS_PATH, error) from error
        pods_path = path("/api/v1/namespaces", namespace, "pods")
        pods, version = listed(api, pods_path, PAGE)
        notes.append(
            f"you may list pods only in the namespace {namespace}: unacknowledged pods of other "
            "namespaces are not counted"
        )
    cluster = Cache(clock, replace(settings, all_pods_known=pods_path == PODS_PATH))
    cluster.today = api.today  # use the API server's clock, not ours
    watched: list[tuple[str, Sink]] = []
    installed = True

    def take(where: str, sink: Sink, lost: str = "") -> bool:
        """Read a collection, if allowed.

        Otherwise note ``lost``, the knowledge that is missing, and return False.
        """
        try:
            sink.replace(*listed(api, where, page_of(where)))
        except ApiError as error:
            if error.status in FORBIDDEN and namespace is None:
                raise MissingRightError(where, error) from error
            if error.status not in FORBIDDEN or not lost:
                raise
            notes.append(f"{_no_right_to_list(where)}: {lost}")
            return False
        watched.append((where, sink))
        return True

    take(NODES_PATH, NodeSink(cluster), NO_NODES)
    pod_sink = PodSink(cluster)
    pod_sink.replace(pods, version)
    watched.append((pods_path, pod_sink))
    dra = DraNodes(cluster)
    try:
        take(RECORDS_PATH, RecordSink(cluster, feed=dra))
    except NotFoundError:
        installed = False
        notes.append(NOT_INSTALLED)
    # Classes come last. Without them no node serves any claim; and if claims or taints are unknown,
    # it is unknown which devices are free.
    dra_unread = ""
    for where, sink in reversed(dra.sinks.items()) if dra.has_nodes else ():
        with suppress(NotFoundError):  # a cluster older than DRA
            if not take(where, sink, NO_DRA):
                dra_unread = _no_right_to_list(where)
                break
    if namespace is None:
        take(BUDGETS_PATH, BudgetSink(cluster))
        cluster.others = partial(other_pods, api, settings.managed)
    return Seen(cluster, notes, watched, installed, dra_unread=dra_unread)


def _no_right_to_list(where: str) -> str:
    return f"you may not list {where.rpartition('/')[2]}"


def page_of(where: str) -> int:
    """Return how many objects one page of a collection has."""
    return RECORDS_PAGE if where == RECORDS_PATH else PAGE


def listed(
    api: ApiServer, where: str, page: int, query: Query = ()
) -> tuple[list[msgspec.Raw], str]:
    """Return the objects of a collection that ``query`` selects, and the list's resourceVersion.

    The objects are read page by page.
    """
    objects: list[msgspec.Raw] = []
    asked = [*query, ("limit", str(page))]
    following: list[tuple[str, str]] = []
    while True:
        part = decode_list(api.get(where, asked + following, timeout=TIMEOUT))
        objects += part.items or []
        if not part.metadata.continue_:
            return objects, part.metadata.resource_version
        following = [("continue", part.metadata.continue_)]


@contextmanager
def live_look(
    api: ApiServer, namespace: str, settings: Settings, clock: Callable[[], float]
) -> Iterator[Seen]:
    """Yield what :func:`.one_look` returns, kept equal to the API server inside the block.

    Other threads change the cluster, and its ``version`` with it. Raises what ``one_look`` raises.
    Later failures are retried until the block ends. At its end the API server's connections are
    closed.
    """
    seen = one_look(api, namespace, settings, clock)
    reflectors = [
        Reflector(api, Watched(where, page_limit=page_of(where)), sink)
        for where, sink in seen.watched
    ]
    for reflector in reflectors:
        reflector.start()
    try:
        yield replace(seen, lost=lambda: _lost(reflectors, time.monotonic()))
    finally:
        api.close()  # first, to cut off requests that wait for an answer
        for reflector in reflectors:
            reflector.stop()


def _lost(reflectors: Sequence[Reflector], now: float) -> float:
    """Return for how many seconds the longest-failing reflector has failed; 0 if none fails.

    A reflector with an open watch does not fail, even if no event arrives for a minute.
    """
    states = [reflector.state for reflector in reflectors]
    since = [s.failing_since for s in states if not s.streaming and s.failing_since is not None]
    return max(0.0, now - min(since)) if since else 0.0


def unbound_pods(api: ApiServer, namespace: str | None) -> list[msgspec.Raw]:
    """Return the pods that are on no node yet, whether they ask for GPUs or not.

    They are those of one namespace, or of all if it is None. Raises
    :class:`~topology.kubeapi.apiserver.ApiFailure`.
    """
    where = PODS_PATH if namespace is None else path("/api/v1/namespaces", namespace, "pods")
    return listed(api, where, PAGE, [("fieldSelector", "spec.nodeName=")])[0]


def warnings_about_pods(api: ApiServer) -> tuple[tuple[Event, ...], str]:
    """Return the Events, and a note if the caller may not read them."""
    try:
        found, _ = listed(
            api, EVENTS_PATH, PAGE, [("fieldSelector", "type=Warning,involvedObject.kind=Pod")]
        )
    except ApiError as error:
        if error.status not in FORBIDDEN:
            raise
        return (), f"{error}: some refused pods may be missing"
    return tuple(map(event_decoder.decode, found)), ""


def other_pods(api: ApiServer, managed: tuple[str, ...], name: NodeName) -> Amounts | None:
    """Return the resources requested on a node by pods without ``managed`` resources.

    See :data:`.attributes.Others`. Return None if the API server does not answer. Most pods of a
    cluster ask for no GPUs, and the extender keeps no record of them.
    """
    # Version 0 is answered from the API server's cache. Before Kubernetes 1.31 a newer list would
    # read all pods of the cluster from etcd.
    query = (("fieldSelector", f"spec.nodeName={name}"), ("resourceVersion", "0"))
    amounts: Counter[str] = Counter()
    try:
        page = decode_list(api.get(PODS_PATH, query, timeout=OTHERS_TIMEOUT))
        for pod in map(pod_decoder.decode, page.items or ()):
            if pod.status.phase not in ENDED and counting_record(pod, managed) is None:
                amounts.update(dict(requests_of(pod, managed)))
                amounts["pods"] += 1000
    except (ApiFailure, *UNREADABLE) as error:
        log.warning("the pods of a node cannot be listed", node=name, problem=str(error))
        return None
    return tuple(sorted(amounts.items()))
