"""Lists the pods that have GPUs: which ones, how they are linked, and what was promised."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from scheduler_extender.cli.labels import selector_of, selects
from scheduler_extender.cli.nodes import node_named
from scheduler_extender.cli.options import Listing, Whose
from scheduler_extender.cli.queries import Look, Told, ordered
from scheduler_extender.explain.gpustates import Nodes, Use
from scheduler_extender.explain.runningpods import RunningPod, running_pods
from scheduler_extender.explain.wording import STYLES, duration, gpus_text, set_text
from scheduler_extender.terminal import Shown, column, show, table
from topology.times import age, seconds_of

# What is said of a pod beside its GPUs.
BESIDE = {
    Use.MISMATCHED.value: Text("mismatched", "bold red"),
    Use.TERMINATING.value: Text("terminating", "yellow"),
    Use.ASSUMED.value: Text("no report shows its GPUs yet", "yellow"),
}


def told(look: Look, whose: Whose, listing: Listing, node: str | None, *, mismatched: bool) -> Told:
    """Return the answer about the pods with GPUs. Raises :class:`BadInputError`."""
    wanted = selector_of(whose.selector)
    nodes = Nodes(look.cluster).all() if node is None else [node_named(look, node)]
    found = [
        row
        for state in nodes
        for row, pod in running_pods(state)
        if whose.all_namespaces or row.pod.partition("/")[0] == look.namespace
        if row.mismatched or not mismatched
        if selects(wanted, dict(pod.attributes.labels) if pod else {})
    ]
    found.sort(key=lambda row: row.pod)
    rows = ordered(found, lambda: _columns(look.today), listing.sort_by)
    none = f"has {'other GPUs than it requires' if mismatched else 'GPUs'}"
    if not whose.all_namespaces:
        none = f"in the namespace {look.namespace} {none}; -A lists all namespaces"
    return Told(
        lambda: {"pods": rows},
        [f"pod/{row.pod.rpartition('/')[2]}" for row in rows],
        lambda console, wide: (
            draw(console, rows, look.today, wide=wide, headers=not listing.no_headers)
            if rows or listing.no_headers
            else console.print(f"no pod {none}")
        ),
        look.notes,
    )


def _gpus(row: RunningPod) -> str:
    """Return the pod's GPUs, or what it has of them."""
    numbers = set_text(row.gpus) or "–"
    if row.unit == "GPU":
        return numbers
    unit = row.unit.removeprefix("GPU ")
    return f"{row.devices} {unit}{'s' if row.devices != 1 else ''} of {numbers}"


def _has(row: RunningPod) -> Text:
    numa = f"NUMA {set_text(row.numa_nodes)}" if row.numa_nodes else ""
    said = [Text("/".join(row.links)), Text(numa), BESIDE.get(row.state, Text())]
    return Text(", ").join(filter(None, said)) or Text("–")


def _since(row: RunningPod, today: float) -> float | None:
    return age(seconds_of(row.since or ""), today)


def _age(row: RunningPod, today: float) -> str:
    seconds = _since(row, today)
    return "–" if seconds is None else duration(seconds)


def _columns(today: float) -> list[list[Shown[RunningPod]]]:
    return [
        column("pod", lambda row: row.pod, folds=True),
        column("node", lambda row: row.node, folds=True),
        column("GPUs", _gpus, folds=True, amount=lambda row: row.devices),
        column("request", lambda row: row.request or "–", folds=True),
        column("has", _has, folds=True),
        column(
            "verdict", lambda row: Text(row.verdict or "–", STYLES.get(row.verdict, "")), folds=True
        ),
        column(
            "runs",
            lambda row: _age(row, today),
            figure=True,
            amount=lambda row: _since(row, today),
        ),
    ]


def draw(
    console: Console, rows: Sequence[RunningPod], today: float, *, wide: bool, headers: bool
) -> None:
    """Print the pods as a table, or a paragraph for each pod if the terminal is too narrow."""
    show(
        console,
        table(rows, *_columns(today), headers=headers),
        instead=None if wide else ((row.pod, _lines(row, today)) for row in rows),
    )


def _lines(row: RunningPod, today: float) -> Iterator[Text | str]:
    gpus = gpus_text(row.gpus) if row.unit == "GPU" else _gpus(row)
    where = f"on {row.node}, {gpus}" if row.gpus else f"on {row.node}"
    yield Text.assemble(f"{where}: ", _has(row))
    since = "" if row.since is None else f"runs for {_age(row, today)}"
    yield ", ".join(filter(None, [f"requests {row.request or '–'}", row.verdict, since]))
