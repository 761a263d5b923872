"""Our own texts for each class of oddity in what people paste."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.topology.sources.reading import (
    FOREIGN,
    NODE,
    ONE_TABLE,
    P2P_ONLY,
    link,
    numa,
    refused,
    told,
    word,
)
from topology.core.links import LinkKind, Via
from topology.sources import SourceError, read

# A table of our own, and the ways in which it is pasted.
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


def each(before: str) -> Callable[[str], str]:
    return lambda text: "".join(f"{before}{line}\n" for line in text.splitlines())


def numbered(form: str) -> Callable[[str], str]:
    return lambda text: "".join(
        form.format(number) + f"{line}\n" for number, line in enumerate(text.splitlines(), 1)
    )


def entities(text: str) -> str:
    return text.replace(">", "&gt;").replace("\t", "&nbsp;&nbsp;&nbsp;&nbsp;")


def bold(text: str) -> str:
    rows = [line for line in text.splitlines() if "\t" in line]
    cells = [re.sub(r"NV4", "**NV4**", line).split("\t") for line in rows]
    md = ["| " + " | ".join(c.strip() for c in row) + " |" for row in cells]
    md.insert(1, "|" + "---|" * len(cells[0]))
    legend = text[text.index("NIC Legend") :]
    return LIST + "\n".join(md) + "\n\n" + legend


def literal(quote: str, end: str) -> Callable[[str], str]:
    def write(text: str) -> str:
        escaped = [line.replace("\t", "\\t") + "\\n" for line in text.splitlines()]
        return "".join(f"\t\t{quote}{line}{quote}{end}\n" for line in escaped)

    return write


DISGUISES: dict[str, Callable[[str], str]] = {
    "shell comment": each("# "),
    "C comment": each("// "),
    "javadoc": lambda text: "/**\n" + each(" * ")(text) + " */\n",
    "SQL comment": each("-- "),
    "ini comment": each("; "),
    "diff": each("+"),
    "cat -n": numbered("{:6d}\t"),
    "grep -n": numbered("{}:"),
    "numbers with dots": numbered("{:3d}. "),
    "editor's numbers": numbered("{:4d} | "),
    "file and number": numbered("report.txt:{}:"),
    "numbered comment": numbered("{}: // "),
    "pdsh": each("node07: "),
    "an address": each("10.1.2.3: "),
    "mpirun": each("[1,0]<stdout>:"),
    "brackets": each("[node07] "),
    "docker compose": each("trainer-1  | "),
    "GitHub's job log": each("tests\tShow links\t2026-11-21T09:30:01.1234567Z "),
    "journalctl -o short-iso": each("2026-11-21T09:30:01+0100 node07 probe.sh[812]: "),
    "klog": numbered("I1121 09:30:{:02d}.123456     812 links.go:31] "),
    "Python's logging": numbered("2026-11-21 09:30:{:02d},123 - probe - INFO - "),
    "Ray": each("(Worker pid=812, ip=10.1.2.3) "),
    "diff, left": each("< "),
    "mail": each("> > "),
    "cat -A": lambda text: text.replace("\t", "^I").replace("\n", "$\n"),
    "Markdown's escapes": lambda text: text.replace("_", r"\_"),
    "a picture before it": lambda text: '<img src="a.png">\n<!-- what I have -->\n' + text,
    "the same table twice": lambda text: text + text,
    "kubectl logs --timestamps": each("2026-11-21T09:30:01.123456789Z "),
    "CRI log": each("2026-11-21T09:30:01.123456789Z stdout F "),
    "syslog": each("Nov  1 09:30:01 node07 probe[812]: "),
    "dmesg's time": numbered("[{:5d}.000001] "),
    "a time in brackets": numbered("[2026-11-21T09:30:{:02d}Z] "),
    "a time of day": numbered("09:30:{:02d}.5 "),
    "HTML entities": entities,
    "HTML entities, twice": lambda text: entities(text).replace("&", "&amp;"),
    "HTML page": lambda text: f"<details><summary>topology</summary>\n<pre>\n{text}</pre>",
    "HTML line breaks": lambda text: "<p>" + text.replace("\n", "<br/>\n") + "</p>",
    "bold Markdown": bold,
    "box drawing": lambda text: text.replace("\t", " \u2502 "),
    "Go literal": literal('"', " +"),
    "Python literals": literal("'", ""),
    "one Go line": lambda text: 'var s = "' + text.replace("\t", r"\t").replace("\n", r"\n") + '"',
    "JSON": lambda text: json.dumps({"stdout": "\x1b[4m" + text, "rc": 0}),
    "JSON lines": lambda text: json.dumps({"stdout_lines": text.splitlines()}, indent=4),
    "JSON lines, one line": lambda text: json.dumps(text.splitlines()),
    "YAML list": lambda text: "".join(f'  - "{line}"\n' for line in text.expandtabs().splitlines()),
    "cells run together": lambda text: text.replace("PIX\tNODE\t0", "PIXNODE\t0").replace(
        "NODE\tNODE\t0", "NODENODE\t0"
    ),
    "NVLinks run together": lambda text: text.replace("NV4\tNODE", "NV4NODE"),
    "X run together": lambda text: text.replace("NV4\t X ", "NV4X").replace(" X \tNV4", "XNV4"),
    "CPUs run together": lambda text: text.replace("NODE\t0-7", "NODE0-7"),
    "p2p behind it": lambda text: text + P2P,
    "p2p before it": lambda text: P2P + text,
    "p2p of bold Markdown behind it": lambda text: (
        text + "\n| | GPU0 | GPU1 |\n|--|--|--|\n| GPU0 | X | **TNS** |\n| GPU1 | **TNS** | X |\n"
    ),
    "words that name two GPUs before it": lambda text: "GPU0 GPU1\n\n" + text,
    "NUMA in its own words": lambda text: text.replace("NUMA Affinity", "NUMA").replace(
        "\tGPU NUMA ID", ""
    ).replace("\t\tN/A", ""),
}  # fmt: skip


@pytest.mark.parametrize("disguise", DISGUISES)
def test_disguises(disguise: str) -> None:
    plain, found = read(WHOLE, NODE), read(DISGUISES[disguise](WHOLE), NODE)
    assert plain.topology.gpus[3].uuid == "GPU-3a"
    assert plain.topology.nics[1].name == "mlx5_bond_1"
    assert found.topology == plain.topology


def test_p2p_of_one_gpu_is_passed_over() -> None:
    one = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0\n"
    p2p = "\n\tGPU0\n GPU0\tX\n\nLegend:\n  X    = Self\n  OK   = Status Ok\n"
    found = read(one + p2p, NODE)
    assert numa(found.topology) == "0"
    assert "line 4: a matrix of `nvidia-smi topo -p2p` was skipped" in str(found.findings[-1])


def test_two_machines_stay_refused() -> None:
    assert refused(FOUR + FOUR.replace("NV4", "NV2")).startswith(f"line 19: {ONE_TABLE} 1")
    assert refused(FOUR + P2P + FOUR.replace("PXB", "PIX")).startswith(f"line 28: {ONE_TABLE} 1")


def test_rows_of_two_machines_in_one_table() -> None:
    lines = FOUR.splitlines()
    mixed = "\n".join(f"node{i % 2}: {line}" for i, line in enumerate(lines))
    expected = (
        "the rows are of several machines, by the text before them: 'node0:', 'node1:'; give "
        "the rows of one"
    )
    assert refused(mixed) == f"line 2: {expected}"


def test_the_same_table_of_two_machines_is_refused() -> None:
    both = each("node1: ")(FOUR) + each("node2: ")(FOUR)
    assert "a second table begins" in refused(both)


def test_a_name_that_two_nics_have_is_refused() -> None:
    text = FOUR + "\n" + FOUR.replace("NIC0: mlx5_0", "NIC0: mlx5_7")
    assert (
        refused(text)
        == "line 36, NIC0: 'mlx5_7' here, but 'mlx5_0' before; give the text of one machine"
    )


def test_the_same_table_twice_is_said() -> None:
    assert "line 19: the table of line 1 is repeated here; skipped" in told(read(FOUR + FOUR, NODE))


class TestAffinityBeforeTheMatrix:
    ROWS = "0-7 0 GPU0 X SYS|8-15 1 GPU1 SYS X"

    @pytest.mark.parametrize(
        "text",
        [
            "CPU Affinity NUMA Affinity GPU0 GPU1|" + ROWS,
            "CPU Affinity\tNUMA Affinity\t\tGPU0\tGPU1|" + ROWS.replace(" ", "\t"),
        ],
    )
    def test_is_read(self, text: str) -> None:
        found = read(text.replace("|", "\n"), NODE)
        assert numa(found.topology) == "01"
        assert word(link(found.topology, 0, 1)) == "SYS"

    def test_another_column_is_refused(self) -> None:
        """Else its values would pass for a log's prefix, and the header for prose."""
        text = "Bus CPU Affinity GPU0 GPU1|07 0-7 GPU0 X SYS|0f 0-7 GPU1 SYS X"
        assert refused(text.replace("|", "\n"))


