"""The reader of ``nvidia-smi topo -m`` text, as people paste it.

The matrix gives the PCIe class of a pair *or* its NVLinks. Under ``NV#`` the class is unknown. The
matrix does not say where NVLinks end. If the ``NV#`` of a GPU add up to more links than its product
has, the GPU is attached to a switch and the number is its whole attachment. Otherwise the links are
the pair's own. The matrices of other vendors' tools are refused, and the message names the tool.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

from topology.core.devices import Bytes, Gpu, Nic, NodeName
from topology.core.links import GBps, Link, LinkKind, Via, nvlink_port
from topology.sources.imported import (
    Findings,
    Imported,
    SourceError,
    checked_size,
    imported,
    quoted,
)
from topology.sources.inventory import (
    MOST_NVLINKS,
    Listed,
    gpu_names,
    identify,
    known_port,
    note_lost_links,
    read_inventory,
)
from topology.sources.lines import Line, clean
from topology.sources.table import Table, read_table

_TOOLS = (
    # The tool, and text that only this tool prints.
    (
        "AMD's rocm-smi",
        r".*?(?:ROCm System Management|(?:Weight|Hops|Link Type) between two GPUs\b)",
    ),
    ("AMD's rocm-smi", r".*?\(Topology\) Numa|GPU[0-9]+\s+(?:(?:0|XGMI|PCIE)\s+)*(?:XGMI|PCIE)\b"),
    ("MetaX's mx-smi", r".*?MetaX System Management"),
    ("MetaX's mx-smi", r"GPU[0-9]+\s+(?:(?:X|SYS|NODE|PHB|PXB|PIX|ETH)\s+)*MX\b"),
    ("Huawei's npu-smi", r"NPU[0-9]+\s+(?:NPU[0-9]|X\b|SYS\b|HCCS\b|PIX\b|PHB\b|PXB\b)"),
)
_COMMANDS = {
    "rocm-smi": "AMD's rocm-smi",
    "amd-smi": "AMD's amd-smi",
    "mx-smi": "MetaX's mx-smi",
    "npu-smi": "Huawei's npu-smi",
    "xpu-smi": "Intel's xpu-smi",
    "mthreads-gmi": "Moore Threads' mthreads-gmi",
}
_SIGNS = tuple((whose, re.compile(sign)) for whose, sign in _TOOLS)
_COMMAND = re.compile(rf"(?:.*?[$#>%])?\s?(?:sudo )?({'|'.join(_COMMANDS)})\b")
_MOST = 200  # characters at the beginning of a line that are searched for a sign
PCIE = {
    "SYS": LinkKind.SYS,
    "NODE": LinkKind.NODE,
    "PHB": LinkKind.PHB,
    "PXB": LinkKind.PXB,
    "PIX": LinkKind.PIX,
    "PSB": LinkKind.BOARD,  # two GPUs of one board, such as a K80
}
_PCIE_VIEW = re.compile(r"\btopo\s+(?:-mp|--matrix_pci)\b")
_LINK_VIEW = re.compile(r"\btopo\s+(?:-m|--matrix)(?![\w-])")
_LEGEND_PIX = re.compile(r"\s*PIX\s+= .*")
_LEGEND_NVLINK = re.compile(r"\s*NV#\s+= .*")
# The legend of drivers before NVLink, which also has no NV#.
_LEGEND_SOC = re.compile(r"\s*SOC\s+= .*")
_NIC_NAME = re.compile(r"\s*(NIC[0-9]+)\s*:\s*([A-Za-z][\w.-]*)\W*")
Pairs = dict[tuple[int, int], str]


def refuse_foreign(lines: Iterable[Line], cause: SourceError | None = None) -> None:
    """Raise :class:`SourceError` if ``lines`` end with the output of another vendor's tool.

    If ``nvidia-smi`` follows that output, it does not count. ``cause`` is why the lines cannot be
    read.
    """
    shown: tuple[int, str] | None = None
    for number, line, _ in lines:
        text = line.strip()[:_MOST]
        if "nvidia-smi" in text:
            shown = None
        elif command := _COMMAND.match(text):
            shown = shown or (number, _COMMANDS[command[1]])
        elif whose := next((name for name, sign in _SIGNS if sign.match(text)), None):
            shown = shown or (number, whose)
    if shown is not None:
        number, whose = shown
        raise SourceError(
            number,
            None,
            f"this is the output of {whose}, but only NVIDIA's GPUs are supported; paste that of "
            "`nvidia-smi topo -m`",
        ) from cause


def parse_topo(
    text: str,
    node: NodeName,
    *,
    product: str | None = None,
    memory: Bytes | None = None,
) -> Imported:
    """Return the topology of ``node`` as its ``nvidia-smi topo -m`` shows it.

    ``product`` and ``memory`` (bytes of each GPU) supply what the matrix lacks. Lines of
    ``nvidia-smi -L`` or ``--query-gpu=index,name,uuid,memory.total,pci.bus_id --format=csv`` in the
    same text supply it, too. Raises :class:`SourceError` if neither row of a pair has its cell, if
    the two rows differ, or if a word is not one that a driver prints.
    """
    findings = Findings()
    lines = clean(checked_size(text), findings)
    try:
        table = read_table(lines, findings)
    except SourceError as error:
        refuse_foreign(lines, error)
        raise
    refuse_foreign(line for line in lines if line.number <= table.line)
    seen = _who(table, *read_inventory(lines), findings)
    gpus = identify(node, seen, product, memory, table.line, findings)
    pairs = _pairs(table, findings)
    links = _links(gpus, pairs, table.line, findings)
    _note_hidden_nvlinks(lines, table, pairs, gpus, findings)
    return imported(node, gpus, links, _nics(table, lines, findings), findings, table.line)


def _who(
    table: Table, listed: dict[int, Listed], named: Sequence[str], findings: Findings
) -> dict[int, Listed]:
    """Return what the text says of each GPU of the matrix, including its NUMA node."""
    indices = [_index(name) for name in table.gpus]
    for index, gpu in listed.items():
        if index not in indices:
            raise SourceError(
                gpu.line,
                f"GPU {index}",
                f"listed here, but the matrix has {gpu_names(indices)}; give the text of one "
                "machine",
            )
    if listed and (rest := set(indices) - set(listed)):
        findings.note(table.line, f"{gpu_names(rest)}: in the matrix, but not in the list of GPUs")
    product = None
    if named and not any(gpu.product for gpu in listed.values()):
        if len(set(named)) == 1 and len(named) >= len(indices):
            product = named[0]
        else:
            products = ", ".join(quoted(name) for name in sorted(set(named))[:3])
            findings.note(
                table.line,
                f"the text names {products}, but not the product of each GPU; give --product",
            )
    seen = {}
    unclear: dict[str, list[int]] = defaultdict(list)
    for index, name in zip(indices, table.gpus, strict=True):
        affinity = table.rows[name].numa if name in table.rows else ""
        node = int(affinity) if re.fullmatch(r"[0-9]{1,3}", affinity) else None
        if node is None and table.has_numa:
            unclear[affinity].append(index)
        gpu = listed.get(index, Listed(table.line))
        seen[index] = replace(gpu, numa_node=node, product=gpu.product or product)
    for affinity, which in unclear.items():
        findings.note(
            table.line,
            f"{gpu_names(which)}: NUMA affinity {affinity or '(empty)'} is not one node, so it is "
            "recorded as unknown",
        )
    return seen


def _pairs(table: Table, findings: Findings) -> Pairs:
    """Return the cell of every pair of GPUs. A pair whose cell is in neither row is refused."""
    pairs: Pairs = {}
    for a, b in combinations(table.gpus, 2):
        cell = table.pair(a, b)
        if cell is None:
            lost = [_index(name) for name in table.gpus if name not in table.rows]
            rows = f" (no row of {gpu_names(lost)})" if lost else ""
            raise SourceError(
                table.last_line,
                f"{a}/{b}",
                f"no row has this pair{rows}, so the table is incomplete; paste the whole table",
            )
        i, j = _index(a), _index(b)
        pairs[min(i, j), max(i, j)] = cell
    for name in table.gpus:
        lacking = [f"{name}/{other}" for other in table.gpus if not table.cell(name, other)]
        if name not in table.rows:
            findings.note(
                table.line,
                f"the row of {name} is missing, so its pairs are taken from the other rows",
            )
        elif others := [pair for pair in lacking if pair != f"{name}/{name}"]:
            findings.note(
                table.rows[name].line,
                f"the row is incomplete, so {', '.join(others)} are taken from the other rows",
            )
    return pairs


def _links(gpus: Sequence[Gpu], pairs: Pairs, line: int, findings: Findings) -> list[Link]:
    counts = {pair: _nvlinks(cell) for pair, cell in pairs.items()}
    ports = {}
    switched = set()
    for gpu in gpus:
        own = [count for pair, count in counts.items() if gpu.index in pair]
        port = known_port(gpu, max(own, default=0), line, findings)
        ports[gpu.index] = port
        if sum(own) > (port.links if port else MOST_NVLINKS):
            switched.add(gpu.index)

    unknown = {gpu.index for gpu in gpus if nvlink_port(gpu.product) is None}

    def uniform(index: int) -> bool:
        """Check whether a GPU has equally many links to every linked GPU, as behind a switch."""
        return len({count for pair, count in counts.items() if count and index in pair}) == 1

    if switched:
        attached = {
            gpu.index: max(c for pair, c in counts.items() if gpu.index in pair) for gpu in gpus
        }
        note_lost_links(gpus, attached, line, findings)
    links = []
    for (a, b), count in counts.items():
        if not count:
            links.append(Link(a, b, PCIE[pairs[a, b]]))
            continue
        ends = (ports[a], ports[b])
        speed = min(port.one_way if port else GBps(0.0) for port in ends)
        via = Via.SWITCH if a in switched or b in switched else Via.DIRECT
        links.append(Link(a, b, LinkKind.UNKNOWN, count, via, speed))
        if via is Via.DIRECT and any(port and count == port.links for port in ends):
            findings.note(
                line,
                f"NV{count} are all NVLinks of a GPU, to a bridge or a switch; recorded as a "
                "bridge",
            )
        elif via is Via.DIRECT and all(i in unknown and uniform(i) for i in (a, b)):
            findings.note(
                line,
                f"NV{count} may lead to the other GPU or to a switch, because the product is "
                "unknown; recorded as direct. Give --product",
            )
    if any(counts.values()):
        findings.note(line, "NV# hides the PCIe class of these pairs, so it is recorded as unknown")
    return links


def _note_hidden_nvlinks(
    lines: Sequence[Line],
    table: Table,
    pairs: Pairs,
    gpus: Sequence[Gpu],
    findings: Findings,
) -> None:
    if any(_nvlinks(cell) for cell in pairs.values()) or not pairs:
        return
    legend = any(_LEGEND_PIX.fullmatch(text) for _, text, _ in lines)
    others = (_LEGEND_NVLINK, _LEGEND_SOC)
    without = legend and not any(
        _LINK_VIEW.search(text) or any(other.fullmatch(text) for other in others)
        for _, text, _ in lines
    )
    if without or any(_PCIE_VIEW.search(text) for _, text, _ in lines):
        findings.note(
            table.line,
            "this is the PCIe view (topo -mp), which hides NVLinks; use topo -m",
        )
        return
    for product in sorted({gpu.product for gpu in gpus}):
        port = known_port(next(g for g in gpus if g.product == product), 0, table.line, findings)
        if port and port.links:
            findings.note(
                table.line,
                f"{product} can have {port.links} NVLinks, but the matrix shows none",
            )


def _nics(table: Table, lines: Sequence[Line], findings: Findings) -> list[Nic]:
    """Return the NICs, named by the legend, with every distance that a row has."""
    legend: dict[str, str] = {}
    for number, text, _ in lines:
        if (m := _NIC_NAME.fullmatch(text)) and legend.setdefault(m[1], m[2]) != m[2]:
            raise SourceError(
                number,
                m[1],
                f"{quoted(m[2])} here, but {quoted(legend[m[1]])} before; give the text of one "
                "machine",
            )
    nics = []
    unknown: dict[str, list[str]] = defaultdict(list)
    for name in table.nics:
        distances = []
        for gpu in table.gpus:
            cell = table.pair(gpu, name)
            if cell is None:
                unknown[gpu].append(name)
            elif cell not in PCIE:
                raise SourceError(
                    table.rows[gpu if table.cell(gpu, name) else name].line,
                    f"{gpu}/{name}",
                    f"{cell} between a GPU and a NIC; allowed are {', '.join(PCIE)}",
                )
            else:
                distances.append((_index(gpu), PCIE[cell]))
        nics.append(Nic(legend.get(name, name), tuple(sorted(distances))))
    for gpu, names in unknown.items():
        findings.note(
            table.rows[gpu].line if gpu in table.rows else table.line,
            f"{gpu}: no row has the distance to {', '.join(names)}, so it is recorded as unknown",
        )
    return nics


def _index(name: str) -> int:
    return int(name.removeprefix("GPU"))


def _nvlinks(cell: str) -> int:
    return int(cell[2:]) if cell.startswith("NV") else 0
