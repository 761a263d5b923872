"""The whole answer of one node to a pod: one row, the same for every reader.

A row also says what a rejected node lacks: the nearest set of GPUs, and the pods that hold it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import comb
from typing import Annotated

import numpy as np
from msgspec import Meta

from scheduler_extender.explain import Struct
from scheduler_extender.explain.answers import Answer
from scheduler_extender.explain.nodesummary import SharedGpu, shared_gpus
from scheduler_extender.explain.wording import (
    GONE_POD,
    duration,
    gpus_text,
    listed,
    pod_names,
    withheld,
)
from scheduler_extender.state.node.nodeinfo import NodeInfo, Offer
from scheduler_extender.state.pods.record import PodRecord, resource_of
from topology.core.admission import container_sets, provider_answers
from topology.core.devices import Mask, PodUid, positions
from topology.core.devicesets import gpus, total
from topology.core.memo import memoized
from topology.core.patterns import Masks, subset_masks
from topology.core.placement import Assessment, Reason, Rejection, device_unit
from topology.core.placement.constraints import compiled
from topology.core.requests import NO_CONSTRAINTS, Constraints, GpuRequest, Role
from topology.core.shape import Shape
from topology.times import age

# The largest number of sets of GPUs that are examined on one node; beyond it, only counts.
MOST_LOOKED_AT = 20_000
NEAREST = 3  # the number of nodes that are named as the nearest ones
# Reasons for which the missing devices should be named.
NEAR = frozenset(
    {
        Reason.BUSY,
        Reason.SCATTERED,
        Reason.NOT_GUARANTEED,
        Reason.SICK,
        Reason.MEMORY_IN_USE,
        Reason.IN_PROGRESS,
        Reason.RESERVED,
        Reason.LINKS,
    }
)


class Holding(Struct, frozen=True):
    """A pod that holds some of the GPUs of the nearest set."""

    pod: str
    gpus: Annotated[list[int], Meta(description="driver indices")]
    devices: Annotated[
        int, Meta(ge=0, description="the number of devices of this resource that the pod holds")
    ]
    seconds: Annotated[
        float | None, Meta(description="seconds since its kubelet admitted it; null if unknown")
    ]


class Miss(Struct, frozen=True):
    """The distance of a node from promising the pod's request."""

    wants: Annotated[int, Meta(ge=0, description="the number of devices that the pod requests")]
    have: Annotated[int, Meta(ge=0, description="the number of these that are free")]
    words: str
    gpus: Annotated[
        list[int],
        Meta(description="the nearest set, as driver indices; empty if only devices are counted"),
    ]
    free: Annotated[list[int], Meta(description="GPUs of the set that no pod is known to hold")]
    holders: list[Holding]

    @property
    def distance(self) -> tuple[int, int]:
        """A sort key for misses: fewer missing devices first, then fewer pods."""
        return (self.wants - self.have, len(self.holders))


class NearMiss(Struct, frozen=True):
    """A node that is near, and what it lacks."""

    node: str
    words: str


def nearest(answers: Iterable[tuple[Answer, Miss | None]]) -> list[NearMiss]:
    """Return the :data:`NEAREST` nearest of the nodes that reject the pod, the nearest first.

    An ineligible node is not near, whatever it has. If several nodes have the same
    text, the first one by name stands for all.
    """
    near = [
        (answer.reason is Reason.LINKS, miss.distance, answer.node, miss.words)
        for answer, miss in answers
        if miss is not None and not answer.ineligible
    ]
    first: dict[str, str] = {}
    for _, _, node, words in sorted(near):
        first.setdefault(words, node)
    return [NearMiss(node, words) for words, node in islice(first.items(), NEAREST)]


def miss_of(
    row: Answer, request: GpuRequest, today: float, ended: Collection[PodUid] = ()
) -> Miss | None:
    """Return what the node lacks.

    Returns None if no set of its GPUs is near, if nothing is known of it, or if the pod's own
    claims say which GPUs it gets. If there are pods in ``ended``, their end would help: then the
    nearest set is the one that they make free.
    """
    offer = row.info.last_offer(request.resource)
    if (
        not request.effective_count
        or row.reason not in NEAR
        or row.info.report is None
        or isinstance(offer, Rejection)
    ):
        return None
    node = _Node(row.info, request, offer, today, frozenset(ended), pod_names(row.info))
    if row.reason is Reason.LINKS:
        return node.largest()
    return node.nearest() or node.counted()