class TestLinesBrokenBeforeTheAffinity:
    TEXT = (
        "\tGPU0\tGPU1\nCPU Affinity\tNUMA Affinity\nGPU0\tX\tPIX\n0-7\t0\nGPU1\tPIX\tX\n8-15\t1\n"
    )

    def test_are_put_together(self) -> None:
        found = read(self.TEXT, NODE)
        assert numa(found.topology) == "01"
        assert "line 1: the lines were broken before the affinity columns and have been joined" in (
            told(found)
        )

    def test_a_row_that_is_not_broken_is_none(self) -> None:
        found = read(self.TEXT.replace("PIX\n0-7\t0", "PIX"), NODE)
        assert numa(found.topology) == "-1"
        assert (
            "line 1: GPU0: NUMA affinity (empty) is not one node, so it is recorded as unknown"
            in told(found)
        )

    def test_words_that_begin_like_a_column_are_none(self) -> None:
        found = read("\tGPU0\tGPU1\nCPU model: EPYC\nGPU0\tX\tPIX\nGPU1\tPIX\tX\n", NODE)
        assert word(link(found.topology, 0, 1)) == "PIX"
        assert "have been joined" not in str(told(found))


def test_p2p_alone_names_what_to_paste() -> None:
    assert refused(P2P) == f"line 2: {P2P_ONLY}; paste that of `nvidia-smi topo -m`"


