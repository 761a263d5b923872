"""The results of every source: a topology with findings, or a refusal that names the position."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from topology.core.devices import Gpu, Nic, NodeName
from topology.core.graph import NodeTopology, TopologyError
from topology.core.links import Link
from topology.machines.mig import mixed_resources

MAX_TEXT = 1024 * 1024  # characters of a text; the largest machines print about 20,000
MAX_FINDINGS = 100
MAX_MESSAGE = 400
# The limits of a GPUTopology object.
MAX_NAME = 253
MAX_INDEX = 1023
MAX_NVLINKS = 64


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """An oddity on a line (counted from 1), and how it was read."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


class Findings(list[Finding]):
    """The findings so far."""

    def note(self, line: int, text: str) -> None:
        """Add a finding."""
        self.append(Finding(line, text))


@dataclass(frozen=True, slots=True)
class Imported:
    """A node's topology from a text, and the findings that a person should know, by line."""

    topology: NodeTopology
    findings: tuple[Finding, ...] = ()


class SourceError(ValueError):
    """The refusal of a text that cannot be read without guessing.

    ``cell`` is the position on the ``line``, or None.

    >>> str(SourceError(7, "GPU3/GPU5", "'NVX' is no link"))
    "line 7, GPU3/GPU5: 'NVX' is no link"
    """

    def __init__(self, line: int, cell: str | None, message: str) -> None:
        super().__init__(line, cell, message)
        self.line = line
        self.cell = None if cell is None else cell if _plain(cell, 60) else quoted(cell)
        self.message = _shown(message)

    def __str__(self) -> str:
        where = f"line {self.line}, {self.cell}" if self.cell else f"line {self.line}"
        return f"{where}: {self.message}"


def checked_size(text: str) -> str:
    """Return the text. Raises :class:`SourceError` if it is longer than :data:`MAX_TEXT`."""
    if len(text) > MAX_TEXT:
        raise SourceError(1, None, f"{len(text)} characters; at most {MAX_TEXT} are allowed")
    return text


def quoted(word: str) -> str:
    """Return a word of the text for a one-line message: printable, quoted, and cut if long."""
    return repr(word if len(word) <= 40 else word[:39] + "~")


def _plain(text: str, most: int) -> bool:
    return text.isprintable() and len(text) <= most


def _shown(text: str) -> str:
    """Return the message as one printable line, whatever it contains."""
    text = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 4] + " ..."


def imported(
    node: NodeName,
    gpus: Iterable[Gpu],
    links: Iterable[Link],
    nics: Iterable[Nic],
    findings: Iterable[Finding],
    line: int,
) -> Imported:
    """Return the result of a source.

    Raises :class:`SourceError` at ``line`` if the model finds a contradiction, or if a value does
    not fit into a GPUTopology object.
    """
    gpus, links, nics = tuple(gpus), tuple(links), tuple(nics)
    _refuse_what_no_record_takes(gpus, links, nics, line)
    try:
        topology = NodeTopology(node, gpus, links, nics)
        if any(gpu.mig_instances for gpu in gpus):
            topology = replace(topology, resources=mixed_resources(gpus))
    except TopologyError as error:
        raise SourceError(line, None, str(error)) from error
    said = sorted({Finding(finding.line, _shown(finding.text)) for finding in findings})
    if len(said) > MAX_FINDINGS:
        more = len(said) - MAX_FINDINGS
        said = [*said[:MAX_FINDINGS], Finding(said[-1].line, f"and {more} more findings")]
    return Imported(topology, tuple(said))


def _refuse_what_no_record_takes(
    gpus: Iterable[Gpu], links: Iterable[Link], nics: Iterable[Nic], line: int
) -> None:
    for gpu in gpus:
        if gpu.index > MAX_INDEX:
            raise SourceError(line, f"GPU{gpu.index}", f"GPUs are numbered 0 to {MAX_INDEX}")
        for what, told in (
            ("product", gpu.product),
            ("uuid", gpu.uuid),
            ("bus id", gpu.pci_bus_id or ""),
        ):
            if not _plain(told, MAX_NAME):
                raise SourceError(
                    line,
                    f"GPU{gpu.index}",
                    f"{what} {quoted(told)}: allowed are {MAX_NAME} printable characters",
                )
    for link in links:
        if link.nvlinks > MAX_NVLINKS:
            raise SourceError(
                line,
                f"GPU{link.a}/GPU{link.b}",
                f"{link.nvlinks} NVLinks, at most {MAX_NVLINKS} are allowed",
            )
    for nic in nics:
        if not _plain(nic.name, MAX_NAME):
            raise SourceError(
                line, None, f"NIC {quoted(nic.name)}: allowed are {MAX_NAME} printable characters"
            )
