"""``nvidia-smi topo`` text: texts of our own for every oddity, and what is refused."""

import re
from collections.abc import Callable

import pytest

from tests.topology.sources.reading import FOUR, NODE, link, refusal, word, words
from topology.core.devices import MIB, Bytes, NodeName
from topology.core.links import GBps, Link, LinkKind, Via
from topology.sources import MAX_TEXT, Finding, Imported, SourceError, parse_topo

LINES = FOUR.splitlines()


def read(found: Imported) -> tuple[object, ...]:
    """A topology without what only the position in the text decides."""
    return found.topology.gpus, found.topology.links, found.topology.nics


def without(*lines: int) -> str:
    return "\n".join(text for number, text in enumerate(LINES, 1) if number not in lines)


def test_plain_table() -> None:
    found = parse_topo(FOUR, NODE, product="Tesla V100-SXM2-16GB", memory=Bytes(16384 * MIB))
    topology = found.topology
    assert topology.summary() == "4 × Tesla V100-SXM2-16GB, NVLink 2"
    assert link(topology, 0, 1) == Link(0, 1, LinkKind.UNKNOWN, 2, Via.DIRECT, GBps(25.0))
    assert link(topology, 0, 2) == Link(0, 2, LinkKind.PHB)
    assert [gpu.numa_node for gpu in topology.gpus] == [0, 0, 1, 1]
    assert [nic.name for nic in topology.nics] == ["mlx5_0", "mlx5_bond_1"]
    assert topology.nics[0].distances[:2] == ((0, LinkKind.PIX), (1, LinkKind.PHB))
    assert [str(finding) for finding in found.findings] == [
        "line 1: GPU0 to GPU3: the text has no UUIDs, so they are generated from the node's "
        "name and the index",
        "line 1: NV# hides the PCIe class of these pairs, so it is recorded as unknown",
    ]