class TestCellsThatRunTogether:
    def test_are_told(self) -> None:
        found = read(FOUR.replace("PIX\tNODE\t0", "PIXNODE\t0"), NODE)
        assert "line 2: cells without a space between them were separated: 'PIXNODE'" in told(found)

    def test_nvlinks_and_cpus_have_two_readings(self) -> None:
        text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV120-31\nGPU1\tNV1\t X \t20-31\n"
        assert refused(text).startswith("line 2, GPU0/GPU1: 'NV120-31' is not a link")

    def test_a_cell_too_many_is_refused(self) -> None:
        text = FOUR.replace("PIX\tNODE\t0", "PIXNODE\tNODE\t0")
        expected = "line 2, GPU0: NODE is after the last column; the row has a cell too many"
        assert refused(text) == expected

    def test_more_nvlinks_than_a_record_takes(self) -> None:
        assert refused(FOUR.replace("NV4", "NV99")).startswith(
            "line 2, GPU0/GPU1: 'NV99' is not a li"
        )
        text = FOUR.replace("NV4", "NV64")
        assert link(read(text, NODE).topology, 0, 1).nvlinks == 64


class TestColumnsLeftOut:
    HEADER = "\tGPU0\tGPU1\tNIC0\t...\tNIC3\tCPU Affinity\tNUMA Affinity\n"

    def test_rows_that_tell_them_all(self) -> None:
        text = self.HEADER + "GPU0 X PIX PIX PXB PHB SYS 0-7 0\nGPU1 PIX X SYS PHB PXB PIX 0-7 1\n"
        topology = read(text, NODE).topology
        near = {nic.name: [kind.name for _, kind in nic.distances] for nic in topology.nics}
        assert near == {
            "NIC0": ["PIX", "SYS"],
            "NIC1": ["PXB", "PHB"],
            "NIC2": ["PHB", "PXB"],
            "NIC3": ["SYS", "PIX"],
        }
        assert numa(topology) == "01"

    def test_rows_that_leave_them_out_too(self) -> None:
        text = self.HEADER + "GPU0 X PIX PIX ... SYS 0-7 0\nGPU1 PIX X SYS … PIX 0-7 1\n"
        topology = read(text, NODE).topology
        near = {nic.name: [kind.name for _, kind in nic.distances] for nic in topology.nics}
        assert near == {"NIC0": ["PIX", "SYS"], "NIC1": [], "NIC2": [], "NIC3": ["SYS", "PIX"]}
        assert numa(topology) == "01"

    def test_gpus_left_out_are_pairs_that_no_row_tells(self) -> None:
        text = "GPU0 ... GPU3 CPU Affinity\nGPU0 X ... SYS 0-7\nGPU3 SYS ... X 0-7\n"
        assert "GPU0/GPU1: no row has this pair" in refused(text)

    @pytest.mark.parametrize(
        "header",
        [
            "GPU0 GPU1 ... NIC3",
            "GPU0 GPU1 ...",
            "GPU0 GPU1 NIC3 ... NIC1",
            "GPU0 mlx ... NIC3",
            "GPU0 GPU1 NIC0 ... NIC9999",
        ],
    )
    def test_columns_that_nothing_names(self, header: str) -> None:
        text = f"{header}\nGPU0 X PIX ... SYS\nGPU1 PIX X ... PIX\n"
        with pytest.raises(SourceError):
            read(text, NODE)


