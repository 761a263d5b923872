"""What follows for a node when its kubelet refuses a pod that was bound to it, or admits one.

Here are the transitions of a node for streaks of refusals (:mod:`.node.streak`), and what people
are told of a refusal. ``first_seen`` means that we did not see the pod before it was refused or
admitted, as at our start: then the kubelet's own times tell the order, and the refusal is no news.
Feed such pods in the order of these times: in another order a node may be closed for longer.
"""

from dataclasses import dataclass, replace
from math import inf

from scheduler_extender.annotations import Malformed
from scheduler_extender.state.answers.decision import Refusals, Settings, decide
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.node.streak import (
    Refused,
    Streak,
    kind_of,
    since,
    with_admission,
    with_refusal,
)
from scheduler_extender.state.pods.record import PodRecord, resource_of
from scheduler_extender.state.pods.refusal import Refusal
from topology.core.requests import GpuRequest


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """A kubelet has refused a pod that was bound to its node."""

    node: str
    pod: PodRecord
    refusal: Refusal
    # Refusals since the last success: of pods that ask the same, or of all pods once they close the
    # node to all; 0 if the reason is the pod's own.
    in_a_row: int
    pause: float  # seconds of the pause that it begins; 0 for none
    foreseen: tuple[str, ...]  # hazards that were known of the pod on the node before

    @property
    def words(self) -> str:
        """One line for people."""
        known = ", ".join(self.foreseen)
        foreseen = f"foreseen as a hazard ({known})" if known else "not foreseen"
        return (
            f"{self.node} refused {self.pod.namespace}/{self.pod.name} "
            f"({self.refusal.reason}), {foreseen}{self.follows}"
        )

    @property
    def follows(self) -> str:
        """What it adds up to, and what follows for the node; names no pod."""
        row = f"; {self.in_a_row} in a row" if self.in_a_row > 1 else ""
        pause = f", no GPU pods for {self.pause:.0f} s" if self.pause else ""
        return f"{row}{pause}"


def refusal_by(
    before: NodeFacts, after: NodeFacts, pod: PodRecord, refusal: Refusal, settings: Settings
) -> NodeRefusal:
    """What is told of a refusal. ``before`` are the node's facts until it was seen."""
    in_a_row, pause = 0, 0.0
    if refusal.of_the_node:
        counting = _counting(after, pod)
        in_a_row = next((len(streak.refusals) for streak in counting if streak is not None), 0)
        if settings.refusals is not Refusals.IGNORE:
            pause = _begun(_counting(before, pod), counting)
    foreseen = _foreseen(before, pod, settings)
    return NodeRefusal(before.name, pod, refusal, in_a_row, pause, foreseen)


def _counting(facts: NodeFacts, pod: PodRecord) -> tuple[Streak | None, ...]:
    """The streaks that a refusal of the pod may make longer: that of the node, once it closes the
    node to all pods, that of the pod's kind, and that of new kinds."""
    streaks = facts.history.streaks.get(resource_of(pod))
    if streaks is None or not isinstance(pod.request, GpuRequest):
        return (None, None, None)
    return (streaks.closing, streaks.of_kind.get(kind_of(pod.request)), streaks.closing_to_new)


def _begun(before: tuple[Streak | None, ...], after: tuple[Streak | None, ...]) -> float:
    """Seconds of the longest pause that a refusal has begun; 0 if it begins none."""
    return max(
        (
            streak.until - streak.refusals[-1].at
            for former, streak in zip(before, after, strict=True)
            if streak is not None
            and streak.paused
            and (former is None or former.until != streak.until)
        ),
        default=0.0,
    )


def _foreseen(before: NodeFacts, pod: PodRecord, settings: Settings) -> tuple[str, ...]:
    """The hazards of the pod on the node that a decision just before would have named."""
    if isinstance(pod.request, Malformed):
        return ()
    assessed = decide(before.without(frozenset({pod.uid})), pod.request, settings).assessment
    return tuple(sorted(assessed.hazards)) if assessed is not None else ()


def with_pod_refused(
    facts: NodeFacts, pod: PodRecord, at: float, now: float, *, first_seen: bool
) -> NodeFacts:
    """The kubelet has refused a pod; ``at`` and ``now`` are on the cluster's clock."""
    request, history = pod.request, facts.history
    if pod.refusal is None or not pod.refusal.of_the_node or not isinstance(request, GpuRequest):
        return facts
    resource, kind, alone = request.resource, kind_of(request), False
    admitted = history.admitted_over(resource)
    if first_seen and pod.started is not None:
        if pod.started <= max(history.resumed, admitted.get(kind, -inf)):
            return facts
        alone = pod.started <= max(admitted.values(), default=-inf)
    refused = Refused(at, pod.started, pod.refusal.reason, kind, alone)
    before = history.streaks.get(resource)
    after = with_refusal(before, refused, facts.pods.here, now, is_new=kind not in admitted)
    forgotten = (before.of_kind.keys() if before is not None else set()) - after.of_kind.keys()
    if forgotten & admitted.keys():  # they are new again
        admitted = {one: at for one, at in admitted.items() if one not in forgotten}
    history = replace(
        history.unproven(facts.pods.here),
        streaks={**history.streaks, resource: after},
        admitted={**history.admitted, resource: admitted},
    )
    return replace(facts, history=history)


def with_pod_admitted(
    facts: NodeFacts, pod: PodRecord, now: float, *, first_seen: bool = False
) -> NodeFacts:
    """The kubelet has admitted a pod: that ends the streaks of refusals that came before."""
    request, history = pod.request, facts.history
    if not isinstance(request, GpuRequest):
        return facts
    resource, kind = request.resource, kind_of(request)
    streaks, is_new = history.streaks.get(resource), kind not in history.admitted_over(resource)
    left = streaks
    if streaks is not None and not first_seen:
        if pod.uid not in streaks.beside:
            left = with_admission(streaks, kind, now, is_new=is_new)
    elif streaks is not None and pod.started is not None:
        left = with_admission(streaks, kind, now, is_new=is_new, started=pod.started)
    if not first_seen:
        history = history.with_proven(pod.uid, kind)
    history = history.with_streaks(resource, left).with_admitted(resource, kind, pod.started)
    return facts if history is facts.history else replace(facts, history=history)


def with_resumed(facts: NodeFacts, resumed: float, now: float) -> NodeFacts:
    """An operator has forgiven all refusals up to ``resumed``, in seconds since 1970.

    If we have seen the node before, the operator has just done so: then all refusals are forgiven,
    whatever the clocks say. So any other time than the last one counts, even an earlier one: the
    operator's clock may have been ahead the last time.
    """
    history = facts.history
    if not resumed or resumed == history.resumed:
        return facts
    for resource, streaks in history.streaks.items():
        left = None if facts.node_object.exists else since(streaks, resumed, now)
        history = history.with_streaks(resource, left)
    return replace(facts, history=replace(history, resumed=resumed))


def with_pauses_ended(facts: NodeFacts, now: float) -> NodeFacts:
    """The facts at a later time: pauses may have ended."""
    known = facts.history.streaks
    streaks = {resource: streak.ends(now) for resource, streak in known.items()}
    if all(streaks[resource] is known[resource] for resource in streaks):
        return facts
    return replace(facts, history=replace(facts.history, streaks=streaks))
