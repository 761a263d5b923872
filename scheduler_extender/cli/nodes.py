"""Shows nodes with GPUs, the states of the GPUs, and the promises that are still possible."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich.console import Console
from rich.text import Text

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import did_you_mean
from scheduler_extender.cli.labels import selector_of, selects
from scheduler_extender.cli.options import Listing
from scheduler_extender.cli.queries import Look, Told, ordered
from scheduler_extender.explain.gpustates import (
    Flag,
    Nodes,
    NodeState,
    Totals,
    Use,
    has_gpus,
    tally,
    totals,
)
from scheduler_extender.explain.wording import duration, listed, many
from scheduler_extender.framework.capacity import Capacity
from scheduler_extender.terminal import Shown, column, show, table
from topology.core.devices import NodeName

NO_NODES = "no node with GPUs is known"
NO_SUCH_NODE = "no node with GPUs has these labels"
# Flags that other words or columns already show.
TOLD_APART = {Flag.COMING, Flag.RESERVED, Flag.SICK, Flag.SHARED}


def node_named(look: Look, name: str) -> NodeState:
    """Return a node by its name. Raises :class:`BadInputError` if there is no such GPU node."""
    known = look.cluster.snapshot().by_name
    info = known.get(NodeName(name))
    if info is None:
        seen = " that you may see" if look.api is not None else ""
        raise BadInputError(f"there is no node {name}{seen}{did_you_mean(name, known)}")
    if not has_gpus(info):
        raise BadInputError(
            f"node {name} has no known GPUs: no agent has written a record for it, and the node "
            "advertises none"
        )
    return Nodes(look.cluster).of(info)


def warnings(node: NodeState, *, counted: bool = False) -> list[str]:
    """Return warnings about the node. ``counted`` leaves out the one about assumed GPUs."""
    words = [flag.value for flag in Flag if flag in node.flags and flag not in TOLD_APART]
    if node.coming and not counted:
        unit = "share" if Flag.SHARED in node.flags else "GPU"
        words.append(f"{many(node.coming, unit)} assumed for pods that no report shows yet")
    if node.reserved_for:
        words.append(
            f"reserved for {listed(node.reserved_for, 3 if counted else len(node.reserved_for))}"
        )
    return words


def total_text(sums: Totals) -> str:
    """Return a sentence about several nodes.

    >>> uses = Counter({Use.FREE: 3, Use.STRANDED: 1, Use.AS_ASKED: 3, Use.SICK: 1})
    >>> total_text(Totals(2, uses, 0, Capacity(1, 0, 0)))
    '2 nodes, 8 GPUs: 3 free, 1 stranded, 3 in use, 1 sick; can still promise 1 pair'
    """
    promised = f"can still promise {promises_text(sums.capacity)}"
    return f"{many(sums.nodes, 'node')}, {gpus_text(sums.uses)}; {promised}"


def gpus_text(uses: Counter[Use]) -> str:
    """Return the numbers of GPUs by state.

    >>> gpus_text(Counter({Use.STRANDED: 1, Use.AS_ASKED: 2, Use.ASSUMED: 1}))
    '4 GPUs: 0 free, 1 stranded, 1 assumed, 2 in use'
    """
    told = ", ".join(f"{n:,} {word}" for word, n in tally(uses).items() if n or word == "free")
    return f"{many(uses.total(), 'GPU')}: {told}"


def promises_text(capacity: Capacity) -> str:
    """Return how many promises of each kind are still possible if only this kind is promised.

    >>> promises_text(Capacity(2, 1, 0)), promises_text(Capacity())
    ('2 pairs, or 1 quad', 'no pair, quad or whole node')
    """
    kinds = {"pair": capacity.pairs, "quad": capacity.quads, "whole node": capacity.nodes}
    told = [many(n, word) for word, n in kinds.items() if n]
    return ", or ".join(told) or "no pair, quad or whole node"


def ago(seconds: float | None) -> str:
    """Return how long ago something was.

    >>> ago(90), ago(None)
    ('1 min ago', 'unknown')
    """
    return "unknown" if seconds is None else f"{duration(seconds)} ago"


# Prints at least one node. The arguments end with the time in seconds since 1970, and ``wide``.
Drawing = Callable[[Console, Sequence[NodeState], float, bool], None]


def told(
    look: Look,
    selector: str | None,
    drawing: Drawing,
    listing: Listing,
    *,
    names: Sequence[str] = (),
    devices: bool = False,
) -> Told:
    """Return the answer about the nodes of these names, or about all with GPUs.

    The selector selects among them. With ``devices`` the data has each of their GPUs. Raises
    :class:`BadInputError`.
    """
    wanted = selector_of(selector)
    if names:
        nodes = [node_named(look, name) for name in dict.fromkeys(names)]
    else:
        nodes = [node for node in Nodes(look.cluster).all() if has_gpus(node.info)]
    objects = [node.info.node_object for node in nodes]
    if wanted and not any(each.exists or each.labels for each in objects):
        raise BadInputError("--selector: no Node object can be read, so no node's labels are known")
    nodes = [node for node in nodes if selects(wanted, node.info.node_object.labels)]
    nodes = ordered(nodes, lambda: _columns(nodes, look.today, wide=True), listing.sort_by)
    return Told(
        lambda: {"nodes": [node.as_json(devices=devices) for node in nodes]},
        [f"node/{node.name}" for node in nodes],
        lambda console, wide: (
            drawing(console, nodes, look.today, wide)
            if nodes or listing.no_headers
            else console.print(NO_SUCH_NODE if wanted else NO_NODES)
        ),
        look.notes,
        bool(nodes),
    )


def draw(
    console: Console,
    nodes: Sequence[NodeState],
    today: float,
    wide: bool,
    *,
    headers: bool = True,
) -> None:
    """Print the nodes as a table, and with ``headers`` a line about all of them."""
    rows = table(nodes, *_columns(nodes, today, wide=wide), headers=headers)
    instead = (
        (
            node.name,
            [
                Text(gpus_text(node.uses)),
                Text(f"can still promise {promises_text(node.capacity)}"),
                *(Text(words, "yellow") for words in warnings(node, counted=True)),
            ],
        )
        for node in nodes
    )
    show(console, rows, instead=None if wide else instead)
    if headers:
        console.print()
        console.print(total_text(totals(nodes)))


STYLES = {
    "free": "green",
    "stranded": "yellow",
    "assumed": "magenta",
    "reserved": "magenta",
    "in use": "",
    "sick": "red",
}
# Columns that are shown even if every number in them is 0.
ALWAYS = ("free", "stranded", "in use", "sick")


def _columns(
    nodes: Sequence[NodeState], today: float, *, wide: bool
) -> list[list[Shown[NodeState]]]:
    tallies = {node.name: tally(node.uses) for node in nodes}
    beware = any(warnings(node, counted=True) for node in nodes)
    return [
        column("node", lambda node: node.name),
        column("GPUs", lambda node: str(len(node.gpus) or "–"), figure=True),
        *(
            column(
                word,
                partial(_tallied, tallies, word),
                figure=True,
                when=wide or word in ALWAYS or any(each[word] for each in tallies.values()),
            )
            for word in STYLES
        ),
        column("pairs", lambda node: _figure(node.capacity.pairs, "green"), figure=True),
        column("quads", lambda node: _figure(node.capacity.quads, "green"), figure=True),
        column("whole", lambda node: _figure(node.capacity.nodes, "green"), figure=True),
        column("machine", lambda node: node.kind, folds=True, when=wide),
        column(
            "reported",
            lambda node: ago(node.reported(today)),
            when=wide,
            amount=lambda node: node.reported(today),
        ),
        column(
            "warnings",
            lambda node: Text("; ".join(warnings(node, counted=True)), "yellow"),
            folds=True,
            when=beware,
        ),
    ]


def _tallied(tallies: Mapping[NodeName, Mapping[str, int]], word: str, node: NodeState) -> Text:
    return _figure(tallies[node.name][word], STYLES[word])


def _figure(n: int, style: str) -> Text:
    """Return a number, which is highlighted unless it is 0."""
    return Text(str(n), style if n else "dim")