class TestNumaColumn:
    @pytest.mark.parametrize(
        ("label", "rest", "expected"),
        [
            pytest.param("", "\tRTX 3090", "-", id="a product behind the row"),
            pytest.param("", "\tRTX\t3090", "-", id="a product in two cells"),
            pytest.param("", "\t0-7\t3090", "-", id="no machine has such a node"),
            pytest.param("", "\tsocket 1", "-", id="other words"),
            pytest.param("", "\tNUMA 1", "1", id="NUMA typed behind it"),
            pytest.param("", "\tNUMA node: 1", "1", id="NUMA node typed behind it"),
            pytest.param("", "\t0-7\t1", "1", id="as printed"),
            pytest.param("\tCPU Affinity\tNUMA", "\t0-7\t1", "1", id="NUMA"),
            pytest.param("\tCPU Affinity\tNUMA Node", "\t0-7\t1", "1", id="NUMA Node"),
            pytest.param("\tCPU Affinity\tNUMA", "\tRTX\t3090", "-", id="words in its place"),
            pytest.param("\tCPU Affinity\tNUMA", "\t0-7\t1\tRTX 3090", "1", id="words behind it"),
            pytest.param("\tCPU Affinity\tNUMA", "    0-7 RTX 3090", "-", id="which column?"),
            pytest.param("\tNUMA\tCPUs", "\t1\t0-7", "1", id="the other order"),
            pytest.param("\tCPU\tNUMA", "\t8\t1", "1", id="CPU"),
            pytest.param("\tCPU Affinity\tNUMA\tModel", "\t0-7\t1\tA100", "-", id="another column"),
        ],
    )
    def test_only_what_stands_in_it_counts(self, label: str, rest: str, expected: str) -> None:
        text = f"\tGPU0\tGPU1{label}\nGPU0\t X \tPIX{rest}\nGPU1\tPIX\t X {rest}\n"
        found = read(text, NODE)
        assert numa(found.topology) == expected * 2
        if expected == "-":
            assert any("NUMA" in line or "not read" in line for line in told(found))


