"""``gpu-topology waiting``: the pods that wait for GPUs, and in one line each why."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scheduler_extender.annotations import MANAGED, Malformed
from scheduler_extender.cli.adminport import AdminCaOption, ContextOption, TokenOption
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.completion import namespace_completions
from scheduler_extender.cli.forwarding import SYSTEM
from scheduler_extender.cli.inputs import one_of
from scheduler_extender.cli.kubeconfig import KubeconfigOption
from scheduler_extender.cli.looking import (
    AskAdminOption,
    ClusterOption,
    ForwardOption,
    Look,
    SystemOption,
    Where,
    extender_of,
    looking,
    selector_error,
)
from scheduler_extender.cli.outputs import OutputOption, Told, WatchOption, answer, form_of
from scheduler_extender.explain import alike, answers_to
from scheduler_extender.state.pods.record import PodRecord, pod_record
from scheduler_extender.terminal import ROOMY, fits, show
from scheduler_extender.why.counts import Counts, counts_of
from scheduler_extender.why.explanation import asked_text
from scheduler_extender.why.phrases import duration
from scheduler_extender.wire import pod_decoder
from topology.core.placement import Verdict
from topology.times import seconds_of

SECONDS = 20.0
"""For how long the nodes are asked about pods; those that are left then are only listed."""
NOT_ASKED = "not asked about, for want of time: kubectl gpu-topology why says it"


def waiting(
    output: OutputOption = "table",
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Whose pods. Without it: those of the context's namespace.",
            autocompletion=namespace_completions,
        ),
    ] = None,
    everybody: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The pods of all namespaces.")
    ] = False,
    selector: Annotated[
        str | None,
        typer.Option(
            "--selector",
            "-l",
            metavar="SELECTOR",
            help="Only the pods with these labels, as kubectl takes it, such as app=train.",
        ),
    ] = None,
    watch: WatchOption = False,
    require: Annotated[
        str,
        typer.Option(
            metavar="VERDICT",
            help="What the extender is run with: guaranteed or expected.",
        ),
    ] = "expected",
    cluster: ClusterOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    admin: AskAdminOption = None,
    forward: ForwardOption = False,
    system: SystemOption = SYSTEM,
    admin_ca: AdminCaOption = None,
    token: TokenOption = None,
) -> None:
    """List the pods that wait for GPUs, and why, in one line each.

    The reason counts the nodes by what they answer; why POD says more about one pod. The command
    needs the rights to list pods, nodes and gputopologies, and says what it may not see. Exits with
    1 if a listed pod waits that no node would take.
    """
    form = form_of(output)
    if namespace is not None and everybody:
        raise BadInputError("--namespace and --all-namespaces: allowed is one of them")
    weakest = one_of("--require", require, {"guaranteed": Verdict.GUARANTEED}, Verdict.EXPECTED)
    extender = extender_of(
        admin, admin_ca, token, (kubeconfig, context), forward=forward, system=system
    )
    where = Where(kubeconfig, context, namespace, cluster, extender, weakest)
    with looking(where, live=watch) as look:
        answer(lambda: told(look(), selector, everybody=everybody), form, watch=watch)


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


def told(look: Look, selector: str | None, *, everybody: bool) -> Told:
    """The answer."""
    rows = list(_rows(look, sorted(_waiting(look, selector, everybody=everybody), key=_name)))
    return Told(
        {"pods": [row.as_json() for row in rows]},
        [f"pod/{row.waits.pod.name}" for row in rows],
        lambda console, wide: (
            draw(console, rows, wide=wide) if rows else console.print(_nobody(look, everybody))
        ),
        look.notes,
        not any(row.hopeless for row in rows),
    )


def _nobody(look: Look, everybody: bool) -> str:
    """What is said where no pod waits: of which namespace, since pods of others may wait."""
    if everybody:
        return "no pod waits for GPUs"
    return f"no pod of the namespace {look.namespace} waits for GPUs; -A looks into all namespaces"


def _name(waits: Waits) -> tuple[str, str]:
    return waits.pod.namespace, waits.pod.name


def _waiting(look: Look, selector: str | None, *, everybody: bool) -> list[Waits]:
    if look.api is None:
        if selector is not None:
            look.reachable("--selector")
        return [
            Waits(pod)
            for pod in look.cluster.unbound_pods()
            if (everybody or pod.namespace == look.namespace) and not pod.deleting and not pod.ended
        ]
    return list(_listed(look, selector, everybody=everybody))


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    creation_timestamp: str = ""


class _Made(msgspec.Struct):
    metadata: _Meta = _Meta()


_made = msgspec.json.Decoder(_Made)


def _listed(look: Look, selector: str | None, *, everybody: bool) -> Iterator[Waits]:
    """The waiting pods as the API server selects them. Raises :class:`BadInputError`."""
    from scheduler_extender.kube.selected import unbound_pods
    from topology.kubeapi.apiserver import ApiError

    try:
        api = look.reachable("--selector")
        found = unbound_pods(api, None if everybody else look.namespace, selector)
    except ApiError as error:
        if error.status in (401, 403):
            whose = "of all namespaces" if everybody else f"of the namespace {look.namespace}"
            raise BadInputError(f"you may not list the pods {whose}: {error.message}") from error
        if selector is None or error.status >= 500:
            raise
        raise selector_error(selector, error.status, error.message, "pods") from error
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
    seen = look.cluster.cluster_facts()
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
            counts = known[key] = counts_of(answers_to(look.cluster, seen, pod))
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
    """A pod where there is no room for a table."""
    console.print(Text(row.name, "bold", overflow="fold"))
    since = "" if row.seconds is None else f", waits for {duration(row.seconds)}"
    asks = f"asks for {asked_text(row.waits.pod)}" if asked_text(row.waits.pod) else "unreadable"
    console.print(Padding(Text(f"{asks}{since}"), (0, 0, 0, 2)))
    console.print(Padding(Text(row.reason, _style(row)), (0, 0, 0, 2)))


def _style(row: Row) -> str:
    return "red" if row.hopeless else "yellow"


def _table(rows: Sequence[Row], *, wide: bool) -> Table:
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    found.add_column("pod", overflow="fold")
    found.add_column("waits", justify="right", no_wrap=True)
    found.add_column("asks for", overflow="fold")
    if wide:
        found.add_column("nodes", justify="right", no_wrap=True)
    found.add_column("why", overflow="fold")
    for row in rows:
        cells = [
            Text(row.name),
            Text("–" if row.seconds is None else duration(row.seconds)),
            Text(asked_text(row.waits.pod) or "–"),
        ]
        if wide:
            counts = row.counts
            cells.append(Text("–" if counts is None else f"{counts.takes}/{counts.nodes}"))
        found.add_row(*cells, Text(row.reason, _style(row)))
    return found