DISGUISES: dict[str, Callable[[str], str]] = {
    "windows line endings": lambda text: text.replace("\n", "\r\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "non-breaking spaces": lambda text: text.replace(" ", "\u00a0"),
    "zero-width spaces": lambda text: text.replace("GPU2", "\u200bGPU2"),
    "markdown fence": lambda text: f"```\n{text}```\n",
    "mail quoting": lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
    "nested mail quoting": lambda text: "".join(f"> > {line}\n" for line in text.splitlines()),
    "bars": lambda text: "".join(f"| {line}\n" for line in text.splitlines()),
    "indented": lambda text: "".join(f"    {line}\n" for line in text.splitlines()),
    "tabs to spaces": lambda text: text.expandtabs(8),
    "double tabs": lambda text: re.sub(r"(?m)^((?:GPU|NIC).*)$", lambda m: doubled(m[1]), text),
    "header without indent": lambda text: text.replace("\tGPU0", "GPU0", 1),
    "header run together": lambda text: text.replace(
        "GPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1", "GPU0GPU1GPU2GPU3NIC0NIC1"
    ),
    "single spaces in the header": lambda text: text.replace("\tCPU", " CPU").replace(
        "\tNUMA Aff", " NUMA Aff"
    ),
    "colours": lambda text: text.replace("\tGPU0\t", "\t\x1b[4mGPU0\t").replace("ID", "ID\x1b[0m"),
    "colours without escape": lambda text: text.replace("\tGPU0\t", "\t[4mGPU0\t"),
    "terminal title": lambda text: f"\x1b]0;me@host\x07{text}",
    "prompts": lambda text: f"(base) me@host:~$ date\n\U0001f680 ➜ $ nvidia-smi topo -m\n{text}$\n",
    "old word for SYS": lambda text: text.replace("SYS", "SOC"),
    "dots at the end": lambda text: text + "...\n",
    "no GPU NUMA column": lambda text: text.replace("\tGPU NUMA ID", "").replace("\t\tN/A", ""),
    "no names for the affinity columns": lambda text: re.sub("\tCPU Aff.*", "", text),
    "no NIC rows": lambda text: re.sub(r"(?m)^NIC.\t.*\n", "", text),
    "no row of GPU2": lambda text: re.sub(r"(?m)^(GPU2)\t.*\n", "", text),
    "header lost": lambda text: text.partition("\n")[2],
}


def doubled(row: str) -> str:
    """Double tabs between the matrix cells, as people align by hand."""
    return re.sub(r"\t(?=[XNSP ])", "\t\t", row)


@pytest.mark.parametrize("disguise", DISGUISES)
def test_disguises(disguise: str) -> None:
    plain, found = parse_topo(FOUR, NODE), parse_topo(DISGUISES[disguise](FOUR), NODE)
    if disguise == "no row of GPU2":
        assert found.topology.links == plain.topology.links
        assert found.topology.nics == plain.topology.nics
        assert found.topology.gpus[2].numa_node is None
        assert "the row of GPU2 is missing" in str(found.findings)
    else:
        assert read(found) == read(plain)


def table(*rows: str) -> str:
    return "\n".join(row.replace(" ", "\t") for row in rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "line 1: this text has no matrix of `nvidia-smi topo -m`", id="empty"),
        pytest.param("hello\n", "line 1: this text has no matrix of", id="prose"),
        pytest.param(
            " GPU0\n", "line 1: a header without a row of a GPU below it", id="header only"
        ),
        pytest.param(
            FOUR.replace("NV2\tPHB", "NV1\tPHB"),
            "line 2, GPU0/GPU1: NV1 here, but NV2 on line 3 (GPU1/GPU0); a matrix must be",
            id="asymmetric",
        ),
        pytest.param(
            FOUR.replace("NIC0\tPIX", "NIC0\tPXB"),
            "line 2, GPU0/NIC0: PIX here, but PXB on line 6 (NIC0/GPU0)",
            id="asymmetric NIC",
        ),
        pytest.param(
            FOUR.replace("PHB\tSYS\tPIX", "PHB\tQPI\tPIX"),
            "line 2, GPU0/GPU3: 'QPI' is not a link; allowed are X, NV1 to NV64, PSB, PIX",
            id="unknown word",
        ),
        pytest.param(
            FOUR.replace("NV2\tPHB", "NV0\tPHB"), "line 2, GPU0/GPU1: 'NV0' is not a link", id="NV0"
        ),
        pytest.param(
            FOUR.replace("NIC1\tSYS", "NIC1\tNV2").replace("PIX\tSYS\t0-7", "PIX\tNV2\t0-7"),
            "line 2, GPU0/NIC1: NV2 between a GPU and a NIC; allowed are SYS, NODE, PHB",
            id="NVLink to a NIC",
        ),
        pytest.param(
            FOUR.replace("GPU1\tNV2\t X ", "GPU1\tX\tNV2"),
            "line 3, GPU1/GPU0: X is here, but the row's X must be under GPU1",
            id="X under another name",
        ),
        pytest.param(
            FOUR.replace("GPU1\tNV2\t X ", "GPU1\tNV2\tSYS"),
            "line 3, GPU1/GPU1: SYS is here, but the row's X must be under GPU1",
            id="no X",
        ),
        pytest.param(
            FOUR.replace("GPU1\tNV2", "GPU1"), "line 3, GPU1/GPU0: X is here", id="cell lost"
        ),
        pytest.param(
            FOUR.replace("PHB\tSYS\tPIX\tSYS\t", "PHB\tSYS\tSYS\t"),
            "line 2, GPU0/NIC1: '0-7' is not a link",
            id="cell lost behind X",
        ),
        pytest.param(
            FOUR + LINES[1],
            "line 19, GPU0: this row is already on line 2",
            id="row twice",
        ),
        pytest.param(
            FOUR.replace("\tGPU3\tNIC0", "\tNIC0"),
            "line 5, GPU3: the header has no such column",
            id="row that the header lacks",
        ),
        pytest.param(
            table(" GPU0 GPU1 GPU1", "GPU0 X SYS SYS", "GPU1 SYS X SYS"),
            "line 1, GPU1: this column is in the header twice",
            id="column twice",
        ),
        pytest.param(
            FOUR + FOUR.replace("PHB", "PXB"),
            "line 19: a second table begins here, but the first is on line 1; give one table",
            id="two tables",
        ),
        pytest.param(
            "\n".join([*LINES[1:5], "", *LINES[:5]]),
            "line 6: a second table begins here, but the first is on line 1",
            id="second table behind one without header",
        ),
        pytest.param(
            "\n".join(LINES[:3]),
            "line 3, GPU2/GPU3: no row has this pair (no row of GPU2, GPU3), so the table is "
            "incomplete",
            id="cut after two rows",
        ),
        pytest.param(
            "\n".join([*LINES[:3], "GPU2\tPHB\tSYS\t X \tNV"]),
            "line 4, GPU2/GPU3: no row has this pair (no row of GPU3)",
            id="cut within the cell that matters",
        ),
        pytest.param(
            table(" GPU0 GPU1 GPU2 CPU_Affinity", "GPU0 X NV1 NV1 0", "GPU1 NV1 X NV1").replace(
                "_", " "
            ),
            "line 3, GPU1/GPU2: no row has this pair",
            id="last word of the text may be cut",
        ),
        pytest.param(
            table("GPU0 X SYS SYS PIX", "GPU1 SYS X SYS SYS"),
            "line 2: the header row is missing, so columns after GPU1 may be GPUs or NICs",
            id="no header, and no way to tell",
        ),
        pytest.param(
            table("GPU1 SYS X", "GPU0 X SYS"),
            "line 1, GPU1: the header row is missing, and rows and X do not start at GPU0",
            id="no header, rows out of order",
        ),
        pytest.param(
            table("GPU0 X SYS", "GPU1 X SYS"),
            "line 2, GPU1: the header row is missing, and rows and X do not start at GPU0",
            id="no header, X out of order",
        ),
        pytest.param(
            table("NIC0 X SYS", "NIC1 SYS X"),
            "line 1, NIC0: the table has rows of NICs, but none of a GPU",
            id="no GPU",
        ),
        pytest.param(
            "GPU0 X", "line 1: the header row is missing, so columns after GPU0 may", id="one cell"
        ),
        pytest.param(
            " ".join(f"GPU{i}" for i in range(65)) + "\nGPU0 X",
            "line 1: 65 GPUs; at most 64 are allowed",
            id="too many GPUs",
        ),
        pytest.param(
            "GPU0 GPU1 " + " ".join(f"NIC{i}" for i in range(129)) + "\nGPU0 X SYS",
            "line 1: 129 NICs; at most 128 are allowed",
            id="too many NICs",
        ),
        pytest.param(
            FOUR.replace("mlx5_bond_1", "mlx5_0"),
            "line 1: nics.name: mlx5_0 occurs 2 times",
            id="legend names two NICs alike",
        ),
        pytest.param(
            FOUR + "GPU 7: Tesla T4 (UUID: GPU-1)\n",
            "line 19, GPU 7: listed here, but the matrix has GPU0 to GPU3; give the text of one "
            "machine",
            id="list of another machine",
        ),
        pytest.param(
            FOUR + "GPU 1: Tesla T4 (UUID: GPU-1)\nGPU 1: Tesla T4 (UUID: GPU-2)\n",
            "line 20, GPU 1: uuid 'GPU-2', but 'GPU-1' on line 19",
            id="list contradicts itself",
        ),
        pytest.param(
            FOUR + "".join(f"GPU {i}: Tesla T4 (UUID: GPU-1)\n" for i in range(4)),
            "line 1: devices.uuid: GPU-1 occurs 4 times",
            id="one UUID for all",
        ),
        pytest.param(
            "x" * (MAX_TEXT + 1),
            "line 1: 1048577 characters; at most 1048576 are allowed",
            id="large",
        ),
    ],
)
def test_refusals(text: str, message: str) -> None:
    assert refusal(text).startswith(message)


