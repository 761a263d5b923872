"""The tables of the demo, which compare our results with those of the stock scheduler."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from scheduler_extender.annotations import Malformed
from scheduler_extender.demo.placing import Outcome
from scheduler_extender.explain.answers import answers_to, counts_of
from scheduler_extender.explain.gpustates import NodeState, tally, totals
from scheduler_extender.explain.waitingreasons import queues, reason_of, waiting_pods
from scheduler_extender.explain.wording import asked_text
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.terminal import column, table


@dataclass(frozen=True, slots=True)
class Play:
    """The same pods placed twice. ``outcomes[i]`` and ``stock[i]`` belong to the same pod."""

    outcomes: Sequence[Outcome]
    stock: Sequence[Outcome]
    overcommitted: int  # GPUs whose memory the stock scheduler has given out twice
    spent: Mapping[str, Sequence[float]]  # seconds that the extender took for each answer, by verb
    final_cache: Cache  # the extender's cache at the end
    nodes: Sequence[NodeState]  # the state of the GPUs at the end
    stock_nodes: Sequence[NodeState]  # the same for the stock scheduler


def by_request(play: Play) -> Table:
    """Return a table with a row for each request.

    It shows how many pods got GPUs, and how many of them got GPUs that meet their request.
    """
    by_asks: dict[str, list[tuple[Outcome, Outcome]]] = {}
    for pair in zip(play.outcomes, play.stock, strict=True):
        by_asks.setdefault(pair[0].request, []).append(pair)
    rows = [
        (
            asks,
            len(both),
            [ours for ours, _ in both if ours.node is not None],
            [theirs for _, theirs in both if theirs.node is not None],
        )
        for asks, both in sorted(by_asks.items(), key=lambda entry: -len(entry[1]))
    ]
    return table(
        rows,
        column("request", lambda row: row[0], folds=True),
        column("pods", lambda row: str(row[1]), figure=True),
        column("placed by gpu-topology", lambda row: str(len(row[2])), figure=True),
        column("as requested", lambda row: _share([o.met for o in row[2]]), figure=True),
        column("placed by stock", lambda row: str(len(row[3])), figure=True),
        column("as requested", lambda row: _share([o.met for o in row[3]]), figure=True),
    )


def _share(met: Sequence[bool | None]) -> Text:
    """Return how many pods got GPUs that meet their request, among those where it is known."""
    known = [each for each in met if each is not None]
    if not known:
        return Text("–")
    good = sum(known)
    return Text(str(good), "" if good == len(known) else "bold red")


def waiting(snapshot: Snapshot) -> Table:
    """Return a table of why pods wait, as ``gpu-topology waiting`` explains it.

    Pods with equal requests share a row.
    """
    return table(
        queues(waiting_pods(snapshot)).values(),
        column("pods waiting", lambda pods: str(len(pods)), figure=True),
        column("request", lambda pods: asked_text(pods[0]) or "–", folds=True),
        column("why", lambda pods: _why(snapshot, pods[0]), folds=True),
    )


def _why(snapshot: Snapshot, pod: PodRecord) -> str:
    unread = isinstance(pod.request, Malformed)
    return reason_of(pod, None if unread else counts_of(answers_to(snapshot, pod)))


def summary(play: Play, drawings: Sequence[Path]) -> Table:
    """Return the results of both simulations as a small table."""
    placed = [outcome for outcome in play.outcomes if outcome.node is not None]
    promised = [outcome for outcome in placed if outcome.required]
    verdicts = Counter(outcome.verdict for outcome in promised)
    kinds = ", ".join(f"{n} {verdict}" for verdict, n in sorted(verdicts.items()))
    kinds = f" ({kinds})" if kinds else ""
    uses = totals(play.nodes).uses
    times = ", ".join(
        f"{verb} {1000 * sorted(seconds)[len(seconds) // 2]:.1f} ms"
        for verb, seconds in play.spent.items()
        if seconds
    )
    there = [outcome for outcome in play.stock if outcome.node is not None]
    wrong = sum(outcome.wrong for outcome in there)
    unread = sum(outcome.met is None for outcome in there)
    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(style="bold")
    shown.add_column(overflow="fold")
    shown.add_row("placed", f"{len(placed)} of {len(play.outcomes)} pods")
    shown.add_row("GPUs in use", f"{tally(uses)['in use']} of {uses.total()}")
    broken = sum(outcome.wrong for outcome in promised)
    shown.add_row("promises", f"{len(promised)}{kinds}; broken: {broken}")
    shown.add_row("median answer", times)
    words = f"{len(there)} pods placed; {wrong} got unsuitable GPUs"
    if over := play.overcommitted:
        gpus = "1 shared GPU" if over == 1 else f"{over} shared GPUs"
        words += f"; the memory of {gpus} is overcommitted"
    if unread:
        run = "1 pod runs" if unread == 1 else f"{unread} pods run"
        words += f"; {run} despite an invalid annotation"
    shown.add_row("stock", words)
    shown.add_row("pictures", ", ".join(map(str, drawings)))
    return shown