class TestUnknownProduct:
    """A number alone does not say whether a switch stands between; then a finding does."""

    @pytest.mark.parametrize("cell", ["NV18", "NV12", "NV4"])
    def test_a_pair(self, cell: str) -> None:
        found = read(f"\tGPU0\tGPU1\nGPU0\t X \t{cell}\nGPU1\t{cell}\t X \n", NODE)
        assert link(found.topology, 0, 1).via is Via.DIRECT
        expected = f"{cell} may lead to the other GPU or to a switch, because "
        assert (
            f"line 1: {expected}the product is unknown; recorded as direct. Give --product"
            in told(found)
        )

    def test_four_with_one_number(self) -> None:
        row = ["NV6"] * 4
        rows = [f"GPU{i}\t" + "\t".join([*row[:i], "X", *row[i + 1 :]]) for i in range(4)]
        text = "\n".join(["\tGPU0\tGPU1\tGPU2\tGPU3", *rows])
        assert "NV6 may lead to the other GPU or to a switch" in str(told(read(text, NODE)))

    def test_different_numbers_are_no_switch(self) -> None:
        text = "GPU0 GPU1 GPU2\nGPU0 X NV1 NV2\nGPU1 NV1 X NV2\nGPU2 NV2 NV2 X\n"
        lines = told(read(text, NODE))
        assert "NV1 may lead" not in str(lines)

    def test_a_product_that_cannot_have_them_is_another_matter(self) -> None:
        text = "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n"
        found = read(text, NODE, product="NVIDIA A30")
        assert "check the product" in str(told(found))
        assert "the product is unknown" not in str(told(found))


TWO = "\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n"
CARDS = """\
+-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA L40S                    On  |   00000000:07:00.0 Off |                    0 |
| N/A   30C    P8             35W /  350W |       1MiB /  46068MiB |      0%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA A30                     On  |   00000000:0F:00.0 Off |                    0 |
| N/A   30C    P0             30W /  165W |       1MiB /  24576MiB |      0%      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
"""
L40S = ["NVIDIA L40S"] * 2


