"""What ``gpu-topology node NAME`` prints: one node, its GPUs, who holds them, and its links."""

from __future__ import annotations

from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler_extender.cli.cells import KINDS, node_cells, words_of
from scheduler_extender.cli.gpurows import GpuRow, ago, promises_text
from scheduler_extender.terminal import column, show, table
from scheduler_extender.told.nodes import GpuState
from scheduler_extender.told.words import duration
from topology.core.devices import Nic
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
    gpus, states, words = topology.gpus, row.state.gpus, words_of(row.state)

    def numa(p: int) -> str:
        return "–" if gpus[p].numa_node is None else str(gpus[p].numa_node)

    def by(p: int) -> str:
        each = states[p]
        shares = f"{each.held} of {each.devices} shares: " if each.devices > 1 else ""
        return shares + ", ".join(row.holders(each)) if each.holders else shares.rstrip(": ")

    def asks(p: int) -> str:
        return ", ".join(dict.fromkeys(holder.asks for holder in states[p].holders if holder.asks))

    held = any(each.holders for each in states)
    aged = any(_since(row, each) for each in states)
    troubled = any(each.trouble for each in states)
    return table(
        range(len(gpus)),
        column("GPU", lambda p: str(gpus[p].index), figure=True),
        column("state", lambda p: Text(f" {words[p]} ", KINDS[words[p]].style)),
        column("NUMA", numa, figure=True, when=wide),
        column("UUID", lambda p: gpus[p].uuid, when=wide),
        column("held by", by, folds=True, when=held),
        column("asks for", asks, folds=True, when=held),
        column("for", lambda p: _since(row, states[p]), figure=True, when=aged),
        column("trouble", lambda p: Text(states[p].trouble, "red"), folds=True, when=troubled),
    )


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

    def joined(b: int, a: int) -> Text:
        return _link("–" if a == b else words.get((a, b), "?"))

    def near(nic: Nic, a: int) -> Text:
        kinds = dict(nic.distances)
        return _link(kinds[a].label if a in kinds else "?")

    return table(
        indices,
        column("link", str, figure=True),
        *(column(str(b), partial(joined, b)) for b in indices),
        *(column(nic.name, partial(near, nic), when=wide) for nic in topology.nics),
    )


def _link(word: str) -> Text:
    return Text(word, "bold green" if word.startswith("NV") else "dim")
