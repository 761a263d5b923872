"""Why pods wait, and where they came nearest: asked of every node by the code that decides."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler_extender.annotations import Malformed
from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.explain.answers import Answer, answers_to, counts_of
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
from scheduler_extender.explain.wording import asked_text
from scheduler_extender.framework.question import alike
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.pods.record import PodRecord
from topology.core.requests import GpuRequest
from topology.times import age

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
    reasons: Sequence[tuple[str, int]]  # the most frequent that the words do not tell
    places: Sequence[NodeAnswer]  # of those that take it, the best
    misses: Sequence[NearMiss]
    more_reasons: int = 0
    helps: Sequence[Help] = ()
    more_helps: bool = False  # there was no time to try all that may help


@dataclass(frozen=True, slots=True)
class Queue:
    """Waiting pods that ask the same, and what the nodes answer to them."""

    key: str  # equal for the same queue of another page
    pods: tuple[tuple[str, float | None], ...]  # each with the seconds for which it waits
    asks: str
    outlook: Outlook | None  # None: the nodes were not asked
    problem: str = ""  # why they were not
    note: str = ""  # nodes would take the pods, and kube-scheduler has found none all the same
    gated: int = 0  # pods that their scheduling gates keep back

    @property
    def longest(self) -> float | None:
        """The seconds for which the oldest pod waits; None if nobody knows."""
        return max((seconds for _, seconds in self.pods if seconds is not None), default=None)


def waiting_queues(
    snapshot: Snapshot, deadline: Deadline = NO_DEADLINE, name: str = ""
) -> tuple[list[Queue], int]:
    """The waiting pods, those that ask the same together, the most numerous first; and how many
    pods are left out. Only pods are looked at that have ``name`` in their name or in what they ask.
    After the ``deadline`` nobody is asked about any more. What would help is tried last."""
    part = name.lower()
    named = (
        pod
        for pod in waiting_pods(snapshot)
        if part in pod.full_name.lower() or part in asked_text(pod).lower()
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
            asks = "Annotations that cannot be read"
            queue = replace(queue, asks=asks, problem=first.request.reason)
        elif len(told) >= ASKED:
            queue = replace(queue, problem=UNASKED)
        else:
            answered = [] if deadline.passed() else answers_to(snapshot, first, deadline)
            if deadline.passed():
                queue = replace(queue, problem=NOT_ASKED)
            else:
                told[len(found)] = answered, _missing(snapshot, first.request, answered)
        found.append(queue)
    for number, (answered, missing) in told.items():
        queue, pods = found[number], ordered[number]
        outlook = outlook_of(snapshot, pods[0], answered, queue.asks, deadline, missing)
        note = _passed_over(snapshot, pods) if outlook.taken_by else ""
        found[number] = replace(queue, outlook=outlook, note=note)
    return found, sum(map(len, ordered)) - shown


def _passed_over(snapshot: Snapshot, pods: Sequence[PodRecord]) -> str:
    """What ``why`` notes of the pods that kube-scheduler has found no node for."""
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
    """Return what each node that refuses lacks."""
    refused = (answer for answer in answers if not answer.passes)
    return [(answer, miss_of(answer, request, snapshot.today)) for answer in refused]


def outlook_of(
    snapshot: Snapshot,
    pod: PodRecord,
    answers: Sequence[Answer],
    asks: str,
    helping: Deadline | None = None,
    missing: list[tuple[Answer, Miss | None]] | None = None,
) -> Outlook:
    """What every node has answered to a pod, put together for a page. ``asks`` is the request and
    the group in a few words. Until ``helping`` is tried what would help a pod that no node takes,
    as ``why`` does. ``missing`` are the misses, where they are worked out already."""
    request = pod.request
    assert isinstance(request, GpuRequest)  # noqa: S101 (its nodes have answered)
    words = counts_of(answers).headline
    refused = [answer for answer in answers if not answer.passes]
    counted = Counter(answer.reason for answer in refused).most_common()
    reasons = [(reason, nodes) for reason, nodes in counted if f"{reason} (" not in words]
    passing = [answer for answer in answers if answer.may_come]
    passing.sort(key=lambda answer: (-(answer.score or 0), answer.node))
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
        not helped.whole,
    )
