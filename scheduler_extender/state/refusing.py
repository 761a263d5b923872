"""What follows for a node when its kubelet refuses a pod that was bound to it, or admits one.

The transitions of :mod:`.node` for streaks of refusals (:mod:`.streak`), and what is told of each
refusal. ``first_seen`` says that we did not see the pod before it was refused or admitted, as at
our start: then the kubelet's own times tell the order, and the refusal is no news.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler_extender.annotations import Malformed
from scheduler_extender.state.decision import Refusals, Settings, decide
from scheduler_extender.state.node import NodeFacts, resource_of
from scheduler_extender.state.pods import PodRecord
from scheduler_extender.state.refusal import Refusal
from scheduler_extender.state.streak import Refused, Streak, since, with_refusal


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """A kubelet has refused a pod that was bound to its node.

    ``in_a_row`` is how many it has refused since the last success, 0 where the reason is the pod's
    own. ``pause`` is how many seconds the pause has that it begins, 0 where it begins none.
    ``foreseen`` are the hazards that were known of the pod on the node before.
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
    resource = resource_of(pod)
    streak = after.streaks.get(resource) if refusal.of_the_node else None
    former = before.streaks.get(resource)
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
    resource = resource_of(pod)
    if pod.refusal is None or not pod.refusal.of_the_node or not resource:
        return facts
    if first_seen and pod.started is not None and pod.started <= _well_at(facts, resource):
        return facts
    beside = frozenset(other.uid for other in facts.all_pods)
    refused = Refused(at, pod.started, pod.refusal.reason)
    streak = with_refusal(facts.streaks.get(resource), refused, beside, now)
    return replace(facts, streaks={**facts.streaks, resource: streak})


def with_pod_admitted(
    facts: NodeFacts, pod: PodRecord, now: float, *, first_seen: bool = False
) -> NodeFacts:
    """The kubelet has admitted a pod: that ends a streak of refusals that came before."""
    resource = resource_of(pod)
    streak = facts.streaks.get(resource)
    if streak is None:
        return facts
    if not first_seen:
        left = streak if pod.uid in streak.beside else None
    else:
        left = streak if pod.started is None else since(streak, pod.started, now)
    return _with_streak(facts, resource, left)


def with_resumed(facts: NodeFacts, resumed: float, now: float) -> NodeFacts:
    """An operator has forgiven all refusals up to ``resumed``, in seconds since 1970.

    If we have seen the node before, that was just now: then whatever the clocks say, all are.
    """
    if resumed <= facts.resumed:
        return facts
    for resource, streak in facts.streaks.items():
        left = None if facts.exists else since(streak, resumed, now)
        facts = _with_streak(facts, resource, left)
    return replace(facts, resumed=resumed)


def with_pauses_ended(facts: NodeFacts, now: float) -> NodeFacts:
    """The facts at a later time: pauses may have ended."""
    streaks = {resource: streak.ends(now) for resource, streak in facts.streaks.items()}
    return facts if streaks == facts.streaks else replace(facts, streaks=streaks)


def _well_at(facts: NodeFacts, resource: str) -> float:
    """When the kubelet last admitted a pod, or was resumed, by its own clock."""
    admitted = [
        pod.started
        for pod in facts.pods.values()
        if pod.admitted and pod.started is not None and resource_of(pod) == resource
    ]
    return max((*admitted, facts.resumed))


def _with_streak(facts: NodeFacts, resource: str, streak: Streak | None) -> NodeFacts:
    if streak == facts.streaks.get(resource):
        return facts
    streaks = {name: found for name, found in facts.streaks.items() if name != resource}
    if streak is not None:
        streaks[resource] = streak
    return replace(facts, streaks=streaks)
