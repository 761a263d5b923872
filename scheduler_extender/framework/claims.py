"""Asks nodes about a pod with ResourceClaims of its own that requests no number of devices.

If its claims have devices, for example after a bind that was rejected, those devices are judged.
Otherwise the devices are judged that kube-scheduler will allocate, as far as they can be foreseen.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from scheduler_extender.annotations import ClaimConstraints
from scheduler_extender.deadline import Deadline
from scheduler_extender.framework.awaited import GPU_NOT_PUBLISHED, NO_CLAIM, RECORD_WITHOUT_CLAIMS
from scheduler_extender.framework.equivalence import NodeAnswers, ask
from scheduler_extender.framework.results import Results
from scheduler_extender.framework.rule import UNDECIDED
from scheduler_extender.framework.stalewatches import OUT_OF_DATE
from scheduler_extender.state.node.nodeinfo import Devices, NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.memo import interruptible
from topology.core.placement import NOT_SERVED_BY_DRA, Reason, Rejection
from topology.core.requests import GpuRequest, gpu_request

NO_GPUS = Rejection("the pod's claims get no GPUs on this node", False, Reason.CLAIMS)

# A verb has time for about 750 nodes. If there are more nodes than this, each attempt begins at
# another node, so that a later attempt reaches those for which the first one had no time.
MOST_IN_ORDER = 500


def ask_by_claims(results: Results, names: Sequence[str], deadline: Deadline) -> list[NodeAnswers]:
    """Return the answers of the nodes for which the claims' devices are known.

    Nodes that give the same number of GPUs are answered together. The other nodes are noted in the
    results: a node about which nothing can be said passes.

    kube-scheduler deallocates a claim only if its node is rejected in a way that evictions may
    resolve. So every rejection for the claim's devices is resolvable.
    """
    snapshot, pod, late = results.asked, results.question.pod, list[str]()
    wanted = pod.claim_constraints
    assert wanted is not None  # noqa: S101 (the caller looked)
    unknown: dict[str, Rejection] = dict.fromkeys(names if snapshot.is_stale else (), OUT_OF_DATE)
    kinds = defaultdict[Hashable, list[str]](list)
    first = defaultdict[int, list[NodeInfo]](list)  # the first of each kind, by GPU count
    now = deadline.clock()
    half = replace(deadline, until=(now + deadline.until) / 2)  # the rest is for verdicts
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
            rejected = None if why.reason is Reason.UNDECIDED else replace(why, resolvable=True)
            results.by_reason.setdefault(rejected, []).append(name)
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
    """Return the request that counts at the bind of a pod that has its devices by then.

    It covers all devices of its claims if these are more than the pod's own number: also claims
    beside a number, and a claim of an earlier attempt that has not gone yet. Peers do not count.
    """
    own = pod.request
    if not isinstance(own, GpuRequest):
        return request
    devices = info.devices_of(pod)
    more = own.required and (len(devices) > own.count or not own.count)
    return gpu_request(len(devices), own.constraints) if more else own


def unproven(info: NodeInfo, pod: PodRecord, request: GpuRequest) -> Rejection | None:
    """Return why the devices of a pod's claims cannot be judged yet at its bind, or None.

    A watch will bring what is missing.
    """
    if not info.may_start(pod):
        return RECORD_WITHOUT_CLAIMS  # the pod has moved to DRA, and its agent has not seen that
    if not request.required:
        return None
    if not info.serves_claims:
        return (
            RECORD_WITHOUT_CLAIMS if pod.has_extended_resource_claim or not request.count else None
        )
    devices = info.devices_of(pod)
    if info.lacks(devices):
        return GPU_NOT_PUBLISHED  # the GPU may be new, and its ResourceSlice not here yet
    return NO_CLAIM if len(devices) < max(1, request.count) else None


def devices_for(
    info: NodeInfo,
    uid: PodUid,
    wanted: ClaimConstraints,
    to_come: Callable[[NodeInfo], Devices | Rejection],
) -> Devices | Rejection:
    """Return the GPUs that a pod's claims have on a node, with those that they will get.

    ``to_come`` tells the latter (see :data:`.Foresees`). Returns a Rejection if the claims get no
    GPUs, or if it cannot be said which.
    """
    resources = () if info.topology is None else info.topology.resources
    offer = info.offer(resources[0].name if resources else "")
    if isinstance(offer, Rejection):
        return offer
    if not info.serves_claims:
        return NOT_SERVED_BY_DRA
    devices = info.seen(uid, wanted.namespace, wanted.names)
    if info.lacks(devices):
        return GPU_NOT_PUBLISHED
    coming = to_come(info)
    if isinstance(coming, Rejection):
        return devices or coming
    return devices + coming or NO_GPUS


def _kind(info: NodeInfo, devices: Devices) -> Hashable:
    """Return a key of everything that the answer of a DRA node depends on, for these devices."""
    topology = info.topology
    if topology is None:
        return None
    at = {str(gpu.uuid): position for position, gpu in enumerate(topology.gpus)}
    return (info.key(topology.resources[0].name), *(at[each] for each in devices))
