"""Every text that was collected of what people paste, by table."""

from collections import Counter

import pytest

from tests.recorded import shared
from tests.topology.sources.reading import (
    FOREIGN,
    NODE,
    ONE_TABLE,
    P2P_ONLY,
    messages,
    numa,
    refused,
    word,
)
from topology import codec
from topology.sources import read

# File: how many pairs of each word, where NVLinks end, NUMA node by GPU ("-" unknown), the NICs,
# and what a person is told, beside what the text lacks (UUIDs, product, memory).
READ: dict[str, tuple[str, str, str, int, tuple[str, ...]]] = {
    "java-comment-x4-SOC": ("2*PHB 4*SYS", "", "----", 0, ()),
    "docstring-gb200-ellipsis-nics": (
        "6*NV18",
        "switch",
        "0011",
        6,
        (
            "line 3: columns between NIC0 and NIC5 are missing: 4 are assumed to exist",
            "line 4: GPU0: no row has the distance to NIC1, NIC2, NIC3, NIC4, so it is recorded "
            "as unknown",
        ),
    ),
    "rig-report-3090x2-nv4-then-p2p": (
        "1*NV4",
        "direct",
        "00",
        0,
        (
            "line 38: a matrix of `nvidia-smi topo -p2p` was skipped",
            "line 17: GPU0: in the matrix, but not in the list of GPUs",
        ),
    ),
    "rig-report-wrapped-80cols-x2-node-p2p": (
        "1*NODE",
        "",
        "00",
        0,
        ("line 19: a matrix of `nvidia-smi topo -p2p` was skipped",),
    ),
    "tabs-5090x2-phb-then-p2p": (
        "1*PHB",
        "",
        "00",
        0,
        ("line 21: a matrix of `nvidia-smi topo -p2p` was skipped",),
    ),
    "TRUNC-dgx-x8-NIC8NIC9-lost-tab": (
        "28*NV18",
        "switch",
        "00001111",
        12,
        ("line 8: cells without a space between them were separated: 'NODENODE', 'NODEPXB'",),
    ),
    "TRUNC-hopper-x8-36nics-NODENODE": (
        "28*NV18",
        "switch",
        "00001111",
        36,
        (
            "line 3: cells without a space between them were separated: 'NODENODE', 'NODEPIX', "
            "'PIXPIX'",
        ),
    ),
    "p100-two-machines-and-p2p-md": (
        "2*PHB 1*PIX 3*SYS",
        "",
        "----",
        1,
        ("line 14: a matrix of `nvidia-smi topo -p2p` was skipped",),
    ),
    "md-table-x5-bold-NV4-NUMA-column": (
        "2*NODE 2*NV4 6*SYS",
        "direct",
        "00011",
        0,
        (
            "line 3: NV4 may lead to the other GPU or to a switch, because the product is "
            "unknown; recorded as direct",
        ),
    ),
    "rtxpro6000x8-asus-NUMA0-suffix": (
        "8*NODE 4*PIX 16*SYS",
        "",
        "00001111",
        0,
        ("line 2: the header has no NUMA column, so it is taken from the end of the rows",),
    ),
    "recipes-dgxh100-flattened": ("28*NV18", "switch", "00001111", 0, ()),
    "recipes-dgxh100-aligned-NUMA-header": ("28*NV18", "switch", "00001111", 0, ()),
    "go-source-literal-x6": ("4*NODE 3*PIX 8*SYS", "", "000011", 0, ()),
    "DERIVED-html-entities-a6000": ("2*NODE 1*NV4", "direct", "000", 0, ()),
}
ROCM = f"line 1: this is the output of AMD's rocm-smi, but {FOREIGN}"
CUT = "so the table is incomplete; paste the whole table"
REFUSED = {
    "p2p-only-5090x2-GNS": f"line 1: {P2P_ONLY}; paste that of `nvidia-smi topo -m`",
    "p2p-r-h100x8-OK": f"line 3: {P2P_ONLY}; paste that of `nvidia-smi topo -m`",
    "TRUNC-b200x8-16nics-PXBNODE": (
        f"line 9, GPU6/GPU7: no row has this pair (no row of GPU7), {CUT}"
    ),
    "TRUNC-x8-mlx4-trailing-blanks-4rows": f"line 7, GPU5/GPU6: no row has this pair "
    f"(no row of GPU5 to GPU7), {CUT}",
    "gist-pipes-dgx1v-flattened-TRUNC": f"line 7, GPU5/GPU6: no row has this pair "
    f"(no row of GPU5 to GPU7), {CUT}",
    "mlsys-two-clusters-indented-one-paste": f"line 15: {ONE_TABLE} 1; give one table",
    "rtxpro6000-docs-three-tables": f"line 17: {ONE_TABLE} 4; give one table",
    "rocm-smi-mi250-xgmi": ROCM,
    "rocm-smi-linktype-only-mi100x2": ROCM,
    "mx-smi-metax-x8-MX": f"line 1: this is the output of MetaX's mx-smi, but {FOREIGN}",
    "npu-smi-ascend-x8-SYS": f"line 2: this is the output of Huawei's npu-smi, but {FOREIGN}",
    "windows-2080s-topo-unsupported": "line 4: this text has no matrix of `nvidia-smi topo -m`, "
    "but 'ERROR: Option -m is missing its value. ~'",
    "aiatlas-html-table-run-together-x3": "line 3: a header without a row of a GPU below it",
}


