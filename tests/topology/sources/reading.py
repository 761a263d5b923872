"""``nvidia-smi topo`` text for tests: a table of four GPUs, and what comes of reading a text."""

import pytest

from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.core.links import Link
from topology.sources import Imported, SourceError, parse_topo, read

NODE = NodeName("node-1")
P2P_ONLY = "this is the matrix of `nvidia-smi topo -p2p`, which does not show how GPUs are linked"
ONE_TABLE = "a second table begins here, but the first is on line"
FOREIGN = "only NVIDIA's GPUs are supported; paste that of `nvidia-smi topo -m`"

FOUR = """\
	GPU0	GPU1	GPU2	GPU3	NIC0	NIC1	CPU Affinity	NUMA Affinity	GPU NUMA ID
GPU0	 X 	NV2	PHB	SYS	PIX	SYS	0-7	0		N/A
GPU1	NV2	 X 	SYS	SYS	PHB	SYS	0-7	0		N/A
GPU2	PHB	SYS	 X 	NV2	SYS	PIX	8-15	1		N/A
GPU3	SYS	SYS	NV2	 X 	SYS	PHB	8-15	1		N/A
NIC0	PIX	PHB	SYS	SYS	 X 	SYS
NIC1	SYS	SYS	PIX	PHB	SYS	 X

Legend:

  X    = Self
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_1
"""


def words(text: str, **given: object) -> list[str]:
    """The findings about a text, as printed."""
    return [str(finding) for finding in read(text, NODE, **given).findings]  # type: ignore[arg-type]


def link(topology: NodeTopology, a: int, b: int) -> Link:
    return next(one for one in topology.links if (one.a, one.b) == (a, b))


def word(one: Link) -> str:
    return f"NV{one.nvlinks}" if one.nvlinks else one.pcie.name


def refusal(text: str, **given: object) -> str:
    with pytest.raises(SourceError) as caught:
        parse_topo(text, NODE, **given)  # type: ignore[arg-type]
    message = str(caught.value)
    assert message.isprintable()
    return message


def refused(text: str) -> str:
    """Why a text of any kind is refused."""
    with pytest.raises(SourceError) as caught:
        read(text, NODE)
    return str(caught.value)


def numa(topology: NodeTopology) -> str:
    """The NUMA node of each GPU, "-" where the text names none."""
    return "".join("-" if g.numa_node is None else str(g.numa_node) for g in topology.gpus)


def messages(found: Imported) -> list[str]:
    return [str(finding) for finding in found.findings]
