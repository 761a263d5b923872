"""What the demo prints: what became of the pods, ours beside those of the stock scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rich.table import Table

from scheduler_extender.demo.kubelet import Kubelets
from scheduler_extender.demo.scheduler import Outcome
from scheduler_extender.demo.stock import StockOutcome
from scheduler_extender.told.words import set_text, sets_text, verdict_text

SHOWN_SETS = 3


@dataclass(frozen=True, slots=True)
class Play:
    """The same pods placed twice, ``outcomes[i]`` and ``stock[i]`` one pod's, and the kubelets of
    each play. ``spent`` has the seconds that the extender took for each answer, by verb, ``after``
    the cluster file of what it leaves, with the pods that wait."""

    outcomes: Sequence[Outcome]
    stock: Sequence[StockOutcome]
    kubelets: Kubelets
    stock_kubelets: Kubelets
    spent: Mapping[str, Sequence[float]]
    after: bytes


def by_request(play: Play) -> Table:
    """A row for each request: how many pods got GPUs, and how many of them what they ask."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("asked for", overflow="fold")
    table.add_column("pods", justify="right")
    for who in ("gpu-topology", "stock"):
        table.add_column(f"{who}: placed", justify="right")
        table.add_column("as asked", justify="right")
    pairs = zip(play.outcomes, play.stock, strict=True)
    for asks, rows in _by_asks(pairs).items():
        ours = [outcome for outcome, _ in rows if outcome.node is not None]
        theirs = [outcome for _, outcome in rows if outcome.node is not None]
        table.add_row(
            asks,
            str(len(rows)),
            str(len(ours)),
            _share(sum(outcome.met for outcome in ours), len(ours)),
            str(len(theirs)),
            _share(sum(o.met is True for o in theirs), sum(o.met is not None for o in theirs)),
        )
    return table


def _by_asks(
    pairs: Iterator[tuple[Outcome, StockOutcome]],
) -> dict[str, list[tuple[Outcome, StockOutcome]]]:
    """The pods of each request, the most frequent request first."""
    found: dict[str, list[tuple[Outcome, StockOutcome]]] = {}
    for pair in pairs:
        found.setdefault(pair[0].asks, []).append(pair)
    return dict(sorted(found.items(), key=lambda entry: -len(entry[1])))


def _share(good: int, of: int) -> str:
    if not of:
        return "–"
    return str(good) if good == of else f"[bold red]{good}[/]"


def waiting(outcomes: Sequence[Outcome]) -> Table:
    """Why pods wait: a row for each request, with the reasons of the pod that asked last."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("waits", justify="right")
    table.add_column("asked for", overflow="fold")
    table.add_column("why, and on how many nodes", overflow="fold")
    unplaced = [outcome for outcome in outcomes if outcome.node is None]
    last = {outcome.asks: outcome for outcome in unplaced}
    for asks, count in Counter(outcome.asks for outcome in unplaced).most_common():
        why = "; ".join(f"{n} nodes: {reason}" for reason, n in last[asks].reasons)
        table.add_row(str(count), asks, why)
    return table


def each_pod(outcomes: Sequence[Outcome]) -> Table:
    """Every placed pod: the GPUs it got, and those it could have got."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("pod", overflow="fold")
    table.add_column("asked for", overflow="fold")
    table.add_column("node", overflow="fold")
    table.add_column("got", no_wrap=True)
    table.add_column("could have got", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for o in outcomes:
        if o.node is not None:
            possible = sets_text(o.possible, SHOWN_SETS) if o.possible else "any"
            got = set_text(o.got)
            table.add_row(o.pod, o.asks, o.node, got, possible, verdict_text(o.verdict))
    return table


def summary(play: Play, drawings: Sequence[Path]) -> Table:
    """The two plays in a few lines."""
    placed = [outcome for outcome in play.outcomes if outcome.node is not None]
    promised = [outcome for outcome in placed if outcome.promised]
    verdicts = Counter(outcome.verdict for outcome in promised)
    kinds = ", ".join(f"{n} {verdict}" for verdict, n in sorted(verdicts.items()))
    kinds = f" ({kinds})" if kinds else ""
    total = sum(len(node.gpus) for node in play.kubelets.nodes.values())
    times = ", ".join(
        f"{verb} {1000 * sorted(seconds)[len(seconds) // 2]:.1f} ms"
        for verb, seconds in play.spent.items()
        if seconds
    )
    there = [outcome for outcome in play.stock if outcome.node is not None]
    wrong = sum(outcome.wrong for outcome in there)
    unread = sum(outcome.met is None for outcome in there)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("placed", f"{len(placed)} of {len(play.outcomes)} pods")
    table.add_row("GPUs in use", f"{held(play.kubelets)} of {total}")
    broken = sum(outcome.broken for outcome in promised)
    table.add_row("promises", f"{len(promised)}{kinds}; broken: {broken}")
    table.add_row("median answer", times)
    words = f"{len(there)} pods placed; {wrong} got other GPUs than they need"
    if over := play.stock_kubelets.overcommitted():
        gpus = "1 shared GPU" if over == 1 else f"{over} shared GPUs"
        words += f"; the memory of {gpus} is given out twice"
    if unread:
        run = "1 runs" if unread == 1 else f"{unread} run"
        words += f"; {run} with an annotation that nobody could read"
    table.add_row("stock", words)
    table.add_row("pictures", ", ".join(map(str, drawings)))
    return table


def held(kubelets: Kubelets) -> int:
    """GPUs that somebody has."""
    return sum(len(set(chain(*pods.values()))) for pods in kubelets.holders.values())
