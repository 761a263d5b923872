"""Pasted tables in another layout: quoted, broken into lines, without columns or blanks."""

import json
import re
from collections.abc import Callable

import pytest

from tests.topology.sources.pasted import FOUR, LIST, P2P, WHOLE, each
from tests.topology.sources.reading import (
    NODE,
    link,
    messages,
    numa,
    refused,
    word,
)
from topology.sources import SourceError, read


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
            messages(found)
        )

    def test_a_row_that_is_not_broken_is_none(self) -> None:
        found = read(self.TEXT.replace("PIX\n0-7\t0", "PIX"), NODE)
        assert numa(found.topology) == "-1"
        assert (
            "line 1: GPU0: NUMA affinity (empty) is not one node, so it is recorded as unknown"
            in messages(found)
        )

    def test_words_that_begin_like_a_column_are_none(self) -> None:
        found = read("\tGPU0\tGPU1\nCPU model: EPYC\nGPU0\tX\tPIX\nGPU1\tPIX\tX\n", NODE)
        assert word(link(found.topology, 0, 1)) == "PIX"
        assert "have been joined" not in str(messages(found))


class TestCellsThatRunTogether:
    def test_are_reported(self) -> None:
        found = read(FOUR.replace("PIX\tNODE\t0", "PIXNODE\t0"), NODE)
        assert "line 2: cells without a space between them were separated: 'PIXNODE'" in messages(
            found
        )

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

    def test_rows_that_list_them_all(self) -> None:
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

    def test_gpus_left_out_are_pairs_that_no_row_lists(self) -> None:
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
            assert any("NUMA" in line or "not read" in line for line in messages(found))


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

    def test_what_stands_behind_the_named_columns_is_reported(self) -> None:
        text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNV4\t0-3\t0\nGPU1\tNV4\tX\t4-7\t1\n\n"
        message = "GPU0, GPU1: not read, because the header has no column for it: '0-3 0'"
        assert message in str(read(text, NODE).findings)

    def test_a_list_of_a_reports_own_form_names_product_and_memory(self) -> None:
        gpus = "".join(f"GPU{i}: NVIDIA GeForce RTX 4090, 24564 MiB, driver 590\n" for i in (0, 1))
        found = read(gpus + "\n" + self.BLANKS, NODE)
        first = found.topology.gpus[0]
        assert (first.product, first.memory) == ("NVIDIA GeForce RTX 4090", 24564 << 20)
        assert "skipped" not in str(found.findings)

    def test_words_of_any_language_are_quoted_as_they_are(self) -> None:
        found = read(f"{self.BLANKS}\nGPU0-GPU1 之间是 NV4\u202e\n", NODE)
        message = [each.text for each in found.findings if "skipped" in each.text]
        assert message == [r"skipped, because it has no link: 'GPU0-GPU1 之间是 NV4\u202e'"]

    def test_a_matrix_of_peers_is_reported_once(self) -> None:
        names = [f"GPU{i}" for i in range(8)]

        def table(cell: str) -> str:
            rows = [[a, *("X" if a == b else cell for b in names)] for a in names]
            return "\n".join(" ".join(row) for row in [["", *names], *rows])

        found = read(f"{table('NODE')}\n\n{table('OK')}\n", NODE)
        (message,) = [each.text for each in found.findings if "skipped" in each.text]
        assert message.startswith("a matrix of `nvidia-smi topo -p2p`")

    def test_lost_line_breaks_are_reported(self) -> None:
        for before in ("", "GPU Topology: "):
            text = before + " ".join(self.BLANKS.split())
            message = "line 1: the table has lost its line breaks; paste it with them"
            assert refused(text) == message
