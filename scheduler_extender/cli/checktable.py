"""`gpu-topology check`: what every node of a described cluster would answer to a pod."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.table import Table
from rich.text import Text

from scheduler_extender.explain import Answer
from scheduler_extender.sharing import SharedGpu, memory_in_use, shared_gpus
from scheduler_extender.state.node import Unusable
from scheduler_extender.wording import sets_text, verdict_text
from topology.core.admission import container_sets, kubelet_of, others_on
from topology.core.devices import Mask
from topology.core.mig import ServedDevices, served_devices
from topology.core.placement import Assessment
from topology.core.pools import gpus
from topology.core.requests import GpuRequest, Role

SHOWN_NODES = 200


@dataclass(frozen=True, slots=True)
class Checked:
    """One node's answer, and what it may hand out, as driver indices.

    ``outcomes`` lists the GPU sets that the whole pod may get, ``containers`` the sets of each app
    and sidecar container, both ordered by their lowest GPU, then by the next one. Both are empty
    where nothing would be handed out, and where there are too many to list (then ``hazards`` says
    so). ``shared`` are the GPUs that the node shares among pods, with those that are on them.
    """

    answer: Answer
    outcomes: list[list[int]]
    containers: dict[str, list[list[int]]]
    hazards: list[str]
    shared: list[SharedGpu] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The row of the CLI's JSON contract."""
        containers = [{"name": n, "outcomes": sets} for n, sets in self.containers.items()]
        return {
            "node": self.answer.node,
            "verdict": self.answer.decision.verdict,
            "outcomes": self.outcomes,
            "containers": containers,
            "hazards": self.hazards,
            "score": self.answer.score,
            "reason": self.answer.reason,
            "note": self.answer.note,
            "lacks": list(self.answer.lacks),
            "resolvable": self.answer.resolvable,
        } | ({"sharedGpus": [asdict(gpu) for gpu in self.shared]} if self.shared else {})


def check(request: GpuRequest, rows: Sequence[Answer]) -> list[Checked]:
    """What each of these answers to the request comes to, in the same order."""
    known: dict[object, Checked] = {}
    found = []
    for row in rows:
        topology = row.facts.topology
        # Nodes in one state hand out alike; what their GPUs are called may differ.
        called = tuple(gpu.index for gpu in topology.gpus) if topology else ()
        key = (row.node if row.state is None else row.state, called)
        if key not in known:
            known[key] = Checked(
                row, _outcomes(row, request), _containers(row, request), _hazards(row.outcomes)
            )
        found.append(replace(known[key], answer=row, shared=_shared(row, request)))
    return found


def _outcomes(row: Answer, request: GpuRequest) -> list[list[int]]:
    sets = row.outcomes.sets if row.outcomes else ()
    return _indices(_devices(row, request), sets or ())


def _shared(row: Answer, request: GpuRequest) -> list[SharedGpu]:
    served = row.facts.topology.resource(request.resource) if row.facts.topology else None
    return shared_gpus(row.facts, served) if served and row.facts.report else []


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
    topology, devices = row.facts.topology, _devices(row, request)
    served = topology.resource(request.resource) if topology else None
    if topology is None or served is None or row.outcomes is None or not row.outcomes.sets:
        return named
    available = row.facts.availability(request.resource)
    if isinstance(available, Unusable):
        return named
    kubelet = kubelet_of(topology, served, row.facts.missing)
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
            named[container.name] = _indices(devices, masks)
    return named


def _hazards(assessed: Assessment | None) -> list[str]:
    if assessed is None:
        return []
    listed = ["there are too many sets to list"] if assessed.sets is None else []
    wider = ["some of these sets may never come"] if assessed.sets and not assessed.exact else []
    return [*assessed.hazards, *listed, *wider]


def table(rows: Sequence[Checked]) -> Table:
    """The answers for a terminal: passing nodes first, best score first, at most SHOWN_NODES."""
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    found.add_column("node", overflow="fold")
    found.add_column("verdict", no_wrap=True)
    found.add_column("score", justify="right", no_wrap=True)
    found.add_column("may hand out", overflow="fold")
    found.add_column("why not, and what to beware of", overflow="fold")

    def order(row: Checked) -> tuple[bool, int, str]:
        return (not row.answer.passes, -(row.answer.score or 0), row.answer.node)

    for row in sorted(rows, key=order)[:SHOWN_NODES]:
        answer = row.answer
        beware = f"beware: {', '.join(row.hazards)}" if row.hazards else ""
        in_use = memory_in_use(row.shared)
        fields = ", ".join(answer.lacks)
        lacks = f"CPUs and memory count for nothing: the record has no {fields}" if fields else ""
        found.add_row(
            Text(answer.node),
            verdict_text(answer.decision.verdict, passes=answer.passes),
            "–" if answer.score is None else str(answer.score),
            sets_text(row.outcomes),
            Text("; ".join(filter(None, (answer.reason, answer.note, in_use, beware, lacks)))),
        )
    if len(rows) > SHOWN_NODES:
        more = f"… {len(rows) - SHOWN_NODES:,} more (--output json lists them all)"
        found.add_row(more, "", "", "", "")
    return found
