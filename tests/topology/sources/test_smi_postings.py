"""``nvidia-smi topo`` text that people have posted, by table."""

import csv
from collections import Counter

import pytest

from tests import recorded
from tests.topology.sources.reading import NODE, link, refusal, word, words
from topology.core.devices import MIB, Bytes
from topology.sources import read

SHARED = recorded.SHARED / "fixtures"
needs_shared = recorded.needs("fixtures", "topo")

# File: how many pairs of each word, where NVLinks end, NUMA node by GPU ("-" unknown), NICs.
POSTINGS = {
    "dgx1-p100-old-soc-header-merged": ("16*NV1 12*SYS", "direct", "--------", 4),
    "dgx1v-v100-mlx5": ("8*NV1 8*NV2 12*SYS", "direct", "--------", 4),
    "v100x8-oneflow-spaces": ("8*NV1 8*NV2 12*SYS", "direct", "--------", 1),
    "v100x8-hugectr-mixed-tabs": ("8*NV1 8*NV2 12*SYS", "direct", "00001111", 2),
    "v100x8-vm-phb-numa-range": ("8*NV1 8*NV2 12*PHB", "direct", "--------", 0),
    "p3.8xlarge-v100x4": ("3*NV1 3*NV2", "direct", "----", 0),
    "v100x4-sdumont-nv2-all": ("6*NV2", "direct", "0011", 2),
    "v100x8-paddle-single-numa-noindent": ("12*NODE 8*NV1 8*NV2", "direct", "--------", 1),
    "power9-v100x3-nv2": ("3*NV2", "direct", "---", 0),
    "v100x5-phb-5gpu": ("10*PHB", "", "00000", 0),
    "dgx-a100-mlx5x12": ("28*NV12", "switch", "33117755", 12),
    "p4d.24xlarge-a100x8": ("28*NV12", "switch", "00001111", 0),
    "a100x2-mlx5x8-slice": ("1*NV12", "direct", "11", 8),
    "a100x4-pcie-nv12-pairs-2numa": ("2*NV12 4*SYS", "direct", "0011", 0),
    "polaris-a100x4-noindent": ("6*NV4", "direct", "3210", 2),
    "della-a100x4-nv4": ("6*NV4", "direct", "0011", 1),
    "a100x4-slurm-cpu0-nv4-numa-range": ("6*NV4", "direct", "----", 1),
    "a100x4-slurm-empty-affinity": ("6*NV4", "direct", "0011", 3),
    "a800x8-nv8-bond-nics": ("28*NV8", "switch", "00001111", 8),
    "rtx3090x2-nv4": ("1*NV4", "direct", "00", 0),
    "nv4-pairs-x4-oddeven-cpus": ("2*NV4 4*SYS", "direct", "0011", 0),
    "h100x8-sxm-nonic": ("28*NV18", "switch", "00001111", 0),
    "h100x6-slice": ("15*NV18", "switch", "000111", 2),
    "h100x4-vm-phb-nics": ("6*NV18", "switch", "0000", 8),
    "TRUNC-h100x4-nv6-8numa": ("6*NV6", "direct", "3175", 4),
    "h800x4-slice-17nics-empty-affinity": ("6*NV8", "switch", "----", 17),
    "h200x8-12nics-prompt-emoji": ("28*NV18", "switch", "00001111", 12),
    "h20x8-2nics": ("28*NV18", "switch", "00001111", 2),
    "h200-class-x8-numa-off-clean": ("28*NV18", "switch", "00000000", 12),
    "hopper-x8-topo-mp-pcie-only": ("12*NODE 16*SYS", "", "00001111", 12),
    "gb200x4-docexample": ("6*NV18", "switch", "0011", 0),
    "TRUNC-gb200x4-6nics-numa-ids": ("6*NV18", "switch", "----", 6),
    "TRUNC-b200x8-gpu2-lost-nvlink": ("3*NODE 21*NV18 4*SYS", "switch", "000011--", 12),
    "4090x8-allsys-nic-on-gpu6": ("28*SYS", "", "00001111", 2),
    "x8-allsys-2numa": ("28*SYS", "", "00001111", 0),
    "4090x8-node-sys": ("12*NODE 16*SYS", "", "00001111", 0),
    "titanv-x8-pix-phb": ("8*PHB 4*PIX 16*SYS", "", "--------", 0),
    "l40s-x4-node-sys-2nics": ("2*NODE 4*SYS", "", "0011", 2),
    "rtx5060ti-x4-phb": ("6*PHB", "", "0000", 0),
    "rtxpro6000-x4-vm-phb": ("6*PHB", "", "0000", 0),
    "rtx3090x2-numa-na-cell": ("1*SYS", "", "-1", 0),
    "hive-k80-x4-node": ("6*NODE", "", "----", 0),
    "cap-h100-80gb-hbm3": ("", "", "0", 0),
    "cap-h100-mig": ("", "", "0", 0),
    "cap-h200-mig": ("", "", "0", 0),
    "cap-h200": ("", "", "0", 0),
    "cap-l40s": ("", "", "0", 0),
}
REFUSED = {
    "TRUNC-dgx2-v100x16-first4rows": "line 5, GPU4/GPU5: no row has this pair "
    "(no row of GPU4 to GPU15), so the table is incomplete; paste the whole table"
}


