"""The answer of one node to a request: the rules of :data:`.rules.RULES`, one after another.

It is a pure function of the node's info, the request and the operator's settings. To ask "what if
these pods were gone", decide about ``info.without(pods)``.
"""

from dataclasses import replace

from scheduler_extender.framework.outcomes import arrival
from scheduler_extender.framework.rule import UNDECIDED, NodeEvaluation
from scheduler_extender.framework.rules import RULES
from scheduler_extender.framework.rules.promises import breaks_unseen
from scheduler_extender.state.answers.decision import Decision, Settings
from scheduler_extender.state.node.arrivals import Arrivals, with_arrivals
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core import scoring
from topology.core.placement import Rejection
from topology.core.requests import GpuRequest
from topology.core.scoring import PlacementCost, RequestClasses


def decide(info: NodeInfo, request: GpuRequest, settings: Settings) -> Decision:
    """Return the answer of one node. Every rule is checked, and every rejection is recorded.

    Rejections that no eviction can resolve come before the others, because kube-scheduler must hear
    that evictions help only if no rule says otherwise.
    """
    node = NodeEvaluation(info, request, settings, decide)
    for rule in RULES:
        why = rule(node)
        if why is not None:
            node.rejections.append(why)
    rejections = node.rejections
    if not rejections:
        return Decision(assessment=node.assessed)
    main = next((each for each in rejections if not each.resolvable), rejections[0])
    return Decision(main, node.assessed, tuple(each for each in rejections if each is not main))


def undecided(info: NodeInfo, request: GpuRequest) -> Decision:
    """Return the answer of a node for which deciding failed, or for which there was no time.

    A pod passes only if it cannot break a promise.
    """
    return Decision(UNDECIDED if request.required else breaks_unseen(info, request))


def placement_cost(
    info: NodeInfo, request: GpuRequest, decision: Decision, classes: RequestClasses
) -> PlacementCost:
    """Return the unweighted cost and benefit of placing the request on a node that passes."""
    offer = info.last_offer(request.resource)
    if decision.assessment is None or isinstance(offer, Rejection):
        return PlacementCost(scoring.UNKNOWN)
    kubelet, available = offer.kubelet, offer.availability
    return scoring.placement_cost(
        kubelet, available, request.without_peers, decision.assessment, classes
    )


def pod_capacity(info: NodeInfo, request: GpuRequest, settings: Settings, most: int) -> int:
    """Return how many pods of this request surely fit one after the other; at most ``most``.

    Each pod is decided about with the earlier ones bound and unacknowledged. A later report shows
    one of the cases that were counted. So what holds after many of them holds after fewer, and
    O(log of the capacity) decisions are enough for each verdict. Returns 0 for a node without a
    usable record.
    """
    decision, taken = decide(info, request, settings), 0
    without_peers = request.without_peers
    while taken < most and decision.rejection is None and decision.assessment is not None:
        next_one = arrival(without_peers, decision)
        alike = _alike_after(info, without_peers, settings, next_one, most - taken - 1)
        taken += 1 + alike
        if taken < most:
            info = with_arrivals(info, (replace(next_one, count=1 + alike),))
            decision = decide(info, without_peers, settings)
    return taken


def _alike_after(
    info: NodeInfo, request: GpuRequest, settings: Settings, next_one: Arrivals, most: int
) -> int:
    """Return the largest number of arrivals, at most ``most``, that leaves the answer unchanged."""

    def the_same(count: int) -> bool:
        later = with_arrivals(info, (replace(next_one, count=count),))
        decision = decide(later, request, settings)
        passes = decision.rejection is None and decision.assessment is not None
        return passes and arrival(request, decision) == next_one

    # the most arrivals that still leave devices for one more
    offer, each = info.offer(request.resource), request.effective_count
    if not isinstance(offer, Rejection) and each:
        most = min(most, max(0, offer.availability.devices_left // each - 1))
    else:
        most = 0
    at_least, too_many = 0, most + 1
    step = 1
    while too_many - at_least > 1:
        middle = min(at_least + step, too_many - 1)
        if the_same(middle):
            at_least, step = middle, 2 * step
        else:
            too_many, step = middle, max(1, (middle - at_least) // 2)
    return at_least
