"""What NVML can say of a GPU model beyond what a ``NodeTopology`` holds."""

import re
from dataclasses import dataclass

from topology.core.links import canonical_product


@dataclass(frozen=True, slots=True)
class Generation:
    """What NVML answers for the models whose canonical name matches ``pattern``.

    ``nvlink_version`` is a value of ``nvmlNvlinkVersion_t`` and ``nvlink_mbps`` the raw speed of
    one link one way, as ``nvidia-smi nvlink -s`` shows it. ``retired_pages`` (before Ampere) and
    ``remapped_rows`` (since) are the two ways to deal with bad memory; GeForce cards report
    neither, nor ECC errors. ``energy`` is counted since Volta. ``most_instances`` is 0 without MIG,
    ``multiprocessors`` is per MIG slice. ``fabric`` says whether fabric queries are answered at
    all; ``coherent`` GPUs are NUMA nodes themselves.
    """

    pattern: str
    nvlink_version: int = 0
    nvlink_mbps: int = 0
    ecc: bool = True
    retired_pages: bool = False
    remapped_rows: bool = False
    energy: bool = True
    most_instances: int = 0
    multiprocessors: int = 0
    fabric: bool = False
    coherent: bool = False


GENERATIONS = (
    # The first match counts. Versions: NVML's enumeration. Speeds: `nvidia-smi nvlink -s` as people
    # post it. MIG: NVIDIA's MIG user guide (maximum instances; a slice's share of the SMs).
    Generation(r"geforce-rtx-3090", 5, 14062, ecc=False),
    Generation(r"geforce|titan", ecc=False),
    Generation(r"k80", retired_pages=True, energy=False),
    Generation(r"p100", 1, 19531, retired_pages=True, energy=False),
    Generation(r"v100", 2, 25781, retired_pages=True),
    Generation(r"t4", retired_pages=True),
    Generation(r"a[18]00", 4, 25000, remapped_rows=True, most_instances=7, multiprocessors=14),
    Generation(r"a30(-|$)", 4, 25000, remapped_rows=True, most_instances=4, multiprocessors=14),
    Generation(r"(rtx-)?a(40|4500|5000|5500|6000)(-|$)", 5, 14062, remapped_rows=True),
    Generation(
        r"gh200", 6, 26562, remapped_rows=True, most_instances=7, multiprocessors=16, fabric=True,
        coherent=True,
    ),
    Generation(
        r"h[128]00?(-|$)", 6, 26562, remapped_rows=True, most_instances=7, multiprocessors=16,
        fabric=True,
    ),
    Generation(
        r"gb[23]00", 7, 53125, remapped_rows=True, most_instances=7, multiprocessors=18,
        fabric=True, coherent=True,
    ),
    Generation(
        r"b[123]00", 7, 53125, remapped_rows=True, most_instances=7, multiprocessors=18, fabric=True
    ),
    Generation(r"rtx-pro-6000", remapped_rows=True, most_instances=4, multiprocessors=46),
    Generation(r"", remapped_rows=True),
)  # fmt: skip


def generation(product: str) -> Generation:
    """What NVML can say of a product; an unknown one is like an Ada card.

    >>> generation("NVIDIA H20").nvlink_version
    6
    """
    name = canonical_product(product)
    return next(each for each in GENERATIONS if re.match(each.pattern, name))


CAPABILITIES = (
    # The first match counts. NVIDIA's page "CUDA GPU Compute Capability".
    (r"k80", "3.7"),
    (r"p100", "6.0"),
    (r"p40?(-|$)", "6.1"),
    (r"v100|titan-v", "7.0"),
    (r"t4", "7.5"),
    (r"a[18]00|a30(-|$)", "8.0"),
    (r"a(2|10|16|40)(-|$)|(rtx-)?a\d000|geforce-rtx-30", "8.6"),
    (r"l4|geforce-rtx-40|rtx-\d000-ada", "8.9"),
    (r"g?h\d+", "9.0"),
    (r"g?b300", "10.3"),
    (r"g?b[12]00", "10.0"),
    (r"rtx-pro|geforce-rtx-50", "12.0"),
)


def compute_capability(product: str) -> str | None:
    """CUDA's compute capability of a product, such as ``8.0``; None for one that we do not know.

    >>> compute_capability("Tesla V100-SXM2-16GB")
    '7.0'
    """
    name = canonical_product(product)
    return next((found for pattern, found in CAPABILITIES if re.match(pattern, name)), None)
