"""The group of a pod sends it to one domain, and reserves capacity for members of other groups."""

from dataclasses import replace
from functools import partial

from scheduler_extender.clientlimits import VERB_SECONDS
from scheduler_extender.deadline import Deadline, within
from scheduler_extender.framework.capacitycounter import CapacityCounter
from scheduler_extender.framework.groupquestion import ask_group
from scheduler_extender.framework.members import Member
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.framework.results import Results
from scheduler_extender.framework.rule import UNDECIDED
from scheduler_extender.framework.setrule import ByRejection, OfSet
from scheduler_extender.state.groups.gangdomains import ANY_DOMAIN
from scheduler_extender.state.groups.groups import RESERVED_FOR_GROUP
from topology.core.devices import NodeName, PodUid


def of_set(question: Question, member: Member | None) -> OfSet | None:
    """Return a rule that rejects the nodes to which the pod's group does not let it go.

    For scores, the rule notes the best domain.
    """
    if member is None or question.ignores_group or not (member.minds_groups or question.scores):
        return None
    return partial(_of_group, member)


def _of_group(
    member: Member, results: Results, by_rejection: ByRejection, deadline: Deadline
) -> None:
    question, asked = results.question, results.asked
    direction, binds = ANY_DOMAIN, question.purpose is Purpose.BIND
    if question.scores and member.group_ref.domain is not None:
        results.group = ask_group(asked, member, results.answers[-1].names, deadline)
    if not member.minds_groups or None not in by_rejection:
        return
    if not binds:
        direction = asked.direction_of(member.group_ref)
        results.for_now = direction.domain is not None
    elif member.group_ref.domain is None:
        return  # filter has kept the gang off: a refusal now may leave it bound in part
    elif member.group_ref.gang:
        member = replace(member, as_single_pod=member.as_single_pod or member.is_begun(asked))
    passing = by_rejection.pop(None)
    if binds:  # the group's time starts after the node's own answer, which has no limit
        deadline = within(asked.clock, VERB_SECONDS)
    gone = frozenset[PodUid]().union(*question.gone.values())
    group = ask_group(asked, member, passing, deadline, direction=direction, gone=gone)
    results.group = group
    if (
        binds
        and member.group_ref.gang
        and not group.late
        and RESERVED_FOR_GROUP in group.by_rejection
    ):
        # Reservations are on the nodes with the largest capacity. So devices that a gang's first
        # members take may move another group's reservations to a node that the gang's scheduler has
        # chosen for a later member. The gang is to be bound whole, so these reservations move on,
        # if they can.
        (name,) = map(NodeName, passing)
        if CapacityCounter(asked, deadline).can_reserve_elsewhere(name, member.group_ref.group):
            group.by_rejection = {None: passing}
    if group.late and (binds or not group.by_rejection.get(None)):
        results.late |= frozenset(passing)
        by_rejection.setdefault(UNDECIDED, []).extend(passing)
        return
    for why, names in group.by_rejection.items():
        by_rejection.setdefault(why, []).extend(names)
