"""The pages of the map, made in threads and kept while nothing has changed.

A page over thousands of nodes takes a part of a second. However many readers there are and however
often the cluster changes, pages of one kind are made by one thread at a time. Each page is then
kept for at least nine times as long as it took to make. So a page takes at most a tenth of a core.
The page of waiting pods evaluates nodes for :data:`WAITING_SECONDS`, and says what it leaves out.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler_extender.deadline import OutOfTimeError, within
from scheduler_extender.explain.answers import answers_to
from scheduler_extender.explain.gpustates import Nodes, Use, links_of
from scheduler_extender.explain.groupfit import room_for
from scheduler_extender.explain.waitingreasons import waiting_pods
from scheduler_extender.explain.wording import asks_text
from scheduler_extender.files import podfile
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.web.drawing import whole
from scheduler_extender.web.examples import EXAMPLES
from scheduler_extender.web.html import page
from scheduler_extender.web.overview import Filters, kinds_of, overview, shown_by
from scheduler_extender.web.waiting import Outlook, outlook_of, waiting_queues
from topology.core.devices import NodeName, PodUid
from topology.core.memo import interruptible
from topology.core.requests import GpuRequest

WAITING_SECONDS = 2.0
"""Seconds for which the page of waiting pods may evaluate nodes."""
RESTS = 9
"""A page is shown for this many times as long as it took to make, even if something has changed."""
KEPT_PAGES = 32
LISTED = 200
"""Nodes on one page of the list."""
RUNNING = 200
"""Pods in the table of running ones, and in that of a node."""
MAX_POD = 64 * 1024
"""The most bytes of a text with pods that are evaluated."""
MAX_FORM = 4 * MAX_POD
"""The most bytes of a text that is too long to evaluate but is given back in the form."""
MOST_COPIES = 1000
MOST_ASKED = 8
"""The most pods of one text that are evaluated."""
WHAT_IF_SECONDS = 10.0
"""Seconds for which one request is evaluated. What is found by then stays cached."""

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

    def __init__(self, cluster: Cache) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._nodes = Nodes(cluster)
        self._kinds = {kind: _Kind() for kind in ("map", "list", "waiting", "node")}

    def map(self, filters: Filters) -> str:
        """Return the overview of the cluster."""
        return self._page("map", filters, lambda v: self._map(filters, v))

    def nodes(self, filters: Filters, at: int = 1) -> str:
        """Return page number ``at`` of the list of nodes, :data:`LISTED` on each."""
        return self._page("list", (filters, at), lambda v: self._list(filters, at, v))

    def waiting(self, name: str = "") -> str:
        """Return the page of waiting and running pods.

        With a ``name``, it has only pods that have it in theirs.
        """
        return self._page("waiting", name, lambda v: self._waiting(name, v))

    def node(self, name: str) -> str | None:
        """Return the page of one node; None if the node is unknown."""
        info = self._cluster.node_info(NodeName(name))
        if not info.known:
            return None
        return self._page("node", name, lambda v: self._node(info, v))

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

    def _page(self, kind: str, key: Hashable, make: Callable[[int], str]) -> str:
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
            text = make(version)
            took = self._clock() - now
            pages.kept[key] = (version, now + took + RESTS * took, text)
            pages.kept.move_to_end(key)
            while len(pages.kept) > KEPT_PAGES:
                pages.kept.popitem(last=False)
            return text

    def _map(self, filters: Filters, version: int) -> str:
        now, snapshot = self._cluster.today(), self._cluster.snapshot()
        found = overview(self._nodes.of_all(snapshot), filters)
        waiting = waiting_pods(snapshot)
        part = filters.name.lower()
        return page(
            "map.html",
            "/map",
            now=now,
            overview=found,
            version=version,
            waiting=len(waiting),
            named=sum(part in pod.full_name.lower() for pod in waiting) if part else 0,
        )

    def _list(self, filters: Filters, at: int, version: int) -> str:
        now, nodes = self._cluster.today(), self._nodes.all()
        seen = filters.let(nodes)
        pages = max(1, -(-len(seen) // LISTED))
        at = min(max(at, 1), pages)
        return page(
            "nodes.html",
            "/map/nodes",
            now=now,
            version=version,
            filters=filters,
            kinds=kinds_of(nodes),
            nodes=seen[(at - 1) * LISTED : at * LISTED],
            many=len(seen),
            at=at,
            pages=pages,
        )

    def _waiting(self, name: str, version: int) -> str:
        now, snapshot = self._cluster.today(), self._cluster.snapshot()
        deadline = within(self._clock, WAITING_SECONDS)
        found, left_out = waiting_queues(snapshot, deadline, name)
        part = name.lower()
        pods = [
            pod
            for info in snapshot.nodes
            for pod in info.pods.living
            if part in pod.full_name.lower()
        ]
        pods.sort(key=lambda pod: (pod.namespace, pod.name))
        pods.sort(  # pods with the most GPUs first
            key=lambda pod: pod.request.count if isinstance(pod.request, GpuRequest) else 0,
            reverse=True,
        )
        return page(
            "waiting.html",
            "/map/waiting",
            now=now,
            version=version,
            queues=found,
            left_out=left_out,
            name=name,
            running=[(pod, asks_text(pod.request)) for pod in pods[:RUNNING]],
            running_left=max(0, len(pods) - RUNNING),
        )

    def _node(self, info: NodeInfo, version: int) -> str:
        state = self._nodes.of(info)
        topology = state.topology
        pods = info.pods.every
        mismatched = {
            holder.uid
            for gpu in state.gpus
            for holder in gpu.holders
            if holder.use is Use.MISMATCHED
        }
        return page(
            "node.html",
            "/map/nodes",
            now=self._cluster.today(),
            version=version,
            node=state,
            graph=whole(state),
            shows=frozenset(shown_by(state)),
            shared=any(gpu.memory_used is not None for gpu in state.gpus),
            rows=list(zip(topology.gpus, state.gpus, strict=False)) if topology else [],
            links=links_of(topology) if topology is not None else [],
            nics=topology.nics if topology is not None else (),
            pods=[
                (pod, asks_text(pod.request), _word(info, pod, mismatched), pod.promised.text)
                for pod in pods[:RUNNING]
            ],
            more_pods=max(0, len(pods) - RUNNING),
            dated=any(pod.started is not None for pod in pods),
        )


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
