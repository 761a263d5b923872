"""What people and tools write down of a machine, turned into its topology.

:func:`read` takes any of them and picks by content:

* ``nvidia-smi topo -m`` text: :mod:`~topology.sources.lines` takes away what was put around it,
  :mod:`~topology.sources.table` finds the matrix (with ``columns``, ``rows`` and ``words``), and
  :mod:`~topology.sources.smi` says what its cells mean. :mod:`~topology.sources.foreign` knows the
  matrices of other vendors' tools, which are refused.
* NCCL's topology XML: :mod:`~topology.sources.nccl`.

:mod:`~topology.sources.identity` settles who the GPUs are. All answer with :class:`Imported`,
which carries what was odd as findings, or refuse with :class:`SourceError`, which names the line
and the cell. Only text comes in: no file is opened.
"""

from __future__ import annotations

import re

from topology.core.devices import Bytes, NodeName
from topology.sources.imported import MAX_TEXT, Finding, Imported, SourceError, checked_size
from topology.sources.nccl import parse_nccl
from topology.sources.smi import parse_topo

_PAGE = re.compile(
    r"(?i)<(?:!doctype html|html|body|div|p|span|pre|code|table|details|summary|br|h[1-6])[\s/>]"
)

__all__ = [
    "MAX_TEXT",
    "Finding",
    "Imported",
    "SourceError",
    "parse_nccl",
    "parse_topo",
    "read",
]


def read(
    text: str,
    node: NodeName,
    *,
    product: str | None = None,
    memory: Bytes | None = None,
) -> Imported:
    """The topology that ``text`` tells of ``node``: NCCL's XML where it holds it, else a matrix.

    ``product`` and ``memory`` (bytes of each GPU) say what the text does not.

    >>> found = read("GPU0 GPU1\\nGPU0 X PIX\\nGPU1 PIX X", NodeName("n"), product="NVIDIA L40S")
    >>> found.topology.summary()
    '2 × NVIDIA L40S, PCIe PIX'
    """
    checked_size(text)
    begin, end = _xml(text)
    if begin == end:
        return parse_topo(text, node, product=product, memory=memory)
    before = text.count("\n", 0, begin)
    return parse_nccl("\n" * before + text[begin:end], node, product=product, memory=memory)


def _xml(text: str) -> tuple[int, int]:
    """Where the XML of a text stands: all of it where it begins as XML, else ``<system>``.

    Nowhere is (0, 0). A page's own tags are no XML of a tool: a matrix is often pasted with them.
    """
    begin = len(text) - len(text.lstrip("\ufeff \t\r\n"))
    if text.startswith("<", begin) and not _PAGE.match(text, begin):
        return begin, len(text)
    begin, end = text.find("<system"), text.rfind("</system>")
    return (begin, end + len("</system>")) if 0 <= begin < end else (0, 0)