def test_refusal_carries_its_parts() -> None:
    with pytest.raises(SourceError) as caught:
        parse_topo(FOUR + FOUR.replace("PHB", "PXB"), NODE)
    assert (caught.value.line, caught.value.cell) == (19, None)
    assert caught.value.message.startswith("a second table")


class TestCutTables:
    def test_cells_come_from_the_other_side(self) -> None:
        """The last cell of a cut row is not believed: this NV1 was an NV12."""
        text = table(" GPU0 GPU1 GPU2", "GPU0 X NV12 NV12", "GPU1 NV12 X NV12", "GPU2 NV1")
        found = parse_topo(text, NODE)
        assert {one.nvlinks for one in found.topology.links} == {12}
        expected = (
            "line 4: the row is incomplete, so GPU2/GPU0, GPU2/GPU1 are taken from the other rows"
        )
        assert expected in map(str, found.findings)

    def test_only_the_name_is_left(self) -> None:
        text = table(" GPU0 GPU1", "GPU0 X PHB", "GPU1")
        assert word(parse_topo(text, NODE).topology.links[0]) == "PHB"

    def test_rows_cut_by_a_narrow_terminal(self) -> None:
        text = table(" GPU0 GPU1 GPU2", "GPU0 X NV12 NV12", "GPU1 NV12 X", "GPU2 NV12 NV12 X")
        assert {one.nvlinks for one in parse_topo(text, NODE).topology.links} == {12}

    def test_ellipsis(self) -> None:
        text = table(" GPU0 GPU1 GPU2", "GPU0 X PHB PHB", "GPU1 PHB X PHB", "GPU2 PHB ...")
        assert len(parse_topo(text, NODE).topology.links) == 3

    def test_nic_distances_may_stay_unknown(self) -> None:
        found = parse_topo("\n".join([*LINES[:4], "GPU3\tSYS\tSYS\tNV2\t X \tSY"]), NODE)
        assert found.topology.nics[0].distances[-1] == (2, LinkKind.SYS)
        expected = (
            "line 5: GPU3: no row has the distance to NIC0, NIC1, so it is recorded as unknown"
        )
        assert expected in map(str, found.findings)

    def test_numa_of_the_last_row_may_be_cut(self) -> None:
        last = LINES[4].replace("\t1\t\tN/A", "\t1")
        gpus = parse_topo("\n".join([*LINES[:4], last]), NODE).topology.gpus
        assert [gpu.numa_node for gpu in gpus] == [0, 0, 1, None]

    def test_header_lost_behind_a_switch(self) -> None:
        """GPU1 lost its links; the text ends within row GPU2, and row GPU3 tells nothing."""
        text = table("GPU0 X NODE NV18 NV18 PIX SYS", "GPU1 NODE X SYS SYS SYS SYS")
        found = parse_topo(text + table("\nGPU2 NV18 SYS X NV18 SYS PI"), NODE)
        notes = [word(one) for one in found.topology.links]
        assert notes == ["NODE", "NV18", "NV18", "SYS", "SYS", "NV18"]
        assert [nic.name for nic in found.topology.nics] == ["NIC0", "NIC1"]
        assert (
            "line 1: the header row is missing; from X and the NVLinks, the columns are GPU0 to "
            "GPU3 "
            "and 2 NICs"
        ) in map(str, found.findings)

    def test_header_lost_and_nics_named_by_their_rows(self) -> None:
        text = table("GPU0 X PHB PIX", "GPU1 PHB X SYS", "mlx5_3 PIX SYS X")
        (nic,) = parse_topo(text, NODE).topology.nics
        assert (nic.name, nic.distances) == ("mlx5_3", ((0, LinkKind.PIX), (1, LinkKind.SYS)))


