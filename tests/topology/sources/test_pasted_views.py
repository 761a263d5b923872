"""Pasted texts of another tool, and tables that are not the matrix of links."""

import pytest

from tests.topology.sources.pasted import FOUR, P2P, TWO
from tests.topology.sources.reading import (
    FOREIGN,
    NODE,
    P2P_ONLY,
    link,
    messages,
    numa,
    refused,
)
from topology.core.links import LinkKind
from topology.sources import read


def test_p2p_of_one_gpu_is_passed_over() -> None:
    one = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0\n"
    p2p = "\n\tGPU0\n GPU0\tX\n\nLegend:\n  X    = Self\n  OK   = Status Ok\n"
    found = read(one + p2p, NODE)
    assert numa(found.topology) == "0"
    assert "line 4: a matrix of `nvidia-smi topo -p2p` was skipped" in str(found.findings[-1])


def test_p2p_alone_names_what_to_paste() -> None:
    assert refused(P2P) == f"line 2: {P2P_ONLY}; paste that of `nvidia-smi topo -m`"


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
    def test_is_reported_only_where_it_is_one(self, text: str, view: bool) -> None:
        assert any("the PCIe view" in line for line in messages(read(text, NODE))) is view


class TestLostLinks:
    def test_gpus_with_fewer_links_to_one_switch_are_reported(self) -> None:
        rows = [
            ["X" if a == b else "NV13" if 2 in (a, b) else "NV18" for b in range(4)]
            for a in range(4)
        ]
        text = "\n".join(
            ["\tGPU0\tGPU1\tGPU2\tGPU3", *(f"GPU{a}\t" + "\t".join(r) for a, r in enumerate(rows))]
        )
        found = read(text, NODE, product="NVIDIA H100 80GB HBM3")
        message = (
            "line 1: GPU2: 13 NVLinks to the switch, but others have 18; check for links that "
            "are down"
        )
        assert message in messages(found)
        assert "check for links that are down" not in str(
            messages(read(text.replace("NV13", "NV18"), NODE))
        )

    def test_in_xml_too(self) -> None:
        pcis = "".join(
            f'<pci busid="0000:0{i}:00.0" class="0x030200"><gpu dev="{i}">'
            f'<nvlink target="0000:c0:00.0" count="{n}" tclass="0x068000"/></gpu></pci>'
            for i, n in enumerate((18, 13, 18))
        )
        found = read(f'<system><cpu numaid="0">{pcis}</cpu></system>', NODE)
        assert "GPU1: 13 NVLinks to the switch, but others have 18" in str(messages(found))


TOOLS = {
    "AMD's rocm-smi": "===== Hops between two GPUs =====\n GPU0 GPU1\nGPU0 0 1\nGPU1 1 0\n",
    "AMD's amd-smi": "$ amd-smi topology\n GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n",
    "MetaX's mx-smi": "# mx-smi topo -m\n GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n",
    "Huawei's npu-smi": "\tNPU0\tNPU1\nNPU0\tX\tHCCS\nNPU1\tHCCS\tX\n",
    "Intel's xpu-smi": "$ sudo xpu-smi topology -m\n GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n",
}


@pytest.mark.parametrize("whose", TOOLS)
def test_the_tool_is_named(whose: str) -> None:
    expected = f"line 1: this is the output of {whose}, but {FOREIGN}"
    assert refused(TOOLS[whose]) == expected


def test_another_tool_before_the_matrix_does_not_matter() -> None:
    text = "$ rocm-smi\nbash: rocm-smi: command not found\n$ nvidia-smi topo -m\n" + FOUR
    assert read(text, NODE).topology == read(FOUR, NODE).topology
    assert read(FOUR + "\n$ rocm-smi --showtopo\n", NODE).topology == read(FOUR, NODE).topology


def test_messages_of_the_tool_itself() -> None:
    message = refused("$ nvidia-smi topo -m\nERROR: Option -m is unknown.\n")
    assert message.startswith(
        "line 2: this text has no matrix of `nvidia-smi topo -m`, but 'ERROR:"
    )


def test_a_board_is_still_a_board() -> None:
    text = FOUR.replace("NODE\tSYS\tPIX", "PSB\tSYS\tPIX").replace("GPU2\tNODE", "GPU2\tPSB")
    assert link(read(text, NODE).topology, 0, 2).pcie is LinkKind.BOARD