class TestProductsInReports:
    @pytest.mark.parametrize(
        ("text", "products"),
        [
            ("GPU models and configuration: \nGPU 0: NVIDIA L40S\nGPU 1: NVIDIA A30\n",
             ["NVIDIA L40S", "NVIDIA A30"]),
            ("GPU 0: Tesla T4\nGPU 1: Tesla T4\n", ["Tesla T4"] * 2),
            ("GPU 0: A100-SXM4-40GB\nGPU 1: A100-SXM4-40GB\n", ["A100-SXM4-40GB"] * 2),
            ("GPU 0,1: NVIDIA L40S\nGPU 0,1 Compute Capability: 8.9\n", L40S),
            ("NVIDIA L40S, 46068, 0\nNVIDIA L40S, 46068, 3\n", L40S),
            ("0, NVIDIA L40S, 46068 MiB\n1, NVIDIA L40S, 46068 MiB\n", L40S),
            (CARDS, ["NVIDIA L40S", "NVIDIA A30"]),
            ("GPU 0: 45 C\nGPU 1: idle\n", ["unknown"] * 2),
        ],
        ids=["vLLM", "older", "oldest", "sglang", "CSV", "numbered CSV", "nvidia-smi", "prose"],
    )  # fmt: skip
    def test_are_read(self, text: str, products: list[str]) -> None:
        for paste in (text + TWO, TWO + text, each("worker-0 | ")(text + TWO)):
            assert [gpu.product for gpu in read(paste, NODE).topology.gpus] == products

    @pytest.mark.parametrize(
        "text",
        [
            "GPU 0: NVIDIA L40S\nGPU 1: NVIDIA A30\nGPU 0 Compute Capability: 8.9\n",
            "GPU 0: NVIDIA L40S\nGPU 0 Compute Capability: 8.9\n",
            "NVIDIA L40S, 46068\nNVIDIA A30, 24576\n",
        ],
        ids=["CUDA's order", "CUDA sees fewer", "CSV of two kinds"],
    )
    def test_are_not_guessed(self, text: str) -> None:
        found = read(text + TWO, NODE)
        assert [gpu.product for gpu in found.topology.gpus] == ["unknown"] * 2
        assert any(
            "but not the product of each GPU; give --product" in line for line in told(found)
        )

    def test_the_table_of_nvidia_smi_tells_more(self) -> None:
        first, second = read(CARDS + TWO, NODE).topology.gpus
        assert [g.memory // 2**20 for g in (first, second)] == [46068, 24576]
        assert [g.pci_bus_id for g in (first, second)] == ["0000:07:00.0", "0000:0f:00.0"]
        assert [g.mig_mode for g in (first, second)] == ["disabled", "enabled"]

    def test_a_name_that_is_cut_is_none(self) -> None:
        cut = CARDS.replace("NVIDIA L40S", "NVIDIA L4...")
        assert read(cut + TWO, NODE).topology.gpus[0].product == "unknown"

    def test_lists_that_differ_are_refused(self) -> None:
        text = "GPU 0: NVIDIA A30\n" + CARDS + TWO
        assert refused(text).startswith("line 3, GPU 0: product 'NVIDIA L40S', but 'NVIDIA A30' on")


class TestXmlAndMatrix:
    XML = (
        '<system version="1"><cpu numaid="0"><pci busid="0000:07:00.0" class="0x030200"/>'
        "</cpu></system>\n"
    )

    def test_both_are_refused(self) -> None:
        for text, at, row in ((TWO + self.XML, 4, 2), (self.XML + TWO, 1, 3)):
            assert refused(text) == (
                f"line {at}: XML begins here, but line {row} has a matrix; give only one of them"
            )

    def test_what_stands_around_it_is_passed_over(self) -> None:
        plain = read(self.XML, NODE).topology
        for text in (
            self.XML + "root@node:~# exit\n",
            "<!-- from the cloud -->\n" + self.XML,
            "<?xml version='1.0'?>\n" + self.XML,
            "<img src='a.png'>\n" + self.XML + P2P,
        ):
            assert read(text, NODE).topology == plain


class TestPcieView:
    LEGEND = "\n  X    = Self\n  PIX  = Connection traversing a bridge\n"

    @pytest.mark.parametrize(
        ("text", "view"),
        [
            (TWO + LEGEND, True),
            ("$ nvidia-smi topo -mp\n" + TWO, True),
            ("$ nvidia-smi topo -m\n" + TWO + LEGEND, False),
            ("$ nvidia-smi topo --matrix\n" + TWO + LEGEND, False),
            (TWO + LEGEND + "  SOC  = Connection traversing QPI\n", False),
        ],
        ids=["legend", "-mp", "-m", "--matrix", "before NVLink"],
    )
    def test_is_said_only_where_it_is_one(self, text: str, view: bool) -> None:
        assert any("the PCIe view" in line for line in told(read(text, NODE))) is view


class TestLostLinks:
    def test_gpus_with_fewer_links_to_one_switch_are_said(self) -> None:
        rows = [
            ["X" if a == b else "NV13" if 2 in (a, b) else "NV18" for b in range(4)]
            for a in range(4)
        ]
        text = "\n".join(
            ["\tGPU0\tGPU1\tGPU2\tGPU3", *(f"GPU{a}\t" + "\t".join(r) for a, r in enumerate(rows))]
        )
        found = read(text, NODE, product="NVIDIA H100 80GB HBM3")
        said = (
            "line 1: GPU2: 13 NVLinks to the switch, but others have 18; check for links that "
            "are down"
        )
        assert said in told(found)
        assert "check for links that are down" not in str(
            told(read(text.replace("NV13", "NV18"), NODE))
        )

    def test_in_xml_too(self) -> None:
        pcis = "".join(
            f'<pci busid="0000:0{i}:00.0" class="0x030200"><gpu dev="{i}">'
            f'<nvlink target="0000:c0:00.0" count="{n}" tclass="0x068000"/></gpu></pci>'
            for i, n in enumerate((18, 13, 18))
        )
        found = read(f'<system><cpu numaid="0">{pcis}</cpu></system>', NODE)
        assert "GPU1: 13 NVLinks to the switch, but others have 18" in str(told(found))


def test_a_compute_instance_is_served_as_its_gpu_instance() -> None:
    listed = "GPU 0: NVIDIA H200 (UUID: GPU-0)\n  MIG 1c.3g.71gb  Device  0: (UUID: MIG-0)\n"
    found = read(listed + "\tGPU0\nGPU0\t X \n", NODE).topology
    assert [part.profile for part in found.gpus[0].mig_instances] == ["1c.3g.71gb"]
    assert [served.name for served in found.resources] == ["nvidia.com/mig-3g.71gb"]


TOOLS = {
    "AMD's rocm-smi": "===== Hops between two GPUs =====\n GPU0 GPU1\nGPU0 0 1\nGPU1 1 0\n",
    "AMD's amd-smi": "$ amd-smi topology\n GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n",
    "MetaX's mx-smi": "# mx-smi topo -m\n GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n",
    "Huawei's npu-smi": "\tNPU0\tNPU1\nNPU0\tX\tHCCS\nNPU1\tHCCS\tX\n",
    "Intel's xpu-smi": "$ sudo xpu-smi topology -m\n GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n",
}


@pytest.mark.parametrize("whose", TOOLS)
def test_whose_tool_it_is(whose: str) -> None:
    expected = f"line 1: this is the output of {whose}, but {FOREIGN}"
    assert refused(TOOLS[whose]) == expected


def test_another_tool_before_the_matrix_does_not_matter() -> None:
    text = "$ rocm-smi\nbash: rocm-smi: command not found\n$ nvidia-smi topo -m\n" + FOUR
    assert read(text, NODE).topology == read(FOUR, NODE).topology
    assert read(FOUR + "\n$ rocm-smi --showtopo\n", NODE).topology == read(FOUR, NODE).topology


def test_what_the_tool_itself_said() -> None:
    message = refused("$ nvidia-smi topo -m\nERROR: Option -m is unknown.\n")
    assert message.startswith(
        "line 2: this text has no matrix of `nvidia-smi topo -m`, but 'ERROR:"
    )


def test_a_board_is_still_a_board() -> None:
    text = FOUR.replace("NODE\tSYS\tPIX", "PSB\tSYS\tPIX").replace("GPU2\tNODE", "GPU2\tPSB")
    assert link(read(text, NODE).topology, 0, 2).pcie is LinkKind.BOARD


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(
            "GPU0 GPU1 NIC0\nNIC1 NIC2 CPU Affinity\nGPU0 X NV4 PIX\nNODE NODE 0-7\n"
            "GPU1 NV4 X PIX\nNODE NODE 0-7",
            2,
            id="header",
        ),
        pytest.param(
            "GPU0 GPU1 NI\nC0 NIC1 CPU Affinity\nGPU0 X NV4 PI\nX NODE 0-7\nGPU1 NV4 X PI\nX NODE",
            1,
            id="within a word",
        ),
        pytest.param(
            "    GPU0 GPU1 NIC0 N\nIC1 CPU Affinity\nGPU0 X NV4 PIX N\nODE 0-7\n"
            "GPU1 NV4 X PIX N\nODE 0-7",
            1,
            id="within a name",
        ),
        pytest.param(
            "GPU0 X NV18 NV\n18 NV18\nGPU1 NV18 X NV\n18 NV18",
            2,
            id="no header",
        ),
    ],
)
def test_lines_broken_by_a_terminal_lose_no_columns(text: str, line: int) -> None:
    with pytest.raises(SourceError, match="broken in two here") as refused:
        read(text, NODE)
    assert refused.value.line == line


