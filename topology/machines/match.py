"""Which machine of the catalogue a described node is wired like."""

from __future__ import annotations

import re

from topology.core.devices import Bytes
from topology.core.graph import NodeTopology
from topology.core.links import Link, LinkKind
from topology.core.shape import Shape
from topology.machines.catalogue import MACHINES
from topology.machines.notation import Machine


def like(topology: NodeTopology) -> Machine | None:
    """The first machine of the catalogue with the same GPU models and links, None where none has.

    GPU models are compared but for their memory size, then NVLinks per pair and PCIe classes. A
    topo matrix hides the PCIe class of NVLinked pairs: where one is unknown, they do not count.
    GPUs may be numbered differently. None for a single GPU, which has no link to compare.

    >>> from topology.machines import machine
    >>> like(machine("p3.8xlarge").topology("n")).name
    'p3.8xlarge'
    """
    if len(topology.gpus) < 2:
        return None
    hides = any(link.nvlinks and link.pcie is LinkKind.UNKNOWN for link in topology.links)
    wanted = _compared(topology.shape, hides)
    for known in MACHINES.values():
        if known.size == wanted.size:
            shape = _compared(known.topology(known.name).shape, hides)
            if wanted.isomorphic(shape):
                return known
    return None


def _compared(shape: Shape, hides: bool) -> Shape:
    """The part of a shape that :func:`like` compares.

    ``hides`` says that the description hides the PCIe classes of NVLinked pairs.
    """
    n = shape.size
    return Shape(
        products=tuple(re.sub(r"-(\d+gb|hbm\d\w?)(?=-|$)", "", p) for p in shape.products),
        memory=(Bytes(0),) * n,
        numa=(None,) * n,
        topology_nodes=((),) * n,
        mig=(False,) * n,
        nic=(LinkKind.UNKNOWN,) * n,
        links=tuple(
            tuple(link and _compared_link(link, hides) for link in row) for row in shape.links
        ),
    )


def _compared_link(link: Link, hides: bool) -> Link:
    hidden = hides and link.nvlinks > 0
    return Link(0, 0, LinkKind.UNKNOWN if hidden else link.pcie, link.nvlinks)
