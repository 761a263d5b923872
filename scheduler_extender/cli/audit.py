"""Audits a cluster: what it loses without the extender, as tables or as a page to print."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from scheduler_extender.audit import audited
from scheduler_extender.audit.evidence import Evidence, refused_pods
from scheduler_extender.audit.finding import Finding, many
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
    notes = list(look.notes)
    if look.content is not None:
        evidence = _evidence(look, seconds, look.content.pods, look.content.events, NO_DEADLINE)
    else:
        from scheduler_extender.kube.reading import refusals

        with asking(source.access) as (api, _):
            pods, events, unread = refusals(api, look.cluster.settings.managed)
        notes += unread
        evidence = _evidence(look, seconds, pods, events, within(time.monotonic, SECONDS))
    findings = audited(evidence)
    notes += [] if evidence.recorded else [NO_RECORDS]
    if html is not None:
        from scheduler_extender.web.auditpage import audit_page

        try:
            html.write_text(audit_page(evidence, findings), "utf-8")
        except OSError as error:
            raise BadInputError(f"--html: {html}: {error.strerror}") from error
        tell(f"{html} was written")
    traps = next(finding for finding in findings if finding.name == "trapNodes")
    return Told(
        {**_times(evidence), **{finding.name: finding.as_json() for finding in findings}},
        sorted({f"node/{name}" for row in traps.rows for name in row.nodes}),
        lambda console, wide: _draw(console, evidence, findings, wide=wide),
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
    nodes = [node for node in Nodes(look.cluster).of_all(snapshot) if has_gpus(node.info)]
    sure = [each for each in recent if not each.doubtful]
    others = len(recent) - len(sure)
    return Evidence(snapshot, nodes, sure, others, until - seconds, until, deadline)


def _times(evidence: Evidence) -> dict[str, str]:
    return {"since": time_text(int(evidence.since)), "until": time_text(int(evidence.until))}


def _draw(console: Console, evidence: Evidence, findings: Sequence[Finding], *, wide: bool) -> None:
    """Print a paragraph for each finding, with its table."""
    nodes, times = many(len(evidence.nodes), "node"), _times(evidence)
    console.print(f"{nodes} with GPUs, {times['since']} to {times['until']}")
    for finding in findings:
        console.print()
        console.print(Text(finding.title, "bold"))
        console.print(f"{finding.headline[0].upper()}{finding.headline[1:]}.")
        rows = finding.rows if wide else finding.rows[:SHOWN]
        if rows:
            console.print()
            columns = (column(head, cell, folds=True) for head, cell in finding.columns)
            show(console, table(rows, *columns))
        if left := len(finding.rows) - len(rows):
            console.print(Text(f"… {many(left, 'more row')} (-o wide shows them)", "dim"))
