"""The whole explanation of a pod that waits or is placed, as data and as text.

It is worked out once for ``/v1/explain``, ``why`` and ``check`` alike.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated

from msgspec import Meta

from scheduler_extender.annotations import UNASKED, Malformed
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.explain import Struct
from scheduler_extender.explain.answers import Answer, Counts, answers_to, by_reason, counts_of
from scheduler_extender.explain.nodeanswers import NEAREST, NearMiss, NodeAnswer, nearest, rows_of
from scheduler_extender.explain.placedpod import Placed, Written, placed_on
from scheduler_extender.explain.remedies import Help, helps_of
from scheduler_extender.explain.wording import (
    NODES_NOT_IN_TIME,
    asked_text,
    not_joined,
    request_text,
)
from scheduler_extender.groupreference import GroupReference
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.groups import by_domain
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName
from topology.core.placement import Reason

MOST_SETS = 16  # the largest number of sets of one node in an answer over many nodes


class GroupInBrief(Struct, frozen=True):
    """The group of a pod, and the nodes of its members."""

    name: str
    gang: bool
    size: Annotated[
        int | None, Meta(description="the number of members that the group will have, if known")
    ]
    domain: Annotated[str | None, Meta(description="the kind of domain that the members share")]
    come: Annotated[int, Meta(description="the number of members that exist or have succeeded")]
    nodes: dict[NodeName, int]
    domains: dict[str, int]


class Unreadable(Struct, frozen=True):
    """The answer about a pod whose annotations cannot be read; ``reason`` says why."""

    pod: str
    node: str | None
    headline: str
    reason: str
    notes: list[str]


class Explanation(Struct, frozen=True):
    """The answers of all nodes to a pod, and what follows from them."""

    pod: str
    node: str | None
    headline: Annotated[str, Meta(description="the pod's state in one line")]
    request: Annotated[str, Meta(description="the request and the group, in short form")]
    request_in_words: Annotated[str, Meta(description="the request in a sentence")]
    takes: Annotated[int, Meta(description="nodes that would take the pod")]
    ineligible: Annotated[
        int,
        Meta(
            description="those of them that are not eligible: because of the pod's selector or "
            "affinity, or the node's taints or cordon"
        ),
    ]
    rejections: Annotated[
        dict[str, int],
        Meta(description="the number of nodes that reject the pod, by reason"),
    ]
    doubts: Annotated[
        dict[str, int],
        Meta(description="the number of nodes that take the pod without a promise, by reason"),
    ]
    nearest: list[NearMiss]
    helps: list[Help]
    whole: Annotated[
        bool, Meta(description="whether there was time to try everything that may help")
    ]
    unblocks: Annotated[bool, Meta(description="whether evictions may help")]
    notes: list[str]
    placed: Placed | None
    nodes: list[NodeAnswer]
    group: GroupInBrief | None = None
    evaluated: Annotated[
        bool, Meta(description="whether there was time to evaluate every node")
    ] = True


def explanation_of(
    snapshot: Snapshot,
    pod: PodRecord,
    *,
    written: Written | None = None,
    deadline: Deadline = NO_DEADLINE,
) -> Explanation | Unreadable:
    """Return the whole explanation of a pod in the state of ``snapshot``.

    ``written`` is its placement annotation, if the caller has it. After the ``deadline`` nothing
    more is worked out: the remaining nodes count as undecided, and the notes say so.
    """
    request = pod.request
    if isinstance(request, Malformed):
        state = "no node takes it" if pod.node is None else f"on {pod.node}"
        headline = f"{state}: {request.reason}"
        return Unreadable(pod.full_name, pod.node, headline, request.reason, [])
    answers = answers_to(snapshot, pod, deadline)
    answered = not deadline.passed()
    rows = rows_of(request, answers, snapshot.today, MOST_SETS)
    both = zip(answers, rows, strict=True)
    missing = [(answer, row.miss) for answer, row in both if not answer.passes]
    here = None if pod.node is None else snapshot.by_name.get(pod.node)
    placed = None if here is None else placed_on(here, pod, written)
    counts = counts_of(answers, late=not answered)
    helps: list[Help] = []
    whole = answered
    waits = placed is None and counts.takes == counts.ineligible
    if waits and answered:
        helped = helps_of(snapshot, pod, request, missing, deadline)
        helps, whole, missing = helped.helps, helped.whole, helped.missing
    return Explanation(
        pod=pod.full_name,
        node=pod.node,
        headline=counts.headline if placed is None else placed.words[0],
        request=asked_text(pod),
        request_in_words=request_text(request),
        takes=counts.takes,
        ineligible=counts.ineligible,
        rejections={reason.value: nodes for reason, nodes in by_reason(counts.rejected).items()},
        doubts={reason.value: nodes for reason, nodes in by_reason(counts.doubted).items()},
        nearest=nearest(missing) if placed is None else [],
        helps=helps,
        whole=whole,
        # A template has no UID.
        unblocks=waits
        and bool(pod.uid)
        and not pod.gated
        and any(answer.resolvable and not answer.ineligible for answer in answers),
        notes=[
            *(() if answered else [NOT_ALL_ASKED]),
            *_notes(snapshot, pod, counts, waits=waits, placed=placed is not None),
            *(_obstacles(answers) if placed is None else ()),
            *filter(None, [not_joined(request, pod.group_ref)]),
        ],
        placed=placed,
        nodes=rows,
        evaluated=answered,
    )


NOT_ALL_ASKED = f"{NODES_NOT_IN_TIME}; try again: the answers so far are cached"

BY_SETS = (
    "the pod's claims let kube-scheduler take the first free GPUs; gpu-topology claim writes a "
    "claim that names the suitable sets"
)


def group_of(snapshot: Snapshot, group_ref: GroupReference) -> GroupInBrief:
    """Return the group of a pod in brief."""
    status, kind = snapshot.group_status(group_ref), group_ref.domain
    return GroupInBrief(
        group_ref.group.name,
        group_ref.gang,
        group_ref.size,
        group_ref.domain,
        status.have_come(group_ref.size),
        dict(status.living),
        dict(by_domain(status, snapshot.domains(kind).of)) if kind else {},
    )


def _notes(
    snapshot: Snapshot, pod: PodRecord, counts: Counts, *, waits: bool, placed: bool
) -> Iterator[str]:
    if pod.unasked:
        yield UNASKED
    if pod.gated and not placed:
        yield "kube-scheduler ignores the pod until its scheduling gates are removed"
    if pod.reservation is not None and (said := pod.reservation.too_late(snapshot.today)):
        yield said
    if pod.terminating:
        yield "the pod is being deleted"
    if pod.ended and pod.refusal is None:
        yield f"the pod has ended ({pod.phase})"
    if pod.refusal is not None:
        said = f"the kubelet refused the pod ({pod.refusal.reason}): {pod.refusal.message}"
        yield said.removesuffix(": ")
    if (
        waits
        and pod.claim_constraints is not None
        and Reason.SCATTERED in by_reason(counts.rejected)
    ):
        yield BY_SETS
    if pod.uid in snapshot.assumed:
        yield "the extender is binding the pod now"
    elif not waits and not placed and pod.unschedulable:
        yield passed_over("it", pod.said)


def _obstacles(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield what has to be repaired first if no node promises, each with its first node."""
    if any(each.promises and not each.ineligible for each in answers):
        return
    first: dict[str, str] = {}
    for each in answers:
        if each.reason is Reason.NO_ALLOCATOR:
            first.setdefault(each.message or each.note, each.node)
        elif each.reason is Reason.UNUSABLE and each.info.record.problem:
            first.setdefault(each.info.record.problem, each.node)
        elif each.lacks:
            words = f"free CPUs and memory are unknown: the record has no {', '.join(each.lacks)}"
            first.setdefault(words, each.node)
    for words, node in islice(first.items(), NEAREST):
        yield f"{node}: {words}"


def passed_over(whom: str, said: str = "") -> str:
    """Return the text that kube-scheduler sends ``whom`` nowhere although nodes would take it.

    It includes what kube-scheduler ``said`` about it.
    """
    if said:
        return f"kube-scheduler has found no node for {whom} yet. It says: {said}"
    return (
        f"kube-scheduler has found no node for {whom} yet: CPU, memory or another of "
        "its own "
        "rules prevents it, or it has not tried again yet (kubectl describe pod)"
    )
