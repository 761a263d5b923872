"""The pages of the map, made in threads and kept while nothing has changed.

A page over thousands of nodes takes a part of a second. However many readers there are and however
often the cluster changes, pages of one kind are made by one thread at a time. Each page is then
kept for at least nine times as long as it took to make. So a page takes at most a tenth of a core.
The page of waiting pods evaluates nodes for :data:`WAITING_SECONDS`, and says what it leaves out.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from scheduler_extender.deadline import OutOfTimeError, within
from scheduler_extender.explain.answers import answers_to
from scheduler_extender.explain.explanation import Explanation, explanation_of, group_of
from scheduler_extender.explain.gpustates import Nodes, NodeState, Use, links_of
from scheduler_extender.explain.groupfit import room_for
from scheduler_extender.explain.idle import idle_on, idle_pods
from scheduler_extender.explain.runningpods import running_pods
from scheduler_extender.explain.waitingreasons import waiting_pods
from scheduler_extender.explain.wording import asks_text, near_names
from scheduler_extender.files import podfile
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.web.drawing import whole
from scheduler_extender.web.examples import EXAMPLES
from scheduler_extender.web.html import dashboard_at, page
from scheduler_extender.web.overview import Filters, kinds_of, ordered, overview, shown_by
from scheduler_extender.web.waiting import (
    EVERY_POD,
    SHOWN_PLACES,
    Outlook,
    outlook_of,
    waiting_queues,
)
from topology.core.devices import NodeName, PodUid
from topology.core.memo import interruptible
from topology.core.requests import GpuRequest

WAITING_SECONDS = 2.0  # seconds for which the page of waiting pods may evaluate nodes
# A page is shown for this many times as long as it took to make, even if something has changed.
RESTS = 9
KEPT_PAGES = 32
LISTED = 200  # nodes or pods on one page of a list, and pods in the table of a node
NAMESPACES = 80  # namespaces that the filter suggests
COMPARED = 2000  # names that are compared with one that is unknown
MAX_POD = 64 * 1024  # the most bytes of a text with pods that are evaluated
# The most bytes of a text that is too long to evaluate but is given back in the form.
MAX_FORM = 4 * MAX_POD
MOST_COPIES = 1000
MOST_ASKED = 8  # the most pods of one text that are evaluated
# Seconds for which one request is evaluated. What is found by then stays cached.
WHAT_IF_SECONDS = 10.0

T = TypeVar("T")
# What every page over the cluster shows: its version, the time, and the dashboard's address.
Common = dict[str, Any]
NODE_COLUMNS: dict[str, Callable[[NodeState], Any]] = {
    "name": lambda node: node.name,
    "machine": lambda node: node.kind,
    "gpus": lambda node: [node.uses[use] for use in Use],
    "pairs": lambda node: node.capacity.pairs,
    "quads": lambda node: node.capacity.quads,
    "whole": lambda node: node.capacity.nodes,
    "notes": lambda node: len(node.flags),
}
POD_COLUMNS: dict[str, Callable[[PodRecord], Any]] = {
    "name": lambda pod: pod.full_name,
    "requests": lambda pod: pod.request.count if isinstance(pod.request, GpuRequest) else 0,
    "node": lambda pod: pod.node or "",
    "since": lambda pod: pod.started or 0.0,
}

TOO_LONG = (
    f"Not all nodes could be evaluated within {WHAT_IF_SECONDS:.0f} s. Ask again: the answers so "
    "far are cached, and the next request continues from there."
)


@dataclass(slots=True)
class _Kind:
    """The kept pages of one kind.

    Each has the cluster's version, the time from which it may be made anew, and its text.
    """

    making: threading.Lock = field(default_factory=threading.Lock)
    kept: OrderedDict[Hashable, tuple[int, float, str]] = field(default_factory=OrderedDict)


class AskingError(ValueError):
    """The form's input cannot be answered. The message is one line."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What the nodes answer to a pod that does not exist yet."""

    name: str
    outlook: Outlook
    notes: Sequence[str]
    copies: int
    fit: int | None  # how many copies fit at once; None for a single copy


