"""Audits a cluster: what it loses without the extender, as tables or as a page to print."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from scheduler_extender.audit import audited
from scheduler_extender.audit.evidence import Evidence, refused_pods
from scheduler_extender.audit.finding import Finding, cell, many
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import tell
from scheduler_extender.cli.kubeconfig import asking
from scheduler_extender.cli.options import Source
from scheduler_extender.cli.queries import Look, Told, look_once
from scheduler_extender.deadline import NO_DEADLINE, Deadline, within
from scheduler_extender.explain.gpustates import Nodes, has_gpus
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.terminal import column, show, table
from scheduler_extender.wire import Event
from topology.core.placement import Verdict
from topology.times import seconds_of, time_text

SECONDS = 20.0
"""Seconds for which a live cluster is evaluated."""
SHOWN = 10
"""The rows of a finding that are printed without ``-o wide``."""
NO_RECORDS = (
    "no node has a record, so only refused and waiting pods are listed; the node agents write "
    "records: docs/install/is-it-worth-it.md"
)


def told(source: Source, namespace: str | None, seconds: float, html: Path | None) -> Told:
    """Return the audit of the last ``seconds``, and write it as a page, too."""
    look = look_once(source.cluster, source.access, namespace, Verdict.EXPECTED, bare=True)
    notes, deadline = list(look.notes), NO_DEADLINE
    if look.content is not None:
        pods, events = look.content.pods, look.content.events
    else:
        from scheduler_extender.kube.reading import refusals

        with asking(source.access) as (api, _):
            pods, events, unread = refusals(api, look.cluster.settings.managed)
        notes, deadline = [*notes, *unread], within(time.monotonic, SECONDS)
    evidence = _evidence(look, seconds, pods, events, deadline)
    findings = audited(evidence)
    notes += [] if evidence.recorded else [NO_RECORDS]
    if html is not None:
        from scheduler_extender.web.auditpage import audit_page

        try:
            html.write_text(audit_page(evidence, findings), "utf-8")
        except OSError as error:
            raise BadInputError(f"--html: {html}: {error.strerror}") from error
        tell(f"{html} was written")
    since, until = (time_text(int(at)) for at in (evidence.since, evidence.until))
    data = {finding.name: finding.as_json() for finding in findings}
    traps = {f"node/{name}" for row in data["trapNodes"]["rows"] for name in row["nodes"]}
    head = f"{many(len(evidence.nodes), 'node')} with GPUs, {since} to {until}"
    return Told(
        {"since": since, "until": until, **data},
        sorted(traps),
        lambda console, wide: _draw(console, head, findings, wide=wide),
        notes,
    )


def _evidence(
    look: Look,
    seconds: float,
    pods: Sequence[PodRecord],
    events: Iterable[Event],
    deadline: Deadline,
) -> Evidence:
    """Return what the audit is made of. A file is judged at the latest time that it names."""
    snapshot, until = look.cluster.snapshot(), look.today
    known = {pod.uid: pod for pod in (*snapshot.pods, *pods)}
    refused = refused_pods(pods, snapshot.nodes, events, known)
    if look.content is not None:
        reports = (info.report for info in snapshot.nodes if info.report is not None)
        times = [each.at for each in refused] + [seconds_of(each.observed_at) for each in reports]
        until = max((at for at in times if at is not None), default=until)
    recent = [each for each in refused if each.at is None or each.at >= until - seconds]
    sure = [each for each in recent if not each.doubtful]
    nodes = [node for node in Nodes(look.cluster).of_all(snapshot) if has_gpus(node.info)]
    doubtful = len(recent) - len(sure)
    return Evidence(snapshot, nodes, sure, doubtful, until - seconds, until, deadline)


def _draw(console: Console, head: str, findings: Sequence[Finding], *, wide: bool) -> None:
    """Print a paragraph for each finding, with its table."""
    console.print(head)
    for finding in findings:
        console.print()
        console.print(Text(finding.title, "bold"))
        console.print(finding.sentence)
        rows = finding.rows if wide else finding.rows[:SHOWN]
        if rows:
            console.print()
            keys = finding.columns.items()
            cells = (column(head, partial(_cell, key), folds=True) for head, key in keys)
            show(console, table(rows, *cells))
        if left := len(finding.rows) - len(rows):
            console.print(Text(f"… {many(left, 'more row')} (-o wide shows them)", "dim"))


def _cell(key: str, row: Mapping[str, Any]) -> str:
    return cell(row[key])