def pasted(name: str) -> str:
    return (shared("fixtures/pasted") / f"{name}.txt").read_text(encoding="utf-8")


class TestCollected:
    def test_every_file_is_in_a_table(self) -> None:
        files = {path.stem for path in shared("fixtures/pasted").glob("*.txt")}
        assert files == READ.keys() | REFUSED.keys()

    @pytest.mark.parametrize("name", READ)
    def test_reads(self, name: str) -> None:
        histogram, via, nodes, nics, findings = READ[name]
        found = read(pasted(name), NODE)
        counts = Counter(word(one) for one in found.topology.links)
        assert " ".join(f"{n}*{kind}" for kind, n in sorted(counts.items())) == histogram
        assert {o.via.value for o in found.topology.links if o.nvlinks} == ({via} if via else set())
        assert numa(found.topology) == nodes
        assert len(found.topology.nics) == nics
        for finding in findings:
            assert any(line.startswith(finding) for line in messages(found)), (
                finding,
                messages(found),
            )
        assert codec.decode(codec.encode(found.topology), strict=True).topology == found.topology

    @pytest.mark.parametrize("name", REFUSED)
    def test_refuses(self, name: str) -> None:
        assert refused(pasted(name)) == REFUSED[name]

    def test_distances_of_split_cells(self) -> None:
        nics = read(pasted("TRUNC-dgx-x8-NIC8NIC9-lost-tab"), NODE).topology.nics
        by_name = {nic.name: [kind.name for _, kind in nic.distances] for nic in nics}
        assert by_name["NIC8"] == ["SYS"] * 4 + ["NODE"] * 4
        assert by_name["NIC9"] == ["SYS"] * 4 + ["NODE", "PXB", "NODE", "NODE"]

    def test_a_made_up_gap_has_no_distances(self) -> None:
        nics = read(pasted("docstring-gb200-ellipsis-nics"), NODE).topology.nics
        by_name = {nic.name: [kind.name for _, kind in nic.distances] for nic in nics}
        assert by_name["NIC0"] == ["NODE", "NODE", "SYS", "SYS"]
        assert by_name["NIC5"] == ["SYS", "SYS", "NODE", "NODE"]
        assert [by_name[f"NIC{i}"] for i in range(1, 5)] == [[]] * 4


# Of pasted-more: pairs by word, NUMA nodes, NICs, product, and what is said, or why it is refused.
SNIPPED = ("2*NODE 4*SYS", "0011", "mlx5_0 mlx5_1 mlx5_2 mlx5_3", "unknown", "")
V100 = ("8*NV1 8*NV2 12*SYS", "00001111", "mlx5_2", "unknown")
MORE: dict[str, tuple[str, str, str, str, str] | str] = {
    "DERIVED-cat-A": (*V100, ""),
    **{
        f"DERIVED-{how}": SNIPPED
        for how in (
            *("docker-compose", "gha-job-log", "journald-iso", "klog", "py-logging", "ray-prefix"),
            *("html-comment-first", "img-first", "diff-lt", "md-escaped-underscore"),
        )
    },
    "DERIVED-wrap80-v100x8-1nic": (*V100, "line 2: the lines were broken before the affinity"),
    "DERIVED-xml-then-prompt": (
        "4*PIX 24*SYS",
        "33117755",
        "0000:0c:00.0 0000:16:00.0 0000:48:00.0 0000:4c:00.0 "
        "0000:8a:00.0 0000:94:00.0 0000:c3:00.0 0000:d1:00.0",
        "unknown",
        "",
    ),
    "DERIVED-matrix-and-xml-of-two-machines": (
        "line 34: XML begins here, but line 4 has a matrix; give only one of them"
    ),
    "polaris-md-affinity-first": ("6*NV4", "3210", "mlx5_0 mlx5_1", "unknown", ""),
    "vllm-dict-a5000x2": ("1*PHB", "--", "", "NVIDIA RTX A5000", ""),
}


class TestCollectedLater:
    def test_every_file_is_in_the_table(self) -> None:
        assert {path.stem for path in shared("fixtures/pasted-more").glob("*.txt")} == MORE.keys()

    @pytest.mark.parametrize("name", MORE)
    def test_gives(self, name: str) -> None:
        text = (shared("fixtures/pasted-more") / f"{name}.txt").read_text(encoding="utf-8")
        expected = MORE[name]
        if isinstance(expected, str):
            assert refused(text) == expected
            return
        found = read(text, NODE)
        counts = Counter(word(one) for one in found.topology.links)
        assert " ".join(f"{n}*{kind}" for kind, n in sorted(counts.items())) == expected[0]
        assert numa(found.topology) == expected[1]
        assert " ".join(nic.name for nic in found.topology.nics) == expected[2]
        assert {gpu.product for gpu in found.topology.gpus} == {expected[3]}
        assert any(line.startswith(expected[4]) for line in messages(found))
