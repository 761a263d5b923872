"""Texts of our own, as people paste them: tables of four GPUs and of two, and lists of GPUs."""

from collections.abc import Callable

FOUR = """\
	GPU0	GPU1	GPU2	GPU3	NIC0	NIC1	CPU Affinity	NUMA Affinity	GPU NUMA ID
GPU0	 X 	NV4	NODE	SYS	PIX	NODE	0-7	0		N/A
GPU1	NV4	 X 	SYS	SYS	NODE	NODE	0-7	0		N/A
GPU2	NODE	SYS	 X 	NV4	SYS	PXB	8-15	1		N/A
GPU3	SYS	SYS	NV4	 X 	SYS	NODE	8-15	1		N/A
NIC0	PIX	NODE	SYS	SYS	 X 	SYS
NIC1	NODE	NODE	PXB	NODE	SYS	 X

Legend:

  X    = Self
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_1
"""
LIST = "".join(f"GPU {i}: NVIDIA RTX A6000 (UUID: GPU-{i}a)\n" for i in range(4))
P2P = (
    "\n \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"
)
WHOLE = LIST + FOUR
TWO = "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n"


def each(before: str) -> Callable[[str], str]:
    return lambda text: "".join(f"{before}{line}\n" for line in text.splitlines())