class TestColumnsBehindTheMatrix:
    HEADER = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"

    @pytest.mark.parametrize(
        ("header", "rest", "numa"),
        [
            pytest.param(HEADER, "\t0-55,112-167\t1\t\tN/A", 1, id="the usual"),
            pytest.param(HEADER, "\t\t1\t\tN/A", 1, id="no CPUs"),
            pytest.param(HEADER, "\t\t\t\tN/A", None, id="neither"),
            pytest.param(HEADER, "\t0-7\t\tN/A\t\tN/A", None, id="N/A, one tab too many"),
            pytest.param(HEADER, "\t0-7\t0,3-9\t\t2", None, id="a list of nodes"),
            pytest.param(HEADER, "\t0-7\t0-3\t\tN/A", None, id="a range of nodes"),
            pytest.param(HEADER, "    0-7    1     N/A", 1, id="spaces"),
            pytest.param(HEADER, "    1     N/A", None, id="spaces, and a cell is empty"),
            pytest.param(HEADER, "\t0-7, 9-11\t1\t\tN/A", None, id="a cell too many"),
            pytest.param("\tGPU0\tCPU Affinity\n", "\t3", None, id="CPUs only"),
            pytest.param("\tGPU0\tNUMA Affinity\n", "\t3\n", 3, id="NUMA only"),
            pytest.param("\tGPU0\n", "\t0-7\t3", 3, id="columns without name"),
            pytest.param("\tGPU0\tCPU Affinity\tNUMA Aff\n", "\t0-7\t3", None, id="header cut"),
        ],
    )
    def test_numa(self, header: str, rest: str, numa: int | None) -> None:
        (gpu,) = parse_topo(f"{header}GPU0\t X {rest}\n", NODE).topology.gpus
        assert gpu.numa_node == numa


