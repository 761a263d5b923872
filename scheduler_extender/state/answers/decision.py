"""What a node answers to a request: the filter table.

A pure function of the node's facts, the request and what the operator chose. To ask "what if these
pods were gone", decide about ``facts.without(pods)``. The first row that applies answers:

=== =========================================== ============= ============= ===============
    what is known of the node                    plain         preferred     required
=== =========================================== ============= ============= ===============
 1  no offer: no report, stale, not served, …    passes [1]_   passes [1]_   refused
 2  more pods have departed than can be followed passes [1]_   passes [1]_   refused
 3  too few devices are left                     refused       refused       row 5 refuses
 4  its kubelet surely refuses the pod           refused [2]_  refused [2]_  refused [2]_
 5  the constraints may not hold                 –             passes        refused
 6  the memory of a shared GPU may run out       refused       refused       refused
 7  a promise that stands there could break      refused       refused       refused
 8  expected, and the operator asks for more     passes        passes        refused
 9  guaranteed, or expected                      passes        passes        passes
=== =========================================== ============= ============= ===============

A pod that passes by these rows, or is refused so that evictions could help, is still refused where
the node's kubelet has refused such pods before [2]_, where a place is reserved for another pod,
and, in a gang, where siblings that come first could spoil it. While a watch is blind, what is known
may be out of date: a required pod passes nowhere, and other pods only where no promise stands
(:func:`unless_blind`).

.. [1] unless the pod could break a promise that stands there, the node's plugin is known to refuse
   everything, the Node object gives out none of the resource, or MIG splits all its GPUs.
.. [2] as the operator chose (:class:`Refusals`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from operator import or_

from scheduler_extender.annotations import MANAGED
from scheduler_extender.state.node.arrivals import Arrivals, with_arrivals, with_siblings
from scheduler_extender.state.node.facts import NodeFacts, Offer
from scheduler_extender.state.pods.record import PodRecord
from topology.core import scoring
from topology.core.admission import Kubelet
from topology.core.availability import coming, unreported_order
from topology.core.devices import Mask
from topology.core.placement import (
    ALL_SPLIT,
    BY_CLAIMS_ALONE,
    IN_PROGRESS,
    INIT_UNDER_DRA,
    NOT_SERVED,
    NOT_SERVED_BY_DRA,
    Assessment,
    Reason,
    Rejection,
    Verdict,
    assess,
    busy,
    device_unit,
    endangers,
    keeps,
    sets_spoken_of,
    short_of_memory,
)
from topology.core.requests import NO_CONSTRAINTS, GpuRequest, Role
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
HAD_CLAIM = Rejection(
    "the pod's status names a claim, so that only a kubelet with DRA can start it",
    False,
    Reason.KUBELET,
)
SIBLINGS = Rejection("siblings of the pod's gang may come first", True, Reason.GROUP)
OUT_OF_DATE = Rejection(
    "the extender's view of the cluster is out of date", False, Reason.OUT_OF_DATE
)


_BEST_FIRST = list(Verdict)


class Refusals(Enum):
    """Which nodes are closed to a pod because their kubelets would refuse it."""

    CERTAIN = "certain"  # those whose kubelet surely refuses it
    POSSIBLE = "possible"  # also those whose kubelet may refuse it, while others are left
    IGNORE = "ignore"  # none; constraints count all the same


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator chooses."""

    require: Verdict = Verdict.EXPECTED  # the weakest verdict on which a required pod passes
    stale_after: float | None = 180.0  # seconds since the last changed report; None for never
    managed: tuple[str, ...] = MANAGED
    all_pods_known: bool = True  # the source names every pod (see :func:`.ledger.ledger`)
    refusals: Refusals = Refusals.CERTAIN
    shadow: bool = False  # the verbs refuse nothing (:mod:`.verbs.shadowing`)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a node answers to a request. Nodes in one state share one."""

    rejection: Rejection | None = None  # None if the pod passes
    assessment: Assessment | None = None  # None if nothing can be decided about the node

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
    decided = _decide_alone(facts, alone, settings)
    if not request.in_company or decided.rejection is not None:
        return decided
    for later in with_siblings(facts, request):
        among = _decide_alone(later, alone, settings)
        if among.rejection is not None:
            return Decision(SIBLINGS, decided.assessment)
        if decided.assessment is not None and among.assessment is not None:
            verdicts = decided.assessment.verdict, among.assessment.verdict
            weaker = max(verdicts, key=_BEST_FIRST.index)
            decided = Decision(None, replace(decided.assessment, verdict=weaker))
    return decided