@dataclass(frozen=True, slots=True)
class _Node:
    """One node, while its nearest set is searched."""

    info: NodeInfo
    request: GpuRequest
    offer: Offer
    today: float
    ended: frozenset[PodUid]  # pods whose end is tried: they still run
    names: Mapping[PodUid, str]

    @property
    def _linked(self) -> str:
        """The word for a set that meets the constraints."""
        constraints = self.request.constraints
        if constraints.over_links:
            return "linked "
        return "" if constraints == NO_CONSTRAINTS else "fitting "

    def _good(self, size: int) -> Masks | None:
        """Return the sets of ``size`` GPUs that meet the constraints; None if not listable."""
        kubelet = self.offer.kubelet
        if kubelet.width != 1:
            return None
        return _good_sets(kubelet.shape, self.request.constraints, size)

    def nearest(self) -> Miss | None:
        """Return the fitting set with the most free GPUs; of equals, that with the fewest pods."""
        now, wants = self.offer.availability, self.request.count
        good = self._good(wants)
        if good is None or not len(good):
            return None
        usable = now.free & ~now.sick
        shown = self.offer.ledger.shown
        released = sum(shown[uid] for uid in self.ended & shown.keys()) & ~now.sick
        then, free_now = np.uint64(usable | released), np.uint64(usable)
        pods = np.zeros(len(good), np.int64)
        for pool in shown.values():
            pods += (good & np.uint64(pool)) != 0
        free_of, now_of = (
            np.bitwise_count(good & each).astype(np.int64) for each in (then, free_now)
        )
        base = 65 + len(shown)  # more than there are GPUs or pods; sorting would take much longer
        best: Mask = int(good[np.argmax((free_of * base + now_of) * base - pods)])
        free, missing = best & usable, best & ~usable
        holders = self._holders(missing)
        called, linked = list(self.offer.devices.indices(free)), self._linked
        if not missing and now.devices_left < wants:
            return self.counted()  # it only seems free: the GPUs of some pods are not seen
        if not missing:
            seem = "seems" if len(called) == 1 else "seem"
            words = f"{gpus_text(called)} {_are(called)} suitable and {seem} free"
            tail = self._not_sure()
            return Miss(wants, wants, f"{words}, {tail}", called, called, holders)
        some = f" ({', '.join(map(str, called))})" if called else ""
        words = f"{len(called)} of {wants} {linked}GPUs {_are(called)} free{some}"
        held_by = [f"{gpus_text(h.gpus)} {_are(h.gpus)} held by {_holder(h)}" for h in holders]
        held = {index for holder in holders for index in holder.gpus}
        # GPUs that no pod is seen to hold, and that do not count as free.
        for p in positions(missing):
            if (index := self.offer.devices.indices_of[p]) not in held:
                why = "sick" if now.sick >> p & 1 else withheld(self.info)
                held_by.append(f"GPU {index} is {why}")
        everything = list(self.offer.devices.indices(best))
        return Miss(wants, len(called), f"{words}; {listed(held_by)}", everything, called, holders)

    def _not_sure(self) -> str:
        kept = [
            f"{pod.full_name} until {pod.reservation.until_text}"
            for pod, _ in self.info.for_reservations
            if pod.reservation is not None
        ]
        if kept:
            return f"but are reserved for {listed(kept)}"
        unacknowledged = [
            uid for uid, pod in self.offer.ledger.unacknowledged.items() if not pod.terminated
        ]
        if unacknowledged:
            names = [self.names.get(uid, GONE_POD) for uid in unacknowledged]
            return f"but {listed(names)} may get them first: no report shows that pod yet"
        names = [pod.full_name for pod in self._unseen()]
        if names:
            return f"but no report shows yet which GPUs {listed(names)} will get"
        if self.offer.kubelet.allocator.choice_known:
            return (
                "but kube-scheduler takes others first: a claim can name them (gpu-topology claim)"
            )
        return "but the node may hand out other GPUs"

    def _unseen(self) -> list[PodRecord]:
        """Return the pods that hold devices, or will, whose devices no report shows."""
        resource, shown = self.request.resource, self.offer.ledger.shown
        pods = (pod for pod in self.info.pods.living if resource_of(pod) == resource)
        claimed = self.info.claimed
        return [
            pod
            for pod in pods
            if pod.uid not in shown and not claimed(pod.uid, pod.namespace, pod.claims)
        ]

    def largest(self) -> Miss | None:
        """Return the largest set that the constraints allow, if none is as large as the request."""
        wants = self.request.count
        for size in range(wants - 1, 1, -1):
            good = self._good(size)
            if good is None:
                return None
            if len(good):
                indices = list(self.offer.devices.indices(int(good[0])))
                words = (
                    f"at most {size} of its GPUs are linked this way, such as {gpus_text(indices)}"
                )
                return Miss(wants, 0, words, indices, [], [])
        return None

    def counted(self) -> Miss:
        """Return how many devices are left, without the sets."""
        now, wants = self.offer.availability, self.request.effective_count
        left = max(0, min(wants, now.devices_left))
        unit = device_unit(self.offer.kubelet)
        holders = self._holders(self.offer.kubelet.shape.all_gpus)
        several = "" if wants == 1 else "s"
        words = f"{left} of {wants} {unit}{several} {'is' if 1 in (left, wants) else 'are'} free"
        if left < wants:
            names = [_holder(h) for h in holders]
            names += [pod.full_name for pod in self._unseen()]
            words += f"; others are held by {listed(names)}" if names else ""
        else:
            words += f", {self._not_sure()}"
        return Miss(wants, left, words, [], [], holders)

    def _holders(self, mask: Mask) -> list[Holding]:
        """Return the pods that a report shows on some of these GPUs, the largest holder first."""
        now = self.offer.availability
        started = {pod.uid: pod.started for pod in self.info.pods.every}
        rows = []
        for uid, pool in self.offer.ledger.shown.items():
            on = gpus(pool, now.width) & mask
            if on:
                indices = sorted(set(self.offer.devices.indices(on)))
                count = total(pool, now.width)
                seconds = age(started.get(uid), self.today)
                held = Holding(self.names.get(uid, GONE_POD), indices, count, seconds)
                rows.append((uid not in self.ended, -count, held.pod, indices, held))
        return [held for *_, held in sorted(rows, key=lambda row: row[:4])]


