"""The devices of a node, its kubelet, and what the pod requires of them.

Of rows 1 to 5 the first that applies is this rule's answer. The other rules are checked besides,
also those without a row: back-off, reservations and peers (:data:`.rules.RULES`).
:func:`.decision.decide` says which of several refusals is reported first.

=== =========================================== ============= ============= ===============
    what is known of the node                    plain         preferred     required
=== =========================================== ============= ============= ===============
 1  no offer: no report, stale, not served, …    passes [1]_   passes [1]_   refused
 2  more pods have terminated than can be followed passes [1]_   passes [1]_   refused
 3  too few devices are left                     refused       refused       row 5 refuses
 4  its kubelet surely refuses the pod           refused [2]_  refused [2]_  refused [2]_
 5  the constraints may not hold                 –             passes        refused
 6  the memory of a shared GPU may run out       refused       refused       refused
 7  a promise to a pod there could break         refused       refused       refused
 8  expected, and the operator requires more     passes        passes        refused
 9  guaranteed, or expected                      passes        passes        passes
=== =========================================== ============= ============= ===============

Rows 1 to 5 are here, row 6 is :mod:`.memory`, row 7 :mod:`.promises`, row 8 :mod:`.strength`.

.. [1] unless the pod could break a promise to a pod there (:mod:`.promises`) or, in row 1, the
   node's plugin is known to refuse everything, the Node object has none of the resource, or MIG
   splits all its GPUs.
.. [2] as the operator chose (:class:`.Refusals`).
"""

from dataclasses import replace

from scheduler_extender.framework.rule import UNDECIDED, NodeEvaluation
from scheduler_extender.state.answers.decision import Refusals
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.placement import (
    ALL_SPLIT_BY_MIG,
    INIT_UNDER_DRA,
    NOT_SERVED,
    NOT_SERVED_BY_DRA,
    OWN_CLAIMS_ONLY,
    Reason,
    Rejection,
    assess,
    busy,
    device_unit,
)
from topology.core.requests import GpuRequest


def check(node: NodeEvaluation) -> Rejection | None:
    """Return why the node's devices, or its kubelet, refuse the pod."""
    info, request = node.info, node.without_peers
    offer = info.offer(request.resource)
    if not request.effective_count:
        return UNDECIDED if request.required else None  # the pod's claims say which devices
    if request.by_implicit_name and info.serves_claims is False:
        return NOT_SERVED_BY_DRA
    if isinstance(offer, Rejection):
        split = offer is NOT_SERVED and info.all_split(request.resource)
        none = offer is NOT_SERVED and not info.gives_out(request.resource)
        if split or request.required or none:
            return ALL_SPLIT_BY_MIG if split else offer
        return _refused_over_missing(node)
    if info.pods.too_many_terminated:
        return UNDECIDED if request.required else None
    if not offer.topology.allocator.serves_extended_resource:
        return OWN_CLAIMS_ONLY
    if request.required and info.serves_claims and request.has_init:
        return INIT_UNDER_DRA
    node.offer, node.available = offer, offer.available_to(request)
    node.assessed = assessed = assess(offer.kubelet, node.available, request)
    if not assessed.fits and not request.required:
        # Too few devices are left.
        why = assessed.rejection
        always = why is not None and why.reason in (Reason.TOO_FEW, Reason.SPLIT_BY_MIG)
        return why if always else busy(device_unit(offer.kubelet))
    if assessed.refusal is not None and node.settings.refusals is not Refusals.IGNORE:
        return assessed.refusal
    if request.required and assessed.rejection is not None:
        return _over_fabric(info, request, assessed.rejection)
    return None


def _over_fabric(info: NodeInfo, request: GpuRequest, why: Rejection) -> Rejection:
    """Return the rejection, with the NVLink fabric's fault if that may be the cause."""
    over_links = why.reason in (Reason.LINKS, Reason.SCATTERED, Reason.NOT_GUARANTEED)
    if not (over_links and request.constraints.over_links and info.fabric_fault):
        return why
    return replace(why, message=f"{why.message}: {info.fabric_fault}")


def _refused_over_missing(node: NodeEvaluation) -> Rejection | None:
    """Return why the plugin of a node refuses the pod while the node waits for a repair.

    The agent also names such a GPU while it cannot vouch for the rest of its report: first the
    calls about one GPU hang, and soon all calls do.
    """
    info, report = node.info, node.info.report
    if report is None or not report.missing or info.record.stale or not report.not_ready:
        return None
    if node.settings.refusals is Refusals.IGNORE:
        return None
    record = replace(info.record, report=replace(report, conditions=()))
    request = node.without_peers
    offer = replace(info, record=record).offer(request.resource)
    if isinstance(offer, Rejection) or info.pods.too_many_terminated:
        return None
    if not offer.topology.allocator.serves_extended_resource:
        return None
    assessed = assess(offer.kubelet, offer.available_to(request), request)
    if (refusal := assessed.refusal) is None or refusal.reason is Reason.SICK:
        return refusal
    plugin = offer.kubelet.allocator
    return refusal if plugin.broken and plugin.words(assessed.hazards) else None
