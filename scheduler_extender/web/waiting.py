"""Say why pods wait, and which nodes come nearest, by evaluating every node as filter does."""

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler_extender.annotations import Malformed
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.explain.answers import Answer, answers_to, best_first, counts_of
from scheduler_extender.explain.explanation import passed_over
from scheduler_extender.explain.nodeanswers import (
    Miss,
    NearMiss,
    NodeAnswer,
    miss_of,
    nearest,
    rows_of,
)
from scheduler_extender.explain.remedies import Help, Helped, helps_of
from scheduler_extender.explain.waitingreasons import queues, waiting_pods
from scheduler_extender.explain.wording import CHANGES_NOT_IN_TIME, NOT_IN_TIME, asked_text
from scheduler_extender.framework.question import alike
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.web.overview import Filters
from topology.core.requests import GpuRequest
from topology.times import age

ASKED = 12  # the most different requests of waiting pods that are evaluated for one page
UNASKED = "not evaluated for this page: too many different requests"
EVERY_POD = Filters()
SHOWN_PODS = 200
SHOWN_REASONS = 8
SHOWN_PLACES = 20


@dataclass(frozen=True, slots=True)
class Outlook:
    """What all nodes answer to one pod."""

    request: str
    words: str  # the same words as ``why`` prints
    taken_by: int  # nodes that may take the pod
    reasons: Sequence[tuple[str, int]]  # the most frequent reasons that the words do not contain
    best_nodes: Sequence[NodeAnswer]  # the best nodes that take it
    misses: Sequence[NearMiss]
    more_reasons: int = 0
    helps: Sequence[Help] = ()
    late: str = ""  # that not all remedies were tried in time


@dataclass(frozen=True, slots=True)
class Queue:
    """Waiting pods with equal requests, and what the nodes answer to them."""

    key: str  # equal for the same queue on another page
    pods: tuple[tuple[str, float | None], ...]  # each with the seconds for which it waits
    request: str
    outlook: Outlook | None  # None: the nodes were not evaluated
    problem: str = ""  # why the nodes were not evaluated
    note: str = ""  # nodes would take the pods, but kube-scheduler has found none
    gated: int = 0  # pods with scheduling gates

    @property
    def longest(self) -> float | None:
        """The seconds for which the oldest pod waits; None if they are unknown."""
        return max((seconds for _, seconds in self.pods if seconds is not None), default=None)


def waiting_queues(
    snapshot: Snapshot, deadline: Deadline = NO_DEADLINE, filters: Filters = EVERY_POD
) -> tuple[list[Queue], int]:
    """Return the waiting pods in queues of equal requests, and how many pods are left out.

    The longest queue comes first. Only pods that pass the ``filters``, by name or request, count.
    After the ``deadline`` no more nodes are evaluated. Remedies are tried last.
    """
    named = (
        pod for pod in waiting_pods(snapshot) if filters.lets_pod(pod.full_name, asked_text(pod))
    )
    ordered = list(queues(named).values())
    found: list[Queue] = []
    told: dict[int, tuple[list[Answer], list[tuple[Answer, Miss | None]]]] = {}
    shown = 0
    for pods in ordered:
        if shown >= SHOWN_PODS:
            break
        first, some = pods[0], pods[: SHOWN_PODS - shown]
        shown += len(some)
        queue = Queue(
            f"{zlib.crc32(repr(alike(first)).encode()):08x}",
            tuple((pod.full_name, age(pod.created, snapshot.today)) for pod in some),
            asked_text(first),
            None,
            gated=sum(pod.gated for pod in pods),
        )
        if isinstance(first.request, Malformed):
            queue = replace(queue, request="Unreadable annotations", problem=first.request.reason)
        elif len(told) >= ASKED:
            queue = replace(queue, problem=UNASKED)
        else:
            answered = [] if deadline.passed() else answers_to(snapshot, first, deadline)
            if deadline.passed():
                queue = replace(queue, problem=NOT_IN_TIME)
            else:
                told[len(found)] = answered, _missing(snapshot, first.request, answered)
        found.append(queue)
    for number, (answered, missing) in told.items():
        queue, pods = found[number], ordered[number]
        outlook = outlook_of(snapshot, pods[0], answered, queue.request, deadline, missing)
        note = _passed_over(snapshot, pods) if outlook.taken_by else ""
        found[number] = replace(queue, outlook=outlook, note=note)
    return found, sum(map(len, ordered)) - shown


def _passed_over(snapshot: Snapshot, pods: Sequence[PodRecord]) -> str:
    """Return the note of ``why`` about pods for which kube-scheduler has found no node."""
    left = [pod for pod in pods if pod.unschedulable and pod.uid not in snapshot.assumed]
    if not left:
        return ""
    texts = {pod.said for pod in left}
    said = texts.pop() if len(texts) == 1 else ""
    if len(left) < len(pods):
        return passed_over(f"{len(left)} of them", said)
    return passed_over("it" if len(left) == 1 else "them", said)


def _missing(
    snapshot: Snapshot, request: GpuRequest, answers: Sequence[Answer]
) -> list[tuple[Answer, Miss | None]]:
    """Return what each node that rejects lacks."""
    rejected = (answer for answer in answers if not answer.passes)
    return [(answer, miss_of(answer, request, snapshot.today)) for answer in rejected]


def outlook_of(
    snapshot: Snapshot,
    pod: PodRecord,
    answers: Sequence[Answer],
    asks: str,
    helping: Deadline | None = None,
    missing: list[tuple[Answer, Miss | None]] | None = None,
) -> Outlook:
    """Return what every node has answered to a pod, in the form for a page.

    ``asks`` is the request and the group in a few words. If no node takes the pod, remedies are
    tried until ``helping``, as ``why`` does. ``missing`` are the misses, if already worked out.
    """
    request = pod.request
    assert isinstance(request, GpuRequest)  # noqa: S101 (its nodes have answered)
    words = counts_of(answers).headline
    counted = Counter(answer.message for answer in answers if not answer.passes)
    reasons = [each for each in counted.most_common() if f"{each[0]} (" not in words]
    passing = best_first(answers)
    missing = _missing(snapshot, request, answers) if missing is None else missing
    helped = Helped([], whole=True, missing=missing)
    if helping is not None and not passing:
        helped = helps_of(snapshot, pod, request, missing, helping)
    return Outlook(
        asks,
        words,
        len(passing),
        reasons[:SHOWN_REASONS],
        rows_of(request, passing[:SHOWN_PLACES], snapshot.today),
        nearest(helped.missing),
        max(0, len(reasons) - SHOWN_REASONS),
        helped.helps,
        "" if helped.whole else CHANGES_NOT_IN_TIME,
    )