@memoized
def _good_sets(shape: Shape, wanted: Constraints, size: int) -> Masks | None:
    test = compiled(shape, wanted, 0, 1)
    if comb(test.allowed.bit_count(), size) > MOST_LOOKED_AT:
        return None
    masks = subset_masks(test.allowed, size)
    return masks[test.passing(masks, size)[0]]


def _are(indices: list[int]) -> str:
    return "is" if len(indices) == 1 else "are"


def _holder(holding: Holding) -> str:
    since = "" if holding.seconds is None else f" for {duration(holding.seconds)}"
    return f"{holding.pod}{since}"


class ContainerSets(Struct, frozen=True):
    """The sets of GPUs that one container may get, as driver indices."""

    name: str
    outcomes: list[list[int]]


class NodeAnswer(Struct, frozen=True):
    """The answer of one node to a pod, and what it may hand out, as driver indices."""

    node: str
    verdict: str
    outcomes: Annotated[
        list[list[int]], Meta(description="sets of GPUs that the pod may get; at most 16")
    ]
    containers: list[ContainerSets]
    hazards: list[str]
    score: Annotated[
        int | None, Meta(description="null on a node that rejects the pod or is not eligible")
    ]
    reason: Annotated[
        str | None,
        Meta(description="the kind of reason; null if the node promises what the pod requires"),
    ]
    message: Annotated[str, Meta(description="why the node rejects the pod; empty if it does not")]
    note: Annotated[str, Meta(description="why the node takes the pod without a promise")]
    lacks: Annotated[
        list[str],
        Meta(description="fields that the record lacks, so that CPUs and memory do not count"),
    ]
    resolvable: Annotated[
        bool | None,
        Meta(description="whether evictions may help; null on a node that takes the pod"),
    ]
    ineligible: Annotated[
        bool,
        Meta(description="whether kube-scheduler will not send the pod there (not eligible)"),
    ]
    bar: Annotated[
        str,
        Meta(description="the taint, cordon or selector because of which the node is not eligible"),
    ]
    miss: Miss | None
    sets_omitted: Annotated[
        int, Meta(description="the number of further sets that outcomes leaves out")
    ] = 0
    shared_gpus: list[SharedGpu] = []
    also: Annotated[
        list[str], Meta(description="further reasons why the node rejects the pod")
    ] = []

    @property
    def passes(self) -> bool:
        """Whether the node would take the pod."""
        return self.resolvable is None

    @property
    def may_come(self) -> bool:
        """Whether the pod may come here: the node takes it, and kube-scheduler may send it."""
        return self.passes and not self.ineligible


