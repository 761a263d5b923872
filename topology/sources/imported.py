"""What every source answers: a topology and what was odd, or a refusal that says where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from topology.devices import Gpu, Nic, NodeName
from topology.graph import NodeTopology, TopologyError
from topology.links import Link

MAX_TEXT = 1024 * 1024
"""Characters of a text; the largest machines print some 20,000."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something odd on a line (counted from 1), and what was made of it."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Imported:
    """A node's topology as a text tells it, and what a person should know about it, by line."""

    topology: NodeTopology
    findings: tuple[Finding, ...] = ()


class SourceError(ValueError):
    """A text cannot be read without guessing. ``cell`` is what on the ``line``, or None.

    >>> str(SourceError(7, "GPU3/GPU5", "'NVX' is no link"))
    "line 7, GPU3/GPU5: 'NVX' is no link"
    """

    def __init__(self, line: int, cell: str | None, message: str) -> None:
        super().__init__(line, cell, message)
        self.line = line
        self.cell = cell
        self.message = message

    def __str__(self) -> str:
        where = f"line {self.line}, {self.cell}" if self.cell else f"line {self.line}"
        return f"{where}: {self.message}"


def checked_size(text: str) -> str:
    """The text itself; :class:`SourceError` where it is larger than :data:`MAX_TEXT`."""
    if len(text) > MAX_TEXT:
        raise SourceError(1, None, f"{len(text)} characters, at most {MAX_TEXT} are read")
    return text


def quoted(word: str) -> str:
    """A stranger's word for a one-line message: printable, quoted, and not endless."""
    return ascii(word if len(word) <= 40 else word[:39] + "~")


def imported(
    node: NodeName,
    gpus: Iterable[Gpu],
    links: Iterable[Link],
    nics: Iterable[Nic],
    findings: Iterable[Finding],
    line: int,
) -> Imported:
    """The answer; a contradiction that the model itself finds is a refusal at ``line``."""
    try:
        topology = NodeTopology(node, tuple(gpus), tuple(links), tuple(nics))
    except TopologyError as error:
        raise SourceError(line, None, str(error)) from error
    return Imported(topology, tuple(sorted(set(findings))))
