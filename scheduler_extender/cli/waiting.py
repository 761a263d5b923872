"""``gpu-topology waiting``: the pods that wait for GPUs, and in one line each why."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scheduler_extender.annotations import MANAGED, Malformed
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import weakest
from scheduler_extender.cli.looking import Look, answer_from, selecting
from scheduler_extender.cli.options import (
    OutputOption,
    RequireOption,
    WatchOption,
    Where,
    Whose,
)
from scheduler_extender.cli.outputs import Told, form_of
from scheduler_extender.state.pods.record import PodRecord, pod_record
from scheduler_extender.terminal import ROOMY, column, fits, show, stacked, table
from scheduler_extender.told.answers import alike, answers_to
from scheduler_extender.told.counts import Counts, counts_of
from scheduler_extender.told.words import asked_text, duration
from scheduler_extender.wire import pod_decoder
from topology.times import seconds_of

SECONDS = 20.0
"""For how long the nodes are asked about pods; those that are left then are only listed."""
NOT_ASKED = "not asked about, for want of time: kubectl gpu-topology why says it"


def waiting(
    output: OutputOption = "table",
    *,
    whose: Whose,
    watch: WatchOption = False,
    require: RequireOption = "expected",
    where: Where,
) -> None:
    """List the pods that wait for GPUs, and why, in one line each.

    The reason counts the nodes by what they answer; why POD says more about one pod. The command
    needs the rights to list pods, nodes and gputopologies, and says what it may not see. Exits with
    1 if a listed pod waits that no node would take.
    """
    form = form_of(output)
    answer_from(
        where,
        lambda look: told(look, whose),
        form,
        watch=watch,
        namespace=whose.namespace,
        require=weakest(require),
    )


@dataclass(frozen=True, slots=True)
class Waits:
    """A pod that waits. ``since`` is when it was made, in seconds since 1970; None where nobody
    says. ``gated`` says that it has scheduling gates."""

    pod: PodRecord
    since: float | None = None
    gated: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A pod that waits, and why. ``counts`` is None where no node was asked."""

    waits: Waits
    reason: str
    counts: Counts | None
    seconds: float | None = None

    @property
    def name(self) -> str:
        """The pod's name and namespace."""
        return f"{self.waits.pod.namespace}/{self.waits.pod.name}"

    @property
    def hopeless(self) -> bool:
        """Whether no node would take it."""
        return isinstance(self.waits.pod.request, Malformed) or (
            self.counts is not None and not self.counts.takes
        )

    def as_json(self) -> dict[str, Any]:
        """The row as data."""
        counts, since = self.counts, self.waits.since
        return {
            "pod": self.name,
            "asks": asked_text(self.waits.pod),
            "since": None if since is None else datetime.fromtimestamp(since, UTC).isoformat(),
            "gated": self.waits.gated,
            "reason": self.reason,
            "nodes": None if counts is None else counts.nodes,
            "takes": None if counts is None else counts.takes,
            "refusals": {kind.value: n for kind, n in counts.refusals.items()} if counts else {},
        }


def told(look: Look, whose: Whose) -> Told:
    """The answer."""
    rows = list(_rows(look, sorted(_waiting(look, whose), key=_name)))
    return Told(
        {"pods": [row.as_json() for row in rows]},
        [f"pod/{row.waits.pod.name}" for row in rows],
        lambda console, wide: (
            draw(console, rows, wide=wide) if rows else console.print(_nobody(look, whose))
        ),
        look.notes,
        not any(row.hopeless for row in rows),
    )


def _nobody(look: Look, whose: Whose) -> str:
    """What is said where no pod waits: of which namespace, since pods of others may wait."""
    if whose.everybody:
        return "no pod waits for GPUs"
    return f"no pod of the namespace {look.namespace} waits for GPUs; -A looks into all namespaces"


def _name(waits: Waits) -> tuple[str, str]:
    return waits.pod.namespace, waits.pod.name


