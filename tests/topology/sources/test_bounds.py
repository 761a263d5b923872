"""Whatever text comes in is read into a record, or refused in one short line."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topology.sources.pasted import FOUR, LIST, P2P
from topology import codec
from topology.core.devices import NodeName
from topology.sources import MAX_TEXT, SourceError, read
from topology.sources.imported import MAX_FINDINGS
from topology.sources.lines import MAX_LINE, MAX_LINES

NODE = NodeName("node-1")
LONGEST = 600  # Characters of a refusal: a person reads it in a terminal

XML = """\
<system version="1">
  <cpu host_hash="0x1" numaid="0">
    <pci busid="0000:f0:00.0" class="0x060400">
      <pci busid="0000:07:00.0" class="0x030200" vendor="0x10de">
        <gpu dev="0" sm="80"><nvlink target="0000:0b:00.0" count="4" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:0b:00.0" class="0x030200" vendor="0x10de">
        <gpu dev="1" sm="80"><nvlink target="0000:07:00.0" count="4" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:0c:00.0" class="0x020700">
        <nic><net name="mlx5_0" dev="0" port="1" guid="0x9a00" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu host_hash="0x1" numaid="1">
    <pci busid="0000:48:00.0" class="0x030200" vendor="0x10de">
      <gpu dev="2" sm="80"><nvlink target="0000:c0:00.0" count="6" tclass="0x068000"/></gpu>
    </pci>
    <nic><net name="docker0" dev="1" port="0" guid="0x1" gdr="0"/></nic>
  </cpu>