def posting(name: str) -> str:
    return (SHARED / "topo" / f"{name}.txt").read_text(encoding="utf-8")


@needs_shared
class TestPostings:
    @pytest.mark.parametrize("name", POSTINGS)
    def test_reads(self, name: str) -> None:
        histogram, via, numa, nics = POSTINGS[name]
        with (SHARED / "topo" / "INDEX.tsv").open(encoding="utf-8") as index:
            rows = {row["file"]: row for row in csv.DictReader(index, delimiter="\t")}
        row = rows[f"{name}.txt"]
        memory = Bytes(int(row["memory_mib_per_gpu"]) * MIB)
        found = read(posting(name), NODE, product=row["gpu_model"], memory=memory).topology
        assert [gpu.index for gpu in found.gpus] == list(range(int(row["count"])))
        assert {(g.product, g.memory) for g in found.gpus} == {(row["gpu_model"], memory)}
        counts = Counter(word(one) for one in found.links)
        assert " ".join(f"{n}*{kind}" for kind, n in sorted(counts.items())) == histogram
        assert {one.via.value for one in found.links if one.nvlinks} == ({via} if via else set())
        answer = ("-" if g.numa_node is None else str(g.numa_node) for g in found.gpus)
        assert "".join(answer) == numa
        assert len(found.nics) == nics

    def test_every_posting_is_in_a_table(self) -> None:
        assert {p.stem for p in (SHARED / "topo").glob("*.txt")} == POSTINGS.keys() | REFUSED.keys()

    @pytest.mark.parametrize("name", REFUSED)
    def test_refuses(self, name: str) -> None:
        assert refusal(posting(name)) == REFUSED[name]

    @pytest.mark.parametrize(
        ("name", "a", "b", "cell"),
        [
            ("dgx1-p100-old-soc-header-merged", 0, 4, "NV1"),
            ("dgx1-p100-old-soc-header-merged", 0, 5, "SYS"),
            ("v100x8-hugectr-mixed-tabs", 2, 5, "NV1"),
            ("v100x8-hugectr-mixed-tabs", 0, 7, "NV2"),
            ("TRUNC-b200x8-gpu2-lost-nvlink", 2, 3, "NODE"),
            ("TRUNC-b200x8-gpu2-lost-nvlink", 2, 7, "SYS"),
            ("TRUNC-b200x8-gpu2-lost-nvlink", 6, 7, "NV18"),
            ("titanv-x8-pix-phb", 4, 5, "PIX"),
            ("h100x6-slice", 4, 5, "NV18"),
        ],
    )
    def test_cells(self, name: str, a: int, b: int, cell: str) -> None:
        assert word(link(read(posting(name), NODE).topology, a, b)) == cell

    @pytest.mark.parametrize(
        ("name", "nic", "distances"),
        [
            ("dgx1v-v100-mlx5", "mlx5_2", "SYS SYS SYS SYS PIX PIX PHB PHB"),
            ("h200x8-12nics-prompt-emoji", "mlx5_3", "NODE PXB NODE NODE SYS SYS SYS SYS"),
            ("a800x8-nv8-bond-nics", "mlx5_bond_6", "SYS SYS SYS SYS NODE NODE PIX PIX"),
            ("4090x8-allsys-nic-on-gpu6", "NIC1", "SYS SYS SYS SYS SYS SYS PHB SYS"),
            ("TRUNC-gb200x4-6nics-numa-ids", "NIC0", "SYS SYS SYS"),
        ],
    )
    def test_nics(self, name: str, nic: str, distances: str) -> None:
        nics = {n.name: n for n in read(posting(name), NODE).topology.nics}
        assert [kind.name for _, kind in nics[nic].distances] == distances.split()

    @pytest.mark.parametrize(
        ("name", "finding"),
        [
            (
                "hopper-x8-topo-mp-pcie-only",
                "line 2: this is the PCIe view (topo -mp), which hides NVLinks",
            ),
            ("v100x8-vm-phb-numa-range", "line 1: GPU0 to GPU7: NUMA affinity 0-1 is not"),
            (
                "TRUNC-b200x8-gpu2-lost-nvlink",
                "line 1: the header row is missing; from X and the NVL",
            ),
            ("TRUNC-b200x8-gpu2-lost-nvlink", "line 1: the row of GPU7 is missing"),
            ("TRUNC-b200x8-gpu2-lost-nvlink", "line 7: GPU6: no row has the distance to NIC5"),
        ],
    )
    def test_findings(self, name: str, finding: str) -> None:
        assert any(answer.startswith(finding) for answer in words(posting(name)))

    def test_whole_capture_of_a_machine(self) -> None:
        """150 KB of nvidia-smi: the list and the CSV tell who the one GPU is."""
        path = next((SHARED / "captures").glob("*h100-mig*"))
        (gpu,) = read(path.read_text(encoding="utf-8"), NODE).topology.gpus
        assert (gpu.product, gpu.mig_mode) == ("NVIDIA H100 80GB HBM3", "enabled")
        assert gpu.memory == 81559 * MIB
        assert gpu.pci_bus_id == "0000:00:09.0"
        assert gpu.uuid.startswith("GPU-0000")
