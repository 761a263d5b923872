"""Explains why a pod waits, what would help, and which GPUs a placed pod got.

The command needs no extender: it reads nodes, pods and records with the caller's own rights and
evaluates them with the extender's code. Only the extender knows the binds that are being written;
``--forward`` sends the request to the extender.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import typer
from msgspec import structs
from rich.console import Console
from rich.text import Text

from scheduler_extender.annotations import MANAGED, asks_for_any
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.forwarding import Forwarded, forwarded
from scheduler_extender.cli.inputs import cluster_file, namespace_and_name, no_such_pod, pod_meant
from scheduler_extender.cli.kubeconfig import Access, asking, usual_namespace
from scheduler_extender.cli.options import Form, Where
from scheduler_extender.cli.queries import NO_CLAIMS, Told, described, text_in
from scheduler_extender.clientlimits import EXPLAIN_SECONDS
from scheduler_extender.deadline import within
from scheduler_extender.explain.explanation import (
    Explanation,
    Unreadable,
    explanation_of,
)
from scheduler_extender.explain.placedpod import Written, written_on
from scheduler_extender.explain.wording import CHANGES_NOT_IN_TIME, listed
from scheduler_extender.files.clusterfile import read_pod
from scheduler_extender.files.podnotes import misplaced_keys
from scheduler_extender.files.podtemplates import pods_made_by
from scheduler_extender.kube.owners import kind_named, owners_of, pods_of, workload
from scheduler_extender.kube.reading import one_look
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.pods.record import PodRecord, requesting_record
from scheduler_extender.terminal import paragraph, section
from topology.core.placement import Verdict
from topology.kubeapi.apiserver import ApiError, ApiServer, NotFoundError, path

SHOWN_HELPS = 8


def explain(pod: str, namespace: str | None, require: Verdict, where: Where, form: Form) -> None:
    """Print why a pod waits, or which GPUs it got, and end the command.

    Raises :class:`BadInputError`.
    """
    cluster, access = where.cluster, where.access
    if where.forward:
        with forwarded("--forward", access, where.system) as port:
            explanation, notes = _from_extender(port, access, namespace, pod)
    elif cluster is not None:
        explanation, notes = _from_file(cluster, namespace or "default", pod, require)
    else:
        explanation, notes = _from_api_server(access, namespace, pod, require)
    explanation = structs.replace(explanation, notes=[*explanation.notes, *notes])
    plan = "" if cluster is not None else f"kubectl gpu-topology unblock {explanation.pod}"
    told = Told(
        lambda: explanation,
        [f"pod/{explanation.pod.rpartition('/')[2]}"],
        lambda console, _: show(console, explanation, plan),
        explanation.notes,
    )
    sys.stdout.write(text_in(told, form))
    waits = (
        explanation.node is None
        if isinstance(explanation, Unreadable)
        else not (
            explanation.placed
            or explanation.takes > explanation.ineligible
            or not explanation.evaluated
        )
    )
    raise typer.Exit(1 if waits else 0)


def _from_extender(
    port: Forwarded, access: Access, namespace: str | None, pod: str
) -> tuple[Explanation | Unreadable, list[str]]:
    """Return the extender's answer. The API server finds the pods of a workload."""
    notes: list[str] = []
    where, name = namespace_and_name(pod, namespace or usual_namespace(access))
    if kind_named(pod.rpartition("/")[0]) is not None:
        with asking(access) as (api, usual):
            about = subject(api, namespace or usual, pod)
        where, name = about.record.namespace, about.record.name
        notes = [*about.notes]
    answer = port.get(f"/v1/explain/{quote(where, safe='')}/{quote(name, safe='')}", dict[str, Any])
    if "reason" in answer:
        return msgspec.convert(answer, Unreadable), notes
    return msgspec.convert(answer, Explanation), notes


def _from_file(
    path: Path, namespace: str, pod: str, require: Verdict
) -> tuple[Explanation | Unreadable, list[str]]:
    content = cluster_file(path)
    known = described(content, require)
    where, name = namespace_and_name(pod, namespace)
    if kind_named(where) is not None:
        raise BadInputError(f"{path}: {pod}: a cluster file has no workloads; give a pod's name")
    snapshot = known.snapshot()
    record = snapshot.pod_named(where, name)
    if (where, name) in {(pod.namespace, pod.name) for pod in content.claiming}:
        said = f"pod {where}/{name} requests GPUs through claims"
        raise BadInputError(f"{path}: {said}: {NO_CLAIMS}")
    if record is None:
        raise no_such_pod(f"{path}: ", where, name, snapshot)
    written = content.written.get(record.uid)
    return explanation_of(snapshot, record, written=written), []


