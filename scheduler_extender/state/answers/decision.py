"""What a node answers to a request: the filter table of the design, row by row.

A pure function of the node's facts, the request and what the operator chose. To ask "what if these
pods were gone", decide about ``facts.without(pods)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from scheduler_extender.annotations import MANAGED
from scheduler_extender.state.node.arrivals import Arrivals, with_arrivals, with_siblings
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.node.offer import Offer
from scheduler_extender.state.pods.record import PodRecord
from topology.core import scoring
from topology.core.admission import Kubelet
from topology.core.availability import coming, unreported_order
from topology.core.devices import Mask
from topology.core.placement import (
    IN_PROGRESS,
    NOT_SERVED,
    Assessment,
    Reason,
    Rejection,
    Verdict,
    assess,
    busy,
    device_unit,
    endangers,
    has_room,
    keeps,
    sets_spoken_of,
    short_of_memory,
)
from topology.core.requests import NO_CONSTRAINTS, GpuRequest
from topology.core.scoring import Prospect, RequestClasses

UNDECIDED = Rejection("not guaranteed: the node could not be evaluated", True, Reason.UNDECIDED)
MAY_REFUSE = Rejection(
    "the node's kubelet may refuse the pod, others will not", True, Reason.KUBELET
)
PROMISED = Rejection(
    "a pod on the node was promised GPU memory or GPUs of its own, and the node's state is not "
    "known",
    True,
    Reason.UNDECIDED,
)
SIBLINGS = Rejection("siblings of the pod's gang may come first", True, Reason.GROUP)
OUT_OF_DATE = Rejection(
    "the extender's view of the cluster is out of date", False, Reason.OUT_OF_DATE
)


_BEST_FIRST = list(Verdict)


class Refusals(Enum):
    """From which nodes a pod is kept away whose kubelet it would meet for nothing."""

    CERTAIN = "certain"
    """From those whose kubelet surely refuses it."""
    POSSIBLE = "possible"
    """From those whose kubelet may refuse it, too, while others are left."""
    IGNORE = "ignore"
    """From none; constraints count all the same."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator chooses.

    ``require`` is the weakest verdict on which a required pod passes, ``refusals`` says which
    kubelets a pod without required constraints is not sent to; ``stale_after`` is in
    seconds of the local clock since the last changed report, None for never. ``all_pods_known``
    is false where the source names only some pods (see :func:`.ledger.ledger`). ``shadow`` changes
    no answer about a node: the verbs refuse nothing then (:mod:`.verbs.shadowing`).
    """

    require: Verdict = Verdict.EXPECTED
    stale_after: float | None = 180.0
    managed: tuple[str, ...] = MANAGED
    all_pods_known: bool = True
    refusals: Refusals = Refusals.CERTAIN
    shadow: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What a node answers to a request: it passes, or a rejection. Nodes in one state share one.

    ``assessment`` is None where there is no usable record.
    """

    rejection: Rejection | None = None
    assessment: Assessment | None = None

    @property
    def verdict(self) -> str:
        """The verdict's word; ``unknown`` where there is no usable record."""
        return self.assessment.verdict.value if self.assessment else "unknown"


def decide(facts: NodeFacts, request: GpuRequest, settings: Settings) -> Decision:
    """The answer of one node.

    A pod with siblings passes only if it passes with all of them that may come first, and is
    promised no more than holds then.
    """
    alone = request.alone
    found = _decide(facts, alone, settings)
    if not request.in_company or found.rejection is not None:
        return found
    for later in with_siblings(facts, request):
        among = _decide(later, alone, settings)
        if among.rejection is not None:
            return Decision(SIBLINGS, found.assessment)
        if found.assessment is not None and among.assessment is not None:
            weaker = max(found.assessment.verdict, among.assessment.verdict, key=_BEST_FIRST.index)
            found = Decision(None, replace(found.assessment, verdict=weaker))
    return found