class Pages:
    """The pages over one cluster. For any thread."""

    def __init__(self, cluster: Cache, dashboard: str = "") -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._nodes = Nodes(cluster)
        self._dashboard = dashboard
        self._kinds = {kind: _Kind() for kind in ("map", "list", "waiting", "node", "pods", "pod")}

    def map(self, filters: Filters) -> str:
        """Return the overview of the cluster."""
        return self._page("map", filters, partial(self._map, filters))

    def nodes(self, filters: Filters, at: int = 1) -> str:
        """Return page number ``at`` of the list of nodes, :data:`LISTED` on each."""
        return self._page("list", (filters, at), partial(self._list, filters, at))

    def waiting(self, filters: Filters = EVERY_POD) -> str:
        """Return the page of waiting pods."""
        return self._page("waiting", filters, partial(self._waiting, filters))

    def pods(self, filters: Filters = EVERY_POD, at: int = 1) -> str:
        """Return page number ``at`` of the list of pods on nodes, :data:`LISTED` on each."""
        return self._page("pods", (filters, at), partial(self._pods, filters, at))

    def pod(self, full_name: str) -> str:
        """Return the page of one pod, by namespace and name; empty if the pod is unknown."""
        return self._page("pod", full_name, partial(self._pod, full_name))

    def near_nodes(self, name: str) -> list[str]:
        """Return nodes with a similar name."""
        return near_names(name, self._cluster.snapshot().by_name, COMPARED)

    def near_pods(self, full_name: str) -> list[str]:
        """Return pods with a similar namespace and name."""
        known = (pod.full_name for pod in self._cluster.snapshot().pods)
        return near_names(full_name, known, COMPARED)

    def node(self, name: str, filters: Filters = EVERY_POD) -> str | None:
        """Return the page of one node, its pods sorted; None if the node is unknown."""
        info = self._cluster.node_info(NodeName(name))
        if not info.known:
            return None
        return self._page("node", (name, filters.sort), partial(self._node, info, filters))

    def what_if(self, text: str | None = None, copies: str = "") -> str:
        """Return the page that says where the pods of a YAML text would go.

        With ``text`` None, it is an empty form. ``copies`` is the number of copies of each pod, as
        the form has it; if it is empty, the text's own numbers count.
        """
        told, problem, omitted = list[Foreseen](), "", 0
        if text is not None:
            try:
                told, omitted = self._foreseen(text, copies)
            except AskingError as error:
                problem = str(error)
            except OutOfTimeError:
                problem = TOO_LONG
        return self.what_if_form(text or "", copies, problem, told=told, omitted=omitted)

    @staticmethod
    def what_if_form(text: str, copies: str = "", problem: str = "", **values: Any) -> str:
        """Return the form as it was filled in, with a problem or with answers."""
        values = {"told": (), "omitted": 0, **values}
        return page(
            "whatif.html",
            "/map/what-if",
            text=text,
            copies=copies,
            problem=problem,
            limit=MAX_POD,
            most=MOST_COPIES,
            examples=EXAMPLES,
            **values,
        )

    def _foreseen(self, text: str, asked: str) -> tuple[list[Foreseen], int]:
        """Return what the nodes answer to each pod of a text, and how many more pods it has.

        Raises :class:`AskingError`, or :class:`.OutOfTimeError`.
        """
        said = asked.strip()
        many = int(said) if said.isascii() and said.isdigit() and len(said) < 9 else 0
        if said and not 1 <= many <= MOST_COPIES:
            raise AskingError(f"copies: allowed is 1 to {MOST_COPIES:,}, not {said[:40]!r}")
        if len(text.encode()) > MAX_POD:
            raise AskingError(f"pod: the text is larger than {MAX_POD} bytes")
        try:
            wanted = podfile.read_all(text)
        except podfile.PodFileError as error:
            raise AskingError(str(error)) from error
        snapshot, deadline = self._cluster.snapshot(), within(self._clock, WHAT_IF_SECONDS)
        found: list[Foreseen] = []
        for pod in wanted[:MOST_ASKED]:
            record, copies = pod.record(PodUid("")), many or min(pod.copies, MOST_COPIES)
            with deadline.enforced():
                told = answers_to(snapshot, record, deadline)
                interruptible()  # some nodes may be left over
                outlook = outlook_of(snapshot, record, told, pod.text)
            fit = room_for(snapshot, pod, told, copies, deadline) if copies > 1 else None
            found.append(Foreseen(pod.name, outlook, pod.notes, copies, fit))
        return found, len(wanted) - len(found)

    def _page(self, kind: str, key: Hashable, make: Callable[[Common], str]) -> str:
        """Return the kept page, or make a new one.

        The page's version is read before the cluster is. So a change in between makes the page old,
        and never too new.
        """
        pages = self._kinds[kind]
        with pages.making:
            self._cluster.expire()
            version, now = self._cluster.version, self._clock()
            kept = pages.kept.get(key)
            if kept is not None and (kept[0] == version or now < kept[1]):
                return kept[2]
            today = self._cluster.today()
            dashboard = self._dashboard and dashboard_at(self._dashboard, today)
            text = make({"version": version, "now": today, "dashboard": dashboard})
            took = self._clock() - now
            pages.kept[key] = (version, now + took + RESTS * took, text)
            pages.kept.move_to_end(key)
            while len(pages.kept) > KEPT_PAGES:
                pages.kept.popitem(last=False)
            return text

    def _map(self, filters: Filters, common: Common) -> str:
        snapshot = self._cluster.snapshot()
        found = overview(self._nodes.of_all(snapshot), filters)
        waiting = waiting_pods(snapshot)
        named = sum(filters.lets_pod(pod.full_name) for pod in waiting) if filters.names else 0
        return page(
            "map.html",
            "/map",
            **common,
            **_filtering(filters, snapshot, found.seen.nodes + named),
            overview=found,
            waiting=len(waiting),
            waiting_named=named,
            running_named=len(_running(snapshot, filters)) if filters.names else 0,
        )

    def _list(self, filters: Filters, at: int, common: Common) -> str:
        snapshot = self._cluster.snapshot()
        nodes = self._nodes.of_all(snapshot)
        seen = ordered(filters.let(nodes), NODE_COLUMNS, filters.sort)
        return page(
            "nodes.html",
            "/map/nodes",
            **common,
            **_filtering(filters, snapshot, len(seen)),
            **_part(seen, at),
            kinds=kinds_of(nodes),
        )

    def _waiting(self, filters: Filters, common: Common) -> str:
        snapshot, deadline = self._cluster.snapshot(), within(self._clock, WAITING_SECONDS)
        found, left_out = waiting_queues(snapshot, deadline, filters)
        running = len(_running(snapshot, filters)) if filters.names else 0
        return page(
            "waiting.html",
            "/map/waiting",
            **common,
            **_filtering(filters, snapshot, len(found) + running),
            queues=found,
            left_out=left_out,
            running_named=running,
        )

    def _pods(self, filters: Filters, at: int, common: Common) -> str:
        snapshot = self._cluster.snapshot()
        states, order = self._nodes.of_all(snapshot), [*Use]
        uses = {h.uid: h.use for state in states for gpu in state.gpus for h in gpu.holders}
        idle = {each.uid: each.seconds for each in idle_pods(snapshot, common["now"])}
        columns = {
            **POD_COLUMNS,
            "state": lambda pod: order.index(uses.get(pod.uid, Use.ASSUMED)),
            "idle": lambda pod: idle.get(pod.uid, 0.0),
        }
        pods = ordered(_running(snapshot, filters), columns, filters.sort or "-requests")
        part = _part(pods, at)
        shown = {pod.uid for pod in part["rows"]}
        return page(
            "pods.html",
            "/map/pods",
            **common,
            **_filtering(filters, snapshot, len(pods)),
            **part,
            running={
                pod.uid: row
                for state in states
                if not shown.isdisjoint(state.info.pods.here)
                for row, pod in running_pods(state)
                if pod is not None
            },
            idle=idle,
            dated=any(pod.started is not None for pod in pods),
        )

    def _pod(self, full_name: str, common: Common) -> str:
        snapshot, deadline = self._cluster.snapshot(), within(self._clock, WAITING_SECONDS)
        namespace, _, name = full_name.partition("/")
        pod = snapshot.pod_named(namespace, name)
        if pod is None:
            return ""
        told = explanation_of(snapshot, pod, deadline=deadline)
        rows = told.nodes if isinstance(told, Explanation) else ()
        others = [row for row in rows if row.may_come and row.node != pod.node]
        others.sort(key=lambda row: (-(row.score or 0), row.node))
        info = None if pod.node is None else snapshot.by_name.get(pod.node)
        state = None if info is None else self._nodes.of(info)
        idle = () if info is None else idle_on(info, common["now"])
        return page(
            "pod.html",
            "/map/waiting" if pod.node is None else "/map/pods",
            **common,
            pod=pod,
            told=told,
            others={"best_nodes": others[:SHOWN_PLACES], "taken_by": len(others)},
            group=None if pod.group_ref is None else group_of(snapshot, pod.group_ref),
            node=state,
            positions=[
                p
                for p, gpu in enumerate(state.gpus if state else ())
                if any(holder.uid == pod.uid for holder in gpu.holders)
            ],
            idle=[each for each in idle if each.uid == pod.uid],
        )

    def _node(self, info: NodeInfo, filters: Filters, common: Common) -> str:
        state = self._nodes.of(info)
        topology = state.topology
        mismatched = {
            holder.uid
            for gpu in state.gpus
            for holder in gpu.holders
            if holder.use is Use.MISMATCHED
        }
        idle = {each.uid: each.seconds for each in idle_on(info, common["now"])}
        columns = {
            **POD_COLUMNS,
            "state": lambda pod: _word(info, pod, mismatched),
            "promised": lambda pod: pod.promised.text,
            "idle": lambda pod: idle.get(pod.uid, 0.0),
        }
        pods = ordered(info.pods.every, columns, filters.sort)
        return page(
            "node.html",
            "/map/nodes",
            **common,
            node=state,
            graph=whole(state),
            shows=frozenset(shown_by(state)),
            shared=any(gpu.memory_used is not None for gpu in state.gpus),
            rows=list(zip(topology.gpus, state.gpus, strict=False)) if topology else [],
            links=links_of(topology) if topology is not None else [],
            nics=topology.nics if topology is not None else (),
            filters=Filters(sort=filters.sort),
            pods=[
                (pod, asks_text(pod.request), _word(info, pod, mismatched), pod.promised.text)
                for pod in pods[:LISTED]
            ],
            more_pods=max(0, len(pods) - LISTED),
            known={pod.uid for pod in pods},
            idle=idle,
            dated=any(pod.started is not None for pod in pods),
        )


