"""The evictions after which a waiting pod gets a guaranteed placement, and its reservation."""

from functools import partial
from typing import Annotated

from msgspec import Meta

from scheduler_extender.annotations import Malformed
from scheduler_extender.clientlimits import UNBLOCK_SECONDS
from scheduler_extender.deadline import Deadline, OutOfTimeError, within
from scheduler_extender.evictions import Advice, Cost, lost, search, unplanned
from scheduler_extender.evictions.relocation import (
    MAX_NODES,
    GuaranteedPlacements,
    SpareResources,
)
from scheduler_extender.evictions.victims import after, importance
from scheduler_extender.explain import Struct
from scheduler_extender.framework.afterwards import Afterwards
from scheduler_extender.framework.evaluator import evaluate, may_go
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Verdict
from topology.core.requests import GpuRequest
from topology.times import time_text

NO_BUDGETS = "no evictions are planned until the PodDisruptionBudgets are known"
LATE = "the reservation could not be checked in time; try again"


class Eviction(Struct, frozen=True):
    """A pod that is to be evicted."""

    namespace: str
    pod: str
    uid: str
    priority: int
    controller: Annotated[
        str, Meta(description="the kind of the controller that recreates the pod")
    ]

    @property
    def name(self) -> str:
        """The pod's namespace and name."""
        return f"{self.namespace}/{self.pod}"


class PlanStep(Eviction, frozen=True):
    """One eviction of a plan."""

    relocation: Annotated[
        str | None,
        Meta(description="the node to which the pod would move; null if the pod is lost"),
    ]
    why: Annotated[str, Meta(description="why the pod is lost; empty if it moves")]


class EvictionPlan(Struct, frozen=True):
    """The evictions after which a node has a guaranteed placement."""

    node: str
    cost: Cost
    steps: list[PlanStep]
    waits_for: Annotated[
        list[str],
        Meta(description="pods on which the plan waits because they are terminating already"),
    ]
    resources_unknown: Annotated[
        list[str], Meta(description="nodes whose free CPU and memory are unknown")
    ]


class Reservation(Struct, frozen=True):
    """The reservation of the pod."""

    node: str
    until: str
    victims: Annotated[
        list[str], Meta(description="UIDs of the pods that are evicted for the reservation")
    ]
    to_evict: Annotated[list[Eviction], Meta(description="the victims that are not evicted yet")]
    problem: Annotated[str, Meta(description="why the reservation is not usable; empty if it is")]


class EvictionAdvice(Struct, frozen=True, omit_defaults=False):
    """The evictions after which a pod gets a guaranteed placement."""

    pod: str
    uid: str
    node: Annotated[str | None, Meta(description="the node of the pod; null if it is not bound")]
    takes: Annotated[
        str | None, Meta(description="a node that takes the pod without evictions")
    ] = None
    plan: Annotated[
        EvictionPlan | None,
        Meta(description="null if no pod has to be evicted, or if evictions would not help"),
    ] = None
    whole: Annotated[bool, Meta(description="false if a cheaper plan may exist")] = True
    reservation: Reservation | None = None
    undecided: Annotated[
        str, Meta(description="why there is no answer now; empty if there is one")
    ] = ""
    text: list[str] = []

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self.pod.partition("/")[0]

    @property
    def name(self) -> str:
        """The pod's name."""
        return self.pod.partition("/")[2]


def eviction_advice(cluster: Cache, namespace: str, name: str) -> EvictionAdvice | None:
    """Return the advice for a pod; None if the pod is unknown."""
    snapshot = cluster.snapshot()
    pod = snapshot.pod_named(namespace, name)
    if pod is None:
        return None
    answer = partial(EvictionAdvice, f"{namespace}/{name}", pod.uid, pod.node)
    if pod.node is not None and not pod.ended:
        return answer(text=[f"{namespace}/{name} is on {pod.node}"])
    unscheduled = _why_not_scheduled(pod)
    if unscheduled:
        return answer(text=[f"no pod is worth evicting for {namespace}/{name}: {unscheduled}"])
    deadline = within(cluster.clock, UNBLOCK_SECONDS)
    if isinstance(pod.request, Malformed):
        return answer(text=Advice(reason=pod.request.reason).lines(pod))
    afterwards = Afterwards(snapshot, Question(pod, Purpose.PREEMPT), deadline)
    try:
        with deadline.enforced():
            reservation = _reservation_now(snapshot, pod, afterwards)
    except OutOfTimeError:
        return answer(undecided=LATE, text=[LATE])
    if reservation is not None:
        state = "it is not usable" if reservation.problem else "it is in effect"
        text = [f"reservation on {reservation.node} until {reservation.until}; {state}"]
        if reservation.problem:
            text.append(reservation.problem)
        elif reservation.to_evict:
            names = ", ".join(each.name for each in reservation.to_evict)
            text.append(f"still to be evicted: {names}")
        return answer(reservation=reservation, text=text)
    if snapshot.budgets is None:
        return answer(undecided=NO_BUDGETS, text=[NO_BUDGETS])
    advice = search(
        snapshot,
        pod,
        deadline,
        request=afterwards.request,
        group=afterwards.on,
    )
    beside, plan = 0, None
    if advice.plan is not None:
        found, steps = advice.plan, advice.plan.steps
        info = snapshot.node_info(found.node)
        without = after(info, (step.pod for step in steps), pod.uid)
        without = without.yielding_to(pod.attributes.priority, pod.gang)
        beside = afterwards.beside(without)
        plan = EvictionPlan(
            found.node,
            found.cost,
            [PlanStep(*_evicted(step.pod), step.relocation, step.why) for step in steps],
            [pod.full_name for pod in found.terminating],
            list(found.resources_unknown),
        )
    late = "" if pod.reservation is None else pod.reservation.too_late(snapshot.today)
    expected = _expected_now(snapshot, pod, deadline) if advice.takes is None else ""
    text = [*filter(None, [expected]), *advice.lines(pod, beside), *filter(None, [late])]
    return answer(takes=advice.takes, plan=plan, whole=advice.whole, text=text)


