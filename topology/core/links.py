"""Links between two GPUs: their kinds in order, their NVLink counts, and the bandwidth of a hop.

Every number about bandwidth is in this file, with its source.
"""

import re
from dataclasses import dataclass
from enum import Enum, IntEnum
from fnmatch import translate
from typing import NewType

from topology.core.memo import memoized

# 10⁹ bytes a second, the sum of both directions unless a name says ``one_way``.
GBps = NewType("GBps", float)


class LinkKind(IntEnum):
    """The nearness of two devices, in order: a larger kind meets every constraint on a smaller one.

    The classes below ``NVLINK`` are NVML's PCIe classes (``nvmlGpuTopologyLevel_t``).
    """

    UNKNOWN = 0
    SYS = 1  # across the interconnect between NUMA nodes
    NODE = 2  # across PCIe host bridges of one NUMA node
    PHB = 3  # across one PCIe host bridge
    PXB = 4  # across several PCIe switches, no host bridge
    PIX = 5  # across one PCIe switch
    BOARD = 6  # on one board
    NVLINK = 7

    @property
    def label(self) -> str:
        """The name that people write: ``NVLINK``, ``PIX`` …, or ``?`` where it is unknown."""
        return "?" if self is LinkKind.UNKNOWN else self.name


class Via(Enum):
    """The end of an NVLink: the other GPU itself, or a switch."""

    DIRECT = "direct"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """The connection of the GPUs with indices ``a`` < ``b``."""

    a: int
    b: int
    pcie: LinkKind = LinkKind.UNKNOWN  # the pair's PCIe class; unknown if the source has none
    # The NVLinks of the pair. Through a switch, the smaller number of the two GPUs' attachments.
    nvlinks: int = 0
    via: Via = Via.DIRECT
    nvlink_one_way: GBps = GBps(0.0)  # of one link in one direction, 0 where unknown
    # Whether only one of the two GPUs reports the NVLinks. NVIDIA's allocator panics over such a
    # pair.
    one_sided: bool = False
    # Whether both report NVLinks, but different numbers of them (`nvlinks` is the smaller). The
    # pair's score in NVIDIA's allocator then depends on an order that cannot be known.
    uneven: bool = False

    @property
    def nameless(self) -> "Link":
        """The same link without the indices of its GPUs."""
        speed = self.nvlink_one_way
        return Link(0, 0, self.pcie, self.nvlinks, self.via, speed, self.one_sided, self.uneven)

    @property
    def kind(self) -> LinkKind:
        """NVLINK if the pair has NVLinks, else its PCIe class."""
        return LinkKind.NVLINK if self.nvlinks else self.pcie

    @property
    def bandwidth(self) -> GBps:
        """The bandwidth of this hop in GB/s, both ways; 0 if it is unknown.

        With NVLinks it is 2 · links · GB/s per link. A switched attachment is shared by all of the
        GPU's pairs; it counts in full for each of them. Without NVLinks it is
        :data:`PCIE_BANDWIDTH` of the pair's class.
        """
        if self.nvlinks:
            return GBps(2 * self.nvlinks * self.nvlink_one_way)
        return PCIE_BANDWIDTH[self.pcie]


PCIE_BANDWIDTH: dict[LinkKind, GBps] = {
    # Both ways, PCIe 3.0 x16, GPU to GPU. SYS, NODE and PHB are the worst case of a copy through
    # the host. PXB and PIX are peer-to-peer through a switch. Sources: eight V100 in a cube mesh
    # measured 4.6 to 17.6 for pairs without NVLink (koordinator's GPU topology proposal). NCCL
    # plans with 12 GB/s one way for PCIe 3.0 x16 and 6 to 10 across sockets (graph/topo.h). We take
    # the low end, because min-bandwidth is a guarantee, and newer PCIe is only faster.
    LinkKind.UNKNOWN: GBps(0.0),
    LinkKind.SYS: GBps(5.0),
    LinkKind.NODE: GBps(12.0),
    LinkKind.PHB: GBps(15.0),
    LinkKind.PXB: GBps(18.0),
    LinkKind.PIX: GBps(20.0),
    LinkKind.BOARD: GBps(24.0),
    LinkKind.NVLINK: GBps(0.0),
}


@dataclass(frozen=True, slots=True)
class NvlinkPort:
    """The NVLink attachment of a product."""

    links: int
    one_way: GBps  # of one link


