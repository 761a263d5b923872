"""Readers that turn the text of people and tools about a machine into its topology.

:func:`read` takes any of these texts and chooses the reader by content:

* ``nvidia-smi topo -m`` text: :mod:`~topology.sources.lines` removes what was put around it.
  :mod:`~topology.sources.table` finds the matrix (with ``columns`` and ``rows``).
  :mod:`~topology.sources.inventory` reads the lists of GPUs beside it and identifies the GPUs.
  :mod:`~topology.sources.smi` interprets the cells.
* NCCL's topology XML: :mod:`~topology.sources.nccl`.

Each reader returns :class:`Imported`, in which the findings list what was odd, or raises
:class:`SourceError`, which names the line and the cell. The readers take text and open no file.
"""

import re

from topology.core.devices import Bytes, NodeName
from topology.sources.imported import (
    MAX_TEXT,
    Finding,
    Findings,
    Imported,
    SourceError,
    checked_size,
)
from topology.sources.lines import clean
from topology.sources.nccl import ROOTS, parse_nccl
from topology.sources.smi import parse_topo
from topology.sources.table import first_row

_BLANK = "\ufeff \t\r\n"
_PAGE = re.compile(
    r"(?i)<(?:!doctype html|html|body|div|p|span|pre|code|table|details|summary|br|h[1-6])[\s/>]"
)
_ROOT = re.compile(rf"<(system|{'|'.join(ROOTS)})[\s>]")
_PROLOG = re.compile(r"<(?:\?xml|!DOCTYPE)\s")

__all__ = ["MAX_TEXT", "Finding", "Imported", "SourceError", "parse_nccl", "parse_topo", "read"]


def read(
    text: str,
    node: NodeName,
    *,
    product: str | None = None,
    memory: Bytes | None = None,
) -> Imported:
    """Return the topology of ``node`` from NCCL's XML or from a matrix.

    A text with both is refused. ``product`` and ``memory`` (bytes of each GPU) supply what the text
    lacks. Raises :class:`SourceError`.

    >>> found = read("GPU0 GPU1\\nGPU0 X PIX\\nGPU1 PIX X", NodeName("n"), product="NVIDIA L40S")
    >>> found.topology.summary()
    '2 × NVIDIA L40S, PCIe PIX'
    """
    start = checked_size(text).lstrip(_BLANK)
    begin, end = _xml(text)
    if begin == end and (not start.startswith("<") or _PAGE.match(start)):
        return parse_topo(text, node, product=product, memory=memory)
    before, within = text.count("\n", 0, begin), text.count("\n", begin, end)
    matrix = first_row(clean(text[:begin] + "\n" * within + text[end:], Findings()))
    if matrix and begin == end:
        return parse_topo(text, node, product=product, memory=memory)
    if matrix:
        raise SourceError(
            before + 1,
            None,
            f"XML begins here, but line {matrix} has a matrix; give only one of them",
        )
    return parse_nccl(
        "\n" * before + text[begin:end] if begin < end else text,
        node,
        product=product,
        memory=memory,
    )


def _xml(text: str) -> tuple[int, int]:
    """Return the begin and end of a tool's XML in a text; (0, 0) if there is none."""
    root = _ROOT.search(text)
    if root is None:
        return 0, 0
    begins = not text[: root.start()].strip(_BLANK) or _PROLOG.match(text.lstrip(_BLANK))
    end = text.rfind(f"</{root[1]}>")
    if end < 0:
        return (0, len(text)) if begins else (0, 0)
    return 0 if begins else root.start(), end + len(f"</{root[1]}>")
