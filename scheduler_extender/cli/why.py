"""``gpu-topology why``: why a pod waits, what would help, and what a placed pod got.

It needs no extender: it reads nodes, pods and records with the caller's own rights and decides with
the extender's code. Binds that are being written only the extender knows; ``--forward`` asks it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer
from msgspec import structs

from scheduler_extender.cli import whytext
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.completion import pod_completions
from scheduler_extender.cli.forwarding import Forwarded, forwarded
from scheduler_extender.cli.inputs import cluster_file, one_of, standard_output, weakest
from scheduler_extender.cli.kubeconfig import Access, asking, usual_namespace
from scheduler_extender.cli.options import (
    PodNamespaceOption,
    RequireOption,
    TextOption,
    Where,
)
from scheduler_extender.cli.source import NO_CLAIMS, described
from scheduler_extender.cli.subject import subject
from scheduler_extender.cli.suggestions import pod_meant
from scheduler_extender.deadline import within
from scheduler_extender.limits import EXPLAIN_SECONDS
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.told.explanation import (
    NOT_ALL_ASKED,
    Explanation,
    Unreadable,
    explanation_of,
)
from topology.core.placement import Verdict


def why(
    pod: Annotated[str, typer.Argument(metavar="POD", hidden=True, autocompletion=pod_completions)],
    namespace: PodNamespaceOption = None,
    output: TextOption = "text",
    require: RequireOption = "expected",
    *,
    where: Where,
) -> None:
    """Say why a pod waits and what would help.

    POD is the name of a pod, or KIND/NAME of what makes pods, such as deployment/train, job/train,
    jobset/train or pytorchjob/train. The command needs a kubeconfig and the rights to list nodes,
    pods and gputopologies, and says what it may not see. Exits with 1 if the pod waits and no node
    takes it.
    """
    as_json = one_of("--output", output, {"text": False, "json": True})
    least, cluster, access = weakest(require), where.cluster, where.access
    if where.forward:
        with forwarded("--forward", access, where.system) as port:
            found, notes = _from_extender(port, access, namespace, pod)
    elif cluster is not None:
        found, notes = _from_file(cluster, namespace or "default", pod, least)
    else:
        found, notes = _from_api_server(access, namespace, pod, least)
    found = structs.replace(found, notes=[*found.notes, *notes])
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        plan = "" if cluster is not None else f"kubectl gpu-topology unblock {found.pod}"
        whytext.show(standard_output(), found, plan)
    nowhere = isinstance(found, Unreadable) or not (found.placed or found.takes > found.closed)
    raise typer.Exit(1 if nowhere and NOT_ALL_ASKED not in found.notes else 0)


def _from_extender(
    port: Forwarded, access: Access, namespace: str | None, pod: str
) -> tuple[Explanation | Unreadable, list[str]]:
    """The extender's answer; the pods of a workload are found at the API server."""
    from scheduler_extender.kube.owners import kind_named

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
