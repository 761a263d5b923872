"""Asks nodes about a pod with ResourceClaims of its own, which asks for no number of devices.

Where its claims have devices, as after a bind that was refused, these are judged; else those that
kube-scheduler will give to them, as far as that can be said.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from scheduler_extender.annotations import OfClaims
from scheduler_extender.deadline import Deadline
from scheduler_extender.framework.awaited import GONE, NO_CLAIM, NO_RECORD
from scheduler_extender.framework.equivalence import NodeAnswers, ask
from scheduler_extender.framework.results import Results
from scheduler_extender.framework.rule import UNDECIDED
from scheduler_extender.framework.rules.freshness import OUT_OF_DATE
from scheduler_extender.state.node.nodeinfo import Devices, NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.memo import interruptible
from topology.core.placement import NOT_SERVED_BY_DRA, Reason, Rejection
from topology.core.requests import GpuRequest, gpu_request

NO_GPUS = Rejection("its claims get no GPUs here", False, Reason.CLAIMS)

# A verb has time for about 750 nodes. Over more than this each try begins at another one, so that
# a later one reaches those for which the first had no time.
MOST_IN_ORDER = 500


def ask_by_claims(results: Results, names: Sequence[str], deadline: Deadline) -> list[NodeAnswers]:
    """The answers of the nodes of which it is known what the claims get, those together that give
    as many GPUs. The others are noted in the results: a node passes where nothing can be said.

    kube-scheduler frees a claim that has devices where its node is refused so that evictions may
    help: every refusal for its devices is of that kind.
    """
    snapshot, pod, late = results.asked, results.question.pod, list[str]()
    wanted = pod.of_claims
    assert wanted is not None  # noqa: S101 (the caller looked)
    unknown: dict[str, Rejection] = dict.fromkeys(names if snapshot.is_stale else (), OUT_OF_DATE)
    kinds = defaultdict[Hashable, list[str]](list)
    first = defaultdict[int, list[NodeInfo]](list)  # one of each kind, by the number of GPUs
    now = deadline.clock()
    half = replace(deadline, until=(now + deadline.until) / 2)  # the rest is for the verdicts
    with half.ends():
        interruptible()
        to_come = snapshot.foresees(wanted.namespace, wanted.names)
        begin = int(1000 * now) % len(names) if len(names) > MOST_IN_ORDER else 0
        for name in () if snapshot.is_stale else (*names[begin:], *names[:begin]):
            interruptible()
            info = snapshot.node_info(NodeName(name))
            devices = devices_for(info, pod.uid, wanted, to_come)
            if isinstance(devices, Rejection):
                unknown[name] = devices
                continue
            alike = kinds[_kind(info, devices)]
            if not alike:
                first[len(devices)].append(info.as_claimed(pod.uid, devices))
            alike.append(name)
            results.devices[name] = devices
    for name in names:
        if (why := unknown.get(name)) is not None:
            refused = None if why.kind is Reason.UNDECIDED else replace(why, resolvable=True)
            results.by_reason.setdefault(refused, []).append(name)
        elif name not in results.devices:
            late.append(name)
    results.unknown |= unknown
    if late:
        results.late |= frozenset(late)
        results.by_reason.setdefault(UNDECIDED, []).extend(late)
    by_first = {alike[0]: alike for alike in kinds.values()}
    scores, found = results.question.scores, []
    for count, nodes in first.items():
        request, ours = gpu_request(count, wanted.constraints), [each.name for each in nodes]
        answers = ask(snapshot.with_node_infos(nodes), request, ours, deadline, scores=scores)
        for class_id, decision in answers.decisions.items():
            why = decision.rejection and replace(decision.rejection, resolvable=True)
            answers.decisions[class_id] = replace(decision, rejection=why)
        found.append(answers.of_all({name: by_first[name] for name in ours}))
    return found


def counted(info: NodeInfo, pod: PodRecord, request: GpuRequest) -> GpuRequest:
    """What a pod asks for at its bind where it has its devices by then: all that its claims have,
    where that is more: those of its own beside a number, too, and one of an earlier try that is not
    gone yet. No sibling counts."""
    own = pod.request
    if not isinstance(own, GpuRequest):
        return request
    devices = info.devices_of(pod)
    more = own.required and (len(devices) > own.count or not own.count)
    return gpu_request(len(devices), own.constraints) if more else own


def unproven(info: NodeInfo, pod: PodRecord, request: GpuRequest) -> Rejection | None:
    """Why what a pod requires of its claims' devices cannot be judged yet at its bind; the news
    comes by a watch. None where it can."""
    if not info.may_start(pod):
        return NO_RECORD  # it has moved to DRA, and its agent has not seen that
    if not request.required:
        return None
    if not info.serves_claims:
        return NO_RECORD if pod.by_claim or not request.count else None
    devices = info.devices_of(pod)
    if info.lacks(devices):
        return GONE  # it may be new, and its ResourceSlice on its way
    return NO_CLAIM if len(devices) < max(1, request.count) else None


def devices_for(
    info: NodeInfo,
    uid: PodUid,
    wanted: OfClaims,
    to_come: Callable[[NodeInfo], Devices | Rejection],
) -> Devices | Rejection:
    """The GPUs that a pod's claims have on a node and, with those that are ``to_come`` (see
    :data:`.Foresees`), will get; or why they get none, or that cannot be said."""
    if (unserved := _unserved(info)) is not None:
        return unserved
    devices = info.seen(uid, wanted.namespace, wanted.names)
    if info.lacks(devices):
        return GONE
    coming = to_come(info)
    if isinstance(coming, Rejection):
        return devices or coming
    return devices + coming or NO_GPUS


def _unserved(info: NodeInfo) -> Rejection | None:
    """Why no claim gets a GPU of a node, whatever it asks for; None where one may."""
    resources = () if info.topology is None else info.topology.resources
    offer = info.offer(resources[0].name if resources else "")
    if isinstance(offer, Rejection):
        return offer
    return None if info.serves_claims else NOT_SERVED_BY_DRA


def _kind(info: NodeInfo, devices: Devices) -> Hashable:
    """All that the answer of a node with DRA depends on, for a pod that gets these devices."""
    topology = info.topology
    if topology is None:
        return None
    at = {str(gpu.uuid): position for position, gpu in enumerate(topology.gpus)}
    return (info.key(topology.resources[0].name), *(at[each] for each in devices))