def _from_api_server(
    access: Access, namespace: str | None, pod: str, require: Verdict
) -> tuple[Explanation | Unreadable, list[str]]:
    with asking(access) as (api, usual):
        about = subject(api, namespace or usual, pod)
        seen = one_look(api, about.record.namespace, Settings(require), time.monotonic)
    record = seen.cluster.pod(about.record.uid) or about.record
    deadline = within(seen.cluster.clock, EXPLAIN_SECONDS)
    snapshot = seen.cluster.snapshot()
    found = explanation_of(snapshot, record, written=about.written, deadline=deadline)
    return found, [*about.notes, *seen.notes]


def show(console: Console, explanation: Explanation | Unreadable, unblock: str) -> None:
    """Print an answer.

    ``unblock`` is the command that plans evictions; it is empty if no evictions can be planned.
    """
    console.print(Text(explanation.pod, "bold"), soft_wrap=False)
    if isinstance(explanation, Unreadable):
        paragraph(console, explanation.headline, "red")
    else:
        paragraph(console, f"requests {explanation.request_in_words}")
        paragraph(
            console,
            explanation.headline,
            "green"
            if explanation.placed or explanation.takes > explanation.ineligible
            else "yellow",
        )
        there = sorted(
            (row for row in explanation.nodes if row.may_come), key=lambda row: -(row.score or 0)
        )
        if there and explanation.placed is None:
            paragraph(console, f"nodes that would take it: {listed([row.node for row in there])}")
        if explanation.placed is not None:
            for words in explanation.placed.words[1:]:
                paragraph(console, words, "red" if words in explanation.placed.faults else "")
        section(console, "nearest", [f"{near.node}: {near.words}" for near in explanation.nearest])
        section(console, "what would help", list(_helps(explanation, unblock)))
    section(console, "notes", explanation.notes)


def _helps(told: Explanation, unblock: str) -> Iterator[str]:
    yield from (each.words for each in told.helps[:SHOWN_HELPS])
    if told.unblocks and unblock:
        yield f"evictions; {unblock} shows a plan, if one exists"
    if not told.whole:
        yield CHANGES_NOT_IN_TIME


MOST_BRIEF = 10  # other pods of the workload that are named beside the explained pod
TIMEOUT = 10.0  # seconds for one request
# Conditions of a workload that explain why it creates no pods.
TOLD = ("ReplicaFailure", "Suspended", "Failed")


@dataclass(frozen=True, slots=True)
class Subject:
    """The pod that is explained, and its placement annotation.

    ``notes`` name the nodes of its workload's other pods, annotations in the wrong place, and other
    obstacles.
    """

    record: PodRecord
    written: Written | None = None
    notes: Sequence[str] = ()


def subject(api: ApiServer, namespace: str, meant: str) -> Subject:
    """Return the pod that ``meant`` names: NAME, pod/NAME, NAMESPACE/NAME, or a workload KIND/NAME.

    For a workload this is the first pod that waits, else its first pod. If the workload has no
    pods, it is the pod of its template. Raises :class:`BadInputError`, and
    :class:`~topology.kubeapi.apiserver.ApiFailure`.
    """
    word, _, name = meant.rpartition("/")
    kind = kind_named(word)
    if kind is None:
        return _pod(api, *namespace_and_name(meant, namespace))
    made = workload(api, kind, namespace, name)
    pods = [read for raw in pods_of(api, kind, namespace, made) if (read := _read(raw))]
    if not pods:
        return _template(kind.name, namespace, made)
    waiting = [pod for pod in pods if pod[0].node is None and not pod[0].ended]
    chosen, manifest = (waiting or pods)[0]
    others = [pod for pod, _ in pods if pod is not chosen]
    beside = [*_held_up(made)]
    for one in others[:MOST_BRIEF]:
        beside.append(f"{one.name} is on {one.node}" if one.node else f"{one.name} waits, too")
    if len(others) > MOST_BRIEF:
        beside.append(f"{len(others) - MOST_BRIEF} more pods of {meant}")
    found = _subject(api, chosen, manifest)
    return replace(found, notes=[*beside, *found.notes])


