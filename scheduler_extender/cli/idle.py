"""Lists the pods that hold GPUs without using them, and the pods that their end would let run."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from scheduler_extender.cli.labels import selector_of, selects
from scheduler_extender.cli.options import Listing, Whose
from scheduler_extender.cli.queries import Look, Told, ordered
from scheduler_extender.deadline import within
from scheduler_extender.explain.idle import (
    Completes,
    IdlePod,
    idle_pods,
    what_ends_would_do,
)
from scheduler_extender.explain.wording import (
    NOT_IN_TIME,
    asked_text,
    duration,
    listed,
    many,
    set_text,
)
from scheduler_extender.terminal import Shown, column, show, table
from topology.core.devices import PodUid
from topology.times import seconds_of

SECONDS = 20.0  # seconds for which the ends of pods are simulated
OLD = 600.0  # seconds after which a note says that a report is old
SHOWN_OLD = 5  # the number of nodes with old reports that are named, the oldest first
SHOWN_REQUESTS = 2


@dataclass(frozen=True, slots=True)
class Row:
    """An idle pod, and the waiting pods that its end would help.

    ``others`` are the names of idle pods by UID. ``tried`` is true if the pod's end was simulated.
    """

    pod: IdlePod
    completes: Sequence[Completes]
    others: Mapping[PodUid, str]
    tried: bool

    @property
    def gpus(self) -> str:
        """The pod's unused GPUs by the driver's numbers, and whether it has only parts of them."""
        numbers = set_text(self.pod.gpus) or "–"
        if all(device.startswith("MIG-") for device in self.pod.devices):
            return f"MIG on {numbers}"
        return f"share of {numbers}" if any("::" in d for d in self.pod.devices) else numbers

    @property
    def words(self) -> str:
        """The text about the pods that its end would help."""
        if self.pod.partly:
            return "another of its containers uses its GPUs"
        if not self.tried:
            return NOT_IN_TIME
        said = [self._said(each) for each in self.completes[:SHOWN_REQUESTS]]
        more = len(self.completes) - len(said)
        return "; ".join([*said, *([f"{more} more requests"] if more else [])]) or "no pod"

    def _said(self, each: Completes) -> str:
        first = each.pods[0]
        more = f" and {len(each.pods) - 1} more" if len(each.pods) > 1 else ""
        text = f"{first.full_name}{more} ({asked_text(first)})"
        together = [self.others[uid] for uid in each.together]
        if not together:
            return text
        return f"{text} if {listed(together)} also end{'s' if len(together) == 1 else ''}"

    def as_json(self) -> dict[str, Any]:
        """Return the row as data."""
        pod = self.pod
        return {
            "pod": self.pod.full_name,
            "node": pod.node,
            "resource": pod.resource,
            "containers": list(pod.containers),
            "gpus": list(pod.gpus),
            "deviceIds": list(pod.devices),
            "idleSince": pod.since,
            "idleSeconds": round(pod.seconds),
            "observedAt": pod.looked or None,
            "partly": pod.partly,
            "tried": self.tried,
            "completes": [
                {
                    "pods": [p.full_name for p in each.pods],
                    "request": asked_text(each.pods[0]),
                    "together": [self.others[uid] for uid in each.together],
                }
                for each in self.completes
            ],
        }


def told(look: Look, whose: Whose, shortest: float, listing: Listing) -> Told:
    """Return the answer about the idle pods."""
    snapshot = look.cluster.snapshot()
    everywhere = [p for p in idle_pods(snapshot, look.today) if p.seconds >= shortest]
    if wanted := selector_of(whose.selector):
        known = {pod.uid: dict(pod.attributes.labels) for pod in snapshot.pods}
        everywhere = [pod for pod in everywhere if selects(wanted, known.get(pod.uid, {}))]
    chosen = [pod for pod in everywhere if whose.all_namespaces or pod.namespace == look.namespace]
    shown = {pod.node for pod in chosen}
    beside = [pod for pod in everywhere if pod.node in shown]
    found = what_ends_would_do(snapshot, beside, within(time.monotonic, SECONDS))
    names = {pod.uid: pod.full_name for pod in everywhere}
    unsorted = [
        Row(p, tuple(found.completes.get(p.uid, ())), names,
            tried=found.whole or p.uid in found.completes)
        for p in chosen
    ]  # fmt: skip
    rows = ordered(unsorted, lambda: _columns(wide=True), listing.sort_by)
    subject = "no pod" if whose.all_namespaces else f"no pod in the namespace {look.namespace}"
    return Told(
        lambda: {"idle": [row.as_json() for row in rows]},
        [f"pod/{row.pod.pod}" for row in rows],
        lambda console, wide: (
            show(console, table(rows, *_columns(wide=wide), headers=False))
            if listing.no_headers
            else draw(console, rows, subject, len(everywhere) - len(rows), wide=wide)
        ),
        [*look.notes, *_old(look, chosen)],
    )


def _old(look: Look, pods: Sequence[IdlePod]) -> Iterator[str]:
    """Yield notes about nodes whose reports are old; none for a file, whose age does not matter."""
    if look.api is None:
        return
    times = {pod.node: seconds_of(pod.looked) for pod in pods}
    known = ((look.today - at, node) for node, at in times.items() if at is not None)
    ages = sorted((each for each in known if each[0] > OLD), reverse=True)
    unknown = "GPU use since then is unknown"
    yield from (
        f"the report of {node} is {duration(age)} old; {unknown}" for age, node in ages[:SHOWN_OLD]
    )
    if left := ages[SHOWN_OLD:]:
        yield (
            f"the reports of {len(left):,} more nodes are older than {duration(OLD)}; "
            f"{unknown} (-o json shows the time of each report)"
        )


def _columns(*, wide: bool) -> list[list[Shown[Row]]]:
    return [
        column("pod", lambda row: row.pod.full_name, folds=True),
        column(
            "idle",
            lambda row: Text(duration(row.pod.seconds), "yellow"),
            figure=True,
            amount=lambda row: row.pod.seconds,
        ),
        column("node", lambda row: row.pod.node, folds=True),
        column("GPUs", lambda row: row.gpus),
        column("resource", lambda row: row.pod.resource, when=wide),
        column(
            "containers", lambda row: ", ".join(row.pod.containers) or "–", folds=True, when=wide
        ),
        column("since", lambda row: row.pod.since, when=wide),
        column(
            "would unblock",
            lambda row: Text(row.words, "green" if row.completes else "dim"),
            folds=True,
        ),
    ]


def draw(console: Console, rows: Sequence[Row], pods: str, elsewhere: int, *, wide: bool) -> None:
    """Print the pods as a table.

    ``pods`` is the subject of the sentence for an empty table. ``elsewhere`` is the number of
    idle pods in other namespaces.
    """
    if rows:
        show(console, table(rows, *_columns(wide=wide)))
    else:
        console.print(f"{pods} holds GPUs without using them")
    if elsewhere:
        console.print()
        console.print(f"{many(elsewhere, 'pod')} in other namespaces; -A lists them too")