class TestNvlinks:
    @staticmethod
    def all_pairs(count: int, cell: str) -> str:
        rows = [" ".join(["GPU", *(f"GPU{i}" for i in range(count))])[3:]]
        for i in range(count):
            cells = " ".join("X" if i == j else cell for j in range(count))
            rows.append(f"GPU{i} {cells}")
        return table(*rows)

    @pytest.mark.parametrize(
        ("count", "cell", "product", "via", "speed"),
        [
            pytest.param(8, "NV18", "NVIDIA H100 80GB HBM3", "switch", 25, id="HGX H100"),
            pytest.param(
                4, "NV6", "NVIDIA H100 80GB HBM3", "direct", 25, id="four H100, no switch"
            ),
            pytest.param(4, "NV4", "NVIDIA A100-SXM4-40GB", "direct", 25, id="four A100"),
            pytest.param(3, "NV8", "NVIDIA A800-SXM4-80GB", "switch", 25, id="three A800"),
            pytest.param(4, "NV6", None, "direct", 0, id="18 links of an unknown product"),
            pytest.param(3, "NV12", None, "switch", 0, id="24 links of an unknown product"),
            pytest.param(8, "NV18", "NVIDIA B200", "switch", 50, id="B200"),
        ],
    )
    def test_where_they_end(
        self, count: int, cell: str, product: str | None, via: str, speed: float
    ) -> None:
        found = parse_topo(self.all_pairs(count, cell), NODE, product=product)
        expected = {(int(cell[2:]), via, speed, LinkKind.UNKNOWN)}
        links = found.topology.links
        assert {(o.nvlinks, o.via.value, o.nvlink_one_way, o.pcie) for o in links} == expected

    def test_a_gpu_that_lost_its_links_keeps_its_class(self) -> None:
        text = self.all_pairs(4, "NV18").splitlines()
        text[4] = table("GPU3 NODE NODE NODE X")
        for i in (1, 2, 3):
            text[i] = text[i].rpartition("\t")[0] + "\tNODE"
        found = parse_topo("\n".join(text), NODE, product="NVIDIA B200").topology
        assert word(link(found, 0, 3)) == "NODE"
        assert link(found, 0, 1).via is Via.SWITCH

    def test_whole_attachment_on_one_pair_is_reported(self) -> None:
        text = self.all_pairs(2, "NV12")
        notes = words(text, product="NVIDIA A100-SXM4-80GB")
        assert (
            "line 1: NV12 are all NVLinks of a GPU, to a bridge or a switch; recorded as a bridge"
            in notes
        )

    def test_more_links_than_the_product_has(self) -> None:
        found = parse_topo(self.all_pairs(2, "NV12"), NODE, product="Tesla V100-SXM2-16GB")
        assert found.topology.links[0].nvlink_one_way == GBps(0.0)
        assert "12 NVLinks, but 'Tesla V100-SXM2-16GB' has 6: check the product" in str(
            found.findings
        )

    def test_pcie_view_by_prompt_and_by_legend(self) -> None:
        text = self.all_pairs(2, "SYS")
        view = "this is the PCIe view (topo -mp), which hides NVLinks; use topo -m"
        assert f"line 2: {view}" in words("$ nvidia-smi topo -mp\n" + text)
        assert f"line 1: {view}" in words(text + "\n\n  X = Self\n  PIX  = Connection\n")
        assert view not in str(words(text + "\n\n  X = Self\n  PIX  = C\n  NV#  = C\n"))

    def test_nvlinks_that_a_product_could_have(self) -> None:
        expected = "line 1: NVIDIA A30 can have 4 NVLinks, but the matrix shows none"
        assert expected in words(self.all_pairs(2, "SYS"), product="NVIDIA A30")

    def test_one_board(self) -> None:
        (one,) = parse_topo(self.all_pairs(2, "PSB"), NODE, product="Tesla K80").topology.links
        assert one.pcie is LinkKind.BOARD


