"""Shows one node's GPUs, and makes a node take pods again after refusals.

With ``--forward`` the command prints all that the extender knows of the node, as YAML for scripts.

``--resume`` reaches the extender by an annotation on the Node (:data:`.RESUME`), and not by a
request to its port for people, because that port changes nothing. The API server authorizes the
writer of the annotation. Every replica of the extender sees the annotation. It is still there when
the extender restarts and reads the failed pods again.
"""

from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler_extender.annotations import RESUME
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.forwarding import forwarded
from scheduler_extender.cli.kubeconfig import Access, asking
from scheduler_extender.cli.map import CELLS, node_cells
from scheduler_extender.cli.nodes import ago, node_named, promises_text, warnings
from scheduler_extender.cli.options import Where
from scheduler_extender.cli.queries import Look, Told, as_yaml
from scheduler_extender.explain.gpustates import NodeState, links_of
from scheduler_extender.explain.wording import duration
from scheduler_extender.terminal import column, show, table
from scheduler_extender.untrustedtext import sanitized
from topology import networkx_graph
from topology.codec import encode
from topology.core.allocators import ALLOCATORS
from topology.core.graph import NodeTopology
from topology.core.requests import at_most
from topology.kubeapi.apiserver import path
from topology.times import age

TIMEOUT = 10.0  # seconds for one request


def told(look: Look, name: str) -> Told:
    """Return the answer. Raises :class:`BadInputError` if there is no such node with GPUs."""
    state = node_named(look, name)
    return Told(
        lambda: state.as_json(devices=True),
        [f"node/{name}"],
        lambda console, wide: _draw(console, state, look.today, wide=wide),
        look.notes,
    )


def print_all(name: str, where: Where) -> None:
    """Print all that the extender knows of a node. Raises :class:`BadInputError`."""
    with forwarded("--forward", where.access, where.system) as port:
        found = port.get(f"/v1/nodes/{quote(name, safe='')}", dict[str, Any])
    found.pop("record", None)  # kubectl get gputopo shows it
    typer.echo(as_yaml(found).rstrip())


def print_graph(look: Look, name: str) -> None:
    """Print a node's hardware as GraphML. Raises :class:`BadInputError`."""
    topology = node_named(look, name).topology
    if topology is None:
        raise BadInputError(f"node {name} has no record, so its links are unknown")
    from networkx import generate_graphml

    typer.echo(sanitized("\n".join(generate_graphml(networkx_graph(encode(topology))))))


def forgive(name: str, access: Access) -> None:
    """Clear a node's refusal history, so that it takes pods. Raises :class:`BadInputError`."""
    body = {"metadata": {"annotations": {RESUME: datetime.now(UTC).isoformat()}}}
    try:
        with asking(access) as (api, _):
            where = path("/api/v1/nodes", name)
            api.patch(where, msgspec.json.encode(body), timeout=TIMEOUT)
    except BadInputError as error:
        raise BadInputError(f"{name} was not resumed: {error}") from error
    typer.echo(f"{name} takes GPU pods again")


def _draw(console: Console, node: NodeState, today: float, *, wide: bool) -> None:
    """Print the node for people. ``wide`` adds more columns for each GPU, and the NICs."""
    topology, reported = node.topology, node.reported(today)
    console.print(Text(node.name, "bold") + Text(f"  {node.kind}"))
    for words in (*warnings(node), *node.problems):
        console.print(Text(words, "yellow"))
    if topology is None:
        return
    if ALLOCATORS[topology.allocator.policy].serves_claims:
        order = ", ".join(map(str, topology.allocator.published))
        console.print(
            "a DRA driver serves the GPUs; kube-scheduler takes free ones in this order: " + order
        )
    when = "" if reported is None else f"; reported {ago(reported)}"
    console.print(f"can still promise {promises_text(node.capacity)}{when}")
    console.print(Text(" ").join(node_cells(node)))
    console.print()
    show(console, _gpus(node, topology, today, wide=wide))
    if len(topology.gpus) > 1:
        console.print()
        show(console, _links(topology, wide=wide))


def _gpus(node: NodeState, topology: NodeTopology, today: float, *, wide: bool) -> Table:
    gpus, states = topology.gpus, node.gpus

    def by(p: int) -> str:
        each = states[p]
        in_use = f"{each.in_use} of {each.devices} {each.unit}s" if each.devices > 1 else ""
        names = ", ".join(holder.name for holder in each.holders)
        return ": ".join(filter(None, (in_use, names)))

    def since(p: int) -> str:
        """Return for how long the pods have been on the GPU."""
        seconds = [age(holder.since, today) for holder in states[p].holders]
        return ", ".join(duration(each) for each in seconds if each is not None)

    numa = ["–" if gpu.numa_node is None else gpu.numa_node for gpu in gpus]
    held = any(each.holders for each in states)
    aged = any(map(since, range(len(states))))
    problem = any(each.problem for each in states)
    return table(
        range(len(gpus)),
        column("GPU", lambda p: str(gpus[p].index), figure=True),
        column("state", lambda p: Text(f" {states[p].use.word} ", CELLS[states[p].use].style)),
        column("memory", lambda p: at_most(gpus[p].memory), figure=True, when=wide),
        column("NUMA", lambda p: str(numa[p]), figure=True, when=wide),
        column("UUID", lambda p: gpus[p].uuid, when=wide),
        column("pods", by, folds=True, when=held),
        column(
            "request",
            lambda p: ", ".join(
                dict.fromkeys(pod.request for pod in states[p].holders if pod.request)
            ),
            folds=True,
            when=held,
        ),
        column("runs", since, figure=True, when=aged),
        column("problem", lambda p: Text(states[p].problem, "red"), folds=True, when=problem),
    )


def _links(topology: NodeTopology, *, wide: bool) -> Table:
    """Return a table of the links between GPUs; with ``wide`` also those to the NICs."""

    def joined(at: int, row: tuple[int, list[str]]) -> Text:
        word = row[1][at]
        return Text(word, "bold green" if word.startswith("NV") else "dim")

    names = [str(gpu.index) for gpu in topology.gpus]
    names += [nic.name for nic in topology.nics if wide]
    return table(
        links_of(topology),
        column("link", lambda row: str(row[0]), figure=True),
        *(column(name, partial(joined, at)) for at, name in enumerate(names)),
    )