def _pod(api: ApiServer, namespace: str, name: str) -> Subject:
    try:
        body = api.get(path("/api/v1/namespaces", namespace, "pods", name), timeout=TIMEOUT)
    except NotFoundError as error:
        meant = pod_meant(namespace, name, _pods(api, namespace, name))
        raise BadInputError(f"there is no pod {namespace}/{name}{meant}") from error
    manifest = msgspec.json.decode(body, type=dict[str, Any])
    read = _read(manifest)
    if read is None:
        told = "; ".join((*_claiming(manifest), *_misplaced(api, namespace, manifest)))
        raise BadInputError(f"pod {namespace}/{name} requests no GPUs{told and f' ({told})'}")
    return _subject(api, *read)


def _pods(api: ApiServer, namespace: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield pods of this name, and some of this namespace, if the caller may list them."""
    everywhere = ("/api/v1/pods", [("fieldSelector", f"metadata.name={name}"), ("limit", "10")])
    here = (path("/api/v1/namespaces", namespace, "pods"), [("limit", "500")])
    for place, query in (everywhere, here):
        with suppress(ApiError):
            found = msgspec.json.decode(api.get(place, query, timeout=TIMEOUT))
            metadata = [item["metadata"] for item in found["items"]]
            yield from ((each["namespace"], each["name"]) for each in metadata)


def _read(manifest: dict[str, Any]) -> tuple[PodRecord, dict[str, Any]] | None:
    """Return the record of a pod and its manifest; None if the pod requests no GPUs.

    Raises :class:`BadInputError`.
    """
    try:
        record = requesting_record(read_pod(manifest), MANAGED)
    except ValueError as error:
        name = (manifest.get("metadata") or {}).get("name", "")
        raise BadInputError(f"pod {name}: {error}") from error
    return None if record is None else (record, manifest)


def _subject(api: ApiServer, record: PodRecord, manifest: dict[str, Any]) -> Subject:
    pod, notes = read_pod(manifest), list(_misplaced(api, record.namespace, manifest))
    gates = [gate for gate in pod.spec.scheduling_gates or () if isinstance(gate, Mapping)]
    if gates and record.node is None:
        told = ", ".join(str(gate.get("name")) for gate in gates[:5])
        notes.insert(0, f"scheduling gates: {told}")
    return Subject(record, written_on(pod), notes)


def _claiming(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield why the extender does not evaluate a pod's claims; nothing for a pod without claims."""
    pod = read_pod(manifest)
    if not pod.spec.resource_claims:
        return
    if asks_for_any(pod, MANAGED):
        yield "its annotations require nothing of its claims' GPUs, so every GPU meets them"
    else:
        yield (
            "kube-scheduler calls the extender for a pod with claims only if a container has the "
            f'limit {MANAGED[0]}: "0"'
        )


def _misplaced(api: ApiServer, namespace: str, manifest: dict[str, Any]) -> Iterator[str]:
    """Yield notes about annotations in the wrong place, on the pod or on its owners."""
    yield from misplaced_keys("Pod", manifest, [])
    for owner in owners_of(api, namespace, manifest):
        yield from misplaced_keys(str(owner["kind"]), {}, [owner.get("metadata")])


def _template(kind: str, namespace: str, made: dict[str, Any]) -> Subject:
    """Return the pod that a workload without pods would create.

    Raises :class:`BadInputError` if its template requests no GPUs.
    """
    name = str((made.get("metadata") or {}).get("name", ""))
    for manifest, outside, _ in pods_made_by(made):
        manifest["metadata"] = {**manifest["metadata"], "namespace": namespace, "uid": ""}
        read = _read(manifest)
        if read is not None:
            said = f"{kind} {name} has no pods; this answer is for its pod template"
            return Subject(
                read[0], None, [said, *_held_up(made), *misplaced_keys(kind, manifest, outside)]
            )
    raise BadInputError(
        f"{kind} {namespace}/{name} has no pods with GPUs, and no pod template that requests GPUs"
    )


def _held_up(made: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a workload creates no (more) pods, from its status: a quota, or a suspension."""
    status = made.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, Mapping) and condition.get("status") == "True":
            kind, message = condition.get("type"), condition.get("message") or ""
            if kind in TOLD:
                yield f"{made.get('kind')} says {kind}: {message}".rstrip(": ")