def _running(snapshot: Snapshot, filters: Filters) -> list[PodRecord]:
    """Return the pods on nodes that pass the filters, by name or request, in order of names."""
    pods = (pod for info in snapshot.nodes for pod in info.pods.living)
    found = (pod for pod in pods if filters.lets_pod(pod.full_name, asks_text(pod.request)))
    return sorted(found, key=lambda pod: (pod.namespace, pod.name))


def _part(rows: Sequence[T], at: int) -> dict[str, Any]:
    """Return page number ``at`` of the rows of a list; the last one if there are fewer."""
    pages = max(1, -(-len(rows) // LISTED))
    at = min(max(at, 1), pages)
    part = rows[(at - 1) * LISTED : at * LISTED]
    return {"rows": part, "many": len(rows), "at": at, "pages": pages}


def _filtering(filters: Filters, snapshot: Snapshot, found: int) -> dict[str, Any]:
    """Return the filters of a page with what it suggests for them.

    If nothing was ``found``, this is also ``near``: the same with similar names.
    """
    spaces = dict.fromkeys(pod.namespace for pod in snapshot.pods)
    near = list[Filters]()
    if not found and filters.names:
        wanted = Filters(namespace=filters.namespace, name=filters.name)
        whole = "/" in filters.name
        pods = dict.fromkeys(pod.full_name if whole else pod.name for pod in snapshot.pods)
        names = [
            *near_names(filters.name, snapshot.by_name, COMPARED),
            *near_names(filters.name, pods, COMPARED),
        ]
        near += [replace(wanted, name=name) for name in names if name != filters.name]
        names = near_names(filters.namespace, spaces, COMPARED)
        near += [replace(wanted, namespace=name) for name in names if name != filters.namespace]
    return {
        "filters": filters,
        "namespaces": sorted(islice(spaces, NAMESPACES)),
        "near": near,
    }


def _word(info: NodeInfo, pod: PodRecord, mismatched: Collection[PodUid]) -> str:
    """Return the state of a pod on its node in words.

    ``mismatched`` are the pods that require other GPUs than they have.
    """
    if pod.ended:
        return "ended"
    if pod.uid in info.pods.assumed:
        return "being bound"
    if pod.uid in info.pods.terminating:
        return "terminating"
    if pod.uid not in info.pods.acknowledged:
        return "not shown yet"
    if pod.uid in mismatched:
        return "has GPUs that do not meet its constraints"
    return "has its GPUs"