</system>
"""
CSV = "index, name, uuid, memory.total [MiB], pci.bus_id\n" + "".join(
    f"{i}, NVIDIA A30, GPU-{i}a, 24576 MiB, 00000000:{i}A:00.0\n" for i in range(4)
)
ELIDED = "GPU0 GPU1 NIC0 ... NIC3 NUMA\nGPU0 X NV2 PIX ... SYS 0\nGPU1 NV2 X SYS ... PIX 1\n"
TEXTS = [
    LIST + FOUR,
    FOUR + "\n" + CSV,
    P2P + FOUR,
    json.dumps({"stdout": FOUR}),
    FOUR.replace("\t", " | "),
    ELIDED,
    XML,
    f"```xml\n{XML}```\n",
]
JUNK = [
    *("GPU0", "GPU1", "GPU1024", "GPU9999", "X", "NV4", "NV64", "NV65", "NV999", "SYSSYS"),
    *(
        "NV1NV2",
        "OK",
        "NS",
        "NIC0",
        "...",
        "…",
        "NUMA",
        "NUMA 1",
        "CPU Affinity",
        "RTX 3090",
        "**",
        "`",
    ),
    *(
        "|",
        "&#0;",
        "&nbsp;",
        "&lt;",
        "\\t",
        "\\n",
        '"',
        "'",
        "\x1b[",
        "\x1b]",
        "\x00",
        "\x85",
        "\u2028",
    ),
    *("node1: ", "# ", "12: ", "[1] ", "> ", "\r", "\n", "\n\n", "\t", " ", "index, name", "N/A"),
    *("<", ">", "/>", "</cpu>", "<gpu dev='1'/>", "<pci busid='&#10;' class='0x03'/>", "0x1002"),
    *('dev="1024"', 'count="65"', 'count="-1"', 'name="&#7;"', "<!DOCTYPE a>", "<xgmi/>", "&a;"),
    *("9" * 5000, "A" * 300, "é" * 300, "\U0001f680", "x" * (MAX_LINE + 1)),
]


def reads_or_refuses(text: str) -> str:
    """What came of it; the answer is one that a record can be written of."""
    try:
        found = read(text, NODE)
    except SourceError as error:
        message = str(error)
        assert message.isprintable()
        assert message.startswith("line ")
        assert len(message) <= LONGEST
        return message
    assert codec.decode(codec.encode(found.topology), strict=True).topology == found.topology
    assert len(found.findings) <= MAX_FINDINGS + 1
    assert all(f.text.isprintable() and len(f.text) <= LONGEST for f in found.findings)
    return found.topology.summary()


@given(st.text() | st.text().map(lambda text: f"<system>{text}</system>"))
@settings(deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    """Texts of ours, changed at random, are the first target of ``tests/fuzz``."""
    reads_or_refuses(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(XML.replace('name="mlx5_0"', 'name="&#7;"'), id="a name that rings"),
        pytest.param(XML.replace('name="mlx5_0"', f'name="{"a" * 300}"'), id="a long name"),
        pytest.param(
            XML.replace('busid="0000:07:00.0"', 'busid="&#10;"').replace("0000:07", "&#10;"),
            id="a bus id that breaks the line",
        ),
        pytest.param(XML.replace('dev="2"', 'dev="1024"'), id="a large dev"),
        pytest.param(XML.replace('count="4"', 'count="40"'), id="many NVLinks"),
        pytest.param(FOUR.replace("GPU3", "GPU1024"), id="a large number"),
        pytest.param(LIST.replace("GPU-3a", "GPU-" + "a" * 190) + FOUR, id="a long UUID"),
        pytest.param(CSV.replace("A30", "A" * 300) + FOUR, id="a long product"),
        pytest.param(CSV.replace("GPU-0a", "\x07") + FOUR, id="a UUID that rings"),
    ],
)
def test_what_has_been_answered_badly_once(text: str) -> None:
    reads_or_refuses(text)


def fill(piece: str) -> str:
    """A text as large as is read, of one piece again and again."""
    return (piece * (MAX_TEXT // len(piece) + 1))[:MAX_TEXT]


NO_MATRIX = "line 1: this text has no matrix of `nvidia-smi topo -m`"
BOMB = '<?xml version="1.0"?>\n<!DOCTYPE system [\n<!ENTITY a0 "aaaaaaaaaa">\n' + "".join(
    f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">\n' for i in range(1, 12)
)
LARGE = {
    # What a hostile or an unlucky paste may be made of, and how the answer begins. None of them
    # may take more than one pass over the text.
    "spaces": (" ", NO_MATRIX),
    "one line of words": ("GPU ", NO_MATRIX),
    "unfinished colours": ("\x1b]", NO_MATRIX),
    "ampersands": ("&amp;", NO_MATRIX),
    "unfinished tags": ("x<pre ", NO_MATRIX),
    "unfinished quotes": ('GPU \\"', NO_MATRIX),
    "unfinished UUIDs": (f"GPU 0: {' (UUID: GPU-a' * 1000}\n", NO_MATRIX),
    "lines of prefixes": (f"{'# ' * 8000}\n", NO_MATRIX),
    "lines of hosts": (f"{'a:' * 8000}\n", NO_MATRIX),
    "lines of spaces": (f"{' ' * 16000}x\n", NO_MATRIX),
    "cells run together": (f"GPU0 X{'SYS' * 5000}\n", "line 2, GPU0: the header row is missing"),
    "brackets of a CSV header": (f"index,a{' [' * 8000}\n", NO_MATRIX),
    "unfinished XML": ("<system ", "line 1: broken XML"),
    "XML that never ends": ("a<system ", NO_MATRIX),
    "XML of flat elements": ("<a/>", "line 1: broken XML"),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_text_gets_a_short_answer(name: str) -> None:
    piece, answer = LARGE[name]
    assert reads_or_refuses(fill(piece)).startswith(answer)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param(
            "\t".join(f"GPU{i}" for i in range(10_000)) + "\nGPU0 X\n",
            "line 1: 78889 characters; at most 16384 are allowed in a line",
            id="10,000 columns",
        ),
        pytest.param(
            " ".join(f"GPU{i}" for i in range(1000)) + "\nGPU0 X\n",
            "line 1: 1000 GPUs; at most 64 are allowed",
            id="1,000 columns",
        ),
        pytest.param(
            "GPU0 " + " ".join(f"NIC{i}" for i in range(1000)) + "\nGPU0 X\n",
            "line 1: 1000 NICs; at most 128 are allowed",
            id="1,000 NICs",
        ),
        pytest.param(
            "GPU0 NIC0 ... NIC9999\nGPU0 X PIX\n",
            "line 1, ...: columns are missing here",
            id="columns left out",
        ),
        pytest.param(
            "GPU0 " + "NIC0 ... NIC120 " * 100 + "\nGPU0 X PIX\n",
            "line 1: 12100 NICs; at most 128 are allowed",
            id="columns left out again and again",
        ),
        pytest.param(
            "GPU0 GPU1024\nGPU0 X SYS\nGPU1024 SYS X\n",
            "line 1, GPU1024: GPUs are numbered 0 to 1023",
            id="a GPU that no record takes",
        ),
        pytest.param(FOUR + "x" * (MAX_LINE + 1), "4 × unknown", id="a line of megabytes"),
        pytest.param(BOMB + "]>\n<system>&a11;</system>", "line 2: a DOCTYPE", id="entity bomb"),
        pytest.param(FOUR + "GPU9 is sick\n" * 40_000, "4 × unknown", id="findings without end"),
        pytest.param(
            "<system><cpu>" + "<pci busid='1' class='0x02'>" * 58 + "<a/>" * 200_000,
            "line 1: broken XML",
            id="nested NICs",
        ),
        pytest.param("<" + "a" * 1_000_000 + "/>", "line 1: the root element is 'aaa", id="tag"),
        pytest.param("<system>" + "<a>" * 65, "line 1, a: nested deeper than 64", id="depth"),
    ],
)
def test_what_has_no_end(text: str, answer: str) -> None:
    message = reads_or_refuses(text)
    assert message.startswith(answer), message


@pytest.mark.parametrize("line", ["1 1", "1: GPU0 X", "GPU0 GPU1", "GPU0 X SYS", '{"a": "GPU'])
def test_a_text_of_too_many_lines_is_refused(line: str) -> None:
    with pytest.raises(SourceError, match=f"at most {MAX_LINES} lines are allowed"):
        read(FOUR + f"{line}\n" * (MAX_LINES + 1), NODE)


def test_blank_lines_are_not_counted() -> None:
    assert read("\n" * 2 * MAX_LINES + FOUR, NODE).topology == read(FOUR, NODE).topology
