"""``nvidia-smi topo`` text in any style, and cut anywhere: what is read is what it says."""

import re
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.sources.reading import FOUR, NODE
from topology.core.links import LinkKind
from topology.sources import SourceError, parse_topo

WORDS = ["SYS", "NODE", "PHB", "PXB", "PIX", "PSB", "NV1", "NV2", "NV4", "NV12", "NV18"]


@st.composite
def matrices(draw: st.DrawFn) -> tuple[list[list[str]], list[list[str]]]:
    """A symmetric GPU matrix, and NIC distances by GPU."""
    n, nics = draw(st.integers(1, 9)), draw(st.integers(0, 4))
    cells = [["X"] * n for _ in range(n)]
    for a, b in combinations(range(n), 2):
        cells[a][b] = cells[b][a] = draw(st.sampled_from(WORDS))
    near = [[draw(st.sampled_from(WORDS[:5])) for _ in range(nics)] for _ in range(n)]
    return cells, near


def rendered(
    draw: st.DrawFn, cells: Sequence[Sequence[str]], near: Sequence[Sequence[str]]
) -> tuple[str, bool]:
    """The text of a matrix in some style, and whether it has NUMA nodes (GPU number modulo 2)."""
    n, nics = len(cells), len(near[0])
    columns = draw(st.integers(0, 3))
    old = "SOC" if draw(st.booleans()) else "SYS"
    labels = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"][:columns]
    names = [f"GPU{i}" for i in range(n)] + [f"mlx5_{k}" for k in range(nics)]
    join = draw(st.sampled_from(["\t", "\t", "    ", " \t", "\t\t"]))
    head = ("" if draw(st.booleans()) else join).join(names)
    lines = [join + join.join([head, *labels])]
    if draw(st.booleans()):
        lines[0] = lines[0].lstrip()
    for i in range(n):
        rest = ["0-7,16-23", str(i % 2), "N/A"][:columns]
        row = [f" {word} " if word == "X" else word for word in (*cells[i], *near[i])]
        lines.append(join.join([f"GPU{i}", *row, *rest]))
    if draw(st.booleans()):
        for k in range(nics):
            others = ["X" if k == j else "NODE" for j in range(nics)]
            lines.append(join.join([f"mlx5_{k}", *(near[i][k] for i in range(n)), *others]))
    if draw(st.booleans()):
        lines[0] = f"\x1b[4m{lines[0]}\x1b[0m"
    if draw(st.booleans()):
        lines = ["me@host:~$ nvidia-smi topo -m", *lines, "", "Legend:", "", "  X    = Self"]
    prefix = draw(st.sampled_from(["", "", "> ", "    "]))
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    text = "".join(prefix + line + ending for line in lines).replace("SYS", old)
    return text.expandtabs() if draw(st.booleans()) else text, columns > 1


@given(st.data())
def test_a_matrix_in_any_style_reads_back(data: st.DataObject) -> None:
    cells, near = data.draw(matrices())
    text, has_numa = data.draw(st.composite(lambda draw: rendered(draw, cells, near))())
    topology = parse_topo(text, NODE).topology
    kinds = {kind.name: kind for kind in LinkKind} | {"PSB": LinkKind.BOARD}
    assert [gpu.index for gpu in topology.gpus] == list(range(len(cells)))
    for one in topology.links:
        messages = cells[one.a][one.b]
        if messages.startswith("NV"):
            assert (one.nvlinks, one.pcie) == (int(messages[2:]), LinkKind.UNKNOWN)
        else:
            assert (one.nvlinks, one.pcie) == (0, kinds[messages])
    assert len(topology.links) == len(cells) * (len(cells) - 1) // 2
    for k, nic in enumerate(topology.nics):
        assert nic.name == f"mlx5_{k}"
        assert [kind for _, kind in nic.distances] == [kinds[row[k]] for row in near]
    assert len(topology.nics) == len(near[0])
    if has_numa:
        assert [gpu.numa_node for gpu in topology.gpus] == [i % 2 for i in range(len(cells))]


CUT = {
    "whole": FOUR,
    "no names for the affinity columns": re.sub("\tCPU Aff.*", "", FOUR),
    "no affinity columns": re.sub(r"\tCPU Aff.*|\t(0-7|8-15)\t.*", "", FOUR),
    "no header": FOUR.partition("\n")[2],
    "no NIC rows": re.sub(r"(?m)^NIC.\t.*\n", "", FOUR),
    "NV12 by pairs": FOUR.replace("NV2", "NV12"),
}


@pytest.mark.parametrize("kind", CUT)
def test_a_cut_table_never_gives_another_link(kind: str) -> None:
    """Wherever the text ends, what is still read is what the whole text says."""
    text = CUT[kind]
    whole = parse_topo(FOUR if kind in ("no header", "no NIC rows") else text, NODE).topology
    read_back = 0
    for at in range(len(text)):
        try:
            found = parse_topo(text[:at], NODE).topology
        except SourceError:
            continue
        read_back += 1
        assert found.links == whole.links, text[:at]
        for gpu, known in zip(found.gpus, whole.gpus, strict=True):
            assert gpu.numa_node in (None, known.numa_node)
        for nic, known_nic in zip(found.nics, whole.nics, strict=True):
            assert set(nic.distances) <= set(known_nic.distances)
    assert read_back
