"""A node's GPUs as the commands tell of them: counts, who holds what, and what is particular."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.looking import Look
from scheduler_extender.state.answers.capacity import Capacities, Capacity
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.node.transitions import without_record
from scheduler_extender.told.answers import serves_nothing
from scheduler_extender.told.nodes import (
    NO_RECORD,
    Flag,
    GpuHolder,
    GpuState,
    NodeState,
    Use,
    node_state,
)
from scheduler_extender.told.view import GONE, HIDDEN, View
from scheduler_extender.told.words import duration
from topology.core.devices import NodeName
from topology.core.requests import GpuRequest
from topology.times import seconds_of

FREE = (Use.FREE, Use.STRANDED)
HELD = (Use.KEPT, Use.PLAIN, Use.BROKEN, Use.ENDING)


@dataclass(frozen=True, slots=True)
class Counts:
    """GPUs by how they stand; the five add up to ``gpus``.

    ``reserved`` ones look free: pods on their way here will have them, or a place is kept. Which
    ones they are nobody knows yet.
    """

    gpus: int = 0
    free: int = 0
    stranded: int = 0
    reserved: int = 0
    held: int = 0
    sick: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.gpus + other.gpus,
            self.free + other.free,
            self.stranded + other.stranded,
            self.reserved + other.reserved,
            self.held + other.held,
            self.sick + other.sick,
        )

    def as_json(self) -> dict[str, int]:
        """The counts by their words."""
        return {
            "total": self.gpus,
            "free": self.free,
            "stranded": self.stranded,
            "reserved": self.reserved,
            "held": self.held,
            "sick": self.sick,
        }


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A node and all that is told of it."""

    state: NodeState
    counts: Counts
    capacity: Capacity
    view: View

    @property
    def name(self) -> str:
        """The node's name."""
        return self.state.name

    @property
    def reported(self) -> float | None:
        """Seconds since the agent looked, by its own clock; None where it does not say."""
        report = self.state.facts.report
        observed = seconds_of(report.observed_at) if report is not None else None
        return None if observed is None else max(0.0, self.view.today - observed)

    @property
    def place_for(self) -> str:
        """The pod for which a place is kept; empty where none is."""
        namespace, _, name = self.state.place_for.partition("/")
        return self.view.name(namespace, name) if name else ""

    def words(self, *, counted: bool = False) -> list[str]:
        """What is particular about the node; reserved GPUs where they are not ``counted``."""
        found = [flag.value for flag in Flag if flag in self.state.flags and flag not in TOLD_APART]
        if self.state.coming and not counted:
            unit = "share" if Flag.SHARED in self.state.flags else "GPU"
            found.append(f"{_many(self.state.coming, unit)} reserved for pods on their way")
        if self.place_for:
            found.append(f"place kept for {self.place_for}")
        return found

    def holders(self, gpu: GpuState) -> list[str]:
        """The pods on a GPU, as the caller may see them."""
        return [self._holder(holder) for holder in gpu.holders]

    def _holder(self, holder: GpuHolder) -> str:
        """``holder.name`` is a UID where the pod is not known: then the report names it."""
        if "/" in holder.name:
            namespace, _, name = holder.name.partition("/")
            return self.view.name(namespace, name)
        report = self.state.facts.report
        for given in report.allocations if report is not None else ():
            if given.pod_uid == holder.name:
                name = self.view.name(given.namespace, given.pod)
                return name if name == HIDDEN or holder.use is not Use.ENDING else f"{name} (gone)"
        return GONE

    def as_json(self, *, gpus: bool) -> dict[str, Any]:
        """The node as data; with ``gpus`` each of them."""
        state = self.state
        found: dict[str, Any] = {
            "node": self.name,
            "machine": state.kind,
            "gpus": self.counts.as_json(),
            "canPromise": {
                "pairs": self.capacity.pairs,
                "quads": self.capacity.quads,
                "wholeNodes": self.capacity.nodes,
            },
            "flags": sorted(flag.value for flag in state.flags),
            "trouble": list(state.trouble),
            "onTheirWay": state.coming,
            "placeKeptFor": self.place_for or None,
            "observedAt": (state.facts.report.observed_at if state.facts.report else "") or None,
        }
        if gpus and state.topology is not None:
            found["devices"] = [
                {
                    "gpu": gpu.index,
                    "uuid": gpu.uuid,
                    "product": gpu.product,
                    "numaNode": gpu.numa_node,
                    "state": each.use.value,
                    "held": each.held,
                    "of": each.devices,
                    "pods": self.holders(each),
                    "trouble": each.trouble or None,
                }
                for gpu, each in zip(state.topology.gpus, state.gpus, strict=True)
            ]
        return found


TOLD_APART = {Flag.COMING, Flag.KEPT_PLACE, Flag.SICK, Flag.SHARED}
"""Flags that other words or columns tell."""


