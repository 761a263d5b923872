"""Why a pod waits, what would help, and what a placed pod got.

It needs no extender: it reads nodes, pods and records with the caller's own rights and decides with
the extender's code. Binds that are being written only the extender knows; ``--forward`` asks it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import typer
from msgspec import structs
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.forwarding import Forwarded, forwarded
from scheduler_extender.cli.inputs import cluster_file, standard_output
from scheduler_extender.cli.kubeconfig import Access, asking, usual_namespace
from scheduler_extender.cli.options import Where
from scheduler_extender.cli.source import NO_CLAIMS, described
from scheduler_extender.cli.subject import subject
from scheduler_extender.cli.suggestions import pod_meant
from scheduler_extender.deadline import within
from scheduler_extender.kube.owners import kind_named
from scheduler_extender.limits import EXPLAIN_SECONDS
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.told.explanation import (
    NOT_ALL_ASKED,
    Explanation,
    Unreadable,
    explanation_of,
)
from scheduler_extender.told.words import listed
from topology.core.placement import Verdict

SHOWN_HELPS = 8


def explain(
    pod: str, namespace: str | None, require: Verdict, where: Where, *, as_json: bool
) -> None:
    """Print why a pod waits, or what it got; the command ends with it. Raises
    :class:`BadInputError`."""
    cluster, access = where.cluster, where.access
    if where.forward:
        with forwarded("--forward", access, where.system) as port:
            found, notes = _from_extender(port, access, namespace, pod)
    elif cluster is not None:
        found, notes = _from_file(cluster, namespace or "default", pod, require)
    else:
        found, notes = _from_api_server(access, namespace, pod, require)
    found = structs.replace(found, notes=[*found.notes, *notes])
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        plan = "" if cluster is not None else f"kubectl gpu-topology unblock {found.pod}"
        show(standard_output(), found, plan)
    nowhere = isinstance(found, Unreadable) or not (found.placed or found.takes > found.closed)
    raise typer.Exit(1 if nowhere and NOT_ALL_ASKED not in found.notes else 0)


def _from_extender(
    port: Forwarded, access: Access, namespace: str | None, pod: str
) -> tuple[Explanation | Unreadable, list[str]]:
    """The extender's answer; the pods of a workload are found at the API server."""
    notes: list[str] = []
    where, _, name = pod.removeprefix("pod/").rpartition("/")
    where = where or namespace or usual_namespace(access)
    if kind_named(pod.rpartition("/")[0]) is not None:
        with asking(access) as (api, usual):
            about = subject(api, namespace or usual, pod)
        where, name = about.record.namespace, about.record.name
        notes = [*about.beside, *about.notes]
    answer = port.get(f"/v1/explain/{quote(where, safe='')}/{quote(name, safe='')}", dict[str, Any])
    if answer is None:
        raise BadInputError(f"the extender knows of no pod {where}/{name} with GPUs")
    if "reason" in answer:
        return msgspec.convert(answer, Unreadable), notes
    return msgspec.convert(answer, Explanation), notes


def _from_file(
    path: Path, namespace: str, pod: str, require: Verdict
) -> tuple[Explanation | Unreadable, list[str]]:
    content = cluster_file(path)
    known = described(content, require)
    where, _, name = pod.removeprefix("pod/").rpartition("/")
    if kind_named(where) is not None:
        raise BadInputError(f"{path}: {pod}: a cluster file names pods alone; name the pod")
    snapshot = known.snapshot()
    record = snapshot.pod_named(where or namespace, name)
    if (where or namespace, name) in {(pod.namespace, pod.name) for pod in content.claiming}:
        pod = f"{where or namespace}/{name}"
        raise BadInputError(f"{path}: pod {pod} asks for the GPUs of its claims: {NO_CLAIMS}")
    if record is None:
        there = ((pod.namespace, pod.name) for pod in snapshot.pods)
        meant = pod_meant(where or namespace, name, there)
        raise BadInputError(
            f"{path}: no pod {name} with GPUs in the namespace {where or namespace}{meant}"
        )
    written = content.written.get(record.uid)
    return explanation_of(snapshot, record, written=written), []


def _from_api_server(
    access: Access, namespace: str | None, pod: str, require: Verdict
) -> tuple[Explanation | Unreadable, list[str]]:
    from scheduler_extender.kube.reading import one_look

    with asking(access) as (api, usual):
        about = subject(api, namespace or usual, pod)
        seen = one_look(api, about.record.namespace, Settings(require), time.monotonic)
    record = seen.cluster.pod(about.record.uid) or about.record
    deadline = within(seen.cluster.clock, EXPLAIN_SECONDS)
    snapshot = seen.cluster.snapshot()
    found = explanation_of(snapshot, record, written=about.written, deadline=deadline)
    return found, [*about.beside, *about.notes, *seen.notes]


def show(console: Console, told: Explanation | Unreadable, unblock: str) -> None:
    """Print an answer. ``unblock`` is the command that plans evictions, empty if that cannot be
    asked."""
    console.print(Text(told.pod, "bold"), soft_wrap=False)
    if isinstance(told, Unreadable):
        _line(console, told.headline, "red")
    else:
        _line(console, f"asks for {told.request}")
        _line(
            console, told.headline, "green" if told.placed or told.takes > told.closed else "yellow"
        )
        there = sorted(
            (row for row in told.nodes if row.may_come), key=lambda row: -(row.score or 0)
        )
        if there and told.placed is None:
            _line(console, f"it may go to {listed([row.node for row in there])}")
        for words in told.placed.words[1:] if told.placed else ():
            _line(console, words, "red" if "lack" in words or "not among" in words else "")
        _section(console, "nearest", [f"{near.node}: {near.words}" for near in told.nearest])
        _section(console, "what would help", list(_helps(told, unblock)))
    _section(console, "good to know", told.notes)


def _helps(told: Explanation, unblock: str) -> Iterator[str]:
    for each in told.helps[:SHOWN_HELPS]:
        yield each.words
    if told.unblocks and unblock:
        yield f"a plan of evictions, where there is one: {unblock}"
    if not told.whole:
        yield "there was no time to try out more"


def _section(console: Console, title: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    console.print()
    console.print(Text(title, "bold"))
    for line in lines:
        _line(console, line, indent=2)


def _line(console: Console, words: str, style: str = "", indent: int = 0) -> None:
    """A paragraph that folds between words; a pipe gets it on one line."""
    text = Text(words, style)
    if not console.is_terminal:
        console.print(Text(" " * indent) + text, soft_wrap=True)
    else:
        console.print(Padding(text, (0, 0, 0, indent), expand=False))
