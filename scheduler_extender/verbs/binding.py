"""bind: the decision that counts, and when and what is written.

:mod:`.assume` decides, and the pod counts on its node from then on. The API server is written to
afterwards, with no lock held: when it is the bind's turn, and if the node still takes the pod then.
In a cluster :mod:`scheduler_extender.kube.binder` writes, and finds out what became of a bind that
nobody confirms.

Binds to one node are written a few at a time, until its kubelet has answered those before. A
kubelet that refuses every pod looks like any other until its first answer is seen, and a scheduler
can bind a pod for each free GPU by then. So no more than :data:`AT_ONCE` pods are with a kubelet at
one time that it has neither admitted nor refused; a later bind is in flight, and its write waits.
An answer takes a tenth of a second as a rule. A pod without one holds up others for
:data:`LONGEST` at most: what we do not know keeps nobody away for long. Where the kubelet has
admitted a pod of the same kind since its node last changed
(:mod:`scheduler_extender.state.node.history`), a bind waits only behind :data:`KNOWN_AT_ONCE` pods.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypedDict, TypeVar

from scheduler_extender.annotations import Malformed
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.limits import BIND_ENDS_AFTER
from scheduler_extender.membership import Membership
from scheduler_extender.state.answers.decision import Refusals
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.facts import Offer
from scheduler_extender.state.pods.record import PodRecord, resource_of
from scheduler_extender.verbs.assume import (
    BindError,
    DecidedBind,
    InProgressError,
    assume,
    decide_again,
)
from scheduler_extender.wire import BindingArgs
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest
from topology.times import time_text

T = TypeVar("T")

TOO_LATE = "the bind waited too long to be begun: kube-scheduler has given it up, and tries again"
NO_ANSWER = "the node's kubelet has not answered about the pods before: kube-scheduler tries again"
# Pods of one node and resource whose kubelet has not answered. One would do; with two, the kubelet
# has work while the answer about the first is on its way.
AT_ONCE = 2
# The same for a pod of a kind that the kubelet has admitted since its node last changed. So many
# are lost where it refuses all of them from one moment to the next, and nothing else shows it.
KNOWN_AT_ONCE = 4
# Seconds after which a pod without an answer holds up nobody. Answers came within 0.1 s on a quiet
# machine, and after 9 s at most where seven programs shared each processor.
LONGEST = 5.0
# Binds that wait for their turn at one time, and as many for news of their node: each a third of
# the threads for binds. Whoever comes then does not wait.
MOST_WAITING = 32
# What a bind waits for: its turn, news of its node, and the API server's answer to the write.
TURN, REPORT, WRITE = "turn", "report", "write"
# Seconds after which a bind looks again though nothing has changed on its node: whether it is late
# by now, or a pod without an answer has held it up for long enough.
LOOKS_EVERY = 0.25
MAX_SETS_WRITTEN = 16


class BindUnknownError(Exception):
    """Whether a bind happened cannot be told now; it has to stay in flight."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One bind to write: the pod by name and UID, its node, and the placement annotation.

    ``placement`` is empty where nothing is promised, in shadow.
    ``term`` is the term of the leader in which it was decided, 0 where there is one replica only.
    ``request`` is what the pod asked for when it was decided, and ``membership`` what it said of
    its group: a binder that knows the pod to say something else by now does not write. Without a
    ``request`` nobody decided. ``claims`` are those that the pod may have, none on a node that
    serves none: one with another claim than these is not written. None: it may have any.
    """

    namespace: str
    name: str
    uid: PodUid
    node: NodeName
    placement: str
    term: int = 0
    request: GpuRequest | Malformed | None = None
    membership: Membership | None = None
    claims: frozenset[str] | None = None


class Binder(Protocol):
    """Where binds are written, and pods looked up that no source has shown yet."""

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        """The pod as it is at the source; None where it is gone or has another UID.

        Raises :class:`BindUnknownError` where the source does not answer.
        """
        ...

    def write(self, binding: Binding) -> None:
        """Bind, with the UID as precondition; done already is success.

        Raises :class:`BindError` where it surely did not happen, :class:`BindUnknownError` where
        that cannot be told.
        """
        ...


@dataclass(slots=True, eq=False)
class WaitingBind:
    """A bind that waits; a repeated bind of the same pod is another.

    ``until`` is up to when it holds up others, from its turn on. ``news`` is set where something
    has changed on its node.
    """

    awaits: str
    node: NodeName
    uid: PodUid | None = None
    resource: str = ""
    until: float = 0.0
    news: threading.Event = field(default_factory=threading.Event)

    def beside(self, other: Self) -> bool:
        """Whether both are for the same kubelet and resource."""
        return (self.node, self.resource) == (other.node, other.resource)


class Turns:
    """Whose bind is written next, node by node. Methods may be called from any thread.

    ``longest`` is :data:`LONGEST`, ``clock`` gives the seconds by which it is counted. ``waited``
    is told how many seconds a bind has waited, and for what (:data:`TURN` …); ``late`` counts those
    that were given up.
    """

    def __init__(
        self,
        cluster: Cache,
        longest: float = LONGEST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._longest = longest
        self._clock = clock
        self._lock = threading.RLock()
        self._given: list[WaitingBind] = []
        # In the order in which they came. It is replaced: whoever changes a node looks at it
        # without our lock.
        self._waiting: tuple[WaitingBind, ...] = ()
        self.late = Counter[str]()
        self.waited: Callable[[str, float], None] = lambda awaits, seconds: None
        cluster.on_change.append(self._news)

    def waiting(self, awaits: str, node: NodeName | None = None) -> list[WaitingBind]:
        """The binds that wait for this, those to one node where it is named."""
        return [b for b in self._waiting if b.awaits == awaits and node in (None, b.node)]

    def wait(self, pod: PodRecord, deadline: Deadline, *, hazards: bool = True) -> bool:
        """Whether the turn of a bind in flight comes before the deadline.

        ``hazards`` is whether the kubelet may refuse the pod for all that is known of it.
        """
        if self._cluster.settings.refusals is Refusals.IGNORE or pod.node is None:
            return True
        bind = WaitingBind(TURN, pod.node, pod.uid, resource_of(pod))
        with self.joined(bind) as joins:
            if not joins:
                self._give(bind)
            while joins and not self._has_turn(bind, pod, hazards=hazards):
                if deadline.passed():
                    self._give_up(bind)
                    return False
                bind.news.wait(LOOKS_EVERY)
                bind.news.clear()
        return True

    def await_news(self, ask: Callable[[], T], node: NodeName, hopeless: Callable[[], bool]) -> T:
        """The answer to ``ask``, asked again at each news of the node while it raises
        :class:`.InProgressError`, until that is ``hopeless``; where too many wait, once more.

        kube-scheduler asks filter about the next pod before it sends the bind of the one before. So
        two pods are sent to one node. Until the first one has its devices, a tenth of a second as a
        rule, the second could break its promise, or has none of its own. Refused, it would wait a
        second and more.
        """
        bind = WaitingBind(REPORT, node)
        with self.joined(bind) as joins:
            while True:
                bind.news.clear()
                try:
                    return ask()
                except InProgressError:
                    if not joins or hopeless():
                        self._give_up(bind)
                        raise
                bind.news.wait(LOOKS_EVERY)

    @contextmanager
    def joined(self, bind: WaitingBind) -> Iterator[bool]:
        """Inside, a bind waits; False where so many do already that it should not. Those that wait
        beside it look again afterwards."""
        with self._lock:
            joins = len(self.waiting(bind.awaits)) < MOST_WAITING
            if joins:
                self._waiting = (*self._waiting, bind)
        try:
            with self.timed(bind.awaits):
                yield joins
        finally:
            with self._lock:
                self._waiting = tuple(each for each in self._waiting if each is not bind)
            self._news(bind.node)

    def _give_up(self, bind: WaitingBind) -> None:
        with self._lock:
            self.late[bind.awaits] += 1

    @contextmanager
    def timed(self, awaits: str) -> Iterator[None]:
        """Tell how long a bind waits inside the block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.waited(awaits, time.perf_counter() - began)

    def _news(self, node: NodeName) -> None:
        """Something has changed on a node: who waits there looks again. Takes no lock."""
        for bind in self._waiting:
            if bind.node == node:
                bind.news.set()

    def _has_turn(self, bind: WaitingBind, pod: PodRecord, *, hazards: bool) -> bool:
        """Whether few enough pods are with the kubelet; from then on this one is, too."""
        with self._lock:
            now = self._clock()
            self._given = [given for given in self._given if given.until > now]
            facts = self._cluster.facts(bind.node)
            unanswered = {pod.uid for pod in facts.pods.unanswered(bind.resource)}
            open_ = sum(given.uid in unanswered and given.beside(bind) for given in self._given)
            waiting = self.waiting(TURN)
            ahead = sum(map(bind.beside, waiting[: waiting.index(bind)]))
            known = (
                not hazards
                and isinstance(pod.request, GpuRequest)
                and facts.topology is not None
                and facts.history.surely_admits(pod.request, facts.topology.allocator)
            )
            if open_ + ahead >= (KNOWN_AT_ONCE if known else AT_ONCE):
                return False
            self._give(bind)
            return True

    def _give(self, bind: WaitingBind) -> None:
        with self._lock:
            bind.until = self._clock() + self._longest
            others = [given for given in self._given if given.uid != bind.uid]
            self._given = [*others, bind]  # a repeated bind of one pod counts once


