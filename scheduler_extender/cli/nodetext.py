"""What ``gpu-topology node NAME`` prints: one node, its GPUs, who holds them, and its links."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler_extender.cli.cells import KINDS, node_cells, words_of
from scheduler_extender.cli.gpurows import GpuRow, ago, promises_text
from scheduler_extender.terminal import show
from scheduler_extender.web.nodes import GpuState
from scheduler_extender.why.phrases import duration
from topology.core.graph import NodeTopology


def draw(console: Console, row: GpuRow, *, wide: bool) -> None:
    """The node for people; ``wide`` adds what else is known of each GPU, and the NICs."""
    state, topology = row.state, row.state.topology
    console.print(Text(row.name, "bold") + Text(f"  {state.kind}"))
    for words in (*row.words(), *state.trouble):
        console.print(Text(words, "yellow"))
    if topology is None:
        return
    when = "" if row.reported is None else f"; reported {ago(row.reported)}"
    console.print(f"can still promise {promises_text(row.capacity)}{when}")
    console.print(Text(" ").join(node_cells(state)))
    console.print()
    show(console, _gpus(row, topology, wide=wide))
    if len(topology.gpus) > 1:
        console.print()
        show(console, _links(topology, wide=wide))


def _gpus(row: GpuRow, topology: NodeTopology, *, wide: bool) -> Table:
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    found.add_column("GPU", justify="right", no_wrap=True)
    found.add_column("state", no_wrap=True)
    if wide:
        found.add_column("NUMA", justify="right", no_wrap=True)
        found.add_column("UUID", no_wrap=True)
    held = any(each.holders for each in row.state.gpus)
    if held:
        found.add_column("held by", overflow="fold")
        found.add_column("asks for", overflow="fold")
    aged = any(_since(row, each) for each in row.state.gpus)
    if aged:
        found.add_column("for", no_wrap=True, justify="right")
    troubled = any(each.trouble for each in row.state.gpus)
    if troubled:
        found.add_column("trouble", overflow="fold")
    words = words_of(row.state)
    for gpu, each, word in zip(topology.gpus, row.state.gpus, words, strict=True):
        cells = [Text(str(gpu.index)), Text(f" {word} ", KINDS[word].style)]
        if wide:
            numa = "–" if gpu.numa_node is None else str(gpu.numa_node)
            cells += [Text(numa), Text(gpu.uuid)]
        shares = f"{each.held} of {each.devices} shares: " if each.devices > 1 else ""
        by = shares + ", ".join(row.holders(each)) if each.holders else shares.rstrip(": ")
        asks = ", ".join(dict.fromkeys(holder.asks for holder in each.holders if holder.asks))
        if held:
            cells += [Text(by), Text(asks)]
        if aged:
            cells.append(Text(_since(row, each)))
        if troubled:
            cells.append(Text(each.trouble, "red"))
        found.add_row(*cells)
    return found


def _since(row: GpuRow, gpu: GpuState) -> str:
    """For how long the pods have been on the GPU."""
    found = [row.view.today - holder.since for holder in gpu.holders if holder.since is not None]
    return ", ".join(duration(seconds) for seconds in found)


def _links(topology: NodeTopology, *, wide: bool) -> Table:
    """What joins each GPU to every other one, as ``nvidia-smi topo -m`` writes it."""
    words: dict[tuple[int, int], str] = {}
    for link in topology.links:
        word = f"NV{link.nvlinks}" if link.nvlinks else link.pcie.label
        words[link.a, link.b] = words[link.b, link.a] = word
    indices = [gpu.index for gpu in topology.gpus]
    nics = topology.nics if wide else ()
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    found.add_column("link", justify="right", no_wrap=True)
    for header in (*map(str, indices), *(nic.name for nic in nics)):
        found.add_column(Text(header), no_wrap=True)
    near = [dict(nic.distances) for nic in nics]
    for a in indices:
        cells = ["–" if a == b else words.get((a, b), "?") for b in indices]
        cells += [kinds[a].label if a in kinds else "?" for kinds in near]
        found.add_row(str(a), *(Text(cell, _style(cell)) for cell in cells))
    return found


def _style(word: str) -> str:
    return "bold green" if word.startswith("NV") else "dim"