def rows_of(
    request: GpuRequest, answers: Sequence[Answer], today: float, most: int | None = None
) -> list[NodeAnswer]:
    """Return one row for each of these answers to the request, in the same order.

    ``most`` is the largest number of sets that are listed for a node, since there may be answers of
    thousands of nodes.
    """
    known: dict[object, tuple[list[list[int]], list[ContainerSets]]] = {}
    rows = []
    for answer in answers:
        topology = answer.info.topology
        # Nodes of one equivalence class hand out alike, but the indices of their GPUs may differ.
        called = tuple(gpu.index for gpu in topology.gpus) if topology else ()
        key = (answer.node if answer.class_id is None else answer.class_id, called)
        offer = answer.info.last_offer(request.resource)
        shared: list[SharedGpu] = []
        if isinstance(offer, Offer) and answer.info.report is not None:
            shared = shared_gpus(answer.info, offer)
        if key not in known:
            known[key] = _handed_out(answer, request, offer, most)
        outcomes, containers = known[key]
        rows.append(
            NodeAnswer(
                node=answer.node,
                verdict=answer.verdict,
                outcomes=outcomes[:most],
                containers=containers,
                hazards=_hazards(answer.outcomes),
                score=answer.score,
                reason=answer.reason.value if answer.reason else None,
                message=answer.message,
                note=answer.note,
                lacks=list(answer.lacks),
                resolvable=answer.resolvable,
                ineligible=answer.ineligible,
                bar=answer.bar,
                miss=miss_of(answer, request, today),
                sets_omitted=len(outcomes) - len(outcomes[:most]),
                shared_gpus=shared,
                also=[why.message for why in answer.decision.also],
            )
        )
    return rows


def _handed_out(
    row: Answer, request: GpuRequest, offer: Offer | Rejection, most: int | None
) -> tuple[list[list[int]], list[ContainerSets]]:
    """Return the sets that the pod may get, and those of each container.

    They assume that nothing else happens on the node in between.
    """
    named: dict[str, list[list[int]]] = {
        c.name: [] for c in request.containers if c.role is not Role.INIT
    }
    outcomes: list[list[int]] = []
    if isinstance(offer, Offer) and row.outcomes is not None and row.outcomes.sets:
        outcomes = sorted(offer.devices.index_sets(row.outcomes.sets))
        available, kubelet = offer.availability, offer.kubelet
        found = container_sets(
            kubelet,
            available.free,
            request.counts,
            provider_answers(
                kubelet,
                available.numa_free_for(kubelet, endings=False),
                request.counts,
                only_gpu_plugin=request.only_gpu_plugin,
                exclusive=request.exclusive,
            ),
        )
        for container, pools in zip(request.containers, found, strict=True):
            if container.name in named:
                masks = {gpus(pool, kubelet.width) for pool in pools or ()}
                named[container.name] = sorted(offer.devices.index_sets(masks))
    return outcomes, [ContainerSets(name, sets[:most]) for name, sets in named.items()]


def _hazards(assessed: Assessment | None) -> list[str]:
    if assessed is None:
        return []
    listed = ["there are too many sets to list"] if assessed.sets is None else []
    wider = ["some of these sets may never occur"] if assessed.sets and not assessed.exact else []
    return [*assessed.hazards, *listed, *wider]
