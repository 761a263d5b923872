"""Lists the pods that wait for GPUs, each with its reason in one line."""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text

from scheduler_extender.annotations import MANAGED, Malformed
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.labels import selector_of, selects
from scheduler_extender.cli.options import Listing, Whose
from scheduler_extender.cli.queries import NO_CLAIMS, Look, Told, ordered
from scheduler_extender.clientlimits import EXPLAIN_SECONDS
from scheduler_extender.deadline import NO_DEADLINE, within
from scheduler_extender.explain.answers import Counts, answers_to, by_reason, counts_of
from scheduler_extender.explain.waitingreasons import WaitingPod, reason_of, waiting_pods
from scheduler_extender.explain.wording import asked_text, duration
from scheduler_extender.framework.question import alike
from scheduler_extender.state.pods.record import PodRecord, requesting_record
from scheduler_extender.terminal import Shown, column, show, table
from scheduler_extender.wire import UNREADABLE, pod_decoder
from topology.kubeapi.apiserver import ApiError, ApiServer
from topology.times import age, seconds_of

# Seconds for which the pods of a live cluster are evaluated. Later pods are only listed. One pod is
# evaluated for at most as long as in ``why``. The pods of a file are all evaluated.
SECONDS = 20.0


def told(look: Look, whose: Whose, listing: Listing) -> Told:
    """Return the answer about the waiting pods."""
    found = list(_rows(look, _waiting(look, whose)))
    rows = ordered(found, lambda: _columns(look.today, wide=True), listing.sort_by)
    none = "no pod waits for GPUs"
    if not whose.all_namespaces:  # pods of other namespaces may wait
        none = f"no pod in the namespace {look.namespace} waits for GPUs; -A lists all namespaces"
    return Told(
        lambda: {"pods": rows},
        [f"pod/{row.pod.rpartition('/')[2]}" for row in rows],
        lambda console, wide: (
            draw(console, rows, look.today, wide=wide, headers=not listing.no_headers)
            if rows or listing.no_headers
            else console.print(none)
        ),
        look.notes,
        not any(row.hopeless for row in rows),
    )


def _waiting(look: Look, whose: Whose) -> list[PodRecord]:
    wanted = selector_of(whose.selector)
    if look.api is None:
        waits = [*waiting_pods(look.cluster.snapshot()), *look.claiming]
        pods = [pod for pod in waits if whose.all_namespaces or pod.namespace == look.namespace]
    else:
        pods = list(_listed(look, look.api, None if whose.all_namespaces else look.namespace))
    pods.sort(key=lambda pod: (pod.namespace, pod.name))
    return [pod for pod in pods if selects(wanted, dict(pod.attributes.labels))]


def _listed(look: Look, api: ApiServer, namespace: str | None) -> Iterator[PodRecord]:
    """Yield the waiting pods of the API server. Raises :class:`BadInputError`."""
    from scheduler_extender.kube.reading import unbound_pods

    try:
        found = unbound_pods(api, namespace)
    except ApiError as error:
        if error.status not in (401, 403):
            raise
        what = f"in the namespace {namespace}" if namespace else "in all namespaces"
        raise BadInputError(f"you need permission to list pods {what}: {error.message}") from error
    for raw in found:
        try:
            pod = pod_decoder.decode(raw)
            record = requesting_record(pod, MANAGED)
        except UNREADABLE:
            continue  # the API server stores only valid pods; this one has a field of a newer type
        if record is None or record.node is not None or record.terminating or record.ended:
            continue
        yield look.cluster.pod(record.uid) or record


def _rows(look: Look, waiting: Sequence[PodRecord]) -> Iterator[WaitingPod]:
    """Yield each pod with the reason why it waits.

    Pods with equal requests and equal eligible nodes share an answer.
    """
    snapshot = look.cluster.snapshot()
    limited = look.api is not None  # a file does not change during the evaluation
    until = within(time.monotonic, SECONDS) if limited else NO_DEADLINE
    known: dict[object, Counts | None] = {}
    not_judged = {pod.uid for pod in look.claiming}
    for pod in waiting:
        key, counts = alike(snapshot.nominated.get(pod.uid, pod)), None
        if not isinstance(pod.request, Malformed) and pod.uid not in not_judged:
            if key not in known and not until.passed():
                deadline = within(time.monotonic, EXPLAIN_SECONDS) if limited else NO_DEADLINE
                found = counts_of(answers_to(snapshot, pod, deadline))
                undecided = deadline.passed() and found.takes == found.ineligible
                known[key] = None if undecided else found
            counts = known.get(key)
        since = pod.created
        yield WaitingPod(
            pod=pod.full_name,
            request=asked_text(pod),
            since=None if since is None else datetime.fromtimestamp(since, UTC).isoformat(),
            gated=pod.gated,
            reason=NO_CLAIMS if pod.uid in not_judged else reason_of(pod, counts),
            nodes=None if counts is None else counts.nodes,
            takes=None if counts is None else counts.takes - counts.ineligible,
            rejections={reason.value: n for reason, n in by_reason(counts.rejected).items()}
            if counts
            else {},
        )


def _waits(row: WaitingPod, today: float) -> str:
    seconds = age(seconds_of(row.since or ""), today)
    return "" if seconds is None else duration(seconds)


def _why(row: WaitingPod) -> Text:
    return Text(row.reason, "red" if row.hopeless else "yellow")


def _columns(today: float, *, wide: bool) -> list[list[Shown[WaitingPod]]]:
    return [
        column("pod", lambda row: row.pod, folds=True),
        column(
            "waits",
            lambda row: _waits(row, today) or "–",
            figure=True,
            amount=lambda row: age(seconds_of(row.since or ""), today),
        ),
        column("request", lambda row: row.request or "–", folds=True),
        column(
            "nodes",
            lambda row: "–" if row.nodes is None else f"{row.takes}/{row.nodes}",
            figure=True,
            when=wide,
            amount=lambda row: row.takes,
        ),
        column("why", _why, folds=True),
    ]


def draw(
    console: Console, rows: Sequence[WaitingPod], today: float, *, wide: bool, headers: bool
) -> None:
    """Print the pods as a table, or a paragraph for each pod if the terminal is too narrow."""
    instead = (
        (row.pod, [Text(f"{request}, waits for {waits}" if waits else request), _why(row)])
        for row in rows
        for request in [f"requests {row.request}" if row.request else "invalid request"]
        for waits in [_waits(row, today)]
    )
    columns = _columns(today, wide=wide)
    show(console, table(rows, *columns, headers=headers), instead=None if wide else instead)