def _expected_now(snapshot: Snapshot, pod: PodRecord, deadline: Deadline) -> str:
    """Return a line about a node that takes the pod now as ``expected``; empty if there is none."""
    results = evaluate(snapshot, Question(pod, Purpose.EXPLAIN), None, deadline)
    decisions, spare = results.decisions, SpareResources(snapshot.others)
    for name in results.passed[:MAX_NODES]:
        word, info = decisions[name].verdict, snapshot.node_info(NodeName(name))
        if word == Verdict.EXPECTED.value and spare.takes(info, pod):
            return f"{name} has GPUs for {pod.full_name} now, with the verdict {word}"
    return ""


def _why_not_scheduled(pod: PodRecord) -> str:
    """Return why kube-scheduler does not consider a pod, so that no eviction helps; else empty."""
    if pod.ended:
        return "it has ended"
    if pod.terminating:
        return "it is being deleted"
    if pod.gated:
        return "it has scheduling gates, and kube-scheduler ignores it until they are removed"
    return ""


def _reservation_now(
    snapshot: Snapshot, pod: PodRecord, afterwards: Afterwards
) -> Reservation | None:
    """Return the reservation of the pod's annotation, and whether it works after the evictions.

    A member of a group may use it only if its group lets the pod go there.

    The caller may not be the author of the annotation. So only victims are left that are needed,
    for the reservation itself or for the relocation of another victim. All of them must be pods
    that a plan may evict. Raises :class:`.OutOfTimeError`.
    """
    reservation = pod.reservation
    if (
        reservation is None
        or not isinstance(pod.request, GpuRequest)
        or not reservation.lasts(snapshot.today)
    ):
        return None
    info, placements = snapshot.node_info(reservation.node), GuaranteedPlacements(snapshot)
    request = afterwards.request

    def without(gone: frozenset[PodUid]) -> NodeInfo:
        return info.without(gone | info.pods.terminating | {pod.uid})

    def lacks(gone: frozenset[PodUid]) -> str:
        """Return why the placement is not possible once these pods are gone; empty if it is."""
        then = without(gone)
        if not (may_go(snapshot, pod)(info) and placements.takes(then, pod, request)):
            return f"{reservation.node} has no guaranteed placement for the pod"
        if not placements.spare_resources.takes(then, pod):
            return f"{reservation.node} has too little CPU or memory for the pod"
        rejection = afterwards.on(then, gone).rejection
        return "" if rejection is None else rejection.message

    gone = reservation.victims
    problem = f"another pod's reservation on {reservation.node} takes precedence"
    if reservation.node in snapshot.reserved_nodes(pod.uid):
        problem = lacks(gone)
    alive = [each for uid, each in info.pods.bound.alive.items() if uid in gone]
    left = sorted((each for each in alive if not each.terminating), key=importance)
    for victim in tuple(left):
        others = [each for each in left if each is not victim]
        if problem or lacks(gone - {victim.uid}):
            continue
        if lost(placements, without(gone - {victim.uid}), pod, others) <= lost(
            placements, without(gone), pod, left
        ):
            gone, left = gone - {victim.uid}, others
    return Reservation(
        reservation.node,
        time_text(int(reservation.until)),
        sorted(reservation.victims),
        [Eviction(*_evicted(each)) for each in left],
        problem or unplanned(placements, info, without(gone), pod, left),
    )


def _evicted(pod: PodRecord) -> tuple[str, str, str, int, str]:
    """Return the fields of an :class:`Eviction`."""
    attributes = pod.attributes
    return pod.namespace, pod.name, pod.uid, attributes.priority, attributes.controller
