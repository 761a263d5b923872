"""All that is told of one node that a pod may be sent to: one row, the same for every reader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from scheduler_extender.told.answers import Answer
from scheduler_extender.told.nearest import Miss, View, miss_of
from scheduler_extender.told.sharing import SharedGpu, shared_gpus
from topology.core.admission import container_sets, others_on
from topology.core.devices import Mask
from topology.core.mig import ServedDevices, served_devices
from topology.core.placement import Assessment, Rejection
from topology.core.pools import gpus
from topology.core.requests import GpuRequest, Role


@dataclass(frozen=True, slots=True)
class Row:
    """One node's answer, and what it may hand out, as driver indices.

    ``outcomes`` lists the GPU sets that the whole pod may get, ``containers`` the sets of each app
    and sidecar container, both ordered by their lowest GPU, then by the next one. Both are empty
    where nothing would be handed out, and where there are too many to list (then ``hazards`` says
    so). ``shared`` are the GPUs that the node shares among pods, with those that are on them.
    ``miss`` is how near the node comes, where it does not promise what the pod asks for.
    """

    answer: Answer
    outcomes: list[list[int]]
    containers: dict[str, list[list[int]]]
    hazards: list[str]
    shared: list[SharedGpu] = field(default_factory=list)
    miss: Miss | None = None

    def as_json(self, most: int | None = None) -> dict[str, Any]:
        """The row of the JSON contract, of ``check`` and of ``/v1/explain``.

        ``most`` is how many sets are listed at most: there are answers over thousands of nodes.
        ``setsOmitted`` counts the others.
        """
        answer = self.answer
        containers = [{"name": n, "outcomes": s[:most]} for n, s in self.containers.items()]
        found: dict[str, Any] = {
            "node": answer.node,
            "verdict": answer.verdict,
            "outcomes": self.outcomes[:most],
            "containers": containers,
            "hazards": self.hazards,
            "score": answer.score,
            "kind": answer.kind.value if answer.kind else None,
            "reason": answer.reason,
            "note": answer.note,
            "lacks": list(answer.lacks),
            "resolvable": answer.resolvable,
            "closed": answer.closed,
            "miss": asdict(self.miss) if self.miss else None,
        }
        if most is not None and len(self.outcomes) > most:
            found["setsOmitted"] = len(self.outcomes) - most
        if self.shared:
            found["sharedGpus"] = [asdict(gpu) for gpu in self.shared]
        return found


def rows_of(request: GpuRequest, answers: Sequence[Answer], view: View) -> list[Row]:
    """What each of these answers to the request comes to, in the same order."""
    known: dict[object, Row] = {}
    found = []
    for answer in answers:
        topology = answer.facts.topology
        # Nodes in one state hand out alike; what their GPUs are called may differ.
        called = tuple(gpu.index for gpu in topology.gpus) if topology else ()
        key = (answer.node if answer.state is None else answer.state, called)
        if key not in known:
            outcomes, containers = _outcomes(answer, request), _containers(answer, request)
            known[key] = Row(answer, outcomes, containers, _hazards(answer.outcomes))
        shared, miss = _shared(answer, request, view), miss_of(answer, request, view)
        found.append(replace(known[key], answer=answer, shared=shared, miss=miss))
    return found


def _outcomes(row: Answer, request: GpuRequest) -> list[list[int]]:
    sets = row.outcomes.sets if row.outcomes else ()
    return _indices(_devices(row, request), sets or ())


def _shared(row: Answer, request: GpuRequest, view: View) -> list[SharedGpu]:
    served = row.facts.topology.resource(request.resource) if row.facts.topology else None
    return shared_gpus(row.facts, served, view.name) if served and row.facts.report else []


def _devices(row: Answer, request: GpuRequest) -> ServedDevices | None:
    topology = row.facts.topology
    served = topology.resource(request.resource) if topology else None
    return served_devices(topology, served) if topology and served else None


def _indices(devices: ServedDevices | None, sets: Iterable[Mask]) -> list[list[int]]:
    """The sets as driver indices, in order."""
    if devices is None:
        return []
    return [list(gpus) for gpus in sorted({devices.indices(mask) for mask in sets})]


def _containers(row: Answer, request: GpuRequest) -> dict[str, list[list[int]]]:
    """Each container's sets, as if nothing else happened on the node in between."""
    named: dict[str, list[list[int]]] = {
        c.name: [] for c in request.containers if c.role is not Role.INIT
    }
    offer = row.facts.last_offer(request.resource)
    if isinstance(offer, Rejection) or row.outcomes is None or not row.outcomes.sets:
        return named
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
    return named


def _hazards(assessed: Assessment | None) -> list[str]:
    if assessed is None:
        return []
    listed = ["there are too many sets to list"] if assessed.sets is None else []
    wider = ["some of these sets may never come"] if assessed.sets and not assessed.exact else []
    return [*assessed.hazards, *listed, *wider]