def _waiting(look: Look, whose: Whose) -> list[Waits]:
    if look.api is None:
        if whose.selector is not None:
            look.reachable("--selector")
        return [
            Waits(pod)
            for pod in look.cluster.snapshot().unbound
            if (whose.everybody or pod.namespace == look.namespace)
            and not pod.deleting
            and not pod.ended
        ]
    return list(_listed(look, whose))


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    creation_timestamp: str = ""


class _Made(msgspec.Struct):
    metadata: _Meta = _Meta()


_made = msgspec.json.Decoder(_Made)


def _listed(look: Look, whose: Whose) -> Iterator[Waits]:
    """The waiting pods as the API server selects them. Raises :class:`BadInputError`."""
    from scheduler_extender.kube.reading import unbound_pods
    from topology.kubeapi.apiserver import ApiError

    namespace = None if whose.everybody else look.namespace
    with selecting(whose.selector, "pods"):
        try:
            found = unbound_pods(look.reachable("--selector"), namespace, whose.selector)
        except ApiError as error:
            if error.status not in (401, 403):
                raise
            what = f"of the namespace {namespace}" if namespace else "of all namespaces"
            raise BadInputError(f"you may not list the pods {what}: {error.message}") from error
    for raw in found:
        try:
            pod = pod_decoder.decode(raw)
            record = pod_record(pod, MANAGED)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # the API server would not store it: a field of a newer kind
        if record is None or record.node is not None or record.deleting or record.ended:
            continue
        record = look.cluster.pod(record.uid) or record
        yield Waits(record, _since(raw), bool(pod.spec.scheduling_gates))


def _since(raw: msgspec.Raw) -> float | None:
    try:
        return seconds_of(_made.decode(raw).metadata.creation_timestamp)
    except msgspec.DecodeError:
        return None


def _rows(look: Look, waiting: Sequence[Waits]) -> Iterator[Row]:
    """Why each waits. Pods that ask the same, and may go to the same nodes, share an answer."""
    seen = look.cluster.snapshot()
    until = time.monotonic() + SECONDS
    known: dict[object, Counts] = {}
    for waits in waiting:
        pod = waits.pod
        seconds = None if waits.since is None else max(0.0, look.view.today - waits.since)
        if isinstance(pod.request, Malformed):
            yield Row(waits, pod.request.reason, None, seconds)
            continue
        key = alike(pod)
        counts = known.get(key)
        if counts is None and time.monotonic() < until:
            counts = known[key] = counts_of(answers_to(seen, pod))
        yield Row(waits, _reason(waits, counts), counts, seconds)


def _reason(waits: Waits, counts: Counts | None) -> str:
    said = NOT_ASKED if counts is None else counts.headline
    if waits.gated:
        return f"kept back by its scheduling gates; {said}"
    if counts is not None and counts.takes > counts.closed and waits.pod.unschedulable:
        return f"{said}; kube-scheduler finds none, by its own rules or not yet"
    return said


def draw(console: Console, rows: Sequence[Row], *, wide: bool) -> None:
    """The pods as a table."""
    table = _table(rows, wide=wide)
    if wide or (fits(console, table) and console.width >= ROOMY):
        show(console, table)
        return
    for row in rows:
        _stacked(console, row)


def _stacked(console: Console, row: Row) -> None:
    since = "" if row.seconds is None else f", waits for {duration(row.seconds)}"
    asks = f"asks for {asked_text(row.waits.pod)}" if asked_text(row.waits.pod) else "unreadable"
    stacked(console, row.name, [f"{asks}{since}", Text(row.reason, _style(row))])


def _style(row: Row) -> str:
    return "red" if row.hopeless else "yellow"


def _table(rows: Sequence[Row], *, wide: bool) -> Table:
    return table(
        rows,
        column("pod", lambda row: row.name, folds=True),
        column(
            "waits",
            lambda row: "–" if row.seconds is None else duration(row.seconds),
            figure=True,
        ),
        column("asks for", lambda row: asked_text(row.waits.pod) or "–", folds=True),
        column(
            "nodes",
            lambda row: "–" if row.counts is None else f"{row.counts.takes}/{row.counts.nodes}",
            figure=True,
            when=wide,
        ),
        column("why", lambda row: Text(row.reason, _style(row)), folds=True),
    )