def bind(  # noqa: PLR0913 (what is bound, by whom, and what limits the wait for it)
    cluster: Cache,
    binder: Binder,
    args: BindingArgs,
    now: Callable[[], str],
    deadline: Deadline = NO_DEADLINE,
    turns: Turns | None = None,
    term: int = 0,
) -> None:
    """Bind a pod to a node if the node can still keep its request.

    The same bind twice is success, once written. ``now`` gives the time for the placement
    annotation. After the ``deadline`` nothing is written: what kube-scheduler has given up waiting
    for must not be written behind its back. So it is looked at at the start and right before the
    write. With ``turns`` the write waits for its turn until then. ``term`` is the one in which we
    lead (see :class:`Binding`). Where the pod is bound here already nothing is done. Raises
    :class:`BindError` with the reason; kube-scheduler then forgets the pod and tries again.
    """
    in_time(deadline)
    node = NodeName(args.node)
    pod = unbound(cluster, binder, args)
    if pod is None:
        return
    decided = _awaiting_news(lambda: assume(cluster, pod, node, now), node, deadline.passed, turns)
    if decided is None:
        return
    if pod.uid in cluster.lately.pods:
        cluster.lately.forget(pod.uid)
    try:
        ready = _in_its_turn(cluster, decided, node, deadline, turns)
        placed = ready.ours.placed
        time = now() if placed is None else time_text(placed)
        written = json.dumps(placement(ready, pod, time), separators=(",", ":"))
    except Exception:
        cluster.forget(decided.ours, decided.before)  # nothing has been written
        raise
    try:
        who, asked = (pod.namespace, pod.name, pod.uid), (pod.request, pod.membership)
        counts = ready.request.required or ready.facts.serves_claims is False
        claims = ready.claims if counts else None
        with turns.timed(WRITE) if turns is not None else nullcontext():
            binder.write(Binding(*who, node, written, term, *asked, claims))
    except BindError:
        cluster.forget(decided.ours, decided.before)
        raise
    except BindUnknownError as error:
        _await_word(cluster, ready, error, deadline, turns)
    cluster.tallies.place(ready.decision.verdict if ready.request.required else "")
    if ready.request.required and ready.claims:
        cluster.tallies.keep(1)  # the claim is the proof, and it stays as it is