def places(facts: NodeFacts, request: GpuRequest, settings: Settings, most: int) -> int:
    """How many pods of this request the node surely takes, one after the other; at most ``most``.

    Each is decided about with those before it bound and not reported: what a report shows of them
    then is among what was counted with. So what holds after many of them holds after fewer, and not
    each has to be decided about: O(log of the places) decisions for each verdict that is met.
    Nothing is counted on a node without a usable record.
    """
    decision, found = decide(facts, request, settings), 0
    alone = request.alone
    while found < most and decision.rejection is None and decision.assessment is not None:
        next_one = arrival(alone, decision)
        alike = _alike_after(facts, alone, settings, next_one, most - found - 1)
        found += 1 + alike
        if found < most:
            facts = with_arrivals(facts, (replace(next_one, count=1 + alike),))
            decision = _decide(facts, alone, settings)
    return found


def _alike_after(
    facts: NodeFacts, request: GpuRequest, settings: Settings, next_one: Arrivals, most: int
) -> int:
    """After how many arrivals of this kind a node still answers a pod the same, at most ``most``;
    without any it does."""

    def the_same(count: int) -> bool:
        later = with_arrivals(facts, (replace(next_one, count=count),))
        decision = _decide(later, request, settings)
        passes = decision.rejection is None and decision.assessment is not None
        return passes and arrival(request, decision) == next_one

    at_least, too_many = 0, min(most, _most_left(facts, request)) + 1
    step = 1
    while too_many - at_least > 1:
        middle = min(at_least + step, too_many - 1)
        if the_same(middle):
            at_least, step = middle, 2 * step
        else:
            too_many, step = middle, max(1, (middle - at_least) // 2)
    return at_least


def _most_left(facts: NodeFacts, request: GpuRequest) -> int:
    """After more pods with this request than this no device is left for another one."""
    offer, each = facts.offer(request.resource), request.effective_count
    if isinstance(offer, Rejection) or not each:
        return 0
    return max(0, offer.availability.devices_left // each - 1)


def arrival(request: GpuRequest, decision: Decision) -> Arrivals:
    """A pod that comes with what this decision promises it."""
    assessed = decision.assessment
    if not request.required or assessed is None:
        return Arrivals(request, 1)
    guaranteed = assessed.verdict is Verdict.GUARANTEED
    return Arrivals(request, 1, request.constraints, guaranteed)


def _decide(facts: NodeFacts, request: GpuRequest, settings: Settings) -> Decision:
    found = _by_facts(facts, request, settings)
    refused = kept_away(facts, request, settings) or kept_for_another(facts, request)
    if refused is None or (found.rejection is not None and not found.rejection.resolvable):
        return found
    return Decision(refused, found.assessment)


class Place(Enum):
    """Whether a place that is kept for a pod is there."""

    THERE = "there"
    """It is once its victims are gone, whatever they and all others do until then."""
    UNCERTAIN = "uncertain"
    """It may be: news of the node will tell."""
    LOST = "lost"
    """It cannot be unless others end: a GPU has fallen sick, or somebody bound a pod by hand."""


def kept_for_another(facts: NodeFacts, request: GpuRequest) -> Rejection | None:
    """Why the node takes no pod with this request where a place is kept for another one.

    Who surely leaves that place whole passes, whether or not the place's victims are still here
    when it comes. While it is not certain that the place is there, nobody else does, if the place
    has a time at which it ends. A place that is lost holds up nobody. The facts of the pod itself
    are asked without it (:meth:`.NodeFacts.without`).
    """
    waiting = facts.kept_for
    if facts.kept is None or waiting is None or waiting.kept_place is None:
        return None
    if not isinstance(waiting.request, GpuRequest) or waiting.request.resource != request.resource:
        return None
    if place_of(facts.kept, waiting, request) is Place.THERE:
        return None
    place = place_of(facts.kept, waiting)
    if place is Place.LOST or (place is Place.UNCERTAIN and waiting.kept_place.by_nomination):
        return None
    # Not for whom: the answer becomes an Event of a pod that may be another team's.
    words = f"a place is kept for another pod until {waiting.kept_place.until_text}"
    return Rejection(words, False, Reason.KEPT_PLACE)


def place_of(kept: NodeFacts, waiting: PodRecord, newcomer: GpuRequest | None = None) -> Place:
    """Whether the place of a waiting pod is there, with a ``newcomer`` that may come before it.

    ``kept`` are the facts for the waiting pod (:attr:`.NodeFacts.kept`). What is too much to work
    out is uncertain.
    """
    request = waiting.request
    if not isinstance(request, GpuRequest) or kept.last_offer(request.resource) is NOT_SERVED:
        return Place.LOST
    offer = kept.offer(request.resource)
    entry = None if isinstance(offer, Rejection) else offer.ledger.unreported.get(waiting.uid)
    if isinstance(offer, Rejection) or entry is None or kept.pods.too_many_departed:
        return Place.UNCERTAIN
    kubelet = offer.kubelet
    others = list(offer.availability.unreported)
    others.remove(entry)
    if newcomer is not None:
        others.append(coming(newcomer, kubelet.replicas))
    now = replace(offer.availability, unreported=unreported_order(others))
    short = short_of_memory(kubelet, now, request)
    enough = request.effective_count <= now.devices_left and short is None
    if enough and keeps(kubelet, now, entry).every:
        return Place.THERE
    if short is not None and not has_room(kubelet, now, request):
        return Place.LOST
    found_some = keeps(kubelet, now, replace(entry, survives_endings=False)).some
    return Place.UNCERTAIN if found_some else Place.LOST


def kept_away(facts: NodeFacts, request: GpuRequest, settings: Settings) -> Rejection | None:
    """Why the node takes no pod with this request, where its kubelet has refused others."""
    streak = facts.refusing(request)
    if streak is None or settings.refusals is Refusals.IGNORE:
        return None
    return refusing(streak.reason, alike=streak.alike)


def refusing(reason: str, *, alike: bool) -> Rejection:
    """Why a node takes no pod whose kubelet has refused pod after pod, ``reason`` the latest.

    ``alike`` says that they asked for the same as this one. No eviction helps. The text is the same
    in a pause and while one pod tries: kube-scheduler looks at a pod again whenever its reason
    changes.
    """
    which = "pods that ask the same" if alike else "pods"
    words = f"the node's kubelet has refused {which} ({reason}): one is tried now and then"
    return Rejection(words, False, Reason.REFUSING)


def _by_facts(facts: NodeFacts, request: GpuRequest, settings: Settings) -> Decision:
    """The answer of one node whose kubelet has not refused pods."""
    offer = facts.offer(request.resource)
    if isinstance(offer, Rejection):
        if request.required or (
            offer is NOT_SERVED and not facts.node_object.pieces(request.resource)
        ):
            return Decision(offer)
        refused = _refused_over_missing(facts, request, settings)
        return Decision(refused or breaks_unseen(facts, request))
    if facts.pods.too_many_departed:
        return undecided(facts, request)
    available = offer.available_to(request)
    assessed = assess(offer.kubelet, available, request)
    if not assessed.fits and not request.required:
        # The constraints do not refuse it, the count does.
        return Decision(_short(assessed, offer.kubelet), assessed)
    if assessed.refusal is not None and settings.refusals is not Refusals.IGNORE:
        return Decision(assessed.refusal, assessed)
    if request.required and assessed.rejection is not None:
        return Decision(assessed.rejection, assessed)
    if assessed.memory is not None:
        return Decision(assessed.memory, assessed)
    if endangers(offer.kubelet, available, request):
        return Decision(IN_PROGRESS, assessed)
    if request.required and not _strong_enough(assessed.verdict, settings.require):
        others = " or others take the CPUs first" if request.exclusive.cpus else ""
        words = f"not guaranteed if a running GPU pod ends{others}: {request.constraints.text}"
        return Decision(Rejection(words, True, Reason.NOT_GUARANTEED), assessed)
    return Decision(None, assessed)


def _short(assessed: Assessment, kubelet: Kubelet) -> Rejection:
    """Why a pod without required constraints is refused where devices are too few for it."""
    found = assessed.rejection
    if found is not None and found.kind in (Reason.TOO_FEW, Reason.SPLIT):
        return found
    return busy(device_unit(kubelet))


def unconstrained(facts: NodeFacts, request: GpuRequest) -> Assessment | None:
    """What a node may hand out to the same pod without its constraints.

    None where its record cannot be used.
    """
    offer = facts.offer(request.resource)
    if isinstance(offer, Rejection):
        return None
    plain = replace(request, constraints=NO_CONSTRAINTS)
    return assess(offer.kubelet, offer.available_to(plain), plain)


def sets_of(facts: NodeFacts, request: GpuRequest, decision: Decision) -> tuple[Mask, ...] | None:
    """The GPUs that the pod may have here, set by set, as far as its verdict speaks of them.

    See :func:`~topology.core.placement.sets_spoken_of`. A pod that prefers what this hardware never
    has gets some GPUs all the same. None where the sets are too many to list; none are listed where
    there is no usable record.
    """
    if request.in_company:
        return _sets_among(facts, request, decision)
    assessed = decision.assessment
    if assessed is not None and assessed.verdict is Verdict.NEVER:
        assessed = unconstrained(facts, request)
    offer = facts.offer(request.resource)
    if assessed is None or isinstance(offer, Rejection):
        return ()
    return sets_spoken_of(offer.kubelet, offer.available_to(request), request, assessed)


def _sets_among(
    facts: NodeFacts, request: GpuRequest, decision: Decision
) -> tuple[Mask, ...] | None:
    """The sets that the pod may have with its siblings before it, in whatever way."""
    alone = request.alone
    found: dict[Mask, None] = {}
    for later in with_siblings(facts, request) or [facts]:
        offer = later.offer(alone.resource)
        if later is not facts and decision.assessment is not None and isinstance(offer, Offer):
            decision = Decision(None, assess(offer.kubelet, offer.available_to(alone), alone))
        sets = sets_of(later, alone, decision)
        if sets is None:
            return None
        found |= dict.fromkeys(sets)
    return tuple(found)


def undecided(facts: NodeFacts, request: GpuRequest) -> Decision:
    """The answer of a node about which deciding failed, or for which there was no time.

    Only what cannot break a promise passes.
    """
    return Decision(UNDECIDED if request.required else breaks_unseen(facts, request))


def breaks_unseen(facts: NodeFacts, request: GpuRequest) -> Rejection | None:
    """Why a pod that requires nothing may not come to a node of which something is not known: it
    could break a promise that stands there. None where none does."""
    if facts.promises:
        return IN_PROGRESS
    return PROMISED if facts.shares_promised(request.resource) else None


def out_of_date(facts: NodeFacts, request: GpuRequest) -> Rejection | None:
    """Why a node does not pass while a watch is blind; None where it may."""
    return OUT_OF_DATE if request.required else breaks_unseen(facts, request)


def prospect(
    facts: NodeFacts, request: GpuRequest, decision: Decision, classes: RequestClasses
) -> Prospect:
    """What placing the request on a node that passes would cost and give, whatever the weights."""
    offer = facts.last_offer(request.resource)
    if decision.assessment is None or isinstance(offer, Rejection):
        return Prospect(scoring.UNKNOWN)
    kubelet, available = offer.kubelet, offer.availability
    return scoring.prospect(kubelet, available, request.alone, decision.assessment, classes)


def _refused_over_missing(
    facts: NodeFacts, request: GpuRequest, settings: Settings
) -> Rejection | None:
    """Why the plugin of a node refuses the pod while somebody has to mend the node.

    The agent names such a GPU, too, while it cannot vouch for the rest of its report: the calls
    about one GPU hang, and soon all calls do.
    """
    report = facts.report
    if report is None or not report.missing or facts.record.stale or not report.not_ready:
        return None
    if settings.refusals is Refusals.IGNORE:
        return None
    record = replace(facts.record, report=replace(report, conditions=()))
    vouched = replace(facts, record=record)
    offer = vouched.offer(request.resource)
    if isinstance(offer, Rejection):
        return None
    assessed = _by_facts(vouched, request, settings).assessment
    plugin = offer.kubelet.allocator
    if assessed is None or not (plugin.broken and plugin.words(assessed.hazards)):
        return None
    return assessed.refusal


def _strong_enough(verdict: Verdict, least: Verdict) -> bool:
    return verdict is Verdict.GUARANTEED or least is Verdict.EXPECTED