def _decide_alone(facts: NodeFacts, request: GpuRequest, settings: Settings) -> Decision:
    """The answer to a pod that nobody may come before."""
    if request.by_class and facts.by_plugin:
        return Decision(NOT_SERVED_BY_DRA)
    by_rows = _by_rows(facts, request, settings)
    refused, why = kept_away(facts, request, settings), by_rows.rejection
    if refused is None and facts.reserved_for is not None:
        refused = reserved_for_another(facts, request)
    if refused is None or (why is not None and not why.resolvable):
        return by_rows
    return Decision(refused, by_rows.assessment)


def _by_rows(facts: NodeFacts, request: GpuRequest, settings: Settings) -> Decision:
    """The answer by the rows of the table."""
    offer = facts.offer(request.resource)
    if isinstance(offer, Rejection):
        split = offer is NOT_SERVED and facts.all_split(request.resource)
        given = facts.by_dra or facts.node_object.pieces(request.resource)
        if split or request.required or (offer is NOT_SERVED and not given):
            return Decision(ALL_SPLIT if split else offer)
        refused = _refused_over_missing(facts, request, settings)
        return Decision(refused or breaks_unseen(facts, request))
    if facts.pods.too_many_departed:
        return undecided(facts, request)
    if not offer.topology.allocator.by_number:
        return Decision(BY_CLAIMS_ALONE)
    if request.required and facts.by_dra and any(r is Role.INIT for r, _ in request.counts):
        return Decision(INIT_UNDER_DRA)
    available = offer.available_to(request)
    assessed = assess(offer.kubelet, available, request)
    if not assessed.fits and not request.required:
        return Decision(_short(assessed, offer.kubelet), assessed)
    if assessed.refusal is not None and settings.refusals is not Refusals.IGNORE:
        return Decision(assessed.refusal, assessed)
    if request.required and assessed.rejection is not None:
        return Decision(_over_fabric(facts, request, assessed.rejection), assessed)
    if assessed.memory is not None:
        return Decision(assessed.memory, assessed)
    if endangers(offer.kubelet, available, request):
        return Decision(IN_PROGRESS, assessed)
    guaranteed = assessed.verdict is Verdict.GUARANTEED
    if request.required and settings.require is Verdict.GUARANTEED and not guaranteed:
        others = " or others take the CPUs first" if request.exclusive.cpus else ""
        words = f"not guaranteed if a running GPU pod ends{others}: {request.constraints.text}"
        return Decision(Rejection(words, True, Reason.NOT_GUARANTEED), assessed)
    return Decision(None, assessed)


def _over_fabric(facts: NodeFacts, request: GpuRequest, why: Rejection) -> Rejection:
    """The rejection, which also names the NVLink fabric where that may decide."""
    over_links = why.kind in (Reason.LINKS, Reason.SCATTERED, Reason.NOT_GUARANTEED)
    if not (over_links and request.constraints.over_links and facts.fabric_fault):
        return why
    return replace(why, reason=f"{why.reason}: {facts.fabric_fault}")


def _short(assessed: Assessment, kubelet: Kubelet) -> Rejection:
    """Why a pod without required constraints is refused if too few devices are left."""
    why = assessed.rejection
    if why is not None and why.kind in (Reason.TOO_FEW, Reason.SPLIT):
        return why
    return busy(device_unit(kubelet))


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
    assessed = _by_rows(vouched, request, settings).assessment
    plugin, refusal = offer.kubelet.allocator, None if assessed is None else assessed.refusal
    if assessed is None or refusal is None or refusal.kind is Reason.SICK:
        return refusal
    return refusal if plugin.broken and plugin.words(assessed.hazards) else None