def _await_word(
    cluster: Cache,
    decided: DecidedBind,
    cause: BindUnknownError,
    deadline: Deadline,
    turns: Turns | None,
) -> None:
    """Wait for the watch to show that the bind was written. Raises :class:`BindError` where it does
    not, and at once where the kubelet allocates: else kube-scheduler, told of an error, deletes the
    claim of a pod that may be bound, and such a pod never starts.
    """
    late = replace(deadline, until=deadline.until + BIND_ENDS_AFTER)

    def ask() -> None:
        pod = cluster.pod(decided.ours.uid)
        if pod is None or pod.node != decided.ours.node:
            raise InProgressError(str(cause)) from cause

    waiting = turns if decided.facts.allocates_before_bind else None
    _awaiting_news(ask, decided.facts.name, late.passed, waiting)


def _in_its_turn(
    cluster: Cache,
    decided: DecidedBind,
    node: NodeName,
    deadline: Deadline,
    turns: Turns | None,
) -> DecidedBind:
    """What is written, once it is the turn of this bind. Raises :class:`BindError`."""
    assessed = decided.decision.assessment
    hazards = assessed is None or bool(assessed.hazards)
    if turns is not None and not turns.wait(decided.ours, deadline, hazards=hazards):
        raise BindError(NO_ANSWER)
    in_time(deadline)
    if turns is None:
        return decided
    ready = _awaiting_news(
        lambda: decide_again(cluster, decided),
        node,
        # Who else waits may wait for our turn; but a member of a gang that is refused now leaves
        # the gang bound in part.
        lambda: (
            deadline.passed() or (bool(turns.waiting(TURN, node)) and decided.ours.gang is None)
        ),
        turns,
    )
    in_time(deadline)
    return ready


