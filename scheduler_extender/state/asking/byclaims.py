"""Asks nodes about a pod with ResourceClaims of its own, which asks for no number of devices.

Where its claims have devices, as after a bind that was refused, these are judged; else those that
kube-scheduler will give to them, as far as that can be said.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from scheduler_extender.annotations import OfClaims
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.state.asking.enquiry import Answers, ask
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.facts import Devices, NodeFacts
from topology.core.devices import NodeName, PodUid
from topology.core.remembering import interruptible
from topology.core.requests import GpuRequest, gpu_request


@dataclass(slots=True)
class ByClaims:
    """What some nodes answer to a pod with claims of its own."""

    unknown: list[str] = field(default_factory=list)  # nobody can say what its claims get there
    late: list[str] = field(default_factory=list)  # there was no time
    # By the number of GPUs that it gets: the answers of one node of each kind, and by its name all
    # nodes of its kind.
    answered: list[tuple[GpuRequest, Answers, dict[str, list[str]]]] = field(default_factory=list)


def ask_by_claims(
    snapshot: Snapshot,
    uid: PodUid,
    wanted: OfClaims,
    names: Sequence[str],
    deadline: Deadline = NO_DEADLINE,
    *,
    scores: bool = False,
) -> ByClaims:
    """Ask the nodes. Takes locks: a thread has to ask."""
    deadline.need_quick(quick=False)
    to_come = snapshot.foresees(wanted.namespace, wanted.names)
    found, done = ByClaims(), 0
    kinds = defaultdict[Hashable, list[str]](list)
    first = defaultdict[int, list[NodeFacts]](list)  # one of each kind, by the number of GPUs
    with deadline.ends(), deadline.enforced():
        for name in names:
            interruptible()
            facts = snapshot.facts(NodeName(name))
            devices = facts.claimed(uid, wanted.namespace, wanted.names) if facts.by_dra else ()
            devices += to_come(facts)
            alike = kinds[_kind(facts, devices)] if devices else found.unknown
            if devices and not alike:
                first[len(devices)].append(facts.as_claimed(uid, devices))
            alike.append(name)
            done += 1
    found.late += names[done:]
    by_first = {alike[0]: alike for alike in kinds.values()}
    for count, nodes in first.items():
        request, ours = gpu_request(count, wanted.constraints), [each.name for each in nodes]
        asked = snapshot.with_facts(nodes)
        answers = ask(asked, request, ours, deadline, scores=scores)
        found.answered.append((request, answers, {name: by_first[name] for name in ours}))
    return found


def _kind(facts: NodeFacts, devices: Devices) -> Hashable:
    """All that the answer of a node with DRA depends on, for a pod that gets these devices."""
    topology = facts.topology
    if topology is None:
        return None
    at = {str(gpu.uuid): position for position, gpu in enumerate(topology.gpus)}
    return (facts.key(topology.resources[0].name), *(at[each] for each in devices))