class TestWhatPeopleDo:
    """Small texts of what people do to a table."""

    def test_a_header_may_span_two_strings_of_a_program(self) -> None:
        for between in ('"\n    "', '" \\\n"', '" +\n\t"'):
            header = f'    "\\tGPU0\\tGPU1\\tCPU Affinity\\t{between}NUMA Affinity\\n"\n'
            rows = '    "GPU0\\t X \\tNV4\\t0-35\\t0\\n"\n    "GPU1\\tNV4\\t X \\t36-71\\t1\\n"\n'
            found = read(header + rows, NODE)
            assert [gpu.numa_node for gpu in found.topology.gpus] == [0, 1]

    def test_two_rows_in_strings_without_line_breaks_stay_two(self) -> None:
        header = '"\\tGPU0\\tGPU1\\tCPU Affinity\\t"\n'
        rows = f'{header}"GPU0\\t X \\tNV4\\t0-3"\n"GPU1\\tNV4\\t X \\t0-3"\n'
        assert len(read(rows, NODE).topology.gpus) == 2

    BLANKS = (
        "        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      NV4     0-15            0               N/A\n"
        "GPU1    NV4      X                      1               N/A\n"
    )

    def test_an_empty_cpu_affinity_pushes_no_column_of_a_table_of_blanks(self) -> None:
        found = read(self.BLANKS, NODE)
        assert [gpu.numa_node for gpu in found.topology.gpus] == [0, 1]

    def test_a_value_that_stands_under_no_column_is_none(self) -> None:
        found = read(self.BLANKS.replace("         1 ", "    1      "), NODE)
        assert [gpu.numa_node for gpu in found.topology.gpus] == [0, None]
        assert "GPU1: NUMA affinity (empty) is not one node" in str(found.findings)

    def test_what_stands_behind_the_named_columns_is_told(self) -> None:
        text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNV4\t0-3\t0\nGPU1\tNV4\tX\t4-7\t1\n\n"
        said = "GPU0, GPU1: not read, because the header has no column for it: '0-3 0'"
        assert said in str(read(text, NODE).findings)

    def test_a_list_of_a_reports_own_form_names_product_and_memory(self) -> None:
        gpus = "".join(f"GPU{i}: NVIDIA GeForce RTX 4090, 24564 MiB, driver 590\n" for i in (0, 1))
        found = read(gpus + "\n" + self.BLANKS, NODE)
        first = found.topology.gpus[0]
        assert (first.product, first.memory) == ("NVIDIA GeForce RTX 4090", 24564 << 20)
        assert "skipped" not in str(found.findings)

    def test_words_of_any_language_are_quoted_as_they_are(self) -> None:
        found = read(f"{self.BLANKS}\nGPU0-GPU1 之间是 NV4\u202e\n", NODE)
        said = [each.text for each in found.findings if "skipped" in each.text]
        assert said == [r"skipped, because it has no link: 'GPU0-GPU1 之间是 NV4\u202e'"]

    def test_a_matrix_of_peers_is_told_once(self) -> None:
        names = [f"GPU{i}" for i in range(8)]

        def table(cell: str) -> str:
            rows = [[a, *("X" if a == b else cell for b in names)] for a in names]
            return "\n".join(" ".join(row) for row in [["", *names], *rows])

        found = read(f"{table('NODE')}\n\n{table('OK')}\n", NODE)
        (said,) = [each.text for each in found.findings if "skipped" in each.text]
        assert said.startswith("a matrix of `nvidia-smi topo -p2p`")

    def test_lost_line_breaks_are_told(self) -> None:
        for before in ("", "GPU Topology: "):
            text = before + " ".join(self.BLANKS.split())
            said = "line 1: the table has lost its line breaks; paste it with them"
            assert refused(text) == said
