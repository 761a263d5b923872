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
from scheduler_extender.framework.equivalence import Answers, ask
from scheduler_extender.framework.results import Results
from scheduler_extender.framework.rule import UNDECIDED
from scheduler_extender.framework.rules.freshness import OUT_OF_DATE
from scheduler_extender.state.node.facts import Devices, NodeFacts
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.memo import interruptible
from topology.core.placement import NOT_SERVED_BY_DRA, Reason, Rejection
from topology.core.requests import GpuRequest, gpu_request

NO_GPUS = Rejection("its claims get no GPUs here", False, Reason.CLAIMS)

# A verb has time for about 750 nodes. Over more than this each try begins at another one, so that
# a later one reaches those for which the first had no time.
MOST_IN_ORDER = 500


def ask_by_claims(results: Results, names: Sequence[str], deadline: Deadline) -> list[Answers]:
    """The answers of the nodes of which it is known what the claims get, those together that give
    as many GPUs. The others are noted in the results: a node passes where nothing can be said.

    kube-scheduler frees a claim that has devices where its node is refused so that evictions may
    help: every refusal for its devices is of that kind.
    """
    snapshot, pod, late = results.asked, results.question.pod, list[str]()
    wanted = pod.of_claims
    assert wanted is not None  # noqa: S101 (the caller looked)
    unknown: dict[str, Rejection] = dict.fromkeys(names if snapshot.blind else (), OUT_OF_DATE)
    kinds = defaultdict[Hashable, list[str]](list)
    first = defaultdict[int, list[NodeFacts]](list)  # one of each kind, by the number of GPUs
    now = deadline.clock()
    half = replace(deadline, until=(now + deadline.until) / 2)  # the rest is for the verdicts
    with half.ends():
        interruptible()
        to_come = snapshot.foresees(wanted.namespace, wanted.names)
        begin = int(1000 * now) % len(names) if len(names) > MOST_IN_ORDER else 0
        for name in () if snapshot.blind else (*names[begin:], *names[:begin]):
            interruptible()
            facts = snapshot.facts(NodeName(name))
            devices = devices_for(facts, pod.uid, wanted, to_come)
            if isinstance(devices, Rejection):
                unknown[name] = devices
                continue
            alike = kinds[_kind(facts, devices)]
            if not alike:
                first[len(devices)].append(facts.as_claimed(pod.uid, devices))
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
        answers = ask(snapshot.with_facts(nodes), request, ours, deadline, scores=scores)
        for state, decision in answers.decisions.items():
            why = decision.rejection and replace(decision.rejection, resolvable=True)
            answers.decisions[state] = replace(decision, rejection=why)
        found.append(answers.of_all({name: by_first[name] for name in ours}))
    return found


def counted(facts: NodeFacts, pod: PodRecord, request: GpuRequest) -> GpuRequest:
    """What a pod asks for at its bind where it has its devices by then: all that its claims have,
    where that is more: those of its own beside a number, too, and one of an earlier try that is not
    gone yet. No sibling counts."""
    own = pod.request
    if not isinstance(own, GpuRequest):
        return request
    devices = facts.devices_of(pod)
    more = own.required and (len(devices) > own.count or not own.count)
    return gpu_request(len(devices), own.constraints) if more else own


def unproven(facts: NodeFacts, pod: PodRecord, request: GpuRequest) -> Rejection | None:
    """Why what a pod requires of its claims' devices cannot be judged yet at its bind; the news
    comes by a watch. None where it can."""
    if not facts.may_start(pod):
        return NO_RECORD  # it has moved to DRA, and its agent has not seen that
    if not request.required:
        return None
    if not facts.serves_claims:
        return NO_RECORD if pod.by_claim or not request.count else None
    devices = facts.devices_of(pod)
    if facts.lacks(devices):
        return GONE  # it may be new, and its ResourceSlice on its way
    return NO_CLAIM if len(devices) < max(1, request.count) else None


def devices_for(
    facts: NodeFacts,
    uid: PodUid,
    wanted: OfClaims,
    to_come: Callable[[NodeFacts], Devices | Rejection],
) -> Devices | Rejection:
    """The GPUs that a pod's claims have on a node and, with those that are ``to_come`` (see
    :data:`.Foresees`), will get; or why they get none, or that cannot be said."""
    if (unserved := _unserved(facts)) is not None:
        return unserved
    devices = facts.seen(uid, wanted.namespace, wanted.names)
    if facts.lacks(devices):
        return GONE
    coming = to_come(facts)
    if isinstance(coming, Rejection):
        return devices or coming
    return devices + coming or NO_GPUS


def _unserved(facts: NodeFacts) -> Rejection | None:
    """Why no claim gets a GPU of a node, whatever it asks for; None where one may."""
    resources = () if facts.topology is None else facts.topology.resources
    offer = facts.offer(resources[0].name if resources else "")
    if isinstance(offer, Rejection):
        return offer
    return None if facts.serves_claims else NOT_SERVED_BY_DRA


def _kind(facts: NodeFacts, devices: Devices) -> Hashable:
    """All that the answer of a node with DRA depends on, for a pod that gets these devices."""
    topology = facts.topology
    if topology is None:
        return None
    at = {str(gpu.uuid): position for position, gpu in enumerate(topology.gpus)}
    return (facts.key(topology.resources[0].name), *(at[each] for each in devices))