def undecided(facts: NodeFacts, request: GpuRequest) -> Decision:
    """The answer of a node about which deciding failed, or for which there was no time.

    Only what cannot break a promise passes.
    """
    return Decision(UNDECIDED if request.required else breaks_unseen(facts, request))


def breaks_unseen(facts: NodeFacts, request: GpuRequest) -> Rejection | None:
    """Why a pod that requires nothing may not come to a node of which something is not known: it
    could break a promise that stands there. None if none does."""
    if facts.promises:
        return IN_PROGRESS
    return PROMISED if facts.shares_promised(request.resource) else None


def kept_away(facts: NodeFacts, request: GpuRequest, settings: Settings) -> Rejection | None:
    """Why the node takes no pod with this request, where its kubelet has refused others."""
    backoff = facts.refusing(request)
    if backoff is None or settings.refusals is Refusals.IGNORE:
        return None
    return refusing(backoff.reason, alike=backoff.of_one_kind)


def reserved_for_another(facts: NodeFacts, request: GpuRequest) -> Rejection | None:
    """Why a node takes no pod with this request, because a place is reserved there for another one.

    A pod that surely leaves that place whole passes, whether or not the place's victims are still
    here when it comes. A nominated pod's place has no end: where it is not there anyway, as while
    the node does not report, it holds up no pod. Ask the pod itself about the facts without it
    (:meth:`.NodeFacts.without`).
    """
    waiting = facts.reserved_for
    if facts.kept is None or waiting is None or waiting.reservation is None:
        return None
    if not isinstance(waiting.request, GpuRequest) or waiting.request.resource != request.resource:
        return None
    if facts.kept.last_offer(request.resource) is NOT_SERVED:
        return None  # there is nothing of the kind to be kept
    if leaves_whole(facts.kept, waiting, request):
        return None
    if waiting.reservation.by_nomination and not leaves_whole(facts.kept, waiting):
        return None
    # Not for whom: the answer becomes an Event of a pod that may be another team's.
    words = f"reserved for another pod until {waiting.reservation.until_text}"
    return Rejection(words, False, Reason.RESERVED)


def leaves_whole(kept: NodeFacts, waiting: PodRecord, newcomer: GpuRequest | None = None) -> bool:
    """Whether the place of a waiting pod is there once its victims are gone, whatever they and all
    others do until then, with a ``newcomer`` that may come before it.

    ``kept`` are the facts for the waiting pod (:attr:`.NodeFacts.kept`). What is too much to work
    out is not there.
    """
    request = waiting.request
    if not isinstance(request, GpuRequest):
        return False
    offer = kept.offer(request.resource)
    entry = None if isinstance(offer, Rejection) else offer.ledger.unreported.get(waiting.uid)
    if isinstance(offer, Rejection) or entry is None or kept.pods.too_many_departed:
        return False
    kubelet, others = offer.kubelet, list(offer.availability.unreported)
    others.remove(entry)
    if newcomer is not None:
        others.append(coming(newcomer, kubelet.replicas))
    now = replace(offer.availability, unreported=unreported_order(others))
    enough = request.effective_count <= now.devices_left
    short = not enough or short_of_memory(kubelet, now, request) is not None
    return not short and keeps(kubelet, now, entry).every


def refusing(reason: str, *, alike: bool) -> Rejection:
    """Why a node takes no pod whose kubelet has refused pod after pod, ``reason`` the latest.

    ``alike`` says that they asked for the same as this one. No eviction helps. The text is the same
    in a pause and while one pod tries: kube-scheduler looks at a pod again whenever its reason
    changes.
    """
    which = "pods that ask the same" if alike else "pods"
    words = f"the node's kubelet has refused {which} ({reason}): one is tried now and then"
    return Rejection(words, False, Reason.REFUSING)


