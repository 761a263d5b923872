"""The cluster as the API server tells it, with the caller's own rights: at one moment, or followed
from then on.

The same sinks take the objects in as in the extender, so the answers are the extender's. What the
caller may not read is left out, and said.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import structlog

from scheduler_extender.kube.dra import DraNodes, dra_sinks
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
from scheduler_extender.wire import UNREADABLE, pod_decoder
from topology.core.devices import NodeName
from topology.kubeapi.apiserver import ApiError, ApiFailure, ApiServer, NotFoundError, Query, path
from topology.kubeapi.reflector import Reflector, Sink, Watched, decode_list

log = structlog.get_logger(__name__)

TIMEOUT = 30.0  # seconds for one page
OTHERS_TIMEOUT = 2.0  # seconds for the pods of one node
FORBIDDEN = (401, 403)
NO_NODES = "nodes without a topology record are not known to this answer"
NO_DRA = "what nodes with DRA have is not known to this answer"
NOT_INSTALLED = "the cluster has no GPUTopology records: is gpu-topology installed?"


class MissingRightError(ApiFailure):
    """The caller may not list a collection without which there is no answer."""

    def __init__(self, where: str, error: ApiError) -> None:
        kind = where.rpartition("/")[2]
        super().__init__(f"needed is the right to list {kind} of the whole cluster: {error}")


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster, as far as it could be read.

    ``namespaces`` are those whose pods could be listed; None for all. ``notes`` say what the caller
    may not read, and what that leaves out. ``watched`` are the collections that were read, each
    with what takes it in. ``installed`` says whether the API server knows GPUTopology records at
    all, ``lost`` for how many seconds a cluster that is followed has not been read; 0 where it is
    read.
    """

    cluster: Cache
    namespaces: frozenset[str] | None = None
    notes: list[str] = field(default_factory=list)
    watched: list[tuple[str, Sink]] = field(default_factory=list)
    installed: bool = True
    lost: Callable[[], float] = lambda: 0.0


def one_look(
    api: ApiServer, namespace: str | None, settings: Settings, clock: Callable[[], float]
) -> Seen:
    """Read nodes, pods and records once.

    Where the pods of all namespaces may not be listed those of ``namespace`` are, and whatever else
    a report shows counts as running; None leaves nothing out (:func:`whole_look`).

    Raises :class:`~topology.kubeapi.apiserver.ApiFailure` where
    not even these, or the records, may be read.
    """
    notes: list[str] = []
    try:
        pods, version = listed(api, PODS_PATH, PAGE)
        namespaces = None
    except ApiError as error:
        if error.status not in FORBIDDEN:
            raise
        if namespace is None:
            raise MissingRightError(PODS_PATH, error) from error
        pods, version = listed(api, path("/api/v1/namespaces", namespace, "pods"), PAGE)
        namespaces = frozenset({namespace})
        notes.append(
            f"you may list the pods of the namespace {namespace} only: pods of other namespaces "
            "that no report shows yet are not counted"
        )
    cluster = Cache(clock, replace(settings, all_pods_known=namespaces is None))
    cluster.today = api.today  # the API server's clock, not ours
    watched: list[tuple[str, Sink]] = []
    installed = True

    def take(where: str, sink: Sink, lost: str = "") -> bool:
        """Read a collection, if that is allowed; ``lost`` says what is not known otherwise."""
        try:
            sink.replace(*listed(api, where, page_of(where)))
        except ApiError as error:
            if error.status in FORBIDDEN and namespace is None:
                raise MissingRightError(where, error) from error
            if error.status not in FORBIDDEN or not lost:
                raise
            notes.append(f"you may not list {where.rpartition('/')[2]}: {lost}")
            return False
        watched.append((where, sink))
        return True

    take(NODES_PATH, NodeSink(cluster), NO_NODES)
    pods_path = PODS_PATH
    if namespaces is not None:
        pods_path = path("/api/v1/namespaces", *namespaces, "pods")
    pod_sink = PodSink(cluster)
    pod_sink.replace(pods, version)
    watched.append((pods_path, pod_sink))
    dra = DraNodes(cluster)
    try:
        take(RECORDS_PATH, RecordSink(cluster, feed=dra))
    except NotFoundError:
        installed = False
        notes.append(NOT_INSTALLED)
    # Classes come last: without them no node serves anything, and where claims or taints are not
    # known nobody can say what is free.
    for where, sink in reversed(dra_sinks(cluster, dra)) if dra.has_nodes else ():
        with suppress(NotFoundError):  # in a cluster before DRA
            if not take(where, sink, NO_DRA):
                break
    return Seen(cluster, namespaces, notes, watched, installed)


def whole_look(api: ApiServer, settings: Settings, clock: Callable[[], float]) -> Seen:
    """What :func:`one_look` sees, with PodDisruptionBudgets and, where they are asked for, the pods
    without GPUs of a node. Raises :class:`MissingRightError` where the caller may not read all."""
    seen = one_look(api, None, settings, clock)
    try:
        BudgetSink(seen.cluster).replace(*listed(api, BUDGETS_PATH, PAGE))
    except ApiError as error:
        if error.status not in FORBIDDEN:
            raise
        raise MissingRightError(BUDGETS_PATH, error) from error
    seen.cluster.others = partial(other_pods, api, seen.cluster.settings.managed)
    return seen


def page_of(where: str) -> int:
    """Objects of one page of a collection."""
    return RECORDS_PAGE if where == RECORDS_PATH else PAGE


def listed(
    api: ApiServer, where: str, page: int, query: Query = ()
) -> tuple[list[msgspec.Raw], str]:
    """All objects of a collection that ``query`` selects, page by page, and the list's
    resourceVersion."""
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
    """What :func:`.one_look` sees, kept equal to the API server inside the block.

    The cluster changes by other threads, and its ``version`` with it. Raises what ``one_look``
    raises; later failures are retried for as long as the block lasts. The API server's connections
    are closed in the end.
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


def unbound_pods(api: ApiServer, namespace: str | None) -> list[msgspec.Raw]:
    """The pods that are on no node yet, of one namespace or (None) of all, whether they ask for
    GPUs or not. Raises :class:`~topology.kubeapi.apiserver.ApiFailure`."""
    where = PODS_PATH if namespace is None else path("/api/v1/namespaces", namespace, "pods")
    return listed(api, where, PAGE, [("fieldSelector", "spec.nodeName=")])[0]


def other_pods(api: ApiServer, managed: tuple[str, ...], name: NodeName) -> Amounts | None:
    """What the pods that ask for none of the ``managed`` resources ask for on a node: see
    :data:`.attributes.Others`. None where the API server cannot tell.

    Most pods of a cluster are none of ours, and nobody keeps a picture of them.
    """
    # Version 0: whatever its cache has. A list that is newer would read all pods of the cluster
    # from etcd where the API server is older than 1.31.
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
