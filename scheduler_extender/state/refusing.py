"""What follows for a node when its kubelet refuses a pod that was bound to it, or admits one.

The transitions of :mod:`.node` for streaks of refusals (:mod:`.streak`), and what is told of each
refusal. ``first_seen`` says that we did not see the pod before it was refused or admitted, as at
our start: then the kubelet's own times tell the order, and the refusal is no news.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from scheduler_extender.annotations import Malformed
from scheduler_extender.state.decision import Refusals, Settings, decide
from scheduler_extender.state.node import NodeFacts, resource_of
from scheduler_extender.state.pods import PodRecord
from scheduler_extender.state.refusal import Refusal
from scheduler_extender.state.streak import (
    Refused,
    Streak,
    Streaks,
    kind_of,
    since,
    with_admission,
    with_admission_at,
    with_refusal,
)
from topology.core.requests import GpuRequest


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """A kubelet has refused a pod that was bound to its node.

    ``in_a_row`` is how many it has refused since the last success: of pods that ask the same, or,
    once that closes the node to all, of all; 0 where the reason is the pod's own. ``pause`` is how
    many seconds the pause has that it begins, 0 where it begins none. ``foreseen`` are the hazards
    that were known of the pod on the node before.
    """

    node: str
    pod: PodRecord
    refusal: Refusal
    in_a_row: int
    pause: float
    foreseen: tuple[str, ...]

    @property
    def words(self) -> str:
        """One line for people."""
        known = ", ".join(self.foreseen)
        foreseen = f"foreseen as a hazard ({known})" if known else "not foreseen"
        row = f"; {self.in_a_row} in a row" if self.in_a_row > 1 else ""
        pause = f", no GPU pods for {self.pause:.0f} s" if self.pause else ""
        return (
            f"{self.node} refused {self.pod.namespace}/{self.pod.name} "
            f"({self.refusal.reason}), {foreseen}{row}{pause}"
        )


def refusal_by(
    before: NodeFacts, after: NodeFacts, pod: PodRecord, refusal: Refusal, settings: Settings
) -> NodeRefusal:
    """What is told of a refusal. ``before`` are the node's facts until it was seen."""
    streak = _counting(after, pod) if refusal.of_the_node else None
    former = _counting(before, pod)
    pause = 0.0
    if streak is not None and streak.paused and settings.refusals is not Refusals.IGNORE:
        begins = former is None or former.until != streak.until
        pause = streak.until - streak.refusals[-1].at if begins else 0.0
    return NodeRefusal(
        before.name,
        pod,
        refusal,
        len(streak.refusals) if streak is not None else 0,
        pause,
        _foreseen(before, pod, settings),
    )


def _counting(facts: NodeFacts, pod: PodRecord) -> Streak | None:
    """The streak to which a refusal of the pod belongs: the node's, once that closes it to all."""
    streaks = facts.streaks.get(resource_of(pod))
    if streaks is None or not isinstance(pod.request, GpuRequest):
        return None
    return streaks.closing or streaks.of_kind.get(kind_of(pod.request))


def _foreseen(before: NodeFacts, pod: PodRecord, settings: Settings) -> tuple[str, ...]:
    """The hazards of the pod on the node, as it would have been decided about just before."""
    if isinstance(pod.request, Malformed):
        return ()
    found = decide(before.without(frozenset({pod.uid})), pod.request, settings).assessment
    return tuple(sorted(found.hazards)) if found is not None else ()


def with_pod_refused(
    facts: NodeFacts, pod: PodRecord, at: float, now: float, *, first_seen: bool
) -> NodeFacts:
    """The kubelet has refused a pod; ``at`` and ``now`` are on the cluster's clock."""
    request = pod.request
    if pod.refusal is None or not pod.refusal.of_the_node or not isinstance(request, GpuRequest):
        return facts
    kind, alone = kind_of(request), False
    if first_seen and pod.started is not None:
        if pod.started <= max(facts.resumed, _admitted_at(facts, request.resource, kind)):
            return facts
        alone = pod.started <= _admitted_at(facts, request.resource)
    beside = frozenset(other.uid for other in facts.all_pods)
    refused = Refused(at, pod.started, pod.refusal.reason, kind, alone)
    streaks = with_refusal(facts.streaks.get(request.resource), refused, beside, now)
    return replace(facts, streaks={**facts.streaks, request.resource: streaks})


def with_pod_admitted(
    facts: NodeFacts, pod: PodRecord, now: float, *, first_seen: bool = False
) -> NodeFacts:
    """The kubelet has admitted a pod: that ends the streaks of refusals that came before."""
    request = pod.request
    if not isinstance(request, GpuRequest) or request.resource not in facts.streaks:
        return facts
    streaks, kind = facts.streaks[request.resource], kind_of(request)
    left: Streaks | None = streaks
    if not first_seen:
        if pod.uid not in streaks.beside:
            left = with_admission(streaks, kind, now)
    elif pod.started is not None:
        left = with_admission_at(streaks, kind, pod.started, now)
    return _with_streaks(facts, request.resource, left)


def with_resumed(facts: NodeFacts, resumed: float, now: float) -> NodeFacts:
    """An operator has forgiven all refusals up to ``resumed``, in seconds since 1970.

    If we have seen the node before, that was just now: then whatever the clocks say, all are. So
    another time counts, be it earlier: the operator's clock may have been ahead the last time.
    """
    if not resumed or resumed == facts.resumed:
        return facts
    for resource, streaks in facts.streaks.items():
        left = None if facts.exists else since(streaks, resumed, now)
        facts = _with_streaks(facts, resource, left)
    return replace(facts, resumed=resumed)


def with_pauses_ended(facts: NodeFacts, now: float) -> NodeFacts:
    """The facts at a later time: pauses may have ended."""
    streaks = {resource: found.ends(now) for resource, found in facts.streaks.items()}
    same = all(streaks[resource] is facts.streaks[resource] for resource in streaks)
    return facts if same else replace(facts, streaks=streaks)


def _admitted_at(facts: NodeFacts, resource: str, kind: GpuRequest | None = None) -> float:
    """When the kubelet last admitted a pod of a kind, or of any, by its own clock."""
    return max(
        (
            pod.started
            for pod in facts.pods.values()
            if pod.admitted
            and pod.started is not None
            and isinstance(pod.request, GpuRequest)
            and pod.request.resource == resource
            and kind in (None, kind_of(pod.request))
        ),
        default=-inf,
    )


def _with_streaks(facts: NodeFacts, resource: str, streaks: Streaks | None) -> NodeFacts:
    if streaks == facts.streaks.get(resource):
        return facts
    kept = {name: found for name, found in facts.streaks.items() if name != resource}
    if streaks is not None:
        kept[resource] = streaks
    return replace(facts, streaks=kept)