def unbound(cluster: Cache, binder: Binder, args: BindingArgs) -> PodRecord | None:
    """The pod to bind; None where it is bound to that node already.

    Raises :class:`BindError` where it is gone, or bound to another node.
    """
    uid, node = PodUid(args.pod_uid), NodeName(args.node)
    if not cluster.has_node(node):
        raise BindError("this node does not exist")
    pod = cluster.pod(uid)
    if pod is None or (pod.node is not None and pod.node != node):
        try:
            pod = binder.find(args.pod_namespace, args.pod_name, uid)
        except BindUnknownError as error:
            raise BindError(str(error)) from error
    if pod is None:
        raise BindError(f"pod {args.pod_namespace}/{args.pod_name} with this UID is gone")
    if (pod.namespace, pod.name) != (args.pod_namespace, args.pod_name):
        raise BindError("this UID is that of another pod")
    if pod.node is not None:
        if pod.node != node:
            raise BindError(f"pod is bound to {pod.node} already")
        return None
    return pod


def _awaiting_news(
    ask: Callable[[], T], node: NodeName, hopeless: Callable[[], bool], turns: Turns | None
) -> T:
    """The answer to ``ask``; while it raises :class:`.InProgressError` it awaits news."""
    try:
        return ask()
    except InProgressError:
        if turns is None:
            raise
    return turns.await_news(ask, node, hopeless)


def in_time(deadline: Deadline) -> None:
    """Raises :class:`.BindError` where kube-scheduler has given the bind up by now."""
    if deadline.passed():
        raise BindError(TOO_LATE)


class Placement(TypedDict, total=False):
    """The placement annotation's JSON. ``sets`` are sets of GPUs as driver indices."""

    verdict: str
    node: str
    uid: str
    sets: list[list[int]]
    time: str
    setsOmitted: int


def placement(decided: DecidedBind, pod: PodRecord, time: str) -> Placement:
    """The placement annotation: verdict, node, pod UID, possible sets of GPUs as indices, time.

    The UID tells it from one that somebody wrote into a template.
    """
    facts, decision = decided.facts, decided.decision
    written = Placement(verdict=decision.verdict, node=facts.name, uid=pod.uid, sets=[], time=time)
    sets, offer = decided.sets, facts.last_offer(resource_of(decided.ours))
    if sets and isinstance(offer, Offer):
        indices = offer.devices.indices
        # MIG instances of several kinds may be on one GPU.
        listed = list(dict.fromkeys(indices(mask) for mask in sets))
        written["sets"] = [list(gpus) for gpus in listed[:MAX_SETS_WRITTEN]]
        if len(listed) > MAX_SETS_WRITTEN:
            written["setsOmitted"] = len(listed) - MAX_SETS_WRITTEN
    return written