def unconstrained(facts: NodeFacts, request: GpuRequest) -> Assessment | None:
    """What a node may hand out to the same pod without its constraints.

    None if its record cannot be used.
    """
    offer = facts.offer(request.resource)
    if isinstance(offer, Rejection):
        return None
    plain = replace(request, constraints=NO_CONSTRAINTS)
    return assess(offer.kubelet, offer.available_to(plain), plain)


def sick_among(facts: NodeFacts, request: GpuRequest, assessed: Assessment | None) -> str:
    """That a node may hand out sick GPUs, and which; empty where it does not, or nobody can say."""
    offer = facts.last_offer(request.resource)
    if isinstance(offer, Rejection) or assessed is None or not assessed.sets:
        return ""
    sick = offer.availability.sick & reduce(or_, assessed.sets)
    called = [str(index) for index in sorted(set(offer.devices.indices(sick)))]
    if not called:
        return ""
    several = called[1:]
    gpus = f"GPU{'s' if several else ''} {', '.join(called)}"
    return f"may hand out {gpus}, which {'are' if several else 'is'} sick"


def sets_of(facts: NodeFacts, request: GpuRequest, decision: Decision) -> tuple[Mask, ...] | None:
    """The GPUs that the pod may have here, set by set, as far as its verdict speaks of them.

    See :func:`~topology.core.placement.sets_spoken_of`. A pod that prefers what this hardware never
    has gets some GPUs all the same. None if the sets are too many to list; none are listed where
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
    listed: dict[Mask, None] = {}
    for later in with_siblings(facts, request) or [facts]:
        offer = later.offer(alone.resource)
        if later is not facts and decision.assessment is not None and isinstance(offer, Offer):
            decision = Decision(None, assess(offer.kubelet, offer.available_to(alone), alone))
        sets = sets_of(later, alone, decision)
        if sets is None:
            return None
        listed |= dict.fromkeys(sets)
    return tuple(listed)


def unless_blind(decision: Decision, facts: NodeFacts, request: GpuRequest) -> Decision:
    """What a node that answers so by the table answers while a watch is blind."""
    if request.required:
        return Decision(OUT_OF_DATE)
    unseen = breaks_unseen(facts, request) if decision.rejection is None else None
    return decision if unseen is None else Decision(unseen, decision.assessment)


def prospect(
    facts: NodeFacts, request: GpuRequest, decision: Decision, classes: RequestClasses
) -> Prospect:
    """What placing the request on a node that passes would cost and give, whatever the weights."""
    offer = facts.last_offer(request.resource)
    if decision.assessment is None or isinstance(offer, Rejection):
        return Prospect(scoring.UNKNOWN)
    kubelet, available = offer.kubelet, offer.availability
    return scoring.prospect(kubelet, available, request.alone, decision.assessment, classes)


def places(facts: NodeFacts, request: GpuRequest, settings: Settings, most: int) -> int:
    """How many pods of this request the node surely takes, one after the other; at most ``most``.

    Each is decided about with those before it bound and not reported: a later report shows one of
    the cases that were counted. So what holds after many of them holds after fewer, and O(log of
    the places) decisions are enough for each verdict. Nothing is counted on a node without a usable
    record.
    """
    decision, taken = decide(facts, request, settings), 0
    alone = request.alone
    while taken < most and decision.rejection is None and decision.assessment is not None:
        next_one = arrival(alone, decision)
        alike = _alike_after(facts, alone, settings, next_one, most - taken - 1)
        taken += 1 + alike
        if taken < most:
            facts = with_arrivals(facts, (replace(next_one, count=1 + alike),))
            decision = _decide_alone(facts, alone, settings)
    return taken


def _alike_after(
    facts: NodeFacts, request: GpuRequest, settings: Settings, next_one: Arrivals, most: int
) -> int:
    """The largest number of arrivals, at most ``most``, that leaves the answer unchanged."""

    def the_same(count: int) -> bool:
        later = with_arrivals(facts, (replace(next_one, count=count),))
        decision = _decide_alone(later, request, settings)
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
    """Upper bound on arrivals that still leave devices for one more."""
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
