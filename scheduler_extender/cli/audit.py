"""Audits a cluster: what it loses without the extender, as tables or as a page to print."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from scheduler_extender.annotations import MANAGED, managed_among
from scheduler_extender.audit import audited
from scheduler_extender.audit.evidence import DOUBTFUL, Evidence, refused_pods
from scheduler_extender.audit.finding import Finding, cell
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import tell
from scheduler_extender.cli.kubeconfig import asking
from scheduler_extender.cli.options import Source
from scheduler_extender.cli.queries import Told, look_once
from scheduler_extender.deadline import within
from scheduler_extender.explain.gpustates import Nodes, has_gpus
from scheduler_extender.explain.wording import many
from scheduler_extender.terminal import column, show, table
from topology.core.placement import Verdict
from topology.times import seconds_of, time_text

SECONDS = 20.0  # for which the cluster is evaluated
SHOWN = 10  # rows of a finding without -o wide
NO_RECORDS = (
    "no node has a record, so only refused and waiting pods are listed; the node agents write "
    "records: docs/install/is-it-worth-it.md"
)


def told(source: Source, namespace: str | None, seconds: float, html: Path | None) -> Told:
    """Return the audit of the last ``seconds``, and write it as a page, too.

    A file is judged at the latest time that it names, unless that is still to come: who may create
    Events may date them at will.
    """
    look = look_once(source.cluster, source.access, namespace, Verdict.EXPECTED, bare=True)
    content, snapshot, notes = look.content, look.cluster.snapshot(), list(look.notes)
    nodes = [node for node in Nodes(look.cluster).of_all(snapshot) if has_gpus(node.info)]
    with_gpus = {node.name for node in nodes}
    if content is not None:
        events = content.events
        with_gpus |= {
            name
            for name, node in content.nodes.items()
            if managed_among(dict(node.allocatable or ()), MANAGED)
        }
    else:
        from scheduler_extender.kube.reading import warnings_about_pods

        with asking(source.access) as (api, _):
            events, unread = warnings_about_pods(api)
        notes += filter(None, [unread])
    refused, until = refused_pods(snapshot, with_gpus, events), look.today
    if content is not None:
        observed = [seconds_of(node.observed_at) for node in nodes]
        dated = (*observed, *(pod.started for pod in refused))
        named = [at for at in dated if at is not None and at > 0]
        until = max([at for at in named if at <= until] or named, default=until)
    since = max(0.0, until - seconds)
    recent = [pod for pod in refused if pod.started is None or pod.started >= since]
    sure = [pod for pod in recent if pod.request is not DOUBTFUL]
    evidence = Evidence(
        snapshot,
        nodes,
        with_gpus,
        sure,
        len(recent) - len(sure),
        since,
        until,
        within(time.monotonic, SECONDS),
    )
    findings = audited(evidence)
    notes += [] if evidence.recorded else [NO_RECORDS]
    if html is not None:
        from scheduler_extender.web.auditpage import audit_page

        try:
            html.write_text(audit_page(evidence, findings), "utf-8")
        except OSError as error:
            raise BadInputError(f"--html: {html}: {error.strerror}") from error
        tell(f"{html} was written")
    times = {"since": time_text(int(evidence.since)), "until": time_text(int(until))}
    data = {finding.name: finding.as_json() for finding in findings}
    traps = {f"node/{name}" for row in data["trapNodes"]["rows"] for name in row["nodes"]}
    head = f"{evidence.scope}, {times['since']} to {times['until']}"
    unrecorded = len(with_gpus) - evidence.recorded
    return Told(
        lambda: {**times, "nodes": len(with_gpus), "nodesWithoutRecord": unrecorded, **data},
        sorted(traps),
        lambda console, wide: _draw(console, head, findings, wide=wide),
        notes,
    )


def _draw(console: Console, head: str, findings: Sequence[Finding], *, wide: bool) -> None:
    """Print a paragraph for each finding, with its table."""
    console.print(head)
    for finding in findings:
        console.print()
        console.print(Text(finding.title, "bold"))
        console.print(f"{finding.headline}.")
        rows = finding.rows if wide else finding.rows[:SHOWN]
        if rows:
            console.print()
            keys = finding.columns.items()
            cells = (column(h, partial(cell, key), folds=True) for h, key in keys)
            show(console, table(rows, *cells))
        if left := len(finding.rows) - len(rows):
            console.print(Text(f"… {many(left, 'more row')} (-o wide shows them)", "dim"))