# Products whose NVLinks are joined by a bridge or not at all. The product name does not say which.
BRIDGED = re.compile(r"pcie|^h\d+-nvl|active|rtx|^a[34]0(-|$)|^a\d+x|cnx")

NVLINK_PORTS: tuple[tuple[str, NvlinkPort], ...] = (
    # Product pattern (see canonical_product), links of the GPU, GB/s per link one way.
    # Source: NVIDIA's data sheets per product; `nvidia-smi nvlink -s` shows 14.062 for the
    # bridged workstation cards and 26.562 raw for Hopper, of which 25 is payload.
    (r"p100.*sxm", NvlinkPort(4, GBps(20.0))),
    (r"p100", NvlinkPort(0, GBps(0.0))),
    (r"v100s?-pcie", NvlinkPort(0, GBps(0.0))),
    (r"v100", NvlinkPort(6, GBps(25.0))),
    (r"a100", NvlinkPort(12, GBps(25.0))),
    (r"a800", NvlinkPort(8, GBps(25.0))),
    (r"a30(-|$)", NvlinkPort(4, GBps(25.0))),
    (r"((geforce-)?rtx-3090|rtx-a(45|50|55|60)00|a40(-|$))", NvlinkPort(4, GBps(14.0625))),
    (r"h800", NvlinkPort(8, GBps(25.0))),
    (r"(h100-(pcie|nvl))", NvlinkPort(12, GBps(25.0))),
    (r"(h100|h200|h20|gh200)(-|$)", NvlinkPort(18, GBps(25.0))),
    (r"(b100|b200|b300|gb200|gb300)(-|$)", NvlinkPort(18, GBps(50.0))),
)


def canonical_product(product: str) -> str:
    """Return a product name for comparison: lower case, no vendor prefix, dashes for spaces.

    >>> canonical_product("NVIDIA A100 80GB PCIe")
    'a100-80gb-pcie'
    >>> canonical_product("Tesla V100-SXM2-16GB")
    'v100-sxm2-16gb'
    """
    name = re.sub(r"[\s_-]+", "-", product.strip().lower())
    return re.sub(r"^(nvidia-)?(tesla-)?", "", name)


def is_glob(text: str) -> bool:
    """Check whether a text that may be a glob has a wildcard."""
    return "*" in text or "?" in text


def matches_glob(glob: str, *names: str) -> bool:
    """Check whether a glob matches the whole of one of the names.

    ``re`` keeps at most 512 compiled globs, but ``fnmatchcase`` 32,768. Users choose the globs.
    """
    return any(map(re.compile(_translated(glob)).match, names))


_translated = memoized(translate)


def is_product(name: str, wanted: str) -> bool:
    """Check whether ``wanted`` matches the product ``name``; both are canonical.

    With a wildcard, ``wanted`` is a glob over the whole name. Without one, it is a run of whole
    words in the name. It matches a MIG instance only if one of its words is ``mig``, because a pod
    that wants an A100 wants a whole one.

    >>> is_product("h100-80gb-hbm3", "h100"), is_product("gh100x", "h100")
    (True, False)
    >>> is_product("h100-80gb-hbm3", "h?00*"), is_product("h100-80gb-hbm3", "*80gb")
    (True, False)
    >>> is_product("a30-mig-1g.6gb", "a30"), is_product("a30-mig-1g.6gb", "mig-1g.6gb")
    (False, True)
    """
    if is_glob(wanted):
        return matches_glob(wanted, name)
    if "-mig-" in name and "mig" not in wanted.split("-"):
        return False
    return f"-{wanted}-" in f"-{name}-"


def nvlink_port(product: str) -> NvlinkPort | None:
    """Return the NVLink attachment of a product; None if the table does not have the product.

    >>> nvlink_port("NVIDIA A800-SXM4-80GB")
    NvlinkPort(links=8, one_way=25.0)
    """
    name = canonical_product(product)
    return next((port for pattern, port in NVLINK_PORTS if re.match(pattern, name)), None)


def wired_links(product: str) -> int:
    """Return the NVLinks of a GPU of which an intact machine joins all.

    The result is 0 where that is not known: for bridged products, and for those not in the table.

    >>> wired_links("Tesla V100-SXM2-16GB"), wired_links("NVIDIA A100 80GB PCIe")
    (6, 0)
    """
    port = nvlink_port(product)
    return 0 if port is None or BRIDGED.search(canonical_product(product)) else port.links
