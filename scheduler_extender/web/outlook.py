"""Why pods wait, and where they came nearest: asked of every node by the code that decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_extender.annotations import Malformed
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.told.answers import Answer, answers_to
from scheduler_extender.told.counts import counts_of
from scheduler_extender.told.explanation import passed_over
from scheduler_extender.told.nearest import NearMiss, miss_of, nearest
from scheduler_extender.told.rows import NodeAnswer, rows_of
from scheduler_extender.told.view import View
from scheduler_extender.told.waiting import queues, waiting_pods
from scheduler_extender.told.words import asked_text
from topology.core.requests import GpuRequest

ASKED = 12
"""Different requests of waiting pods that are asked for one page."""
UNASKED = "not asked for this page"
NOT_ASKED = "not asked for this page: the time for it was up"
SHOWN_PODS = 200
SHOWN_REASONS = 8
SHOWN_PLACES = 20


@dataclass(frozen=True, slots=True)
class Outlook:
    """What all nodes answer to one pod."""

    asks: str
    words: str  # those of ``why``
    taken_by: int  # nodes that the pod may come to
    reasons: Sequence[tuple[str, int]]  # of those that refuse it, the most frequent
    places: Sequence[NodeAnswer]  # of those that take it, the best
    misses: Sequence[NearMiss]
    more_reasons: int = 0


@dataclass(frozen=True, slots=True)
class Queue:
    """Waiting pods that ask the same, and what the nodes answer to them."""

    pods: tuple[str, ...]
    asks: str
    outlook: Outlook | None  # None: the nodes were not asked
    problem: str = ""  # why they were not
    note: str = ""  # nodes would take the pods, and kube-scheduler has found none all the same


def waiting_queues(
    snapshot: Snapshot, view: View, deadline: Deadline = NO_DEADLINE
) -> tuple[list[Queue], int]:
    """The waiting pods, those that ask the same together, the most numerous first; and how many
    pods are left out. After the ``deadline`` nobody is asked about any more."""
    ordered = list(queues(waiting_pods(snapshot)).values())
    found, shown, asked = [], 0, 0
    for pods in ordered:
        if shown >= SHOWN_PODS:
            break
        names = tuple(f"{pod.namespace}/{pod.name}" for pod in pods[: SHOWN_PODS - shown])
        shown += len(names)
        first = pods[0]
        if isinstance(first.request, Malformed):
            reason = first.request.reason
            found.append(Queue(names, "Annotations that cannot be read", None, reason))
        elif asked >= ASKED or deadline.passed():
            found.append(
                Queue(names, asked_text(first), None, NOT_ASKED if deadline.passed() else UNASKED)
            )
        else:
            asked += 1
            told = answers_to(snapshot, first, deadline)
            if deadline.passed():
                found.append(Queue(names, asked_text(first), None, NOT_ASKED))
                continue
            outlook = outlook_of(told, first.request, view, asked_text(first))
            note = _passed_over(snapshot, pods) if outlook.taken_by else ""
            found.append(Queue(names, asked_text(first), outlook, note=note))
    return found, sum(map(len, ordered)) - shown


def _passed_over(snapshot: Snapshot, pods: Sequence[PodRecord]) -> str:
    """What ``why`` notes of the pods that kube-scheduler has found no node for."""
    binding = {uid for facts in snapshot.nodes for uid in facts.pods.in_flight}
    left = sum(pod.unschedulable and pod.uid not in binding for pod in pods)
    if not left:
        return ""
    if left < len(pods):
        return passed_over(f"{left} of them")
    return passed_over("it" if left == 1 else "them")


def outlook_of(answers: Sequence[Answer], request: GpuRequest, view: View, asks: str) -> Outlook:
    """What every node has answered to a pod, put together for a page. ``asks`` is the request and
    the group in a few words."""
    refused = [answer for answer in answers if not answer.passes]
    reasons = Counter(answer.reason for answer in refused).most_common()
    passing = [answer for answer in answers if answer.may_come]
    passing.sort(key=lambda answer: (-(answer.score or 0), answer.node))
    return Outlook(
        asks,
        counts_of(answers).headline,
        len(passing),
        reasons[:SHOWN_REASONS],
        rows_of(request, passing[:SHOWN_PLACES], view),
        nearest((answer, miss_of(answer, request, view)) for answer in refused),
        max(0, len(reasons) - SHOWN_REASONS),
    )