def gpu_rows(look: Look, names: set[str] | None = None) -> list[GpuRow]:
    """The nodes with GPUs, by name, of those that are named (None: of all)."""
    capacities = Capacities(look.cluster.settings)
    return [
        row_of(facts, capacities, look.view)
        for facts in look.cluster.snapshot().nodes
        if (names is None or facts.name in names) and _has_gpus(facts)
    ]


def row_of(facts: NodeFacts, capacities: Capacities, view: View) -> GpuRow:
    """A node. A fault of ours costs the node, not the answer: then it has a trouble."""
    try:
        state = node_state(facts)
        capacity = Capacity() if state.topology is None else capacities.of(facts)
    except Exception as error:  # noqa: BLE001 (told where the node is)
        trouble = (f"internal error: {type(error).__name__}",)
        bare = without_record(facts)
        state = NodeState(bare, NO_RECORD, flags=frozenset({Flag.UNUSABLE}), trouble=trouble)
        capacity = Capacity()
    return GpuRow(state, _counts(state), capacity, view)


def node_row(look: Look, name: str) -> GpuRow:
    """A node by its name. Raises :class:`BadInputError` where there is none, or it has no GPUs."""
    found = look.cluster.snapshot().by_name.get(NodeName(name))
    if found is None:
        seen = ", as far as you may see" if look.api is not None else ""
        raise BadInputError(f"there is no node {name}{seen}")
    if not _has_gpus(found):
        raise BadInputError(
            f"node {name} has no GPUs as far as anybody says: no agent has written a record of it, "
            "and it advertises none"
        )
    return row_of(found, Capacities(look.cluster.settings), look.view)


def _has_gpus(facts: NodeFacts) -> bool:
    """Whether there is anything to tell of a node."""
    if facts.topology is not None or facts.record.problem is not None:
        return True
    return facts.node_object.exists and not serves_nothing(facts)


def _counts(state: NodeState) -> Counts:
    free, stranded = state.uses[Use.FREE], state.uses[Use.STRANDED]
    reserved = min(free + stranded, reserved_gpus(state))
    left = free + stranded - reserved
    alone = min(stranded, left)
    held = sum(state.uses[use] for use in HELD)
    return Counts(len(state.gpus), left - alone, alone, reserved, held, state.uses[Use.SICK])


def reserved_gpus(state: NodeState) -> int:
    """How many GPUs pods on their way, and the one for which a place is kept, take at least."""
    shares = max((gpu.devices for gpu in state.gpus), default=1)
    place = state.facts.kept_for if Flag.KEPT_PLACE in state.flags else None
    kept = place.request.count if place and isinstance(place.request, GpuRequest) else 0
    return -(-(state.coming + kept) // shares)


def total_text(nodes: int, counts: Counts, capacity: Capacity) -> str:
    """All nodes in a sentence.

    >>> total_text(2, Counts(8, 3, 1, 0, 3, 1), Capacity(1, 0, 0))
    '2 nodes, 8 GPUs: 3 free, 1 stranded, 3 held, 1 sick; can still promise 1 pair'
    """
    promised = f"can still promise {promises_text(capacity)}"
    return f"{_many(nodes, 'node')}, {gpus_text(counts)}; {promised}"


def gpus_text(counts: Counts) -> str:
    """How many GPUs stand how.

    >>> gpus_text(Counts(4, 0, 1, 0, 2, 1))
    '4 GPUs: 0 free, 1 stranded, 2 held, 1 sick'
    """
    stands = {
        "free": counts.free,
        "stranded": counts.stranded,
        "reserved": counts.reserved,
        "held": counts.held,
        "sick": counts.sick,
    }
    told = ", ".join(f"{n:,} {word}" for word, n in stands.items() if n or word == "free")
    return f"{_many(counts.gpus, 'GPU')}: {told}"


def promises_text(capacity: Capacity) -> str:
    """What can still be promised, each kind alone.

    >>> promises_text(Capacity(2, 1, 0)), promises_text(Capacity())
    ('2 pairs, or 1 quad', 'no pair, quad or whole node')
    """
    parts = []
    if capacity.pairs:
        parts.append(_many(capacity.pairs, "pair"))
    if capacity.quads:
        parts.append(_many(capacity.quads, "quad"))
    if capacity.nodes:
        parts.append(_many(capacity.nodes, "whole node"))
    return ", or ".join(parts) or "no pair, quad or whole node"


def _many(n: int, word: str) -> str:
    return f"{n:,} {word}{'s' if n != 1 else ''}"


def total_of(rows: Iterable[GpuRow]) -> tuple[Counts, Capacity]:
    """The counts and the capacity of several nodes."""
    counts, capacity = Counts(), Capacity()
    for row in rows:
        counts, capacity = counts + row.counts, capacity + row.capacity
    return counts, capacity


def ago(seconds: float | None) -> str:
    """How long ago something was.

    >>> ago(90), ago(None)
    ('1 min ago', 'unknown')
    """
    return "unknown" if seconds is None else f"{duration(seconds)} ago"