class TestWhoTheGpusAre:
    LIST = "".join(f"GPU {i}: NVIDIA A30 (UUID: GPU-{i}a)\n" for i in range(4))
    CSV = "index, name, uuid, memory.total [MiB], pci.bus_id\n" + "".join(
        f"{i}, NVIDIA A30, GPU-{i}a, 24576 MiB, 00000000:{i}A:00.0\n" for i in range(4)
    )

    def test_uuids_are_made_up_the_same_way_every_time(self) -> None:
        one, two = (parse_topo(FOUR, NODE).topology.gpus for _ in range(2))
        other = parse_topo(FOUR, NodeName("node-2")).topology.gpus
        assert one == two
        assert not {gpu.uuid for gpu in one} & {gpu.uuid for gpu in other}
        assert len({gpu.uuid for gpu in one}) == 4
        pattern = r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
        assert all(re.fullmatch(pattern, gpu.uuid) for gpu in one)

    def test_nothing_known(self) -> None:
        found = parse_topo(FOUR, NODE)
        assert {(gpu.product, gpu.memory) for gpu in found.topology.gpus} == {("unknown", 0)}
        text = str(found.findings)
        assert (
            "the product is unknown, so no pod with gpu-model fits and the NVLink bandwidth is "
            "unknown" in text
        )
        assert "the memory is unknown and recorded as 0, so no pod with min-gpu-memory fits" in text

    def test_memory_of_the_catalogue(self) -> None:
        found = parse_topo(FOUR, NODE, product="nvidia l40s")
        assert found.topology.gpus[0].memory == 46068 * MIB
        expected = (
            "line 1: the memory is taken from the catalogue: nvidia l40s 46068 MiB; give --memory "
            "for the exa"
        )
        assert any(str(finding).startswith(expected) for finding in found.findings)

    def test_list(self) -> None:
        found = parse_topo(f"$ nvidia-smi -L; nvidia-smi topo -m\n{self.LIST}{FOUR}", NODE)
        text = [(g.uuid, g.product, g.numa_node) for g in found.topology.gpus]
        assert text[3] == ("GPU-3a", "NVIDIA A30", 1)
        assert "UUIDs" not in str(found.findings)

    def test_csv(self) -> None:
        gpu = parse_topo(FOUR + "\n" + self.CSV, NODE).topology.gpus[2]
        assert (gpu.memory, gpu.pci_bus_id, gpu.uuid) == (24576 * MIB, "0000:2a:00.0", "GPU-2a")

    def test_list_and_csv_together(self) -> None:
        both = parse_topo(self.LIST + FOUR + "\n" + self.CSV, NODE)
        assert read(both) == read(parse_topo(FOUR + "\n" + self.CSV, NODE))

    def test_csv_without_figures(self) -> None:
        csv_text = "index, name, memory.total [MiB]\n0, [N/A], [N/A]\nx, y, z\n"
        gpu = parse_topo(FOUR + "\n" + csv_text, NODE).topology.gpus[0]
        assert (gpu.product, gpu.memory) == ("unknown", 0)

    def test_mig(self) -> None:
        slice_ = "  MIG 3g.20gb     Device  0: (UUID: MIG-11)\n"
        found = parse_topo(self.LIST + slice_ + FOUR, NODE)
        modes = [gpu.mig_mode for gpu in found.topology.gpus]
        assert modes == ["disabled", "disabled", "disabled", "enabled"]
        assert "GPU3: MIG is enabled" in str(found.findings)
        (part,) = found.topology.gpus[3].mig_instances
        assert (part.uuid, part.profile, part.memory) == ("MIG-11", "3g.20gb", 20 * 973 * MIB)
        assert [r.name for r in found.topology.resources] == [
            "nvidia.com/gpu",
            "nvidia.com/mig-3g.20gb",
        ]
        assert "strategy mixed" in str(found.findings)

    def test_mig_listed_twice_is_one(self) -> None:
        slice_ = "  MIG 3g.20gb     Device  0: (UUID: MIG-11)\n"
        found = parse_topo(self.LIST + slice_ + slice_ + FOUR, NODE)
        assert len(found.topology.gpus[3].mig_instances) == 1

    def test_mig_of_an_unknown_profile_is_cut_and_no_more(self) -> None:
        found = parse_topo(self.LIST + "  MIG huge  Device  0: (UUID: MIG-1)\n" + FOUR, NODE)
        gpu = found.topology.gpus[3]
        assert (gpu.mig_mode, gpu.mig_instances) == ("enabled", ())

    def test_more_mig_instances_than_a_record_holds(self) -> None:
        text = "".join(f"  MIG 1g.5gb Device {i}: (UUID: MIG-{i})\n" for i in range(17))
        with pytest.raises(SourceError, match="more than 16 MIG instances of one GPU"):
            parse_topo(self.LIST + text + FOUR, NODE)

    def test_list_of_some(self) -> None:
        found = parse_topo("GPU 0: NVIDIA A30 (UUID: GPU-0a)\n" + FOUR, NODE)
        text = str(found.findings)
        assert "GPU1 to GPU3: in the matrix, but not in the list of GPUs" in text
        assert "GPU1 to GPU3: the text has no UUIDs" in text

    def test_arguments_may_repeat_the_text(self) -> None:
        given_too = parse_topo(
            self.CSV + FOUR, NODE, product="a30", memory=Bytes(24576 * MIB)
        ).topology
        assert given_too == parse_topo(self.CSV + FOUR, NODE).topology

    def test_arguments_may_not_contradict_the_text(self) -> None:
        message = refusal(self.CSV + FOUR, product="Tesla T4")
        assert message == "line 2, GPU 0: product is 'NVIDIA A30', but --product is 'Tesla T4'"
        message = refusal(self.CSV + FOUR, memory=Bytes(1))
        assert message == "line 2, GPU 0: memory is '25769803776', but --memory is '1'"


def test_lines_that_are_no_rows_are_passed_over() -> None:
    expected = "line 19: skipped, because it has no link: 'GPU2 is sick'"
    assert expected in words(FOUR + "GPU2 is sick\nmlx5_0 port 1 ==> eth0\n")


def test_finding_reads_as_a_line() -> None:
    assert str(Finding(3, "odd")) == "line 3: odd"
