"""Nodes in words: what is particular about one, how many GPUs stand how, what can be promised."""

from __future__ import annotations

from collections import Counter

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.source import Look
from scheduler_extender.cli.suggestions import did_you_mean
from scheduler_extender.framework.capacity import Capacity
from scheduler_extender.told.nodes import Flag, Nodes, NodeState, Totals, Use, has_gpus, tally
from scheduler_extender.told.words import duration
from topology.core.devices import NodeName

TOLD_APART = {Flag.COMING, Flag.RESERVED, Flag.SICK, Flag.SHARED}
"""Flags that other words or columns tell."""


def node_named(look: Look, name: str) -> NodeState:
    """A node by its name. Raises :class:`BadInputError` if there is none, or it has no GPUs."""
    known = look.cluster.snapshot().by_name
    facts = known.get(NodeName(name))
    if facts is None:
        seen = ", as far as you may see" if look.api is not None else ""
        raise BadInputError(f"there is no node {name}{seen}{did_you_mean(name, known)}")
    if not has_gpus(facts):
        raise BadInputError(
            f"node {name} has no GPUs as far as anybody says: no agent has written a record of it, "
            "and it advertises none"
        )
    return Nodes(look.cluster).of(facts)


def warnings(node: NodeState, *, counted: bool = False) -> list[str]:
    """What is particular about the node; GPUs in flight if they are not ``counted``."""
    words = [flag.value for flag in Flag if flag in node.flags and flag not in TOLD_APART]
    if node.coming and not counted:
        unit = "share" if Flag.SHARED in node.flags else "GPU"
        words.append(f"{_many(node.coming, unit)} in flight: pods on their way will have them")
    if node.reserved_for:
        words.append(f"reserved for {node.reserved_for}")
    return words


def total_text(sums: Totals) -> str:
    """Several nodes in a sentence.

    >>> uses = Counter({Use.FREE: 3, Use.STRANDED: 1, Use.KEPT: 3, Use.SICK: 1})
    >>> total_text(Totals(2, uses, 0, Capacity(1, 0, 0)))
    '2 nodes, 8 GPUs: 3 free, 1 stranded, 3 held, 1 sick; can still promise 1 pair'
    """
    promised = f"can still promise {promises_text(sums.capacity)}"
    return f"{_many(sums.nodes, 'node')}, {gpus_text(sums.uses)}; {promised}"


def gpus_text(uses: Counter[Use]) -> str:
    """How many GPUs stand how.

    >>> gpus_text(Counter({Use.STRANDED: 1, Use.KEPT: 2, Use.IN_FLIGHT: 1}))
    '4 GPUs: 0 free, 1 stranded, 1 in flight, 2 held'
    """
    told = ", ".join(f"{n:,} {word}" for word, n in tally(uses).items() if n or word == "free")
    return f"{_many(uses.total(), 'GPU')}: {told}"


def promises_text(capacity: Capacity) -> str:
    """What can still be promised, each kind alone.

    >>> promises_text(Capacity(2, 1, 0)), promises_text(Capacity())
    ('2 pairs, or 1 quad', 'no pair, quad or whole node')
    """
    kinds = {"pair": capacity.pairs, "quad": capacity.quads, "whole node": capacity.nodes}
    told = [_many(n, word) for word, n in kinds.items() if n]
    return ", or ".join(told) or "no pair, quad or whole node"


def _many(n: int, word: str) -> str:
    return f"{n:,} {word}{'s' if n != 1 else ''}"


def ago(seconds: float | None) -> str:
    """How long ago something was.

    >>> ago(90), ago(None)
    ('1 min ago', 'unknown')
    """
    return "unknown" if seconds is None else f"{duration(seconds)} ago"
