"""Why pods wait, and where they came nearest: asked of every node by the code that decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_extender.annotations import Malformed
from scheduler_extender.explain import Answer, answers, summary
from scheduler_extender.membership import Membership
from scheduler_extender.state.board import ClusterFacts
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.ledger import Ledger
from scheduler_extender.state.pods import PodRecord
from scheduler_extender.wording import TOLD, TOLD_WHERE_IT_FITS, sets_text
from topology.core.budget import LARGE
from topology.core.devices import PodUid
from topology.core.mig import served_devices
from topology.core.patterns import subset_masks
from topology.core.placement.constraints import compiled
from topology.core.requests import GpuRequest

ASKED = 12
"""Different requests of waiting pods that are asked for one page."""
SHOWN_PODS = 200
SHOWN_REASONS = 8
SHOWN_MISSES = 3
SHOWN_PLACES = 20
LOOKED_AT = 64
"""Kinds of refusing nodes at which the nearest misses are looked for."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A node that nearly had a place: ``found`` of the ``wanted`` GPUs are free and fit together.

    ``holders`` are pods there that hold GPUs; the end of one of them may help.
    """

    node: str
    found: int
    wanted: int
    reason: str
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A node that would take the pod, with its ``score`` beside the others, 0 to 10.

    ``sets`` are the GPUs that it may hand out, in brief; ``note`` says why it promises nothing.
    """

    node: str
    verdict: str
    score: int | None
    sets: str
    note: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """What all nodes answer to one request: how many refuse it by reason, and who would take it."""

    asks: str
    words: str
    taken_by: int
    reasons: tuple[tuple[str, int], ...]
    places: tuple[Place, ...] = ()
    misses: tuple[Miss, ...] = ()
    more_reasons: int = 0


@dataclass(frozen=True, slots=True)
class Queue:
    """Waiting pods that ask the same, and what the nodes answer to them.

    ``outlook`` is None where it was not asked, for want of time; then ``problem`` says why.
    """

    pods: tuple[str, ...]
    asks: str
    outlook: Outlook | None
    problem: str = ""


def queues(cluster: Cluster) -> tuple[list[Queue], int]:
    """The waiting pods, those that ask the same together, the most numerous first; and how many
    pods are left out.

    A group's members are asked about with their group, so they stand apart from other groups'.
    """
    with cluster.locked():  # the pods and the nodes at one moment
        seen, waiting = cluster.cluster_facts(), cluster.unbound_pods()
    alike: dict[object, list[PodRecord]] = {}
    for pod in sorted(waiting, key=lambda pod: (pod.namespace, pod.name)):
        if not pod.deleting and not pod.ended:
            alike.setdefault((pod.request, pod.membership), []).append(pod)
    ordered = sorted(alike.values(), key=lambda pods: (-len(pods), pods[0].namespace, pods[0].name))
    found, shown, asked = [], 0, 0
    for pods in ordered:
        if shown >= SHOWN_PODS:
            break
        names = tuple(f"{pod.namespace}/{pod.name}" for pod in pods[: SHOWN_PODS - shown])
        shown += len(names)
        first = pods[0]
        if isinstance(first.request, Malformed):
            reason = first.request.reason
            found.append(Queue(names, "its annotations cannot be read", None, reason))
        elif asked >= ASKED:
            found.append(Queue(names, first.request.text, None, "not asked for this page"))
        else:
            asked += 1
            outlook = outlook_of(
                cluster, seen, first.request, asking=first.uid, membership=first.membership
            )
            found.append(Queue(names, first.request.text, outlook))
    return found, sum(map(len, ordered)) - shown


def outlook_of(
    cluster: Cluster,
    seen: ClusterFacts,
    request: GpuRequest,
    *,
    asking: PodUid | None = None,
    membership: Membership | None = None,
) -> Outlook:
    """What every node answers to a request, put together for a page."""
    rows = answers(cluster, seen, request, asking=asking, membership=membership)
    refused = [row for row in rows if not row.passes]
    reasons = Counter(row.reason for row in refused).most_common()
    passing = sorted((r for r in rows if r.passes), key=lambda r: (-(r.score or 0), r.node))
    return Outlook(
        request.text,
        summary(request, rows),
        len(passing),
        tuple(reasons[:SHOWN_REASONS]),
        tuple(_place(row, request) for row in passing[:SHOWN_PLACES]),
        () if passing else tuple(_misses(refused, request)),
        max(0, len(reasons) - SHOWN_REASONS),
    )


def _place(row: Answer, request: GpuRequest) -> Place:
    verdict = row.decision.verdict
    words = TOLD_WHERE_IT_FITS.get(verdict, TOLD.get(verdict, verdict))
    topology = row.facts.topology
    served = topology.resource(request.resource) if topology is not None else None
    sets = ""
    if topology is not None and served is not None and row.outcomes is not None:
        devices = served_devices(topology, served)
        ledger = row.facts.ledger(served.name)
        if isinstance(ledger, Ledger) and ledger.availability.width == 1:
            found = sorted(devices.indices(mask) for mask in row.outcomes.sets or ())
            sets = sets_text(found)
    return Place(row.node, words, row.score, sets, row.note)


def _misses(refused: Sequence[Answer], request: GpuRequest) -> list[Miss]:
    """The refusing nodes where the most of the wanted GPUs are free and fit together."""
    found: dict[object, Miss] = {}
    for row in refused:
        key = row.node if row.state is None else row.state
        if len(found) >= LOOKED_AT or key in found or not row.resolvable:
            continue
        free = best_free_set(row, request)
        if free is not None:
            holders = tuple(f"{p.namespace}/{p.name}" for p in row.facts.alive.values())[:4]
            found[key] = Miss(row.node, free, request.count, row.reason, holders)
    nearest = sorted(found.values(), key=lambda miss: (miss.wanted - miss.found, miss.node))
    return nearest[:SHOWN_MISSES]


def best_free_set(row: Answer, request: GpuRequest) -> int | None:
    """How many GPUs at most are free on a node and meet the request's constraints together.

    None where GPUs are shared, or the node has more of them than can be tried.
    """
    facts = row.facts
    if facts.topology is None or facts.problem is not None:
        return None
    served = facts.topology.resource(request.resource)
    ledger = facts.ledger(request.resource) if served is not None else None
    if not isinstance(ledger, Ledger) or served is None or ledger.availability.width != 1:
        return None
    shape, now = served_devices(facts.topology, served).shape, ledger.availability
    if shape.size > LARGE or shape.of_mig:
        return None
    test = compiled(shape, request.constraints, now.sick)
    healthy = now.free & ~now.sick
    for size in range(min(request.count, healthy.bit_count()), 0, -1):
        masks = subset_masks(healthy, size)
        if len(masks) and bool(test.passing(masks, size)[0].any()):
            return size
    return 0
