"""What people and tools write down of a machine, turned into its topology.

:func:`read` takes any of them and picks by content: :mod:`~topology.sources.smi` reads
``nvidia-smi topo -m`` text (:mod:`~topology.sources.table` finds its cells),
:mod:`~topology.sources.nccl` NCCL's topology XML. :mod:`~topology.sources.inventory` settles who
the GPUs are. All answer with :class:`Imported`, which carries what was odd as findings, or refuse
with :class:`SourceError`, which names the line and the cell. Only text comes in: no file is opened.
"""

from __future__ import annotations

from topology.devices import Bytes, NodeName
from topology.sources.imported import MAX_TEXT, Finding, Imported, SourceError, checked_size
from topology.sources.nccl import parse_nccl
from topology.sources.smi import parse_topo

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
    """The topology that ``text`` tells of ``node``: XML where it starts with ``<``, else a matrix.

    ``product`` and ``memory`` (bytes of each GPU) say what the text does not.

    >>> found = read("GPU0 GPU1\\nGPU0 X PIX\\nGPU1 PIX X", NodeName("n"), product="NVIDIA L40S")
    >>> found.topology.summary()
    '2 × NVIDIA L40S, PCIe PIX'
    """
    start = checked_size(text).lstrip("\ufeff \t\r\n")
    parse = parse_nccl if start.startswith("<") else parse_topo
    return parse(text, node, product=product, memory=memory)
