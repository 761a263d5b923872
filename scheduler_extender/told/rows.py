"""All that is told of one node that a pod may be sent to: one row, the same for every reader."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta

from scheduler_extender.state.node.facts import Offer
from scheduler_extender.told.answers import Answer
from scheduler_extender.told.brief import SharedGpu, shared_gpus
from scheduler_extender.told.nearest import Miss, miss_of
from scheduler_extender.told.struct import Struct
from topology.core.admission import container_sets, others_on
from topology.core.devices import Mask
from topology.core.mig import ServedDevices
from topology.core.placement import Assessment, Rejection
from topology.core.pools import gpus
from topology.core.requests import GpuRequest, Role


class ContainerSets(Struct, frozen=True):
    """The sets of GPUs that one container may get, as driver indices."""

    name: str
    outcomes: list[list[int]]


class NodeAnswer(Struct, frozen=True):
    """What one node answers to a pod, and what it may hand out, as driver indices."""

    node: str
    verdict: str
    outcomes: Annotated[
        list[list[int]], Meta(description="sets of GPUs that the pod may get; at most 16")
    ]
    containers: list[ContainerSets]
    hazards: list[str]
    score: Annotated[
        int | None, Meta(description="null on a node that refuses the pod, or is closed to it")
    ]
    kind: Annotated[
        str | None,
        Meta(description="the reason in a word; null if the node promises what is asked for"),
    ]
    reason: Annotated[str, Meta(description="why the node refuses the pod; empty if it does not")]
    note: Annotated[str, Meta(description="why a node that takes the pod promises it nothing")]
    lacks: Annotated[
        list[str],
        Meta(description="fields of the record without which CPUs and memory do not count"),
    ]
    resolvable: Annotated[
        bool | None, Meta(description="an eviction may help; null on a node that takes the pod")
    ]
    closed: Annotated[bool, Meta(description="kube-scheduler will not send the pod there")]
    bar: Annotated[str, Meta(description="the taint, cordon or selector for which it is closed")]
    miss: Miss | None
    sets_omitted: Annotated[int, Meta(description="sets beside those in outcomes")] = 0
    shared_gpus: list[SharedGpu] = []
    also: Annotated[
        list[str], Meta(description="further reasons for which it refuses the pod")
    ] = []

    @property
    def passes(self) -> bool:
        """Whether the node would take the pod."""
        return self.resolvable is None

    @property
    def may_come(self) -> bool:
        """Whether the pod may come here: the node takes it, and kube-scheduler may send it."""
        return self.passes and not self.closed


def rows_of(
    request: GpuRequest, answers: Sequence[Answer], today: float, most: int | None = None
) -> list[NodeAnswer]:
    """What each of these answers to the request comes to, in the same order. ``most`` is how many
    sets of a node are listed at most, since answers may be over thousands of nodes."""
    known: dict[object, tuple[list[list[int]], list[ContainerSets]]] = {}
    rows = []
    for answer in answers:
        topology = answer.facts.topology
        # Nodes in one state hand out alike; what their GPUs are called may differ.
        called = tuple(gpu.index for gpu in topology.gpus) if topology else ()
        key = (answer.node if answer.state is None else answer.state, called)
        offer = answer.facts.last_offer(request.resource)
        shared: list[SharedGpu] = []
        if isinstance(offer, Offer) and answer.facts.report is not None:
            shared = shared_gpus(answer.facts, offer)
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
                kind=answer.kind.value if answer.kind else None,
                reason=answer.reason,
                note=answer.note,
                lacks=list(answer.lacks),
                resolvable=answer.resolvable,
                closed=answer.closed,
                bar=answer.bar,
                miss=miss_of(answer, request, today),
                sets_omitted=len(outcomes) - len(outcomes[:most]),
                shared_gpus=shared,
                also=[why.reason for why in answer.decision.also],
            )
        )
    return rows


def _handed_out(
    row: Answer, request: GpuRequest, offer: Offer | Rejection, most: int | None
) -> tuple[list[list[int]], list[ContainerSets]]:
    """The sets that the pod may get, and each container's, as if nothing else happened on the node
    in between."""
    named: dict[str, list[list[int]]] = {
        c.name: [] for c in request.containers if c.role is not Role.INIT
    }
    outcomes: list[list[int]] = []
    if isinstance(offer, Offer) and row.outcomes is not None and row.outcomes.sets:
        outcomes = _indices(offer.devices, row.outcomes.sets)
        available, kubelet = offer.availability, offer.kubelet
        found = container_sets(
            kubelet,
            available.free,
            request.counts,
            others_on(
                kubelet,
                available.room_for(kubelet, endings=False),
                request.counts,
                only_gpu_plugin=request.only_gpu_plugin,
                exclusive=request.exclusive,
            ),
        )
        for container, pools in zip(request.containers, found, strict=True):
            if container.name in named:
                masks = {gpus(pool, kubelet.width) for pool in pools or ()}
                named[container.name] = _indices(offer.devices, masks)
    return outcomes, [ContainerSets(name, sets[:most]) for name, sets in named.items()]


def _indices(devices: ServedDevices, sets: Iterable[Mask]) -> list[list[int]]:
    """The sets as driver indices, in order."""
    return [list(gpus) for gpus in sorted({devices.indices(mask) for mask in sets})]


def _hazards(assessed: Assessment | None) -> list[str]:
    if assessed is None:
        return []
    listed = ["there are too many sets to list"] if assessed.sets is None else []
    wider = ["some of these sets may never come"] if assessed.sets and not assessed.exact else []
    return [*assessed.hazards, *listed, *wider]
